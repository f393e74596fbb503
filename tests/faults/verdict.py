"""What every fault must leave: all evaluations once, the bytes of an undisturbed run, no process and no stray file."""

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
from robust201.shards import Inventory, ShardStore
from tests.conftest import read_tree
from tests.faults.processes import remaining
from tests.faults.trial import Trial, stray_files

GRACE_SECONDS = 180.0
"""Time in which all processes of a trial must have ended: Ray's agents look for a head that was killed for so long."""

_TWO_DAYS = 2 * 24 * 3600.0


def export(results: Path, out: Path, *, partial: bool = False) -> dict[str, bytes]:
    """Export a results folder and read what was written."""
    store = ShardStore.open(results)
    export_dataset(load_plan(results), store, store.inventory(verify="all", on_damage="raise"), out, partial=partial)
    return read_tree(out)


def judge(trial: Trial, *, tolerant: bool = False, may_duplicate: bool = False) -> list[str]:
    """Look at what a trial left, once its last command has ended.

    Args:
        trial: whose sweep is complete.
        tolerant: counts may differ by one image a strength and confidences by 1e-3 (micro-batches were halved).
        may_duplicate: equal rows may lie there twice, and then count once: a worker that was cut off, or whose driver
            was replaced, goes on for a while.

    Returns:
        Problems, those that the trial noted itself first; empty if there are none.
    """
    problems = remaining(trial.mark, GRACE_SECONDS, trial.watch)
    problems += _problems_of_shards(trial.results, may_duplicate=may_duplicate)
    if not any("missing" in problem for problem in problems):
        exported = export(trial.results, trial.folder / "json")
        compare = compare_nearly if tolerant else compare_bytes
        problems += compare(trial.undisturbed, exported)
    problems += _problems_of_files(trial)
    return trial.problems + problems


def _problems_of_shards(results: Path, *, may_duplicate: bool) -> list[str]:
    store, plan = ShardStore.open(results), load_plan(results)
    inventory = store.inventory(verify="all", on_damage="report")
    problems = [f"damaged shard left: {shard}" for shard in inventory.damaged]
    problems += [f"{finding.kind}: {finding.message}" for finding in store.verify(inventory)]
    for unit in plan.units:
        for part in inventory.missing(unit, plan.measurements):
            problems.append(f"missing: {part.label} at {part.strengths}")
    if not may_duplicate:
        problems += [f"{count} live rows of one evaluation: {row}" for row, count in _live_rows(inventory) if count > 1]
    return problems


def _live_rows(inventory: Inventory) -> list[tuple[tuple[Any, ...], int]]:
    """Every (unit, strength, image range) among the shards that count, and how often it is there."""
    columns = [inventory.row_column(name).tolist() for name in ("unit", "strength", "start", "stop")]
    return list(Counter(zip(*columns, strict=True)).items())


def compare_bytes(expected: Mapping[str, bytes], found: Mapping[str, bytes]) -> list[str]:
    """Name the files of two exports that differ in a byte, or are in one only."""
    names = sorted(expected.keys() | found.keys())
    return [f"export differs: {name}" for name in names if expected.get(name) != found.get(name)]


def compare_nearly(expected: Mapping[str, bytes], found: Mapping[str, bytes]) -> list[str]:
    """Name the files of results that differ by more than one image a strength, or 1e-3 of a confidence."""
    problems = [f"export lacks or adds {name}" for name in sorted(expected.keys() ^ found.keys())]
    for name in sorted(expected.keys() & found.keys()):
        if "/" in name and name.endswith(".json") and expected[name] != found[name]:
            before, after = (np.array(_numbers(json.loads(tree[name]))) for tree in (expected, found))
            # Accuracies are fractions of 20 images, so one image is 0.05; confusion matrices count images.
            allowed = 1e-3 if "confidence" in name else 1.0 if "_cm" in name else 0.05 + 1e-9
            if before.shape != after.shape or np.nanmax(np.abs(before - after)) > allowed:
                problems.append(f"export differs by more than {allowed:g}: {name}")
    return problems


def _numbers(value: Any) -> list[float]:
    if isinstance(value, Mapping):
        return [number for name in sorted(value) for number in _numbers(value[name])]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [float("nan") if value is None else float(value)] if isinstance(value, int | float | None) else []


def age(strays: Iterable[Path]) -> None:
    """Make files look two days old, so that the next run takes them for leftovers."""
    long_ago = time.time() - _TWO_DAYS
    for path in strays:
        os.utime(path, (long_ago, long_ago))


def _problems_of_files(trial: Trial) -> list[str]:
    """Files of the killed may lie there for a day; the next run after that must take them away."""
    problems = [f"{name} left" for name in ("lease.json",) if (trial.results / name).exists()]
    strays = stray_files(trial.results)
    trial.injected["stray files left for a day"] += len(strays)
    if strays:
        age(strays)
        command = trial.start_run("--executor", "inline")
        trial.fail_unless(command.wait() == 0, f"a run of the finished sweep failed: {command.text()[-300:]}")
        problems += [f"stays for ever: {path.name}" for path in stray_files(trial.results)]
    return problems
