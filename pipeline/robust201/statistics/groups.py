"""Comparison of two groups of trained networks: Welch's test, paired tests and effect sizes.

A group has one number per network, such as its robustness R (`statistics.robustness`). Welch's test and effect sizes
need only the mean, standard deviation and size of each group, which papers publish. All standard deviations are sample
standard deviations (ddof 1).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError
from robust201.statistics.intervals import mean_intervals

_Floats = NDArray[np.float64]


class Groups(NamedTuple):
    """Summaries of several groups, as arrays of the same shape (…).

    Attributes:
        mean: mean over networks.
        deviation: standard deviation over networks (ddof 1).
        size: number of networks per group.
    """

    mean: _Floats
    deviation: _Floats
    size: _Floats


class MeanTest(NamedTuple):
    """A two-sided t-test of the hypothesis that two means are equal.

    Attributes:
        difference: first mean minus second mean.
        statistic: t; NaN if a group has fewer than two networks or neither group varies.
        df: degrees of freedom.
        p_value: two-sided p-value.
    """

    difference: _Floats
    statistic: _Floats
    df: _Floats
    p_value: _Floats


class EffectSize(NamedTuple):
    """Hedges' g with its 95% interval."""

    value: _Floats
    low: _Floats
    high: _Floats


def make_groups(mean: ArrayLike, deviation: ArrayLike, size: ArrayLike) -> Groups:
    """Build groups from published summaries.

    Raises:
        ConfigError: a standard deviation is negative.
    """
    means, deviations, sizes = np.broadcast_arrays(
        *(np.asarray(argument, np.float64) for argument in (mean, deviation, size))
    )
    if (deviations < 0).any():
        raise ConfigError(
            f"Reading summaries of groups failed for standard deviations of shape {deviations.shape}: expected 0 or "
            f"more, got {np.nanmin(deviations):g}. Check the order of the arguments."
        )
    return Groups(means, deviations, sizes)


def summarise_group(values: ArrayLike) -> Groups:
    """Summarise networks along the last axis, ignoring NaN; the deviation of fewer than two networks is NaN."""
    value_array = np.asarray(values, np.float64)
    is_known = ~np.isnan(value_array)
    n_networks = is_known.sum(axis=-1).astype(np.float64)
    mean = np.full(n_networks.shape, np.nan)
    np.divide(np.where(is_known, value_array, 0).sum(axis=-1), n_networks, out=mean, where=n_networks > 0)
    squares = (np.where(is_known, value_array - mean[..., None], 0) ** 2).sum(axis=-1)
    variance = np.full(n_networks.shape, np.nan)
    np.divide(squares, n_networks - 1, out=variance, where=n_networks > 1)
    return Groups(mean, np.sqrt(variance), n_networks)


def welch_test(first: Groups, second: Groups) -> MeanTest:
    """Compare the means of two groups, whose variances may differ.

    Source: Welch, "The generalization of 'Student's' problem when several different population variances are involved",
    Biometrika 34 (1947).
    """
    first_variance, second_variance = (
        np.where(group.size > 1, group.deviation**2 / np.maximum(group.size, 1), np.nan) for group in (first, second)
    )
    variance = first_variance + second_variance
    with np.errstate(invalid="ignore", divide="ignore"):
        df = variance**2 / (
            first_variance**2 / np.maximum(first.size - 1, 1) + second_variance**2 / np.maximum(second.size - 1, 1)
        )
    return _t_test(first.mean - second.mean, np.sqrt(variance), df)


def paired_test(first: ArrayLike, second: ArrayLike) -> MeanTest:
    """Test the mean difference of paired networks along the last axis, such as networks with equal initial weights.

    Pairs with a NaN are ignored.

    Raises:
        ConfigError: the shapes differ.
    """
    x, y = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if x.shape != y.shape:
        raise ConfigError(
            f"Comparing networks in pairs failed for arrays of shape {x.shape} and {y.shape}: both groups must have "
            "the same shape. Pass the second group in the order of the first."
        )
    differences = summarise_group(x - y)
    standard_error = differences.deviation / np.sqrt(np.maximum(differences.size, 1))
    return _t_test(differences.mean, standard_error, differences.size - 1)


def _t_test(difference: _Floats, standard_error: _Floats, df: _Floats) -> MeanTest:
    from scipy.special import stdtr

    statistic = np.full(np.shape(difference), np.nan)
    np.divide(difference, standard_error, out=statistic, where=standard_error > 0)
    p_value: _Floats = 2 * stdtr(df, -np.abs(statistic))
    return MeanTest(np.asarray(difference), statistic, np.asarray(df), np.asarray(p_value))


def hedges_g(first: Groups, second: Groups) -> EffectSize:
    """Return Hedges' g: the difference of means in pooled standard deviations, corrected for small groups.

    The 95% interval is an approximation for large groups of equal variance, so use it to judge the size of the effect,
    not its significance. All numbers are NaN if the pooled deviation is 0 or unknown.

    Source: Hedges, "Distribution theory for Glass's estimator of effect size and related estimators", Journal of
    Educational Statistics 6 (1981); interval of Hedges and Olkin, "Statistical Methods for Meta-Analysis", 1985, ch. 5.
    """
    from scipy.special import gammaln, ndtri

    df = np.asarray(first.size + second.size - 2)
    squares = (first.size - 1) * first.deviation**2 + (second.size - 1) * second.deviation**2
    pooled_variance = np.full(np.shape(squares), np.nan)
    np.divide(squares, df, out=pooled_variance, where=df > 0)
    pooled_deviation = np.sqrt(pooled_variance)
    value = np.full(np.shape(squares), np.nan)
    np.divide(first.mean - second.mean, pooled_deviation, out=value, where=pooled_deviation > 0)
    half_df = np.maximum(df, 2) / 2
    value = value * np.exp(gammaln(half_df) - gammaln(half_df - 0.5) - np.log(half_df) / 2)
    n_networks = np.maximum(first.size + second.size, 1)
    half_width = ndtri(0.5 + 0.95 / 2) * np.sqrt(
        n_networks / np.maximum(first.size * second.size, 1) + value**2 / (2 * n_networks)
    )
    return EffectSize(value, value - half_width, value + half_width)


def trend_estimate(x_positions: ArrayLike, values: ArrayLike) -> tuple[float, float, float]:
    """Return the mean slope of the networks' values over x positions, with Student's 95% interval over networks.

    Args:
        x_positions: (P,) positions on the x axis, such as fractions of robustified training images; at least two must
            differ.
        values: (n, P) value of each network at each position.

    Returns:
        Mean slope by least squares and the ends of its interval; the ends are NaN for a single network.
    """
    x = np.asarray(x_positions, np.float64)
    centred_x = x - x.mean()
    slopes = np.asarray(values, np.float64) @ centred_x / (centred_x @ centred_x)
    mean, low, high = mean_intervals(slopes)
    return float(mean), float(low), float(high)
