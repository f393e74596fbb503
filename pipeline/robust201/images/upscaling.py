"""Upscaling of small grey images in exact arithmetic, so that the bytes are the same on every machine."""

import numpy as np
from numpy.typing import NDArray

_BATCH_IMAGES = 1000


def upscale(images: NDArray[np.uint8], size: int, max_pixel: int) -> NDArray[np.uint8]:
    """Upscale grey images (N, h, h) uint8 bilinearly to (N, 3, size, size) uint8.

    Values from 0 to `max_pixel` become values from 0 to 255, rounded half up. Pixels have their centres at half
    integers, edges are repeated, and the three channels are equal.
    """
    upscaled = np.empty((len(images), 3, size, size), np.uint8)
    weights = _weights(images.shape[-1], size).astype(np.float64)
    max_sum = (2 * size) ** 2 * max_pixel  # weighted sum of a pixel of maximum value
    for start in range(0, len(images), _BATCH_IMAGES):
        batch = slice(start, start + _BATCH_IMAGES)
        # The sums are exact in any order, because they are integers far below 2**53.
        sums = (weights @ images[batch].astype(np.float64) @ weights.T).astype(np.int64)
        upscaled[batch] = ((2 * 255 * sums + max_sum) // (2 * max_sum))[:, None]
    return upscaled


def _weights(source: int, size: int) -> NDArray[np.int64]:
    """Return the weight of each source pixel in each target pixel, (size, source), in units of 1 / (2 size)."""
    # The centre of target pixel t is at source coordinate (t + 1/2) * source / size - 1/2.
    left_pixel, remainder = np.divmod((2 * np.arange(size) + 1) * source - size, 2 * size)
    weights = np.zeros((size, source), np.int64)
    np.add.at(weights, (np.arange(size), np.clip(left_pixel, 0, source - 1)), 2 * size - remainder)
    np.add.at(weights, (np.arange(size), np.clip(left_pixel + 1, 0, source - 1)), remainder)
    return weights
