"""Comparison of a plan with the results in an inventory, and a preview of what a run will compute."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import Part
from robust201.planning.identity import describe_difference
from robust201.planning.plan import Plan, PlannedKey
from robust201.shards import Inventory
from robust201.shards.inventory import columns_needed
from robust201.tasks import TASKS


class Coverage(NamedTuple):
    """Number of complete evaluations (`complete`) of each unit of a key, and whether it has any rows (`held`).

    Both are in the order of the key's networks.
    """

    planned: PlannedKey
    complete: NDArray[np.int64]
    held: NDArray[np.bool_]

    @property
    def unfinished(self) -> list[int]:
        return list(np.flatnonzero(self.complete < len(self.planned.strengths)).tolist())


def count_coverage(plan: Plan, inventory: Inventory) -> Iterator[Coverage]:
    """Count the evaluations of each key of a plan that are complete with the plan's measurements."""
    numbers = inventory.find(plan.unit_ids)
    counts: dict[tuple[Any, ...], NDArray[np.int64]] = {}  # shared, because most keys have the same strengths
    first = 0
    for planned in plan.planned_keys:
        unit_numbers = numbers[first : first + len(planned.networks)]
        first += len(planned.networks)
        columns = columns_needed(planned.unit(0), plan.measurements)
        query = planned.strengths, columns
        if query not in counts:
            # Units without rows have the number -1, which indexes the appended zero.
            counts[query] = np.append(inventory.count_complete_at(*query), 0)
        yield Coverage(planned, counts[query][unit_numbers], unit_numbers >= 0)


@dataclass(frozen=True)
class RunPreview:
    """Summary of a run before it starts.

    Attributes:
        plan: units of this run, after filtering.
        missing: parts that have to be computed.
        done: number of evaluations that are already complete.
        damaged: shards that were set aside.
        stale: descriptions of results in the folder that this plan cannot use, one line each.
    """

    plan: Plan
    missing: tuple[Part, ...]
    done: int
    damaged: tuple[str, ...]
    stale: tuple[str, ...]


def preview_run(plan: Plan, full: Plan, inventory: Inventory) -> RunPreview:
    """Find the missing parts of a filtered `plan`; results of the `full` plan do not count as stale."""
    missing = tuple(
        part
        for covered in count_coverage(plan, inventory)
        for position in covered.unfinished
        for part in inventory.missing(covered.planned.unit(position), plan.measurements)
    )
    missing_strengths = {(part.unit.id, strength) for part in missing for strength in part.strengths}
    return RunPreview(
        plan,
        missing,
        plan.n_evaluations - len(missing_strengths),
        tuple(inventory.damaged),
        tuple(explain_stale(full, inventory)),
    )


def explain_stale(plan: Plan, inventory: Inventory) -> Iterator[str]:
    """Yield a line per key about results with other protocols or checkpoints, which names the differing fields."""
    by_key: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for protocol in plan.protocols.values():
        by_key[protocol.payload["dataset"], protocol.payload["key"]].append(protocol.payload)
    stale: list[tuple[int, str, str, int]] = []
    order = list(TASKS)
    for digest, count in inventory.foreign(plan.useful_ids).items():
        if digest in plan.protocols:
            reason = "another checkpoint, or architectures outside this sweep"
            key = plan.protocols[digest].payload["key"]
        else:
            payload = inventory.protocol(digest)
            key = payload.get("key", "?")
            current = by_key.get((payload.get("dataset", "?"), key))
            reason = "; ".join(describe_difference(payload, current[0])) if current else "a key outside this sweep"
        stale.append((order.index(key) if key in order else len(order), key, reason, count))
    for _, key, reason, count in sorted(stale):
        yield f"{count:,} evaluations of {key} are kept but not used: {reason}"
