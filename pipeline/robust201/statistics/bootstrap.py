"""What other test images might have given: counts of correct images drawn anew, and what follows of ranks and medians.

Where outcomes by image are stored, images are drawn with replacement, the same for all networks and tasks
(`image_draws`): what networks have in common, as hard images, stays. Where only accuracies are, each count is drawn
from the binomial distribution of its own (`binomial_draws`): as if every network had been shown other images. Networks
that err on the same images then seem to differ less surely than they do, so intervals of ranks and of rank correlations
are mostly too wide.

Equal seeds give equal draws, with equal versions of NumPy.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.statistics.outcomes import Packed, weighted_counts
from robust201.statistics.rank_correlation import kendall_taus

N_DRAWS = 1000

Drawn = NDArray[np.int32]


class Estimate(NamedTuple):
    """A number with its bootstrap interval.

    Attributes:
        value: of the images as they are.
        low: lower end of the interval, the value less a multiple of the draws' standard deviation.
        high: upper end. The interval is of what as many other images would give on average.
        bias: mean over the draws, less the value: about what the scatter of accuracies adds, mostly less than all of
            it. Accuracies on endlessly many images would give the value less the bias, or beyond.
    """

    value: float
    low: float
    high: float
    bias: float


def binomial_draws(
    accuracies: ArrayLike, n_images: int, *, n_draws: int = N_DRAWS, seed: int | Sequence[int] = 0
) -> Drawn:
    """Draw counts of correct images from accuracies alone.

    Args:
        accuracies: (…) fractions, each of N images.
        n_images: N.
        n_draws: draws D.
        seed: of the draws.

    Returns:
        (D, …) counts.
    """
    fractions = np.asarray(accuracies, np.float64)
    drawn = np.random.default_rng(seed).binomial(n_images, fractions, size=(n_draws, *fractions.shape))
    return drawn.astype(np.int32)


def image_draws(outcomes: Packed, n_images: int, *, n_draws: int = N_DRAWS, seed: int = 0) -> Drawn:
    """Draw the images anew, with replacement and the same for every row, and count the correct ones.

    Args:
        outcomes: (…, B) uint8, packed outcomes of the same images.
        n_images: N.
        n_draws: draws D.
        seed: of the draws.

    Returns:
        (D, …) counts out of N.
    """
    rng = np.random.default_rng(seed)
    weights = np.empty((n_images, n_draws), np.float32)
    for draw in range(n_draws):
        weights[:, draw] = np.bincount(rng.integers(0, n_images, n_images), minlength=n_images)
    rows = outcomes.reshape(-1, outcomes.shape[-1])
    return weighted_counts(rows, weights).reshape(n_draws, *outcomes.shape[:-1])


def ranks_of(counts: ArrayLike) -> NDArray[np.int64]:
    """Rank counts along the last axis: one more than the number of higher ones."""
    numbers = np.asarray(counts)
    flat = numbers.reshape(-1, numbers.shape[-1])
    ranks = np.empty(flat.shape, np.int64)
    for place, row in enumerate(flat):
        ranks[place] = 1 + len(row) - np.searchsorted(np.sort(row), row, side="right")
    return ranks.reshape(numbers.shape)


class RankIntervals(NamedTuple):
    """Ranks that networks had in a central share of the draws, and how often each was best, alone or with others."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    best_share: NDArray[np.float64]


def rank_intervals(counts: Drawn, level: float = 0.95) -> RankIntervals:
    """Return the percentile interval of each network's rank, by (D, A) counts of draws."""
    ranks = ranks_of(counts)
    tail = (1 - level) / 2
    low, high = np.quantile(ranks, (tail, 1 - tail), axis=0, method="inverted_cdf")
    return RankIntervals(low, high, (ranks == 1).mean(axis=0))


def median_estimate(accuracies: ArrayLike, counts: Drawn, n_images: int, level: float = 0.95) -> Estimate:
    """Return the median of accuracies (A,) with its interval, by (D, A) counts of draws."""
    return _estimate(float(np.median(np.asarray(accuracies))), np.median(counts, axis=1) / n_images, level, (0.0, 1.0))


def kendall_estimate(
    first: ArrayLike, second: ArrayLike, drawn_first: Drawn, drawn_second: Drawn, level: float = 0.95
) -> Estimate:
    """Return Kendall's tau-b of accuracies under two tasks with its interval, by (D, A) counts of draws of each.

    Scatter of the accuracies lowers tau: with fewer images, or closer accuracies, tau is lower, whatever the networks
    (see `Estimate.bias`). Without two different accuracies on each side, tau is NaN.
    """
    value = float(kendall_taus(np.column_stack([first, second]))[0, 1])
    drawn = [kendall_taus(np.column_stack(pair))[0, 1] for pair in zip(drawn_first, drawn_second, strict=True)]
    return _estimate(value, np.array(drawn), level, (-1.0, 1.0))


def _estimate(value: float, drawn: NDArray[np.float64], level: float, limits: tuple[float, float]) -> Estimate:
    """Make the standard interval of the bootstrap, within limits; NaN where a draw has no number.

    Percentiles of the draws would be shifted by the bias once more, as accuracies that scatter are drawn again.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.
    """
    from scipy.special import ndtri

    reach = float(ndtri(0.5 + level / 2)) * float(drawn.std(ddof=1))
    low, high = np.clip((value - reach, value + reach), *limits)
    return Estimate(value, float(low), float(high), float(drawn.mean()) - value)
