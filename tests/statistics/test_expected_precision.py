"""Expected precision of samples matches simulated samples, and predictions do not depend on left-out outcomes."""

from dataclasses import replace

import numpy as np
import pytest

from robust201.statistics.expected_precision import leave_out_folds, sampled_precision, simple_precision
from robust201.statistics.sampling import allocate, estimate, stratify
from tests.statistics.test_sampling import simulate_outcomes


def test_sampled_precision_matches_simulated_samples():
    outcomes, cheap = simulate_outcomes(10, 600, seed=9, offsets=(0.0, -1.0))
    folds = leave_out_folds(outcomes, cheap)
    expected_half_width, expected_tau = sampled_precision(folds, 100, 600, n_strata=4, name="pgd")
    rng = np.random.default_rng(0)
    half_widths, order_signs = [], []
    for fold in folds:
        strata = stratify(fold.pilot, n_strata=4, seed=0, name="pgd", predicted=fold.pilot_predicted)
        design = allocate(strata, fold.pilot, 100, fold.pilot_predicted)
        accuracies = fold.outcomes.mean(axis=2)
        first, second = np.triu_indices(len(accuracies), 1)
        for _ in range(150):
            sample = replace(design, order=rng.permutation(600))
            estimates = [
                estimate(sample, correct[:, sample.positions], predicted)
                for correct, predicted in zip(fold.outcomes, fold.predicted, strict=True)
            ]
            half_widths += [(network_estimate.high - network_estimate.low) / 2 for network_estimate in estimates]
            estimated_accuracies = np.stack([network_estimate.value for network_estimate in estimates])
            order_signs.append(
                (
                    np.sign(estimated_accuracies[first] - estimated_accuracies[second])
                    * np.sign(accuracies[first] - accuracies[second])
                ).ravel()
            )
    assert expected_half_width == pytest.approx(np.median(half_widths), rel=0.1)
    assert expected_tau == pytest.approx(np.concatenate(order_signs).mean(), abs=0.05)


def test_sampled_precision_has_shorter_intervals_with_cheap_outcomes():
    outcomes, cheap = simulate_outcomes(10, 600, seed=9, offsets=(0.0, -1.0))
    half_width_with_cheap_outcomes, tau = sampled_precision(
        leave_out_folds(outcomes, cheap), 100, 600, n_strata=4, name="pgd"
    )
    folds_without_cheap_outcomes = leave_out_folds(outcomes, cheap[:, :0])
    half_width_without_cheap_outcomes, tau_without_cheap_outcomes = sampled_precision(
        folds_without_cheap_outcomes, 100, 600, n_strata=4, name="pgd"
    )
    half_width_of_simple_sample, _ = simple_precision(outcomes, 100, 600)
    assert half_width_with_cheap_outcomes < half_width_without_cheap_outcomes < half_width_of_simple_sample
    assert tau > tau_without_cheap_outcomes
    assert sampled_precision(leave_out_folds(outcomes, cheap), 600, 600, n_strata=4, name="pgd") == (0.0, 1.0)
    assert simple_precision(outcomes, 600, 600) == (0.0, 1.0)


def test_sampled_precision_hardly_depends_on_the_size_of_the_population():
    outcomes, cheap = simulate_outcomes(8, 600, seed=3, offsets=(0.0, -1.0))
    folds = leave_out_folds(outcomes, cheap)
    widths = [sampled_precision(folds, 60, n_images, n_strata=4, name="pgd")[0] for n_images in (300, 600, 900, 6000)]
    assert widths == pytest.approx([widths[1]] * 4, rel=0.25)


@pytest.mark.parametrize("n_networks", [3, 4, 5, 9, 20])
def test_leave_out_folds_predict_each_network_once_without_its_outcomes(n_networks):
    outcomes, cheap = simulate_outcomes(n_networks, 60, seed=1)
    folds = leave_out_folds(outcomes, cheap)
    assert sum(len(fold.outcomes) for fold in folds) == n_networks
    assert all(len(fold.pilot) + len(fold.outcomes) == n_networks for fold in folds)
    modified = outcomes.copy()
    modified[0] = ~modified[0]  # this network is left out in the first fold
    modified_fold = leave_out_folds(modified, cheap)[0]
    assert not np.array_equal(modified_fold.outcomes, folds[0].outcomes)
    assert np.array_equal(modified_fold.predicted, folds[0].predicted)
    assert np.array_equal(modified_fold.pilot_predicted, folds[0].pilot_predicted)


def test_leave_out_folds_need_three_networks_and_tau_needs_four():
    outcomes, cheap = simulate_outcomes(3, 60, seed=1)
    half_width, tau = sampled_precision(leave_out_folds(outcomes, cheap), 20, 60, n_strata=4, name="pgd")
    assert half_width > 0
    assert np.isnan(tau)
    with pytest.raises(ValueError, match="at least 3 networks"):
        leave_out_folds(outcomes[:2], cheap[:2])
