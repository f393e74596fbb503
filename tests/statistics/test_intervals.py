"""Confidence intervals match SciPy's."""

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest

from robust201.statistics.intervals import (
    FEW_IMAGES,
    accuracy_intervals,
    is_at_chance,
    mean_intervals,
)


def test_accuracy_intervals_are_exact_if_few_images_are_correct_or_misclassified():
    n = 60
    correct = np.arange(n + 1)
    low, high = accuracy_intervals(correct / n, n)
    for k in correct:
        method = "exact" if min(k, n - k) < FEW_IMAGES else "wilson"
        expected = binomtest(int(k), n).proportion_ci(method=method)
        assert (low[k], high[k]) == pytest.approx(tuple(expected), abs=1e-9)


def test_accuracy_intervals_of_missing_values_are_nan():
    low, high = accuracy_intervals([np.nan, 0.5, 0.5], [100, np.nan, 100])
    assert np.isnan([low[0], high[0], low[1], high[1]]).all()
    assert (low[2], high[2]) == pytest.approx(tuple(binomtest(50, 100).proportion_ci(method="wilson")))


def test_mean_intervals_match_students_t_distribution():
    samples = np.random.default_rng(0).normal(size=(7, 3))
    means, low, high = mean_intervals(samples)
    expected = stats.t.interval(0.95, 6, loc=samples.mean(axis=0), scale=stats.sem(samples, axis=0))
    np.testing.assert_allclose(means, samples.mean(axis=0))
    np.testing.assert_allclose((low, high), expected)
    assert np.isnan(mean_intervals(samples[:1])[1:]).all()


@pytest.mark.parametrize(
    ("n_correct", "n_images", "n_classes", "expected"),
    [
        (5, 50, 10, True),
        (45, 90, 2, True),
        (108, 200, 2, True),
        (120, 200, 2, False),
        (12, 50, 10, False),
        (2, 10, 10, False),  # too few images to tell
        (0, 19, 2, True),
    ],
)
def test_is_at_chance_depends_on_the_interval_and_the_number_of_images(n_correct, n_images, n_classes, expected):
    assert is_at_chance(n_correct / n_images, n_images, n_classes) is expected
