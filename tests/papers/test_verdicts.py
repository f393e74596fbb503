"""Verdicts follow from intervals, and the stated sample size is the smallest that decides an undecided claim."""

import math

import numpy as np
import pytest
from scipy import stats

from jobs.papers.verdicts import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Estimate,
    bootstrap_estimate,
    judge,
    mean_estimate,
    normal_estimate,
    required_sample_size,
    sample_needed,
    tau_estimate,
    welch_estimate,
)


@pytest.mark.parametrize(
    ("intervals", "verdict"),
    [
        ([(0.1, 0.3)], HOLDS),
        ([(-0.3, -0.1)], FAILS),
        ([(-0.1, 0.3)], UNDECIDED),
        ([(0.1, 0.3), (-0.1, 0.3)], UNDECIDED),
        ([(0.1, 0.3), (-0.1, 0.3), (-0.3, -0.1)], FAILS),
        ([(math.nan, math.nan)], UNDECIDED),  # a single seed
        ([], UNDECIDED),
    ],
)
def test_judge_decides_by_position_of_intervals(intervals, verdict):
    assert judge(Estimate((low + high) / 2, low, high, 5) for low, high in intervals) == verdict


def test_mean_interval_is_students_t_interval_and_nan_for_one_value():
    values = [0.3, 0.5, 0.4, 0.7]
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    estimate = mean_estimate(values)
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))
    joint = stats.ttest_1samp(values, 0).confidence_interval(1 - 0.05 / 3)
    assert mean_estimate(values, n_comparisons=3).low == pytest.approx(joint.low)
    assert mean_estimate(values).joint(3) == pytest.approx(mean_estimate(values, n_comparisons=3))
    assert -mean_estimate(values) == pytest.approx(mean_estimate(np.negative(values)))
    assert math.isnan(mean_estimate([0.5]).low)
    assert required_sample_size(mean_estimate([0.5])) == math.inf
    assert sample_needed([mean_estimate([0.5])], "seeds") == "more seeds"


def test_welch_interval_matches_scipy():
    first, second = [0.3, 0.5, 0.4, 0.7], [0.1, 0.2, 0.15]
    expected = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    estimate = welch_estimate(
        [np.mean(group) for group in (first, second)], [np.std(group, ddof=1) for group in (first, second)], [4, 3]
    )
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high))
    assert (estimate.n, estimate.groups) == (3, 2)


def test_normal_and_bootstrap_intervals_have_expected_quantiles():
    estimate = normal_estimate(0.5, 0.1, 100, n_comparisons=2)
    assert estimate.high - 0.5 == pytest.approx(0.1 * stats.norm.ppf(1 - 0.025 / 2))
    replicates = np.linspace(0, 1, 1001)
    assert bootstrap_estimate(0.5, [*replicates, math.nan], 20)[1:3] == pytest.approx((0.025, 0.975))


def test_tau_interval_matches_the_null_distribution():
    estimate = tau_estimate(range(8), [1, 3, 2, 5, 4, 7, 6, 8])
    assert estimate.value == pytest.approx(22 / 28)
    assert estimate.high - estimate.value == pytest.approx(1.959964 * math.sqrt(2 * 21 / (9 * 8 * 7)))


@pytest.mark.parametrize(("groups", "n_comparisons"), [(1, 1), (1, 3), (2, 1), (2, 4)])
@pytest.mark.parametrize("mean", [0.05, 0.02])
def test_required_sample_size_is_the_smallest_whose_interval_excludes_zero(groups, n_comparisons, mean):
    rng = np.random.default_rng(0)

    def estimate(n):
        values = rng.normal(size=n)
        values = mean + 0.1 * (values - values.mean()) / values.std(ddof=1)  # exact mean and deviation
        if groups == 1:
            return mean_estimate(values, n_comparisons)
        return welch_estimate([values.mean(), 0], [0.1, 0.1], [n, n], n_comparisons=n_comparisons)

    n = required_sample_size(estimate(5))
    assert judge([estimate(n)]) == HOLDS
    assert judge([estimate(n - 1)]) == UNDECIDED


def test_sample_needed_is_that_of_the_least_certain_estimate_if_so_many_are_available():
    estimates = [Estimate(0.1, -0.1, 0.3, 10), Estimate(0.01, -0.19, 0.21, 10), Estimate(0.5, 0.4, 0.6, 10)]
    n = required_sample_size(estimates[1])
    assert sample_needed(estimates, "seeds") == f"about {n:,.0f} seeds"
    assert sample_needed(estimates, "cells", 100) == "not even all 100 cells, if the estimates stay the same"
