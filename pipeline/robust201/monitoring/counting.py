"""What is done of a plan, counted from the shards; what did not change is not counted again."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robust201.core.files import is_amount
from robust201.core.records import Part, Unit
from robust201.planning.plan import Plan
from robust201.planning.shares import share_folders
from robust201.runtime.progress import FAILURES_FILE
from robust201.shards import Inventory

_TEXTS_OF_A_FAILURE = ("unit", "label", "kind", "message")


@dataclass(frozen=True)
class EvaluationCount:
    """What is done of a plan.

    Attributes:
        done: evaluations by dataset and key.
        stale: evaluations in the folder that the plan does not use.
        macs_left: estimated multiply-accumulates of what is missing.
        pending_units: units of which something is missing.
        done_units: evaluations of the other units, by dataset and key.
    """

    done: Mapping[tuple[str, str], int]
    stale: int
    macs_left: float
    pending_units: tuple[Unit, ...]
    done_units: Mapping[tuple[str, str], int]


class EvaluationCounter:
    """Counts a plan's evaluations again and again."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._units = {unit.id: unit for unit in plan.units}
        # What identified the state of the results folder (shards, damaged ones, rows), and its count.
        self._before: tuple[tuple[str, ...], tuple[str, ...], int, EvaluationCount] | None = None

    def count(self, inventory: Inventory) -> EvaluationCount:
        """Count what is done.

        Units that were complete stay so unless shards were damaged or taken away.
        """
        before = None
        if self._before is not None:
            shards, damaged, n_rows, last = self._before
            if (shards, damaged) == (inventory.shards, inventory.damaged):
                return last
            before = last if damaged == inventory.damaged and len(inventory) >= n_rows else None
        found = self._count(inventory, before)
        self._before = inventory.shards, inventory.damaged, len(inventory), found
        return found

    def _count(self, inventory: Inventory, before: EvaluationCount | None) -> EvaluationCount:
        plan = self._plan
        done_units = Counter[tuple[str, str]]() if before is None else Counter(before.done_units)
        done: Counter[tuple[str, str]] = Counter()
        pending: list[Unit] = []
        macs_left = 0.0
        for unit in plan.units if before is None else before.pending_units:
            if not inventory.holds(unit):  # most units of a sweep that has begun
                pending.append(unit)
                macs_left += plan.macs(Part(unit, unit.strengths, 0, unit.n_images))
                continue
            if inventory.count_complete(unit, plan.measurements) == len(unit.strengths):
                done_units[unit.dataset, unit.key] += len(unit.strengths)
                continue
            missing = inventory.missing(unit, plan.measurements)
            pending.append(unit)
            macs_left += sum(map(plan.macs, missing))
            lacking = {strength for part in missing for strength in part.strengths}
            done[unit.dataset, unit.key] += len(unit.strengths) - len(lacking)
        return EvaluationCount(
            done=done + done_units,
            stale=sum(inventory.foreign(self._units.keys()).values()),
            macs_left=macs_left,
            pending_units=tuple(pending),
            done_units=done_units,
        )

    def pending_failures(self, inventory: Inventory) -> tuple[dict[str, Any], ...]:
        """Failures of the last run and of every share, without those that another run has made good, each once."""
        results, measurements = self._plan.config.results, self._plan.measurements
        found = {
            (failure["label"], *failure["strengths"]): failure
            for folder in (results, *share_folders(results))
            for failure in _read_failures(folder)
        }
        return tuple(
            failure
            for failure in found.values()
            if (unit := self._units.get(failure["unit"])) is None
            or not all(inventory.is_complete(unit, strength, measurements) for strength in failure["strengths"])
        )


def _read_failures(folder: Path) -> list[dict[str, Any]]:
    path = folder / FAILURES_FILE
    failures = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            failure = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a driver killed in the middle of a line; its unit is still missing and is counted as such
        if _is_failure(failure):
            failures.append(failure)
    return failures


def _is_failure(value: object) -> bool:
    """Whether a line of JSON is what `runtime.progress.Tracker` writes of a failure."""
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in _TEXTS_OF_A_FAILURE)
        and isinstance(value.get("strengths"), list)
        and all(map(is_amount, value["strengths"]))
    )
