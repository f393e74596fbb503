"""Singular values of images, each channel taken as a matrix: how their energy is distributed, and effective ranks."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1_000
"""Images whose singular values are computed together, to limit memory."""


class Spectra(NamedTuple):
    """Singular values of images (N, C, H, W), with K = min(H, W).

    Attributes:
        energy: (N, K) share of each squared singular value in the sum of squares, largest first; the mean over
            channels.
        effective_rank: (N,) exponential of the entropy of the singular values divided by their sum, the mean over
            channels: 1 for a matrix of rank 1, K if all singular values are equal. Source: Roy and Vetterli, "The
            effective rank: a measure of effective dimensionality", EUSIPCO 2007.

    Channels that are 0 everywhere have no spectrum and are left out; an image with only such channels has NaN.
    """

    energy: NDArray[np.float64]
    effective_rank: NDArray[np.float64]

    def rank_of_energy(self, share: float) -> NDArray[np.float64]:
        """Return how many singular values of each image hold a share of the energy; NaN without a spectrum."""
        reached = np.cumsum(self.energy, axis=1) >= share - 1e-12
        return np.where(np.isnan(self.effective_rank), np.nan, reached.argmax(axis=1) + 1.0)


def singular_spectra(images: NDArray[np.uint8], *, centred: bool = False) -> Spectra:
    """Compute the singular values of images (N, C, H, W).

    Args:
        images: pixel values; their unit does not matter.
        centred: whether the mean of each channel is subtracted first. Otherwise a bright image is dominated by its
            mean, which has rank 1.
    """
    blocks = [_spectra(images[start : start + _BLOCK], centred) for start in range(0, len(images), _BLOCK)]
    return Spectra(*(np.concatenate(parts) for parts in zip(*blocks, strict=True)))


def _spectra(images: NDArray[np.uint8], centred: bool) -> Spectra:
    matrices = images.astype(np.float64)
    if centred:
        matrices -= matrices.mean(axis=(2, 3), keepdims=True)
    values: NDArray[np.float64] = np.linalg.svd(matrices, compute_uv=False).astype(np.float64, copy=False)
    energy = _shares(values**2)
    shares = _shares(values)
    # The limit of x log x at 0 is 0.
    entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=-1)
    return Spectra(_mean_over_channels(energy), _mean_over_channels(np.exp(entropy)[..., None])[:, 0])


def _shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide values (N, C, K) by their sums; NaN where a sum is 0."""
    sums = values.sum(axis=-1, keepdims=True)
    shares = np.full_like(values, np.nan)
    np.divide(values, sums, out=shares, where=sums > 0)
    return shares


def _mean_over_channels(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average values (N, C, K) over the channels that have any."""
    has_any = ~np.isnan(values)
    counts = has_any.sum(axis=1)
    sums = np.where(has_any, values, 0.0).sum(axis=1)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means
