"""Comparison of two groups of trained networks: Welch's test, paired tests and effect sizes.

A group is one number per network, such as its robustness R. Tests from summaries need only the mean, standard deviation
and size of each group, as papers publish them; standard deviations are sample standard deviations (ddof 1) throughout.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.intervals import mean_intervals

_Floats = NDArray[np.float64]


class Groups(NamedTuple):
    """Summaries of several groups, arrays of the same shape (…).

    Attributes:
        mean: mean of the networks' numbers.
        deviation: standard deviation over networks, ddof 1.
        size: networks per group.
    """

    mean: _Floats
    deviation: _Floats
    size: _Floats


class MeanTest(NamedTuple):
    """A two-sided t-test of the hypothesis that two means are equal.

    Attributes:
        difference: first mean minus second mean.
        statistic: t; NaN if a group has fewer than two networks or neither group varies.
        degrees: degrees of freedom.
        p_value: two-sided p-value.
    """

    difference: _Floats
    statistic: _Floats
    degrees: _Floats
    p_value: _Floats


class EffectSize(NamedTuple):
    """Hedges' g with its interval."""

    value: _Floats
    low: _Floats
    high: _Floats


def make_groups(mean: ArrayLike, deviation: ArrayLike, size: ArrayLike) -> Groups:
    """Build groups from published summaries.

    Raises:
        ConfigError: a deviation is negative.
    """
    means, deviations, sizes = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in (mean, deviation, size)))
    if (deviations < 0).any():
        raise ConfigError(
            f"Reading summaries of groups failed for {deviations.shape} deviations: expected 0 or more, got "
            f"{np.nanmin(deviations):g}. Check the order of the numbers."
        )
    return Groups(means, deviations, sizes)


def summarise_group(values: ArrayLike) -> Groups:
    """Summarise networks along the last axis, ignoring NaN; the deviation of fewer than two is NaN."""
    numbers = np.asarray(values, np.float64)
    is_known = ~np.isnan(numbers)
    n = is_known.sum(axis=-1).astype(np.float64)
    mean = np.full(n.shape, np.nan)
    np.divide(np.where(is_known, numbers, 0).sum(axis=-1), n, out=mean, where=n > 0)
    squares = (np.where(is_known, numbers - mean[..., None], 0) ** 2).sum(axis=-1)
    variance = np.full(n.shape, np.nan)
    np.divide(squares, n - 1, out=variance, where=n > 1)
    return Groups(mean, np.sqrt(variance), n)


def welch_test(first: Groups, second: Groups) -> MeanTest:
    """Compare means of groups with unequal variances.

    Source: Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34 (1947).
    """
    first_part, second_part = (
        np.where(group.size > 1, group.deviation**2 / np.maximum(group.size, 1), np.nan) for group in (first, second)
    )
    variance = first_part + second_part
    with np.errstate(invalid="ignore", divide="ignore"):
        degrees = variance**2 / (
            first_part**2 / np.maximum(first.size - 1, 1) + second_part**2 / np.maximum(second.size - 1, 1)
        )
    return _t_test(first.mean - second.mean, np.sqrt(variance), degrees)


def paired_test(first: ArrayLike, second: ArrayLike) -> MeanTest:
    """Compare networks in pairs along the last axis, such as pairs with the same initial weights.

    Pairs with a NaN are left out.

    Raises:
        ConfigError: the shapes differ.
    """
    x, y = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if x.shape != y.shape:
        raise ConfigError(
            f"Comparing networks in pairs failed for {x.shape} and {y.shape} numbers: both groups must have the same "
            "shape. Give the second group in the order of the first."
        )
    differences = summarise_group(x - y)
    error = differences.deviation / np.sqrt(np.maximum(differences.size, 1))
    return _t_test(differences.mean, error, differences.size - 1)


def _t_test(difference: _Floats, error: _Floats, degrees: _Floats) -> MeanTest:
    from scipy.special import stdtr

    statistic = np.full(np.shape(difference), np.nan)
    np.divide(difference, error, out=statistic, where=error > 0)
    p_value: _Floats = 2 * stdtr(degrees, -np.abs(statistic))
    return MeanTest(np.asarray(difference), statistic, np.asarray(degrees), np.asarray(p_value))


def hedges_g(first: Groups, second: Groups) -> EffectSize:
    """Return the difference of means in pooled standard deviations, corrected for small groups.

    The 95% interval is the large-sample one, which assumes equal variances: use it for the size of the effect, not as a
    test. NaN if the pooled deviation is 0 or unknown.

    Source: Hedges, "Distribution theory for Glass's estimator of effect size and related estimators", Journal of
    Educational Statistics 6 (1981); interval of Hedges and Olkin, "Statistical Methods for Meta-Analysis", 1985, ch. 5.
    """
    from scipy.special import gammaln, ndtri

    degrees = np.asarray(first.size + second.size - 2)
    squares = (first.size - 1) * first.deviation**2 + (second.size - 1) * second.deviation**2
    pooled = np.full(np.shape(squares), np.nan)
    np.divide(squares, degrees, out=pooled, where=degrees > 0)
    pooled = np.sqrt(pooled)
    value = np.full(np.shape(squares), np.nan)
    np.divide(first.mean - second.mean, pooled, out=value, where=pooled > 0)
    half = np.maximum(degrees, 2) / 2
    value = value * np.exp(gammaln(half) - gammaln(half - 0.5) - np.log(half) / 2)
    total = np.maximum(first.size + second.size, 1)
    half_width = ndtri(0.5 + 0.95 / 2) * np.sqrt(
        total / np.maximum(first.size * second.size, 1) + value**2 / (2 * total)
    )
    return EffectSize(value, value - half_width, value + half_width)


def trend_estimate(places: ArrayLike, values: ArrayLike) -> tuple[float, float, float]:
    """Return the networks' mean slope over positions, with Student's 95% interval over networks.

    Args:
        places: (P,) positions on the x axis, such as fractions of robust images; at least two different ones.
        values: (n, P) numbers of each network at these positions.

    Returns:
        Mean slope by least squares and the ends of its interval; the ends are NaN for a single network.
    """
    x = np.asarray(places, np.float64)
    centred = x - x.mean()
    slopes = np.asarray(values, np.float64) @ centred / (centred @ centred)
    mean, low, high = mean_intervals(slopes)
    return float(mean), float(low), float(high)
