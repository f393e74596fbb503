"""Checks after every fault: complete results without duplicates, equal exports, and no remaining processes or files."""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robust201.export import export_dataset
from robust201.planning.plan_file import load_plan
from robust201.shards import ShardStore
from tests.conftest import read_tree
from tests.faults.trial import INLINE, Trial, stray_files

_TWO_DAYS = 2 * 24 * 3600.0


def export(results: Path, out: Path, *, partial: bool = False) -> dict[str, bytes]:
    """Export a results folder and return the exported files."""
    store = ShardStore.open(results)
    export_dataset(load_plan(results), store, store.inventory(verify="all", on_damage="raise"), out, partial=partial)
    return read_tree(out)


def check_sweep(trial: Trial, *, tolerant: bool = False, may_duplicate: bool = False) -> None:
    """Check a trial's results after its last command has ended and its sweep is complete.

    Args:
        trial: the trial.
        tolerant: allow counts to differ by one image per strength and confidences by 1e-3 (micro-batches were halved).
        may_duplicate: allow duplicate rows, because a worker that was disconnected, or whose driver was replaced,
            continues for a while.
    """
    trial.wait_for_end()
    _check_shards(trial.results, may_duplicate=may_duplicate)
    exported = export(trial.results, trial.folder / "json")
    names = trial.undisturbed.keys() | exported.keys()
    differing = [name for name in names if trial.undisturbed.get(name) != exported.get(name)]
    if tolerant:
        assert trial.undisturbed.keys() == exported.keys()
        for name in differing:
            if "/" in name and name.endswith(".json"):
                _check_nearly_equal(name, trial.undisturbed[name], exported[name])
    else:
        assert not differing, f"the export differs: {sorted(differing)}"
    assert not (trial.results / "lease.json").exists(), "a lease remains"
    # Files of killed processes may remain for a day; the next run after that must remove them.
    if strays := stray_files(trial.results):
        trial.injected["stray files left for a day"] += len(strays)
        age(strays)
        trial.run(*INLINE)
        assert stray_files(trial.results) == []


def _check_shards(results: Path, *, may_duplicate: bool) -> None:
    store, plan = ShardStore.open(results), load_plan(results)
    inventory = store.inventory(verify="all", on_damage="report")
    assert not inventory.damaged
    assert store.verify(inventory) == []
    missing = [part.label for unit in plan.units for part in inventory.missing(unit, plan.measurements)]
    assert not missing, f"missing: {missing}"
    columns = [inventory.row_column(name).tolist() for name in ("unit", "strength", "start", "stop")]
    counts = Counter(zip(*columns, strict=True))
    assert may_duplicate or set(counts.values()) == {1}, f"duplicate rows: {counts.most_common(3)}"


def _check_nearly_equal(name: str, expected: bytes, result: bytes) -> None:
    """Check that a results file differs by at most one image per strength, or 1e-3 in a confidence."""
    before, after = (np.array(_numbers(json.loads(content))) for content in (expected, result))
    # Accuracies are fractions of 20 images, so one image is 0.05; confusion matrices count images.
    allowed = 1e-3 if "confidence" in name else 1.0 if "_cm" in name else 0.05 + 1e-9
    assert before.shape == after.shape
    assert np.nanmax(np.abs(before - after)) <= allowed, f"{name} differs by more than {allowed:g}"


def _numbers(value: Any) -> list[float]:
    if isinstance(value, Mapping):
        return [number for name in sorted(value) for number in _numbers(value[name])]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [float("nan") if value is None else float(value)] if isinstance(value, int | float | None) else []


def age(paths: Iterable[Path]) -> None:
    """Set the modification times of files to two days ago, so that the next run treats them as leftovers."""
    long_ago = time.time() - _TWO_DAYS
    for path in paths:
        os.utime(path, (long_ago, long_ago))
