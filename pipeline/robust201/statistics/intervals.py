"""Confidence intervals of fractions of images, for the sampling of the images; of means of independent samples."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

NORMAL_QUANTILE = 1.959963984540054
"""Of the standard normal distribution at .975: intervals hold in 95 % of samples."""

FEW_IMAGES = 5
"""Below this many images on either side, right or wrong, an interval is exact (see `accuracy_intervals`)."""

_Floats = NDArray[np.float64]


def clopper_pearson_intervals(
    n_correct: ArrayLike, n_images: ArrayLike, level: float = 0.95
) -> tuple[_Floats, _Floats]:
    """Return exact intervals of fractions by their counts: they hold in at least `level` of samples for any count.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934).
    """
    from scipy.special import betaincinv

    correct, n = np.asarray(n_correct, np.float64), np.asarray(n_images, np.float64)
    tail = (1 - level) / 2
    # Where a side has no image, its bound is 0 or 1, and the beta distribution has no such parameter.
    low = np.where(correct > 0, betaincinv(np.maximum(correct, 1), n - correct + 1, tail), 0.0)
    high = np.where(correct < n, betaincinv(correct + 1, np.maximum(n - correct, 1), 1 - tail), 1.0)
    return low, high


def accuracy_intervals(accuracies: ArrayLike, n_images: ArrayLike, level: float = 0.95) -> tuple[_Floats, _Floats]:
    """Return an interval for each accuracy: Wilson's, or Clopper-Pearson's where few images are right or few are wrong.

    Wilson's intervals hold too rarely next to 0 and 1. So those with fewer than `FEW_IMAGES` images on either side,
    and with them all of fewer than twice as many images, are exact.

    Args:
        accuracies: fractions; NaN gives NaN.
        n_images: images behind each, of a shape that broadcasts; NaN where unknown gives NaN.
        level: share of samples in which an interval shall hold.

    Returns:
        Lower and upper ends in [0, 1].

    Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927); recommended
    over the normal approximation by Brown, Cai and DasGupta, Statistical Science 16 (2001).
    """
    from scipy.special import ndtri

    fractions, n = np.broadcast_arrays(np.asarray(accuracies, np.float64), np.asarray(n_images, np.float64))
    quantile = NORMAL_QUANTILE if level == 0.95 else float(ndtri(0.5 + level / 2))
    low, high = _wilson(fractions, n, quantile)
    correct = np.rint(fractions * n)
    few = np.minimum(correct, n - correct) < FEW_IMAGES
    exact_low, exact_high = clopper_pearson_intervals(np.where(few, correct, 1.0), np.where(few, n, 2.0), level)
    return np.where(few, exact_low, low), np.where(few, exact_high, high)


def _wilson(fractions: Any, n_images: Any, quantile: float) -> tuple[Any, Any]:
    weight = quantile**2 / n_images
    centre = fractions + weight / 2
    spread = quantile * np.sqrt(fractions * (1 - fractions) / n_images + weight / (4 * n_images))
    low = np.where(fractions == 0, 0.0, (centre - spread) / (1 + weight))
    return low, np.where(fractions == 1, 1.0, (centre + spread) / (1 + weight))


def mean_intervals(samples: ArrayLike, level: float = 0.95) -> tuple[_Floats, _Floats, _Floats]:
    """Return the mean of independent samples along the first axis, and its interval by Student's t distribution.

    Args:
        samples: (n, …).
        level: share of repetitions in which an interval shall hold.

    Returns:
        Means, lower and upper ends; of a single sample NaN ends, as nothing says how much it varies; NaN of none.
    """
    from scipy.special import stdtrit

    values = np.asarray(samples, np.float64)
    n = len(values)
    means = values.mean(axis=0) if n else np.full(values.shape[1:], np.nan)
    if n < 2:
        return means, np.full_like(means, np.nan), np.full_like(means, np.nan)
    half = stdtrit(n - 1, 0.5 + level / 2) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return means, means - half, means + half
