"""Bootstrap over test images: resampled counts of correct images, and intervals of ranks, medians and correlations.

If per-image outcomes are stored, images are resampled with replacement, and each sample has the same images for all
networks and tasks (`resampled_counts`). This preserves dependencies between networks, such as images that are hard for
all of them. If only accuracies are stored, each count is sampled independently from a binomial distribution
(`binomial_counts`), as if every network had been evaluated on different images. If networks err on the same images,
differences between them then seem less certain than they are, and intervals of ranks and of rank correlations are
mostly too wide.

Equal seeds and equal versions of NumPy give equal samples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.statistics.outcomes import Packed, weighted_counts
from robust201.statistics.rank_correlation import kendall_taus

N_DRAWS = 1000
"""Default number of bootstrap samples."""

ResampledCounts = NDArray[np.int32]


class Estimate(NamedTuple):
    """A number with its bootstrap interval.

    Attributes:
        value: the estimate on the original images.
        low: lower end of the interval: the value minus a multiple of the standard deviation over bootstrap samples.
        high: upper end: the value plus the same multiple. The interval is for the expected result on image sets of
            this size, not on infinitely many images.
        bias: mean over bootstrap samples minus the value, which estimates the effect of sampling noise in the
            accuracies. With infinitely many images, the result would be about the value minus the bias. The bias is
            mostly underestimated, so that result may be even farther from the value.
    """

    value: float
    low: float
    high: float
    bias: float


def binomial_counts(
    accuracies: ArrayLike, n_images: int, *, n_draws: int = N_DRAWS, seed: int | Sequence[int] = 0
) -> ResampledCounts:
    """Sample counts of correct images from accuracies alone.

    Args:
        accuracies: (…) fractions of N images.
        n_images: number of images N.
        n_draws: number of samples D.
        seed: seed of the samples.

    Returns:
        (D, …) counts.
    """
    fractions = np.asarray(accuracies, np.float64)
    counts = np.random.default_rng(seed).binomial(n_images, fractions, size=(n_draws, *fractions.shape))
    return counts.astype(np.int32)


def resampled_counts(outcomes: Packed, n_images: int, *, n_draws: int = N_DRAWS, seed: int = 0) -> ResampledCounts:
    """Resample the images with replacement, the same images for every row, and count the correct ones.

    Args:
        outcomes: (…, B) uint8, packed outcomes of the same images.
        n_images: number of images N.
        n_draws: number of samples D.
        seed: seed of the samples.

    Returns:
        (D, …) counts out of N.
    """
    rng = np.random.default_rng(seed)
    weights = np.empty((n_images, n_draws), np.float32)
    for draw in range(n_draws):
        weights[:, draw] = np.bincount(rng.integers(0, n_images, n_images), minlength=n_images)
    outcome_rows = outcomes.reshape(-1, outcomes.shape[-1])
    return weighted_counts(outcome_rows, weights).reshape(n_draws, *outcomes.shape[:-1])


def ranks_of(counts: ArrayLike) -> NDArray[np.int64]:
    """Return the ranks of counts along the last axis; each rank is 1 plus the number of higher counts."""
    count_array = np.asarray(counts)
    count_rows = count_array.reshape(-1, count_array.shape[-1])
    ranks = np.empty(count_rows.shape, np.int64)
    for index, row_counts in enumerate(count_rows):
        ranks[index] = 1 + len(row_counts) - np.searchsorted(np.sort(row_counts), row_counts, side="right")
    return ranks.reshape(count_array.shape)


class RankIntervals(NamedTuple):
    """Interval of each network's rank over bootstrap samples, and how often the network is best.

    Attributes:
        low: lower end of the interval.
        high: upper end of the interval.
        best_share: fraction of the samples in which the network is the best or tied with the best.
    """

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    best_share: NDArray[np.float64]


def rank_intervals(counts: ResampledCounts, level: float = 0.95) -> RankIntervals:
    """Return the percentile interval of the rank of each network from resampled counts (D, A)."""
    ranks = ranks_of(counts)
    tail_probability = (1 - level) / 2
    low, high = np.quantile(ranks, (tail_probability, 1 - tail_probability), axis=0, method="inverted_cdf")
    return RankIntervals(low, high, (ranks == 1).mean(axis=0))


def median_estimate(accuracies: ArrayLike, counts: ResampledCounts, n_images: int, level: float = 0.95) -> Estimate:
    """Return the median of accuracies (A,) with its interval from resampled counts (D, A)."""
    return _estimate(float(np.median(np.asarray(accuracies))), np.median(counts, axis=1) / n_images, level, (0.0, 1.0))


def kendall_estimate(
    first: ArrayLike,
    second: ArrayLike,
    first_counts: ResampledCounts,
    second_counts: ResampledCounts,
    level: float = 0.95,
) -> Estimate:
    """Return Kendall's tau-b of accuracies (A,) under two tasks, with its interval from the resampled counts (D, A).

    Sampling noise in the accuracies lowers tau, especially with few images or similar accuracies (see `Estimate.bias`).
    If all accuracies under a task are equal, tau is NaN.
    """
    value = float(kendall_taus(np.column_stack([first, second]))[0, 1])
    taus = [kendall_taus(np.column_stack(pair))[0, 1] for pair in zip(first_counts, second_counts, strict=True)]
    return _estimate(value, np.array(taus), level, (-1.0, 1.0))


def _estimate(
    value: float, bootstrap_values: NDArray[np.float64], level: float, limits: tuple[float, float]
) -> Estimate:
    """Return the estimate with its standard bootstrap interval, clipped to the limits.

    The ends of the interval are NaN if any bootstrap sample gives NaN.

    Percentile intervals would contain the bias twice, because resampling adds noise to accuracies that already have it.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.
    """
    from scipy.special import ndtri

    half_width = float(ndtri(0.5 + level / 2)) * float(bootstrap_values.std(ddof=1))
    low, high = np.clip((value - half_width, value + half_width), *limits)
    return Estimate(value, float(low), float(high), float(bootstrap_values.mean()) - value)
