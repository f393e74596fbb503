"""Comparison of a plan with the results in an inventory, and a preview of what a run will compute."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import ArchitectureId, Part
from robust201.planning.identity import describe_difference
from robust201.planning.plan import Plan, PlannedKey, is_sampled
from robust201.planning.samples import SAMPLE_FILE
from robust201.runtime.progress import count_evaluations
from robust201.shards import Inventory
from robust201.shards.inventory import required_unit_columns
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
        columns = required_unit_columns(planned.unit(0), plan.measurements)
        query = planned.strengths, columns
        if query not in counts:
            # Units without rows have the number -1, which indexes the appended zero.
            counts[query] = np.append(inventory.count_complete_at(*query), 0)
        yield Coverage(planned, counts[query][unit_numbers], unit_numbers >= 0)


def count_done(plan: Plan, inventory: Inventory) -> Counter[tuple[str, str]]:
    """Count the evaluations that are complete, by dataset and key, those of samples with all their increments."""
    done: Counter[tuple[str, str]] = Counter()
    pieces: defaultdict[tuple[str, str, ArchitectureId], list[tuple[int, PlannedKey, int]]] = defaultdict(list)
    for covered in count_coverage(plan, inventory):
        planned = covered.planned
        if not is_sampled(plan, planned):
            done[planned.dataset, planned.key] += int(covered.complete.sum())
            continue
        for position, count in enumerate(covered.complete.tolist()):
            network = planned.networks[position]
            pieces[planned.dataset, planned.key, network.architecture].append((count, planned, position))
    for (dataset, key, _), increments in pieces.items():
        done[dataset, key] += _count_shared(increments, plan, inventory)
    return done


def _count_shared(increments: list[tuple[int, PlannedKey, int]], plan: Plan, inventory: Inventory) -> int:
    """Count the strengths at which all increments of a network are complete."""
    least, strengths = min(count for count, _, _ in increments), increments[0][1].strengths
    if least in (0, len(strengths)) or len(increments) == 1:
        return least
    units = [planned.unit(position) for _, planned, position in increments]
    return sum(all(inventory.is_complete(unit, s, plan.measurements) for unit in units) for s in strengths)


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
    return RunPreview(
        plan,
        missing,
        plan.n_evaluations - count_evaluations(missing),
        tuple(inventory.damaged),
        tuple(explain_stale(full, inventory)),
    )


def explain_stale(plan: Plan, inventory: Inventory) -> Iterator[str]:
    """Yield a line per key about results with other protocols or checkpoints, which names the differing fields."""
    by_key: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for protocol in plan.protocols.values():
        by_key[protocol.payload["dataset"], protocol.payload["key"]].append(protocol.payload)
    stale: list[tuple[int, str, str, int]] = []
    on_samples: Counter[str] = Counter()
    order = list(TASKS)
    for digest, count in inventory.foreign(plan.useful_ids).items():
        if digest in plan.protocols:
            reason = "another checkpoint, or architectures outside this sweep"
            key = plan.protocols[digest].payload["key"]
        else:
            payload = inventory.protocol(digest)
            key = payload.get("key", "?")
            if "sample_of" in payload.get("images", ()):
                on_samples[key] += count
                continue
            current = by_key.get((payload.get("dataset", "?"), key))
            reason = "; ".join(describe_difference(payload, current[0])) if current else "a key outside this sweep"
        stale.append((order.index(key) if key in order else len(order), key, reason, count))
    for _, key, reason, count in sorted(stale):
        yield f"{count:,} evaluations of {key} are kept but not used: {reason}"
    if on_samples:
        keys = ", ".join(sorted(on_samples))
        yield f"{on_samples.total():,} evaluations on samples ({keys}) are kept but not used: {_why_no_sample(plan)}"


def _why_no_sample(plan: Plan) -> str:
    """Say why results on samples are none of a plan's."""
    if plan.config.sampling is None:
        return "the sweep has no section sampling"
    if plan.facts.samples is None:
        return f"{SAMPLE_FILE} is gone, and they are used again if the same samples are drawn from the pilot"
    return f"their images are not those of {SAMPLE_FILE}"
