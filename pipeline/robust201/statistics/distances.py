"""Distances: the smallest perturbation of each image that fools a network, and statistics of them.

A misclassified clean image has distance 0; an image that no attack fools has distance infinity. An image withstands an
epsilon if its distance is larger, so one run gives the accuracy at every epsilon. Attacks give upper bounds: a stronger
attack may find smaller perturbations.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.intervals import accuracy_intervals

_Floats = NDArray[np.float64]


class MedianDistance(NamedTuple):
    """A median with a distribution-free interval.

    Attributes:
        value: the median; infinity if more than half of the images withstand everything.
        low: lower end of the interval, an observed distance.
        high: upper end of the interval.
    """

    value: float
    low: float
    high: float


class AccuracyCurve(NamedTuple):
    """Accuracies at several epsilons, with pointwise intervals: (E,) each."""

    epsilons: _Floats
    accuracy: _Floats
    low: _Floats
    high: _Floats


def accuracy_curve(distances: ArrayLike, epsilons: ArrayLike) -> AccuracyCurve:
    """Compute the accuracy at each epsilon: the fraction of images whose distance is larger.

    Args:
        distances: (N,) 0 to infinity.
        epsilons: (E,) in the same unit.
    """
    ordered, epsilon_values = np.sort(_check_distances(distances)), np.asarray(epsilons, np.float64)
    accuracy = (len(ordered) - np.searchsorted(ordered, epsilon_values, side="right")) / len(ordered)
    low, high = accuracy_intervals(accuracy, len(ordered))
    return AccuracyCurve(epsilon_values, accuracy, low, high)


def median_distance(distances: ArrayLike, level: float = 0.95) -> MedianDistance:
    """Compute the median over images, and the interval between two order statistics.

    The number of distances below the true median is binomial with probability 1/2 (Hahn and Meeker, "Statistical
    Intervals", 1991, section 5.2). With fewer than six images no interval has 95% coverage, so its ends are 0 and
    infinity.
    """
    from scipy.stats import binom

    ordered = np.sort(_check_distances(distances))
    n_images = len(ordered)
    middle_pair = ordered[(n_images - 1) // 2], ordered[n_images // 2]
    value = float(middle_pair[0] if middle_pair[0] == middle_pair[1] else sum(middle_pair) / 2)
    # In at most half of the permitted misses, fewer than `rank` distances lie below the true median.
    rank = int(binom.ppf((1 - level) / 2, n_images, 0.5))
    if rank < 1:
        return MedianDistance(value, 0.0, float("inf"))
    return MedianDistance(value, float(ordered[rank - 1]), float(ordered[n_images - rank]))


def half_distance(distances: ArrayLike) -> float:
    """Return the smallest epsilon that fools at least half of the correctly classified images.

    Returns:
        Infinity if fewer than half are fooled at any epsilon, NaN if none is classified correctly.
    """
    checked = _check_distances(distances)
    ordered = np.sort(checked[checked > 0])
    return float(ordered[(len(ordered) - 1) // 2]) if len(ordered) else float("nan")


def smallest_distances(distances: ArrayLike) -> _Floats:
    """Return the smallest distance of each image over several attacks, (A, N) to (N,)."""
    smallest: _Floats = np.min(np.asarray(distances, np.float64), axis=0)
    return smallest


def _check_distances(distances: ArrayLike) -> _Floats:
    checked = np.asarray(distances, np.float64)
    if checked.ndim != 1 or not len(checked) or not (checked >= 0).all():  # the comparison is False for NaN
        raise ConfigError(
            f"Reading distances failed: expected one or more numbers from 0 to infinity, got shape {checked.shape}, "
            f"{int((~(checked >= 0)).sum())} of them negative or NaN. Pass infinity for images that are not fooled."
        )
    return checked
