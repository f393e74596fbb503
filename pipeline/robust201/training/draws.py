"""Random numbers of a training: one stream per seed, epoch and purpose, in which each image has its own position.

So they do not depend on batches, order or each other. They are raw 64-bit words, because NumPy guarantees the stream of
a bit generator but not of a distribution.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from robust201.core.noise import generator


@functools.lru_cache(maxsize=32)
def epoch_draws(seed: int, epoch: int, purpose: str, count: int) -> NDArray[np.uint64]:
    """Return random 64-bit words (count,) of an epoch, counted from 0; a larger count starts with the same words."""
    draws: NDArray[np.uint64] = generator(seed, "training", epoch, purpose).bit_generator.random_raw(count)
    draws.flags.writeable = False
    return draws


def uniform(draws: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert words to numbers in [0, 1) with 53 bits."""
    numbers: NDArray[np.float64] = np.multiply(draws >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return numbers


def pixel_draws(seed: int, epoch: int, purpose: str, image: int, count: int) -> NDArray[np.uint64]:
    """Return random words (count,) of one image, for purposes that need many, such as one per pixel."""
    draws: NDArray[np.uint64] = generator(seed, "training", epoch, purpose, image).bit_generator.random_raw(count)
    return draws
