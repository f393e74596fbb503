"""Statistics of distances, which are the sizes of the smallest perturbations that fool a network, one per image.

An image that is misclassified without a perturbation has distance 0, and an image that is never fooled has distance
infinity. At an epsilon, an image is classified correctly if its distance is larger than epsilon, so one run gives the
accuracy at every epsilon. Attacks give upper bounds of distances, because a stronger attack may find smaller
perturbations.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.intervals import accuracy_intervals

_Floats = NDArray[np.float64]


class MedianDistance(NamedTuple):
    """The median of distances (infinity if at least half of the images are never fooled) and its interval.

    The interval from `low` to `high` is distribution-free (see `median_distance`).
    """

    value: float
    low: float
    high: float


class AccuracyCurve(NamedTuple):
    """Accuracies at E epsilons with pointwise 95% intervals; all arrays are (E,)."""

    epsilons: _Floats
    accuracy: _Floats
    low: _Floats
    high: _Floats


def accuracy_curve(distances: ArrayLike, epsilons: ArrayLike) -> AccuracyCurve:
    """Compute the accuracy at each epsilon (E,): the fraction of images whose distance (N,) is larger than epsilon."""
    sorted_distances, epsilon_values = np.sort(_check_distances(distances)), np.asarray(epsilons, np.float64)
    accuracy = (len(sorted_distances) - np.searchsorted(sorted_distances, epsilon_values, side="right")) / len(
        sorted_distances
    )
    low, high = accuracy_intervals(accuracy, len(sorted_distances))
    return AccuracyCurve(epsilon_values, accuracy, low, high)


def median_distance(distances: ArrayLike) -> MedianDistance:
    """Compute the median over images, with a 95% interval whose ends are two of the observed distances.

    The number of distances below the true median is binomial with probability 1/2 (Hahn and Meeker, "Statistical
    Intervals", 1991, section 5.2). With fewer than six images, no interval between observed distances covers 95%, so
    its ends are 0 and infinity.
    """
    from scipy.stats import binom

    sorted_distances = np.sort(_check_distances(distances))
    n_images = len(sorted_distances)
    median = float(np.median(sorted_distances))
    # The probability that fewer than `rank` distances are below the true median is at most 2.5%.
    rank = int(binom.ppf(0.025, n_images, 0.5))
    if rank < 1:
        return MedianDistance(median, 0.0, float("inf"))
    return MedianDistance(median, float(sorted_distances[rank - 1]), float(sorted_distances[n_images - rank]))


def half_distance(distances: ArrayLike) -> float:
    """Return the smallest epsilon at which at least half of the correctly classified images are fooled.

    It is infinity if fewer than half are ever fooled, and NaN if no image is classified correctly.
    """
    valid_distances = _check_distances(distances)
    sorted_distances = np.sort(valid_distances[valid_distances > 0])
    return float(sorted_distances[(len(sorted_distances) - 1) // 2]) if len(sorted_distances) else float("nan")


def _check_distances(distances: ArrayLike) -> _Floats:
    array = np.asarray(distances, np.float64)
    is_invalid = ~(array >= 0)  # true for NaN
    if array.ndim != 1 or not len(array) or is_invalid.any():
        raise ConfigError(
            f"Reading distances failed: expected one or more numbers from 0 to infinity, got shape {array.shape} "
            f"with {int(is_invalid.sum())} negative or NaN values. Pass infinity for images that are not fooled."
        )
    return array
