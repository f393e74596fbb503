"""Compares a plan with the results in an inventory, and previews the work of a run.

An inventory lists the rows of all shards (files with finished results) of a results folder. A unit is one network on
one dataset under one key; it has one evaluation per strength.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import Part
from robust201.planning.identity import describe_difference
from robust201.planning.plan import Plan, PlannedKey
from robust201.runtime.progress import count_evaluations
from robust201.shards import Inventory
from robust201.shards.inventory import required_unit_columns
from robust201.tasks import TASKS


class Coverage(NamedTuple):
    """Existing results under a key of a plan; both arrays have one value per network of the key, in the same order.

    Attributes:
        planned_key: the key.
        complete_counts: number of complete evaluations of each network's unit.
        has_rows: whether the store contains any rows of each network's unit.
    """

    planned_key: PlannedKey
    complete_counts: NDArray[np.int64]
    has_rows: NDArray[np.bool_]

    @property
    def unfinished(self) -> list[int]:
        """Positions of the networks with missing evaluations."""
        return list(np.flatnonzero(self.complete_counts < len(self.planned_key.strengths)).tolist())


def count_coverage(plan: Plan, inventory: Inventory) -> Iterator[Coverage]:
    """Count the complete evaluations under each key of a plan; an evaluation is complete if it has all measurements."""
    unit_indices = inventory.find_units(plan.unit_ids)
    complete_counts: dict[tuple[Any, ...], NDArray[np.int64]] = {}  # a cache: most keys have the same strengths
    n_earlier_units = 0
    for planned_key in plan.planned_keys:
        key_indices = unit_indices[n_earlier_units : n_earlier_units + len(planned_key.networks)]
        n_earlier_units += len(planned_key.networks)
        columns = required_unit_columns(planned_key.unit(0), plan.measurements)
        query = planned_key.strengths, columns
        if query not in complete_counts:
            # Units without rows have the index -1, which selects the appended zero.
            complete_counts[query] = np.append(inventory.count_complete_at(*query), 0)
        yield Coverage(planned_key, complete_counts[query][key_indices], key_indices >= 0)


def count_done(plan: Plan, inventory: Inventory) -> Counter[tuple[str, str]]:
    """Count the complete evaluations by dataset and key."""
    n_complete: Counter[tuple[str, str]] = Counter()
    for coverage in count_coverage(plan, inventory):
        n_complete[coverage.planned_key.dataset, coverage.planned_key.key] += int(coverage.complete_counts.sum())
    return n_complete


@dataclass(frozen=True)
class RunPreview:
    """Summary of a run before it starts.

    Attributes:
        plan: the plan of this run, after filtering.
        missing: parts that have to be computed.
        done: number of evaluations that are already complete.
        damaged: names of damaged shards, which were moved out of the store.
        stale: descriptions of results in the folder that the unfiltered plan does not use, one line each.
    """

    plan: Plan
    missing: tuple[Part, ...]
    done: int
    damaged: tuple[str, ...]
    stale: tuple[str, ...]


def preview_run(plan: Plan, full_plan: Plan, inventory: Inventory) -> RunPreview:
    """Find the missing parts of a filtered `plan`, and stale results, which the unfiltered `full_plan` does not use."""
    missing = tuple(
        part
        for coverage in count_coverage(plan, inventory)
        for position in coverage.unfinished
        for part in inventory.find_missing_parts(coverage.planned_key.unit(position), plan.measurements)
    )
    return RunPreview(
        plan,
        missing,
        plan.n_evaluations - count_evaluations(missing),
        tuple(inventory.damaged),
        tuple(explain_stale(full_plan, inventory)),
    )


def explain_stale(plan: Plan, inventory: Inventory) -> Iterator[str]:
    """Yield a line for each group of results that a plan does not use: their number, their key and the reason."""
    payloads_by_key: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for protocol in plan.protocols.values():
        payloads_by_key[protocol.payload["dataset"], protocol.payload["key"]].append(protocol.payload)
    stale_results: list[tuple[int, str, str, int]] = []
    key_order = list(TASKS)
    for digest, count in inventory.count_foreign_evaluations(plan.unit_ids).items():
        if digest in plan.protocols:
            reason = "another checkpoint, or architectures outside this sweep"
            key = plan.protocols[digest].payload["key"]
        else:
            payload = inventory.protocol(digest)
            key = payload.get("key", "?")
            current_payloads = payloads_by_key.get((payload.get("dataset", "?"), key))
            reason = (
                "; ".join(describe_difference(payload, current_payloads[0]))
                if current_payloads
                else "a key outside this sweep"
            )
        stale_results.append((key_order.index(key) if key in key_order else len(key_order), key, reason, count))
    for _, key, reason, count in sorted(stale_results):
        subject = f"1 evaluation of {key} is" if count == 1 else f"{count:,} evaluations of {key} are"
        yield f"{subject} kept but not used: {reason}"
