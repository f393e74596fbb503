"""Upscaling of small grey images in exact arithmetic, with the same bytes on every machine."""

import numpy as np
from numpy.typing import NDArray

_BATCH_IMAGES = 1000


def upscale(images: NDArray[np.uint8], size: int, brightest: int) -> NDArray[np.uint8]:
    """Upscale grey images (N, h, h) uint8 in 0 to `brightest` bilinearly to (N, 3, size, size) uint8 in 0 to 255.

    Pixel centres are aligned, edges repeated, and values rounded half up; the three channels are equal.
    """
    upscaled = np.empty((len(images), 3, size, size), np.uint8)
    weights = _weights(images.shape[-1], size).astype(np.float64)
    full_sum = (2 * size) ** 2 * brightest  # weighted sum of a pixel at full brightness
    for start in range(0, len(images), _BATCH_IMAGES):
        rows = slice(start, start + _BATCH_IMAGES)
        # Sums of integers far below 2**53 are exact in any order.
        sums = (weights @ images[rows].astype(np.float64) @ weights.T).astype(np.int64)
        upscaled[rows] = ((2 * 255 * sums + full_sum) // (2 * full_sum))[:, None]
    return upscaled


def _weights(source: int, size: int) -> NDArray[np.int64]:
    """Return the weight of each source pixel in each target pixel, (size, source), in units of 1 / (2 size)."""
    # Target centre t lies at (t + 1/2) source / size - 1/2 source pixels.
    left, remainder = np.divmod((2 * np.arange(size) + 1) * source - size, 2 * size)
    weights = np.zeros((size, source), np.int64)
    np.add.at(weights, (np.arange(size), np.clip(left, 0, source - 1)), 2 * size - remainder)
    np.add.at(weights, (np.arange(size), np.clip(left + 1, 0, source - 1)), remainder)
    return weights
