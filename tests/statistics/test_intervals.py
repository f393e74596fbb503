"""Intervals hold as often as they say, and equal SciPy's."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from robust201.statistics.intervals import (
    FEW_IMAGES,
    accuracy_intervals,
    clopper_pearson_intervals,
    wilson_interval,
)


@pytest.mark.parametrize(("correct", "n"), [(0, 1), (1, 1), (3, 10), (40, 100), (9_468, 10_000), (10_000, 10_000)])
def test_both_intervals_are_scipys(correct: int, n: int) -> None:
    test = binomtest(correct, n)
    assert wilson_interval(correct / n, n) == pytest.approx(tuple(test.proportion_ci(method="wilson")), abs=1e-12)
    exact = clopper_pearson_intervals(correct, n)
    assert [float(end) for end in exact] == pytest.approx(list(test.proportion_ci(method="exact")), abs=1e-9)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_few_images_on_a_side_get_exact_intervals(level: float) -> None:
    n = 60
    correct = np.arange(n + 1)
    low, high = accuracy_intervals(correct / n, n, level)
    for k in correct:
        method = "exact" if min(k, n - k) < FEW_IMAGES else "wilson"
        expected = binomtest(int(k), n).proportion_ci(level, method=method)
        assert (low[k], high[k]) == pytest.approx(tuple(expected), abs=1e-9)


def test_exact_intervals_hold_at_least_as_often_as_they_say() -> None:
    n = 25
    correct = np.arange(n + 1)
    low, high = clopper_pearson_intervals(correct, n, 0.9)
    for truth in np.linspace(0.001, 0.999, 97):
        assert binom.pmf(correct, n, truth)[(low <= truth) & (truth <= high)].sum() >= 0.9


def test_what_is_missing_has_no_interval() -> None:
    low, high = accuracy_intervals([np.nan, 0.5, 0.5], [100, np.nan, 100])
    assert np.isnan([low[0], high[0], low[1], high[1]]).all()
    assert (low[2], high[2]) == pytest.approx(wilson_interval(0.5, 100))
