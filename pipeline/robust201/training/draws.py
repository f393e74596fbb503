"""Random numbers of a training run: one stream per seed, epoch and purpose, in which each image has a fixed position.

Purposes that need many words per image (`image_random_words`) have one stream per image. An image's random numbers
therefore do not depend on its batch or on the order of images. They are raw 64-bit words, because NumPy guarantees the
stream of a bit generator, but not the values of a distribution.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from robust201.core.noise import generator


@functools.lru_cache(maxsize=32)
def epoch_random_words(seed: int, epoch: int, purpose: str, count: int) -> NDArray[np.uint64]:
    """Return random 64-bit words (count,) for an epoch, counted from 0. A larger `count` only appends words."""
    words: NDArray[np.uint64] = generator(seed, "training", epoch, purpose).bit_generator.random_raw(count)
    words.flags.writeable = False
    return words


def uniform(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert random words to float64 in [0, 1), with 53 random bits."""
    fractions: NDArray[np.float64] = np.multiply(words >> np.uint64(11), 2.0**-53, dtype=np.float64)
    return fractions


def image_random_words(seed: int, epoch: int, purpose: str, image: int, count: int) -> NDArray[np.uint64]:
    """Return random words (count,) for one image, for purposes that need many words, such as one per pixel."""
    words: NDArray[np.uint64] = generator(seed, "training", epoch, purpose, image).bit_generator.random_raw(count)
    return words
