"""How much of a plan an inventory holds, counted for all units at once: no object for each unit or evaluation."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robust201.planning.plan import PlannedKey
from robust201.shards import Inventory
from robust201.shards.inventory import columns_needed


class Coverage(NamedTuple):
    """How many evaluations of each unit of a key are complete, and which have rows; in the order of its networks."""

    planned: PlannedKey
    complete: NDArray[np.int64]
    held: NDArray[np.bool_]

    @property
    def unfinished(self) -> list[int]:
        return list(np.flatnonzero(self.complete < len(self.planned.strengths)).tolist())


class PlannedUnits(Protocol):
    """What counting needs of a plan (see `planning.plan.Plan`)."""

    @property
    def planned_keys(self) -> tuple[PlannedKey, ...]:
        """Units by dataset and key."""

    @property
    def unit_ids(self) -> NDArray[np.bytes_]:
        """Ids of the units, in their order."""

    @property
    def measurements(self) -> tuple[str, ...]:
        """Names of the measurements of answers to images."""


def count_coverage(plan: PlannedUnits, inventory: Inventory) -> Iterator[Coverage]:
    """Count what is complete of every key of a plan, with the plan's measurements."""
    numbers = inventory.find(plan.unit_ids)
    counts: dict[tuple[Any, ...], NDArray[np.int64]] = {}  # most keys of an experiment have equal strengths
    first = 0
    for planned in plan.planned_keys:
        found = numbers[first : first + len(planned.networks)]
        first += len(planned.networks)
        columns = columns_needed(planned.unit(0), plan.measurements)
        kind = planned.strengths, columns
        if kind not in counts:
            # The last of the counts stands for the units without a row, whose number is -1.
            counts[kind] = np.append(inventory.count_complete_at(*kind), 0)
        yield Coverage(planned, counts[kind][found], found >= 0)
