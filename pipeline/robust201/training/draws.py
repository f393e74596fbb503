"""Draws of a training: streams named by seed, epoch and purpose, of which each image has its own number.

So no draw depends on batches, order, or what else is drawn. Raw 64-bit words, because NumPy promises the stream of a
bit generator and not that of a distribution.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from robust201.core.noise import generator


@functools.lru_cache(maxsize=32)
def epoch_draws(seed: int, epoch: int, purpose: str, count: int) -> NDArray[np.uint64]:
    """Draw (count,) 64-bit words of an epoch, counted from 0; more of them begin with the same ones."""
    draws: NDArray[np.uint64] = generator(seed, "training", epoch, purpose).bit_generator.random_raw(count)
    draws.flags.writeable = False
    return draws


def uniform(draws: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn words into numbers in [0, 1) with 53 bits."""
    numbers: NDArray[np.float64] = (draws >> np.uint64(11)) * 2.0**-53
    return numbers


def pixel_draws(seed: int, epoch: int, purpose: str, image: int, count: int) -> NDArray[np.uint64]:
    """Draw (count,) words of one image: where it needs many, such as one for each pixel."""
    draws: NDArray[np.uint64] = generator(seed, "training", epoch, purpose, image).bit_generator.random_raw(count)
    return draws
