"""Samples of images and estimates of accuracies: exact cases, simulated bias and coverage, and invalid arguments."""

import numpy as np
import pytest

from robust201.core.errors import ConfigError
from robust201.statistics.image_samples import ImageSample, Pilot, choose_sample, estimate_accuracies

N = 400


def make_outcomes(n_networks, seed=0):
    """Return outcomes (P, 2, N) of P networks on N images under two keys, and (P, 1, N) under a cheaper key."""
    generator = np.random.default_rng(seed)
    difficulty = np.random.default_rng(1).normal(size=N)
    ability = generator.normal(scale=0.3, size=(n_networks, 1, 1))
    scores = ability - difficulty + generator.logistic(scale=0.4, size=(n_networks, 3, N))
    correct = scores > np.array([-0.5, 0.0, 0.7])[:, None]
    return correct[:, 1:], correct[:, :1]


@pytest.fixture(scope="module")
def pilot():
    return Pilot(*make_outcomes(6))


def test_intervals_cover_the_accuracy_and_estimates_have_no_bias(pilot):
    outcomes, cheap_outcomes = (array[0] for array in make_outcomes(1, seed=5))
    truth, predicted = outcomes.mean(axis=1), pilot.predict(cheap_outcomes)
    errors, covered, standard_errors = [], [], []
    for seed in range(400):
        sample = choose_sample(pilot.outcomes, pilot.fitted, 60, seed)
        result = estimate_accuracies(sample, outcomes[:, sample.chosen], predicted, pilot.variance_factors)
        assert len(sample.chosen) == 60
        errors.append(result.accuracy - truth)
        covered.append((result.low <= truth) & (truth <= result.high))
        standard_errors.append(result.standard_error)
    assert (np.abs(np.mean(errors, axis=0)) < 4 * np.std(errors, axis=0) / 20).all()
    assert (np.mean(covered, axis=0) > 0.92).all()
    np.testing.assert_allclose(np.mean(standard_errors, axis=0), np.std(errors, axis=0), rtol=0.25)
    assert (np.mean(standard_errors, axis=0) < 0.8 * np.sqrt(truth * (1 - truth) / 60)).all()


def test_sample_of_all_images_gives_the_exact_accuracy(pilot):
    outcomes, cheap_outcomes = (array[0] for array in make_outcomes(1, seed=5))
    sample = choose_sample(pilot.outcomes, pilot.fitted, N, 0)
    result = estimate_accuracies(sample, outcomes, pilot.predict(cheap_outcomes), pilot.variance_factors)
    assert result.accuracy.tolist() == outcomes.mean(axis=1).tolist()
    assert result.standard_error.tolist() == [0, 0]
    assert (result.low == result.high).all()


def test_intervals_have_a_positive_width_if_all_outcomes_are_correct():
    outcomes = np.ones((3, 1, N), bool)
    pilot = Pilot(outcomes, outcomes)
    sample = choose_sample(outcomes, pilot.fitted, 20, 0)
    predicted = pilot.predict(outcomes[0])
    result = estimate_accuracies(sample, np.ones((1, 20), bool), predicted, pilot.variance_factors)
    assert result.high[0] == 1
    assert result.standard_error[0] > 0


def test_variance_factors_compare_residuals_with_the_expected_variance(pilot):
    expected = pilot.fitted * (1 - pilot.fitted)
    ratio = (((pilot.outcomes - pilot.fitted) ** 2).sum(axis=(0, 2)) + 4) / (expected.sum(axis=(0, 2)) + 4)
    np.testing.assert_allclose(pilot.variance_factors, np.minimum(ratio, 1), rtol=1e-2)


def test_two_images_per_stratum_suffice(pilot):
    outcomes, cheap_outcomes = (array[0] for array in make_outcomes(1, seed=5))
    sample = ImageSample(np.arange(N) % 2, np.arange(4))
    result = estimate_accuracies(sample, outcomes[:, :4], pilot.predict(cheap_outcomes), pilot.variance_factors)
    assert (result.standard_error > 0).all()


def test_pilot_of_one_network_and_invalid_sample_sizes_are_rejected(pilot):
    with pytest.raises(ConfigError, match="pilot"):
        Pilot(*make_outcomes(1))
    for n in (3, N + 1):
        with pytest.raises(ConfigError, match=f"n={n}"):
            choose_sample(pilot.outcomes, pilot.fitted, n, 0)


def test_intervals_of_a_network_unlike_the_pilot_are_wide_enough(pilot):
    outcomes = np.random.default_rng(3).random((2, N)) < np.array([[0.3], [0.6]])
    truth, predicted = outcomes.mean(axis=1), pilot.predict(make_outcomes(1)[1][0])
    covered = []
    for seed in range(200):
        sample = choose_sample(pilot.outcomes, pilot.fitted, 120, seed)
        result = estimate_accuracies(sample, outcomes[:, sample.chosen], predicted, pilot.variance_factors)
        covered.append((result.low <= truth) & (truth <= result.high))
    assert (np.mean(covered, axis=0) > 0.9).all()


def test_variance_factors_do_not_lower_the_minimum_of_the_expected_variance():
    sample, outcomes = ImageSample(np.arange(N) % 2, np.arange(40)), np.ones((1, 40), bool)
    errors = [
        estimate_accuracies(sample, outcomes, np.ones((1, N)), np.array([factor])).standard_error[0]
        for factor in (0.01, 1.0)
    ]
    assert errors[0] == errors[1] > 0
