"""Accuracies and medians from per-image distances match hand calculations."""

import numpy as np
import pytest

from robust201.core.errors import ConfigError
from robust201.statistics.distances import accuracy_curve, half_distance, median_distance
from robust201.statistics.intervals import accuracy_intervals

DISTANCES = [0.0, 0.0, 0.2, 0.3, 0.3, 0.7, 1.1, np.inf]


def test_accuracy_curve_returns_the_fraction_of_distances_above_each_epsilon():
    curve = accuracy_curve(DISTANCES, [0.0, 0.19, 0.2, 0.3, 1.0, 5.0])
    assert curve.accuracy.tolist() == [6 / 8, 6 / 8, 5 / 8, 3 / 8, 2 / 8, 1 / 8]
    low, high = accuracy_intervals(curve.accuracy, 8)
    assert (curve.low.tolist(), curve.high.tolist()) == (low.tolist(), high.tolist())


def test_median_distance_uses_all_images_and_half_distance_only_correct_images():
    # The number B of distances below the true median is binomial(8, 1/2). P(B <= 0) = 0.0039 is below 2.5%, and
    # P(B <= 1) = 0.035 is above, so the 95% interval is from the first to the last distance.
    assert median_distance(DISTANCES) == (0.3, 0.0, np.inf)
    assert half_distance(DISTANCES) == 0.3
    assert median_distance([1.0, 3.0, np.inf, np.inf]).value == np.inf
    assert np.isnan(half_distance([0.0, 0.0]))


def test_half_distance_is_the_smallest_epsilon_that_fools_half_of_the_correct_images():
    assert half_distance([1.0, 1.0, np.inf, np.inf]) == 1.0
    assert half_distance([1.0, np.inf, np.inf]) == np.inf
    rng = np.random.default_rng(1)
    for n_images in range(1, 12):
        distances = rng.exponential(size=n_images)
        epsilon = half_distance(distances)
        accuracy_below, accuracy = accuracy_curve(distances, [np.nextafter(epsilon, 0), epsilon]).accuracy
        assert accuracy <= 0.5 < accuracy_below


def test_median_distance_interval_matches_published_tables():
    # The number B of distances below the true median is binomial(20, 1/2). P(B <= 5) = 0.0207 is below 2.5%, and
    # P(B <= 6) = 0.0577 is above, so the ends have ranks 6 and 15, as published.
    assert median_distance(np.arange(1.0, 21.0)) == (10.5, 6.0, 15.0)
    assert median_distance([1.0, 2.0, 3.0]) == (2.0, 0.0, np.inf)


def test_median_distance_interval_has_nominal_coverage():
    rng = np.random.default_rng(0)
    intervals = [median_distance(rng.exponential(size=25)) for _ in range(2000)]
    coverage = np.mean([interval.low <= np.log(2) <= interval.high for interval in intervals])
    assert 0.95 <= coverage <= 0.98


@pytest.mark.parametrize("distances", [[], [-1.0], [np.nan, 1.0], [[1.0]]])
def test_median_distance_rejects_invalid_distances(distances):
    with pytest.raises(ConfigError, match="expected one or more numbers from 0 to infinity"):
        median_distance(distances)
