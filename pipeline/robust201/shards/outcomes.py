"""Per-image outcomes of stored evaluations, computed from their predicted classes."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import Unit
from robust201.shards.inventory import Inventory
from robust201.shards.store import ShardStore
from robust201.tasks.columns import PREDICTIONS


def read_outcomes(
    store: ShardStore, inventory: Inventory, unit: Unit, labels: NDArray[np.int64], measurements: Collection[str]
) -> NDArray[np.bool_]:
    """Return whether each image is classified correctly, as booleans (S, N) for S strengths and N images.

    Raises IncompleteError if images are missing, and the errors of `ShardStore.values`.
    """
    predicted = [store.values(unit, strength, inventory, measurements)[PREDICTIONS] for strength in unit.strengths]
    outcomes: NDArray[np.bool_] = np.stack(predicted) == labels
    return outcomes
