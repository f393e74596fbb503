"""What is done of a plan, counted from the shards."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robust201.core.files import IrregularFileError, is_amount, read_file
from robust201.planning.plan import Plan
from robust201.planning.shares import share_folders
from robust201.runtime.preview import count_coverage
from robust201.runtime.progress import FAILURES_FILE
from robust201.shards import Inventory

_TEXTS_OF_A_FAILURE = ("unit", "label", "kind", "message")
_MAX_FAILURES_BYTES = 1 << 30


@dataclass(frozen=True)
class EvaluationCount:
    """What is done of a plan.

    Attributes:
        done: evaluations by dataset and key.
        stale: evaluations in the folder that the plan does not use.
        macs_left: estimated multiply-accumulates of what is missing.
    """

    done: Mapping[tuple[str, str], int]
    stale: int
    macs_left: float


class EvaluationCounter:
    """Counts a plan's evaluations again and again."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # What identified the state of the results folder (shards and damaged ones), and its count.
        self._before: tuple[tuple[str, ...], tuple[str, ...], EvaluationCount] | None = None

    def count(self, inventory: Inventory) -> EvaluationCount:
        """Count what is done; nothing where no shard came or went."""
        if self._before is None or self._before[:2] != (inventory.shards, inventory.damaged):
            self._before = inventory.shards, inventory.damaged, self._count(inventory)
        return self._before[2]

    def _count(self, inventory: Inventory) -> EvaluationCount:
        plan = self._plan
        done: Counter[tuple[str, str]] = Counter()
        macs_left = 0.0
        for covered in count_coverage(plan, inventory):
            planned, unfinished = covered.planned, covered.unfinished
            done[planned.dataset, planned.key] += int(covered.complete.sum())
            macs = plan.unit_macs(planned) if unfinished else []
            for position in unfinished:
                if covered.held[position]:
                    missing = inventory.missing(planned.unit(position), plan.measurements)
                    macs_left += sum(map(plan.macs, missing))
                else:  # most units of a sweep that has begun
                    macs_left += macs[position]
        return EvaluationCount(done, sum(inventory.foreign(plan.unit_ids).values()), macs_left)

    def pending_failures(self, inventory: Inventory) -> tuple[dict[str, Any], ...]:
        """Failures of the last run and of every share, without those that another run has made good, each once."""
        results, measurements = self._plan.config.results, self._plan.measurements
        found = {
            (failure["label"], *failure["strengths"]): failure
            for folder in (results, *share_folders(results))
            for failure in read_failures(folder)
        }
        units = self._plan.find_units({failure["unit"] for failure in found.values()})
        return tuple(
            failure
            for failure in found.values()
            if (unit := units.get(failure["unit"])) is None
            or not all(inventory.is_complete(unit, strength, measurements) for strength in failure["strengths"])
        )


def read_failures(folder: Path) -> list[dict[str, Any]]:
    """Read what the last driver or share in a folder wrote of failures; without lines that are damaged."""
    try:
        content = read_file(folder / FAILURES_FILE, _MAX_FAILURES_BYTES)
    except (FileNotFoundError, IsADirectoryError, IrregularFileError):
        return []
    failures = []
    for line in content.decode(errors="replace").splitlines():
        try:
            failure = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a driver killed in the middle of a line; its unit is still missing and is counted as such
        if _is_failure(failure):
            failures.append(failure)
    return failures


def _is_failure(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), str) for name in _TEXTS_OF_A_FAILURE)
        and isinstance(value.get("strengths"), list)
        and all(map(is_amount, value["strengths"]))
    )
