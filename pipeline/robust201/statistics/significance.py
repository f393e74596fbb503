"""Significance tests of differences between accuracies, on the same or on independent images, and Holm's correction."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import Packed, count_correct

_Floats = NDArray[np.float64]


def mcnemar_p_values(only_first: ArrayLike, only_second: ArrayLike) -> _Floats:
    """Return two-sided p-values of McNemar's exact test, from numbers of images that only one network gets right.

    Under the null hypothesis of equal accuracies, either network is equally likely to be right on each such image.

    Source: McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
    Psychometrika 12 (1947), with the binomial distribution instead of its approximation.
    """
    from scipy.special import bdtr

    n_only_first, n_only_second = np.asarray(only_first, np.int64), np.asarray(only_second, np.int64)
    p_values: _Floats = np.minimum(
        1.0, 2 * bdtr(np.minimum(n_only_first, n_only_second), n_only_first + n_only_second, 0.5)
    )
    return p_values


def two_proportion_p_values(
    correct_first: ArrayLike, correct_second: ArrayLike, n_first: ArrayLike, n_second: ArrayLike
) -> _Floats:
    """Return two-sided p-values of the pooled z-test of accuracies on `n_first` and `n_second` images.

    The test treats the images of the two networks as independent samples. On the same images, most networks make
    similar errors, so their difference varies less, and this test has less power than a paired test.
    """
    from scipy.special import ndtr

    first, second = np.asarray(correct_first, np.float64), np.asarray(correct_second, np.float64)
    n_1, n_2 = np.asarray(n_first, np.float64), np.asarray(n_second, np.float64)
    first_accuracy, second_accuracy = first / n_1, second / n_2
    pooled = (first + second) / (n_1 + n_2)
    standard_error = np.sqrt(pooled * (1 - pooled) * (1 / n_1 + 1 / n_2))
    z = np.zeros(np.broadcast(first_accuracy, standard_error).shape)
    np.divide(np.abs(first_accuracy - second_accuracy), standard_error, out=z, where=standard_error > 0)
    p_values: _Floats = 2 * ndtr(-z)
    return p_values


def holm_adjust(p_values: ArrayLike) -> _Floats:
    """Adjust the p-values of several tests by Holm's method.

    If all hypotheses with an adjusted p-value of at most alpha are rejected, the family-wise error rate is at most
    alpha.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6
    (1979).
    """
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(factors * values[order]))
    return adjusted


class Ties(NamedTuple):
    """Result of comparing each network with the best network.

    Attributes:
        best_index: index of the first network with the highest accuracy; -1 if there is no accuracy.
        p_values: (A,) Holm-adjusted p-values; 1 for the best network, NaN for networks without an accuracy.
        tied: (A,) whether the difference is not significant; true for the best network.
        is_paired: whether outcomes were compared image by image; if False, only accuracies were compared.
    """

    best_index: int
    p_values: _Floats
    tied: NDArray[np.bool_]
    is_paired: bool


def ties_with_best(
    accuracies: ArrayLike, n_images: ArrayLike, *, outcomes: Packed | None = None, level: float = 0.05
) -> Ties:
    """Find the networks whose accuracy does not differ significantly from that of the best network.

    Each network is compared with the most accurate network, by McNemar's exact test if outcomes are passed and by the
    two-proportion test otherwise. P-values are adjusted with Holm's method, so with a probability of about
    1 - `level`, all networks that are as good as the best one are tied. Selecting the best network on the same images
    favours it: of many equally good networks, some have a lower accuracy by chance. Tied networks cannot be
    distinguished from the best network on these images.

    Args:
        accuracies: (A,) fractions; networks without an accuracy (NaN) are not compared.
        n_images: number of images on which each accuracy was measured; one number, or (A,).
        outcomes: (A, B) uint8, packed outcomes on the same images in the same order.
        level: significance level.
    """
    fractions = np.asarray(accuracies, np.float64)
    p_values = np.full(len(fractions), np.nan)
    known_indices = np.flatnonzero(~np.isnan(fractions))
    if len(known_indices) == 0:
        return Ties(-1, p_values, np.zeros(len(fractions), bool), outcomes is not None)
    best_index = int(known_indices[np.argmax(fractions[known_indices])])
    other_indices = known_indices[known_indices != best_index]
    if outcomes is not None:
        best_outcomes = outcomes[best_index]
        p_others = mcnemar_p_values(
            count_correct(best_outcomes & ~outcomes[other_indices]),
            count_correct(~best_outcomes & outcomes[other_indices]),
        )
    else:
        counts = np.broadcast_to(np.asarray(n_images, np.float64), fractions.shape)
        correct = np.rint(fractions * counts)
        p_others = two_proportion_p_values(
            correct[best_index], correct[other_indices], counts[best_index], counts[other_indices]
        )
    p_values[other_indices], p_values[best_index] = holm_adjust(p_others), 1.0
    return Ties(best_index, p_values, p_values > level, outcomes is not None)


def mean_accuracy_ties(counts: NDArray[np.uint16], n_evaluations: int, *, level: float = 0.05) -> Ties:
    """Find the networks whose mean accuracy over evaluations does not differ significantly from the best network's.

    All evaluations must use the same images. `counts` (A, N) are the numbers of evaluations in which each network
    classifies each image correctly. Each network is compared with the best network by Student's t-test of per-image
    differences, averaged over the evaluations. P-values are adjusted with Holm's method (see `ties_with_best`). If all
    images have the same difference, its standard deviation does not measure the uncertainty. In this case, McNemar's
    exact test is applied to the number of images on which the best network is better, which is all or none.
    """
    from scipy.special import stdtr

    n_images = counts.shape[1]
    best_index = int(np.argmax(counts.sum(axis=1, dtype=np.int64)))
    p_values = np.ones(len(counts))
    other_indices = np.array([network for network in range(len(counts)) if network != best_index], np.int64)
    mean, deviation = np.zeros(len(other_indices)), np.zeros(len(other_indices))
    # One network is processed at a time, because the differences of all networks would need much memory.
    for index, other_index in enumerate(other_indices):
        difference = (counts[best_index].astype(np.float64) - counts[other_index]) / n_evaluations
        mean[index], deviation[index] = difference.mean(), _standard_deviation(difference)
    t = np.divide(mean, deviation / np.sqrt(n_images), out=np.zeros(len(other_indices)), where=deviation > 0)
    p_others = 2 * stdtr(n_images - 1, -np.abs(t))
    is_constant = deviation == 0
    p_others[is_constant] = mcnemar_p_values(n_images * (mean[is_constant] > 0), 0)
    p_values[other_indices] = holm_adjust(p_others)
    return Ties(best_index, p_values, p_values > level, is_paired=True)


def mean_accuracy_intervals(counts: NDArray[np.uint16], n_evaluations: int) -> tuple[_Floats, _Floats]:
    """Return 95% intervals (A,) of accuracies averaged over evaluations.

    They use Student's t distribution over images. If all images have the same mean outcome, the interval of
    `accuracy_intervals` is used instead. See `mean_accuracy_ties` for the arguments.
    """
    from scipy.special import stdtrit

    n_images = counts.shape[1]
    mean = counts.mean(axis=1, dtype=np.float64) / n_evaluations
    deviation = (
        np.array([_standard_deviation(image_counts.astype(np.float64)) for image_counts in counts]) / n_evaluations
    )
    half_width = stdtrit(max(n_images - 1, 1), 0.975) * deviation / np.sqrt(n_images)
    low, high = accuracy_intervals(mean, n_images)
    varies = deviation > 0
    return np.where(varies, np.maximum(mean - half_width, 0.0), low), np.where(
        varies, np.minimum(mean + half_width, 1.0), high
    )


def _standard_deviation(values: _Floats) -> float:
    """Return the standard deviation (ddof 1), which is exactly 0 for equal values or a single value."""
    return 0.0 if (values == values[0]).all() else float(values.std(ddof=1))


class PairedDifferences(NamedTuple):
    """Differences between the accuracies of two networks on the same images, with one entry per evaluation.

    Attributes:
        difference: second accuracy minus first accuracy, with its 95% interval from `low` to `high`.
        only_first: number of images that only the first network classifies correctly.
        only_second: number of images that only the second network classifies correctly.
        p_value: two-sided p-value of McNemar's exact test, not adjusted for multiple tests.
    """

    difference: _Floats
    low: _Floats
    high: _Floats
    only_first: NDArray[np.int64]
    only_second: NDArray[np.int64]
    p_value: _Floats


def paired_differences(first: Packed, second: Packed, n_images: int) -> PairedDifferences:
    """Compare the packed outcomes (E, B) uint8 of two networks on the same N images in the same order."""
    both_correct, only_first, only_second = (
        count_correct(packed) for packed in (first & second, first & ~second, ~first & second)
    )
    low, high = paired_difference_intervals(both_correct, only_first, only_second, n_images)
    return PairedDifferences(
        difference=(only_second - only_first) / n_images,
        low=low,
        high=high,
        only_first=only_first,
        only_second=only_second,
        p_value=mcnemar_p_values(only_first, only_second),
    )


def paired_difference_intervals(
    both_correct: ArrayLike, only_first: ArrayLike, only_second: ArrayLike, n_images: int
) -> tuple[_Floats, _Floats]:
    """Return 95% intervals, in [-1, 1], of the second accuracy minus the first one on the same images.

    The intervals of the two accuracies are combined by square-and-add with the correlation of the outcomes. Therefore
    networks that err on the same images have a narrow interval. The first three arguments are numbers of images that
    both networks, only the first one, or only the second one classify correctly.

    Source: Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired
    data", Statistics in Medicine 17 (1998), method 10. Single accuracies have the limits of `accuracy_intervals`:
    Wilson's as in the article, but Clopper and Pearson's if fewer than `FEW_IMAGES` images are correct or wrong.
    """
    # The cells of the 2 x 2 table of outcomes have the names of Newcombe's article.
    a, b, c = (np.asarray(argument, np.float64) for argument in (both_correct, only_second, only_first))
    d = n_images - a - b - c
    second, first = (a + b) / n_images, (a + c) / n_images
    second_low, second_high = accuracy_intervals(second, n_images)
    first_low, first_high = accuracy_intervals(first, n_images)
    correlation = _correlation(a, b, c, d, n_images)
    lower_width, upper_width = second - second_low, first_high - first
    low = (second - first) - np.sqrt(
        np.maximum(lower_width**2 - 2 * correlation * lower_width * upper_width + upper_width**2, 0.0)
    )
    lower_width, upper_width = first - first_low, second_high - second
    high = (second - first) + np.sqrt(
        np.maximum(lower_width**2 - 2 * correlation * lower_width * upper_width + upper_width**2, 0.0)
    )
    return np.maximum(low, -1.0), np.minimum(high, 1.0)


def _correlation(a: _Floats, b: _Floats, c: _Floats, d: _Floats, n_images: int) -> _Floats:
    """Return the phi coefficient of two outcomes, with Newcombe's continuity correction if it is positive."""
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    numerator = a * d - b * c
    numerator = np.where(numerator > 0, np.maximum(numerator - n_images / 2, 0.0), numerator)
    phi = np.zeros(np.broadcast(margins, numerator).shape)
    np.divide(numerator, np.sqrt(margins), out=phi, where=margins > 0)
    return phi
