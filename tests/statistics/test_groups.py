"""Group comparisons match SciPy's tests and hand calculations of effect sizes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from robust201.core.errors import ConfigError
from robust201.statistics.groups import (
    hedges_g,
    make_groups,
    paired_test,
    summarise_group,
    trend_estimate,
    welch_test,
)


@given(st.integers(0, 10_000), st.integers(2, 25), st.integers(2, 25))
def test_welch_test_matches_scipy_for_samples_and_summaries(seed, n, m):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(0.5, 0.1, n), rng.normal(0.45, 0.02, m)
    expected = stats.ttest_ind(first, second, equal_var=False)
    result = welch_test(summarise_group(first), summarise_group(second))
    assert result.statistic == pytest.approx(expected.statistic)
    assert result.df == pytest.approx(expected.df)
    assert result.p_value == pytest.approx(expected.pvalue)
    summaries = make_groups(first.mean(), first.std(ddof=1), n), make_groups(second.mean(), second.std(ddof=1), m)
    assert welch_test(*summaries).p_value == pytest.approx(expected.pvalue)


def test_paired_test_matches_scipy_and_has_more_power_than_welch_test():
    rng = np.random.default_rng(0)
    second = rng.normal(0, 1, 20)
    first = second + rng.normal(0.2, 0.05, 20)
    result = paired_test(first, second)
    assert result.p_value == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert result.p_value < 1e-6 < 0.05 < welch_test(summarise_group(first), summarise_group(second)).p_value


def test_paired_test_ignores_pairs_with_missing_values():
    first, second = np.array([1.0, 2.0, 4.0, np.nan]), np.array([0.5, 1.0, 2.5, 7.0])
    assert paired_test(first, second).p_value == pytest.approx(stats.ttest_rel(first[:3], second[:3]).pvalue)
    assert summarise_group(first)[2] == 3
    with pytest.raises(ConfigError, match="both groups must have the same shape"):
        paired_test(first, second[:3])


@pytest.mark.parametrize("values", [[0.5], []])
def test_welch_test_and_hedges_g_are_nan_for_too_small_groups(values):
    small = summarise_group(values)
    assert small.size == len(values)
    assert math.isnan(welch_test(small, summarise_group([1.0, 2.0])).p_value)
    assert math.isnan(hedges_g(small, small).value)


def test_welch_test_of_constant_groups_is_nan_and_negative_standard_deviations_are_rejected():
    constant = make_groups(0.5, 0.0, 20)
    assert math.isnan(welch_test(constant, constant).p_value)
    with pytest.raises(ConfigError, match="expected 0 or more"):
        make_groups(0.5, -0.1, 20)


def test_hedges_g_matches_hand_calculation():
    result = hedges_g(make_groups(1.0, 2.0, 20), make_groups(0.0, 2.0, 20))
    correction = 1 - 3 / (4 * 38 - 1)  # Hedges' approximation
    assert result.value == pytest.approx(0.5 * correction, rel=1e-3)
    assert result.high - result.value == pytest.approx(1.96 * math.sqrt(0.1 + result.value**2 / 80), rel=1e-4)


def test_trend_estimate_returns_the_mean_slope_with_an_interval():
    mean, low, high = trend_estimate([0, 0.5, 1], [[0, 1, 2], [0, 2, 4]])
    assert (mean, high - mean) == (pytest.approx(3), pytest.approx(mean - low))
    assert math.isnan(trend_estimate([0, 1], [[0, 1]])[1])
