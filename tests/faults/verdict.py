"""Checks after a fault: results are complete, exports are equal, and no processes or files remain."""

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
from robust201.store.folder import ResultsFolder
from robust201.sweep.facts import load_plan as load_new_plan
from robust201.sweep.plan import make_plan
from tests.conftest import read_tree
from tests.faults.trial import INLINE, Trial, stray_files

_TWO_DAYS = 2 * 24 * 3600.0


def export(results: Path, out: Path, *, partial: bool = False) -> dict[str, bytes]:
    """Export a results folder, and return the contents of the exported files."""
    folder = ResultsFolder.open(results)
    plan = make_plan(*load_new_plan(results), folder.slices)
    export_dataset(plan, folder, out, partial=partial)
    return read_tree(out)


def check_sweep(trial: Trial, *, allows_small_differences: bool = False, allows_duplicate_rows: bool = False) -> None:
    """Check a trial's results after its last command has ended and its sweep is complete.

    Args:
        trial: the trial.
        allows_small_differences: allow counts to differ by one image per strength and confidences by 1e-3. This is
            needed if micro-batches were halved.
        allows_duplicate_rows: allow duplicate rows. This is needed if a worker was disconnected or its driver was
            replaced, because such a worker continues for a while.
    """
    trial.wait_for_end()
    _check_shards(trial.results, allows_duplicate_rows=allows_duplicate_rows)
    actual_files = export(trial.results, trial.folder / "json")
    file_names = trial.expected_files.keys() | actual_files.keys()
    differing_files = [name for name in file_names if trial.expected_files.get(name) != actual_files.get(name)]
    if allows_small_differences:
        assert trial.expected_files.keys() == actual_files.keys()
        for name in differing_files:
            if "/" in name and name.endswith(".json"):
                _check_nearly_equal(name, trial.expected_files[name], actual_files[name])
    else:
        assert not differing_files, f"the export differs: {sorted(differing_files)}"
    assert not (trial.results / "lease.json").exists(), "a lease remains"
    # Temporary files of killed processes may remain for a day. After that, the next run must remove them.
    if strays := stray_files(trial.results):
        trial.injection_counts["stray files left for a day"] += len(strays)
        make_old(strays)
        trial.run(*INLINE)
        assert stray_files(trial.results) == []


def _check_shards(results: Path, *, allows_duplicate_rows: bool) -> None:
    store, plan = ShardStore.open(results), load_plan(results)
    inventory = store.inventory(verify="all", on_damage="report")
    assert not inventory.damaged
    assert store.verify(inventory) == []
    missing_parts = [
        part.label for unit in plan.units for part in inventory.find_missing_parts(unit, plan.measurements)
    ]
    assert not missing_parts, f"missing: {missing_parts}"
    columns = [inventory.row_column(name).tolist() for name in ("unit", "strength", "start", "stop")]
    row_counts = Counter(zip(*columns, strict=True))
    assert allows_duplicate_rows or set(row_counts.values()) == {1}, f"duplicate rows: {row_counts.most_common(3)}"


def _check_nearly_equal(name: str, expected: bytes, actual: bytes) -> None:
    """Check that two results files differ by at most one image per strength, or by 1e-3 in a confidence."""
    expected_numbers, numbers = (np.array(_flatten(json.loads(content))) for content in (expected, actual))
    # Accuracies are fractions of 20 images, so one image changes them by 0.05. Confusion matrices count images.
    tolerance = 1e-3 if "confidence" in name else 1.0 if "_cm" in name else 0.05 + 1e-9
    assert expected_numbers.shape == numbers.shape
    assert np.nanmax(np.abs(expected_numbers - numbers)) <= tolerance, f"{name} differs by more than {tolerance:g}"


def _flatten(value: Any) -> list[float]:
    if isinstance(value, Mapping):
        return [number for name in sorted(value) for number in _flatten(value[name])]
    if isinstance(value, list):
        return [number for item in value for number in _flatten(item)]
    return [float("nan") if value is None else float(value)] if isinstance(value, int | float | None) else []


def make_old(paths: Iterable[Path]) -> None:
    """Set the modification times of files to two days ago, so that the next run removes them."""
    long_ago = time.time() - _TWO_DAYS
    for path in paths:
        os.utime(path, (long_ago, long_ago))
