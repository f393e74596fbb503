"""Whether accuracies differ: tests of networks on the same images or on images of their own, and Holm's correction."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import Packed, count_correct

_Floats = NDArray[np.float64]


def mcnemar_p_values(only_first: ArrayLike, only_second: ArrayLike) -> _Floats:
    """Return two-sided p-values of McNemar's exact test.

    Under the hypothesis of equal accuracy, an image that one of two networks gets right and the other wrong is as often
    one's as the other's.

    Args:
        only_first: images that the first network alone gets right.
        only_second: images that the second network alone gets right.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947); exact by the binomial distribution.
    """
    from scipy.special import bdtr

    first, second = np.asarray(only_first, np.int64), np.asarray(only_second, np.int64)
    p_values: _Floats = np.minimum(1.0, 2 * bdtr(np.minimum(first, second), first + second, 0.5))
    return p_values


def two_proportion_p_values(correct_first: ArrayLike, correct_second: ArrayLike, n_images: ArrayLike) -> _Floats:
    """Return two-sided p-values of the pooled z-test of two fractions of as many images each.

    The test takes the images of the two networks to be drawn independently. On the same images most networks err on
    similar ones, so that their difference varies less and this test finds fewer differences than there are.
    """
    from scipy.special import ndtr

    n = np.asarray(n_images, np.float64)
    first, second = np.asarray(correct_first, np.float64) / n, np.asarray(correct_second, np.float64) / n
    pooled = (first + second) / 2
    deviation = np.sqrt(2 * pooled * (1 - pooled) / n)
    z = np.zeros(np.broadcast(first, deviation).shape)
    np.divide(np.abs(first - second), deviation, out=z, where=deviation > 0)
    p_values: _Floats = 2 * ndtr(-z)
    return p_values


def normal_p_values(differences: ArrayLike, standard_errors: ArrayLike) -> _Floats:
    """Test differences of two normal estimates against 0, two-sided; one without a standard error is real."""
    from scipy.special import ndtr

    given, errors = np.broadcast_arrays(np.asarray(differences, np.float64), np.asarray(standard_errors, np.float64))
    z = np.where(given == 0, 0.0, np.inf)
    np.divide(np.abs(given), errors, out=z, where=errors > 0)
    p_values: _Floats = 2 * ndtr(-z)
    return p_values


def holm_adjust(p_values: ArrayLike) -> _Floats:
    """Adjust p-values of several tests, so that a level bounds the chance of even one false rejection among them.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979).
    """
    given = np.asarray(p_values, np.float64)
    order = np.argsort(given, kind="stable")
    factors = np.arange(len(given), 0, -1)
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * given[order]))
    return adjusted


class Ties(NamedTuple):
    """Which networks are tied with the best.

    Attributes:
        best: place of the network of the highest accuracy, the first of several.
        p_values: (A,) adjusted by Holm, of the difference from the best; 1 of the best itself, NaN without an accuracy.
        tied: (A,) whether the difference is not significant at the level; true of the best.
        paired: whether outcomes of the same images were compared (McNemar), not accuracies alone.
    """

    best: int
    p_values: _Floats
    tied: NDArray[np.bool_]
    paired: bool


def ties_with_best(
    accuracies: ArrayLike, n_images: int, *, outcomes: Packed | None = None, level: float = 0.05
) -> Ties:
    """Find the networks whose accuracy does not differ significantly from the best.

    Each network is compared with the one of the highest accuracy, by McNemar's exact test where outcomes are given,
    else by the two-proportion test, and the p-values are adjusted by Holm. The best was chosen on the same images:
    that favours it, and of many equally good networks some will be found worse. These images do not distinguish what is
    tied from the best; what is not tied may still be as good, with a chance of about `level`.

    Args:
        accuracies: (A,) fractions; a network without one (NaN) is not compared.
        n_images: images behind each accuracy.
        outcomes: (A, B) uint8, packed outcomes of the same images in the same order.
        level: chance of a false rejection.
    """
    held = np.asarray(accuracies, np.float64)
    p_values = np.full(len(held), np.nan)
    there = np.flatnonzero(~np.isnan(held))
    if len(there) == 0:
        return Ties(-1, p_values, np.zeros(len(held), bool), outcomes is not None)
    best = int(there[np.argmax(held[there])])
    others = there[there != best]
    if outcomes is not None:
        first = outcomes[best]
        p_others = mcnemar_p_values(count_correct(first & ~outcomes[others]), count_correct(~first & outcomes[others]))
    else:
        correct = np.rint(held * n_images)
        p_others = two_proportion_p_values(correct[best], correct[others], n_images)
    p_values[others], p_values[best] = holm_adjust(p_others), 1.0
    return Ties(best, p_values, p_values > level, outcomes is not None)


def mean_ties_with_best(counts: NDArray[np.uint16], n_evaluations: int, *, level: float = 0.05) -> Ties:
    """Find the networks whose mean accuracy over evaluations of the same images does not differ from the best's.

    Each network is compared with the best by Student's t-test of the differences by image, of which each is a mean over
    the evaluations; the p-values are adjusted by Holm (see `ties_with_best`). Where all images have the same
    difference, its deviation says nothing of the uncertainty: McNemar's exact test then counts the images on which the
    best is ahead, all or none of them.

    Args:
        counts: (A, N) in how many of the evaluations each network classifies each image correctly.
        n_evaluations: how many there are.
        level: chance of a false rejection.
    """
    from scipy.special import stdtr

    n_images = counts.shape[1]
    best = int(np.argmax(counts.sum(axis=1, dtype=np.int64)))
    p_values = np.ones(len(counts))
    others = np.array([place for place in range(len(counts)) if place != best], np.int64)
    differences = np.zeros(len(others)), np.zeros(len(others))
    for place, other in enumerate(others):  # one at a time: all would be as large as the outcomes in float64
        difference = (counts[best].astype(np.float64) - counts[other]) / n_evaluations
        differences[0][place], differences[1][place] = difference.mean(), _deviation(difference)
    mean, deviation = differences
    t = np.divide(mean, deviation / np.sqrt(n_images), out=np.zeros(len(others)), where=deviation > 0)
    p_others = 2 * stdtr(n_images - 1, -np.abs(t))
    constant = deviation == 0
    p_others[constant] = mcnemar_p_values(n_images * (mean[constant] > 0), 0)
    p_values[others] = holm_adjust(p_others)
    return Ties(best, p_values, p_values > level, paired=True)


def image_mean_intervals(counts: NDArray[np.uint16], n_evaluations: int) -> tuple[_Floats, _Floats]:
    """Return 95% intervals over images of mean accuracies over evaluations, by Student's t; see `mean_ties_with_best`.

    Where all images have the same mean, the interval is that of an accuracy of so many images.

    Returns:
        Lower and upper ends (A,), within [0, 1].
    """
    from scipy.special import stdtrit

    n_images = counts.shape[1]
    mean = counts.mean(axis=1, dtype=np.float64) / n_evaluations
    deviation = np.array([_deviation(row.astype(np.float64)) for row in counts]) / n_evaluations
    reach = stdtrit(max(n_images - 1, 1), 0.975) * deviation / np.sqrt(n_images)
    low, high = accuracy_intervals(mean, n_images)
    varies = deviation > 0
    return np.where(varies, np.maximum(mean - reach, 0.0), low), np.where(varies, np.minimum(mean + reach, 1.0), high)


def _deviation(values: _Floats) -> float:
    """Return the standard deviation; 0, exactly, of equal values or of one."""
    return 0.0 if (values == values[0]).all() else float(values.std(ddof=1))


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
