"""Outcomes by image of stored evaluations, from their predicted classes."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import Unit
from robust201.shards.inventory import Inventory
from robust201.shards.store import ShardStore
from robust201.tasks.columns import PREDICTIONS


def read_outcomes(
    store: ShardStore, inventory: Inventory, unit: Unit, labels: NDArray[np.int64], measurements: Collection[str]
) -> NDArray[np.bool_]:
    """Read whether each image was classified correctly: (S, N), by strength and position.

    Raises IncompleteError where images are missing, and as `ShardStore.values` does.
    """
    predicted = [store.values(unit, strength, inventory, measurements)[PREDICTIONS] for strength in unit.strengths]
    return np.stack(predicted) == labels


def read_all_outcomes(
    store: ShardStore,
    inventory: Inventory,
    units: Sequence[Unit],
    labels: NDArray[np.int64],
    measurements: Collection[str],
) -> NDArray[np.bool_]:
    """Read the outcomes of several networks: (P, S, N)."""
    return np.stack([read_outcomes(store, inventory, unit, labels, measurements) for unit in units])
