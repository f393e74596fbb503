"""Singular values of images, with each channel as a matrix: distribution of energy, and effective ranks."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1_000
"""Number of images per call of the decomposition, to limit memory."""


class Spectra(NamedTuple):
    """Singular values of images (N, C, H, W), with K = min(H, W).

    Attributes:
        energy: (N, K) fraction of the sum of squares in each squared singular value, largest first; mean over channels.
        effective_rank: (N,) exponential of the entropy of the normalised singular values; mean over channels. It is 1
            for a matrix of rank 1, and K if all singular values are equal. Source: Roy and Vetterli, "The
            effective rank: a measure of effective dimensionality", EUSIPCO 2007.

    All-zero channels have no spectrum and are left out; an image with only such channels has NaN.
    """

    energy: NDArray[np.float64]
    effective_rank: NDArray[np.float64]

    def rank_of_energy(self, share: float) -> NDArray[np.float64]:
        """Return the number of each image's singular values that hold a fraction of the energy; NaN if undefined."""
        reached = np.cumsum(self.energy, axis=1) >= share - 1e-12
        return np.where(np.isnan(self.effective_rank), np.nan, reached.argmax(axis=1) + 1.0)


def singular_spectra(images: NDArray[np.uint8], *, centred: bool = False) -> Spectra:
    """Compute the singular values of images (N, C, H, W).

    Args:
        images: pixel values in any unit.
        centred: whether to subtract each channel's mean first. Otherwise the mean, which has rank 1, dominates the
            spectrum of a bright image.
    """
    blocks = [_spectra(images[start : start + _BLOCK], centred) for start in range(0, len(images), _BLOCK)]
    return Spectra(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def _spectra(images: NDArray[np.uint8], centred: bool) -> Spectra:
    matrices = images.astype(np.float64)
    if centred:
        matrices -= matrices.mean(axis=(2, 3), keepdims=True)
    values: NDArray[np.float64] = np.linalg.svd(matrices, compute_uv=False).astype(np.float64, copy=False)
    energy = _fractions(values**2)
    fractions = _fractions(values)
    # The limit of x log x at 0 is 0.
    entropy = -(fractions * np.log(np.where(fractions > 0, fractions, 1))).sum(axis=-1)
    return Spectra(_mean_over_channels(energy), _mean_over_channels(np.exp(entropy)[..., None])[:, 0])


def _fractions(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide values (N, C, K) by their sums; NaN where a sum is 0."""
    sums = values.sum(axis=-1, keepdims=True)
    fractions = np.full_like(values, np.nan)
    np.divide(values, sums, out=fractions, where=sums > 0)
    return fractions


def _mean_over_channels(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return means of values (N, C, K) over the channels without NaN."""
    has_any = ~np.isnan(values)
    counts = has_any.sum(axis=1)
    sums = np.where(has_any, values, 0.0).sum(axis=1)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means
