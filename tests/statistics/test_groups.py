"""Tests of groups of networks: against SciPy, from samples and from summaries, and effect sizes by hand."""

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
def test_welchs_test_is_that_of_scipy_from_samples_and_from_summaries(seed, n, m):
    draws = np.random.default_rng(seed)
    first, second = draws.normal(0.5, 0.1, n), draws.normal(0.45, 0.02, m)
    wanted = stats.ttest_ind(first, second, equal_var=False)
    found = welch_test(summarise_group(first), summarise_group(second))
    assert found.statistic == pytest.approx(wanted.statistic)
    assert found.degrees == pytest.approx(wanted.df)
    assert found.p_value == pytest.approx(wanted.pvalue)
    printed = make_groups(first.mean(), first.std(ddof=1), n), make_groups(second.mean(), second.std(ddof=1), m)
    assert welch_test(*printed).p_value == pytest.approx(wanted.pvalue)


def test_the_paired_test_is_that_of_scipy_and_finds_what_the_unpaired_does_not():
    draws = np.random.default_rng(0)
    start = draws.normal(0, 1, 20)
    first, second = start + draws.normal(0.2, 0.05, 20), start
    found = paired_test(first, second)
    assert found.p_value == pytest.approx(stats.ttest_rel(first, second).pvalue)
    assert found.p_value < 1e-6 < 0.05 < welch_test(summarise_group(first), summarise_group(second)).p_value


def test_a_network_that_is_missing_is_left_out_of_both():
    first, second = np.array([1.0, 2.0, 4.0, np.nan]), np.array([0.5, 1.0, 2.5, 7.0])
    assert paired_test(first, second).p_value == pytest.approx(stats.ttest_rel(first[:3], second[:3]).pvalue)
    assert summarise_group(first)[2] == 3
    with pytest.raises(ConfigError, match="expected as many of each"):
        paired_test(first, second[:3])


@pytest.mark.parametrize(("values", "n"), [([0.5], 1), ([], 0)])
def test_a_group_too_small_to_vary_has_no_test(values, n):
    small = summarise_group(values)
    assert small.size == n
    assert math.isnan(welch_test(small, summarise_group([1.0, 2.0])).p_value)
    assert math.isnan(hedges_g(small, small).value)


def test_groups_that_do_not_vary_have_no_statistic():
    level = make_groups(0.5, 0.0, 20)
    assert math.isnan(welch_test(level, level).p_value)
    with pytest.raises(ConfigError, match="expected 0 or more"):
        make_groups(0.5, -0.1, 20)


def test_hedges_g_of_groups_worked_out_by_hand():
    found = hedges_g(make_groups(1.0, 2.0, 20), make_groups(0.0, 2.0, 20))
    assert found.value == pytest.approx(0.5 * (1 - 3 / (4 * 38 - 1)), rel=1e-3)  # the usual approximation
    assert found.high - found.value == pytest.approx(1.96 * math.sqrt(0.1 + found.value**2 / 80), rel=1e-4)


def test_a_trend_is_the_mean_slope_with_its_interval():
    mean, low, high = trend_estimate([0, 0.5, 1], [[0, 1, 2], [0, 2, 4]])
    assert (mean, high - mean) == (pytest.approx(3), pytest.approx(mean - low))
    assert math.isnan(trend_estimate([0, 1], [[0, 1]])[1])
