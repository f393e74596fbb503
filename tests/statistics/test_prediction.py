"""Gaussian process, jackknife+ intervals and choices of points are correct for known functions."""

import numpy as np
import pytest

from robust201.statistics.prediction import (
    GaussianProcess,
    choose_for_best,
    choose_for_ranking,
    jackknife_plus_intervals,
)


def make_points(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random points (count, 3), and two noisy functions of them as targets (count, 2)."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(count, 3))
    targets = np.stack([points[:, 0] + np.sin(points[:, 1]), -2 * points[:, 2]], axis=1)
    return points, targets + 0.1 * rng.normal(size=targets.shape)


def test_leave_one_out_matches_fits_without_each_point() -> None:
    points, targets = make_points(25)
    process = GaussianProcess().fit(points, targets)
    kernel, noise = process._kernel, process.noise
    standardised = process.standardise(targets)
    for left_out in (0, 7, 24):
        is_other = np.arange(25) != left_out
        covariance = kernel(points[is_other]) + (noise + 1e-8) * np.eye(24)
        expected = kernel(points[[left_out]], points[is_other]) @ np.linalg.solve(covariance, standardised[is_other])
        prediction = process.standardise(process.predict_leave_one_out()[[left_out]])
        np.testing.assert_allclose(prediction, expected, atol=1e-6)


def test_predict_intervals_cover_new_points_at_the_requested_level() -> None:
    points, targets = make_points(60)
    process = GaussianProcess().fit(points, targets)
    new_points, new_targets = make_points(500, seed=1)
    predicted = process.predict_intervals(new_points, 0.9)
    is_covered = (predicted.low <= new_targets) & (new_targets <= predicted.high)
    assert 0.8 < is_covered.mean() < 0.98
    assert np.corrcoef(predicted.value[:, 0], new_targets[:, 0])[0, 1] > 0.95


def test_jackknife_plus_intervals_are_infinite_with_too_few_residuals() -> None:
    low, high = jackknife_plus_intervals(np.zeros((1, 8)), np.ones(8), 0.9)
    assert (low[0], high[0]) == (-np.inf, np.inf)
    low, high = jackknife_plus_intervals(np.zeros((1, 9)), np.arange(9.0), 0.9)
    assert (low[0], high[0]) == (-8.0, 8.0)


def test_fit_gives_noisy_targets_less_weight() -> None:
    points, targets = make_points(30)
    noisy_targets = targets.copy()
    noisy_targets[0] += 5
    variances = np.zeros_like(targets)
    variances[0] = 100.0
    unweighted = GaussianProcess().fit(points, noisy_targets).predict(points[:1])
    weighted = GaussianProcess().fit(points, noisy_targets, variances).predict(points[:1])
    assert np.abs(weighted - targets[0]).sum() < np.abs(unweighted - targets[0]).sum()


def test_choose_for_ranking_returns_the_most_informative_points() -> None:
    covariance = np.array([[1.0, 0.9, 0.9, 0.0], [0.9, 1.0, 0.8, 0.0], [0.9, 0.8, 1.0, 0.0], [0.0, 0.0, 0.0, 1.2]])
    assert choose_for_ranking(covariance.copy(), np.ones(4, bool), 0.01, 2) == [0, 3]
    assert choose_for_ranking(covariance.copy(), np.array([False, True, True, False]), 0.01, 1) == [1]


@pytest.mark.parametrize(("mean", "expected"), [([0.0, 0.0, 5.0], 2), ([0.0, 0.0, 0.0], 1)])
def test_choose_for_best_combines_predictions_and_uncertainty(mean: list[float], expected: int) -> None:
    covariance = np.diag([0.5, 1.0, 0.1])
    assert choose_for_best(np.array(mean), covariance, np.ones(3, bool), 0.01, 1)[0] == expected
