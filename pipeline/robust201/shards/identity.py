"""What a row of a shard says of itself, apart from what it measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class UnitFacts(NamedTuple):
    """What a shard says of a unit."""

    id: str
    architecture: int
    dataset: str
    key: str
    protocol: str
    n_images: int


@dataclass(frozen=True, eq=False)
class Rows:
    """Identity of the rows of one shard, in file order.

    Attributes:
        units: the units in the shard.
        unit: (R,) int64, each row's position in `units`.
        strength: (R,) float64.
        start: (R,) int32.
        stop: (R,) int32.
        seconds: (R,) float32.
    """

    units: Sequence[UnitFacts]
    unit: NDArray[np.int64]
    strength: NDArray[np.float64]
    start: NDArray[np.int32]
    stop: NDArray[np.int32]
    seconds: NDArray[np.float32]
