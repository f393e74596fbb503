"""Distances: the smallest perturbation of each image that fools a network, and what follows from them.

An image that is misclassified as it is has distance 0; one that no attack fools has infinity. An image withstands an
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
    """A median with an interval that needs no assumption on how distances are distributed.

    Attributes:
        value: the median; infinity if more than half of the images withstand everything.
        low: lower end of the interval, an observed distance.
        high: upper end.
    """

    value: float
    low: float
    high: float


class AccuracyCurve(NamedTuple):
    """Accuracies at some epsilons, with their intervals, each by itself: (E,) each."""

    epsilons: _Floats
    accuracy: _Floats
    low: _Floats
    high: _Floats


def accuracy_curve(distances: ArrayLike, epsilons: ArrayLike) -> AccuracyCurve:
    """Compute the accuracy at each epsilon: the share of images whose distance is larger.

    Args:
        distances: (N,) 0 to infinity.
        epsilons: (E,) in the same unit.
    """
    ordered, at = np.sort(_checked(distances)), np.asarray(epsilons, np.float64)
    accuracy = (len(ordered) - np.searchsorted(ordered, at, side="right")) / len(ordered)
    low, high = accuracy_intervals(accuracy, len(ordered))
    return AccuracyCurve(at, accuracy, low, high)


def median_distance(distances: ArrayLike, level: float = 0.95) -> MedianDistance:
    """Compute the median over images, and the interval between two order statistics.

    The number of distances below the true median is binomial with probability 1/2 (Hahn and Meeker, "Statistical
    Intervals", 1991, section 5.2). With fewer than six images no interval holds in 95 %: its ends are then 0 and
    infinity.
    """
    from scipy.stats import binom

    ordered = np.sort(_checked(distances))
    n_images = len(ordered)
    middle = ordered[(n_images - 1) // 2], ordered[n_images // 2]
    value = float(middle[0] if middle[0] == middle[1] else sum(middle) / 2)
    # Fewer than so many distances lie below the true median in at most half of the samples that may be missed.
    rank = int(binom.ppf((1 - level) / 2, n_images, 0.5))
    if rank < 1:
        return MedianDistance(value, 0.0, float("inf"))
    return MedianDistance(value, float(ordered[rank - 1]), float(ordered[n_images - rank]))


def half_distance(distances: ArrayLike) -> float:
    """Compute the smallest epsilon that fools half or more of the images that are classified correctly.

    Returns:
        Infinity if fewer than half are fooled at any epsilon, NaN if none is classified correctly.
    """
    found = _checked(distances)
    ordered = np.sort(found[found > 0])
    return float(ordered[(len(ordered) - 1) // 2]) if len(ordered) else float("nan")


def smallest_distances(several: ArrayLike) -> _Floats:
    """Combine attacks on the same images, (A, N) to (N,): the smallest distance of each image."""
    smallest: _Floats = np.min(np.asarray(several, np.float64), axis=0)
    return smallest


def _checked(distances: ArrayLike) -> _Floats:
    found = np.asarray(distances, np.float64)
    if found.ndim != 1 or not len(found) or not (found >= 0).all():  # NaN is not
        raise ConfigError(
            f"Reading distances failed: expected one or more numbers from 0 to infinity, got shape {found.shape}, "
            f"{int((~(found >= 0)).sum())} of them negative or NaN. Pass infinity for images that are not fooled."
        )
    return found
