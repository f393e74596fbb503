"""Singular values of image channels, each of which is a matrix: fractions of the energy, and effective ranks."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BLOCK_IMAGES = 1_000
"""Number of images per call of the singular value decomposition, to limit memory."""


class Spectra(NamedTuple):
    """Singular values of images (N, C, H, W), with K = min(H, W).

    Attributes:
        energy: (N, K) squared singular values in descending order, as fractions of their sum; mean over channels.
        effective_rank: (N,) exponential of the entropy of the normalised singular values; mean over channels. It is 1
            for a matrix of rank 1, and K if all singular values are equal. Source: Roy and Vetterli, "The
            effective rank: a measure of effective dimensionality", EUSIPCO 2007.

    Channels of zeros have no spectrum and are ignored; for an image of zeros, all numbers are NaN.
    """

    energy: NDArray[np.float64]
    effective_rank: NDArray[np.float64]

    def rank_of_energy(self, fraction: float) -> NDArray[np.float64]:
        """Return how many of each image's largest singular values together have at least this fraction of the energy.

        The result (N,) is NaN for an image of zeros.
        """
        is_reached = np.cumsum(self.energy, axis=1) >= fraction - 1e-12
        return np.where(np.isnan(self.effective_rank), np.nan, is_reached.argmax(axis=1) + 1.0)


def singular_spectra(images: NDArray[np.uint8], *, centred: bool = False) -> Spectra:
    """Compute the singular values of images (N, C, H, W).

    Args:
        images: pixel values in any unit.
        centred: whether to subtract the mean of each channel first. Otherwise, the mean, which is a matrix of rank 1,
            dominates the spectrum of a bright image.
    """
    blocks = [
        _block_spectra(images[start : start + _BLOCK_IMAGES], centred) for start in range(0, len(images), _BLOCK_IMAGES)
    ]
    return Spectra(*(np.concatenate(block_arrays) for block_arrays in zip(*blocks, strict=True)))


def _block_spectra(images: NDArray[np.uint8], centred: bool) -> Spectra:
    matrices = images.astype(np.float64)
    if centred:
        matrices -= matrices.mean(axis=(2, 3), keepdims=True)
    singular_values: NDArray[np.float64] = np.linalg.svd(matrices, compute_uv=False).astype(np.float64, copy=False)
    energy = _fractions(singular_values**2)
    fractions = _fractions(singular_values)
    # A fraction of 0 adds 0 to the entropy, which is the limit of x log x.
    entropy = -(fractions * np.log(np.where(fractions > 0, fractions, 1))).sum(axis=-1)
    return Spectra(_mean_over_channels(energy), _mean_over_channels(np.exp(entropy)[..., None])[:, 0])


def _fractions(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide values (N, C, K) by their sums; NaN where a sum is 0."""
    sums = values.sum(axis=-1, keepdims=True)
    fractions = np.full_like(values, np.nan)
    np.divide(values, sums, out=fractions, where=sums > 0)
    return fractions


def _mean_over_channels(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the means of values (N, C, K) over the channels that are not NaN."""
    is_known = ~np.isnan(values)
    n_known = is_known.sum(axis=1)
    sums = np.where(is_known, values, 0.0).sum(axis=1)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, n_known, out=means, where=n_known > 0)
    return means
