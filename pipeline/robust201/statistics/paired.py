"""The difference of two accuracies on the same images: its interval, and whether it is significant."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import Packed, count_correct
from robust201.statistics.significance import mcnemar_p_values

_Floats = NDArray[np.float64]


class PairedDifferences(NamedTuple):
    """Accuracies of a second network less those of a first, on the same images; one entry per evaluation.

    Attributes:
        difference: accuracy of the second less that of the first.
        low: lower end of the 95% interval.
        high: upper end.
        only_first: images that the first network alone classifies correctly.
        only_second: images that the second network alone classifies correctly.
        p_value: two-sided, of McNemar's exact test, not adjusted for several tests.
    """

    difference: _Floats
    low: _Floats
    high: _Floats
    only_first: NDArray[np.int64]
    only_second: NDArray[np.int64]
    p_value: _Floats


def paired_differences(first: Packed, second: Packed, n_images: int) -> PairedDifferences:
    """Compare outcomes of two networks, packed (E, B) uint8, on the same N images in the same order."""
    both, only_first, only_second = (
        count_correct(packed) for packed in (first & second, first & ~second, ~first & second)
    )
    low, high = paired_difference_intervals(both, only_first, only_second, n_images)
    return PairedDifferences(
        difference=(only_second - only_first) / n_images,
        low=low,
        high=high,
        only_first=only_first,
        only_second=only_second,
        p_value=mcnemar_p_values(only_first, only_second),
    )


def paired_difference_intervals(
    both: ArrayLike, only_first: ArrayLike, only_second: ArrayLike, n_images: int
) -> tuple[_Floats, _Floats]:
    """Return 95% intervals of the difference of two accuracies on the same images.

    The ends of the two accuracies' own intervals are combined by square-and-add, with the correlation of the two
    outcomes, so that networks that err on the same images get a narrow interval.

    Args:
        both: images that both networks classify correctly.
        only_first: images that the first network alone classifies correctly.
        only_second: images that the second network alone classifies correctly.
        n_images: number of images.

    Returns:
        Lower and upper ends of (accuracy of the second - accuracy of the first), in [-1, 1].

    Source: Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired
    data", Statistics in Medicine 17 (1998), method 10, with this module's intervals of single accuracies.
    """
    a, b, c = (np.asarray(counts, np.float64) for counts in (both, only_second, only_first))
    d = n_images - a - b - c
    second, first = (a + b) / n_images, (a + c) / n_images
    second_low, second_high = accuracy_intervals(second, n_images)
    first_low, first_high = accuracy_intervals(first, n_images)
    correlation = _correlation(a, b, c, d, n_images)
    down, up = second - second_low, first_high - first
    low = (second - first) - np.sqrt(np.maximum(down**2 - 2 * correlation * down * up + up**2, 0.0))
    down, up = first - first_low, second_high - second
    high = (second - first) + np.sqrt(np.maximum(down**2 - 2 * correlation * down * up + up**2, 0.0))
    return np.maximum(low, -1.0), np.minimum(high, 1.0)


def _correlation(a: _Floats, b: _Floats, c: _Floats, d: _Floats, n_images: int) -> _Floats:
    """Return the phi coefficient of two outcomes, with Newcombe's continuity correction where it is positive."""
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    numerator = a * d - b * c
    numerator = np.where(numerator > 0, np.maximum(numerator - n_images / 2, 0.0), numerator)
    phi = np.zeros(np.broadcast(margins, numerator).shape)
    np.divide(numerator, np.sqrt(margins), out=phi, where=margins > 0)
    return phi
