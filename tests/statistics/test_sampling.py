"""Estimates from samples of images are unbiased, exact for full samples, and have intervals with nominal coverage."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.statistics.sampling import (
    OutcomeModel,
    SampleDesign,
    allocate,
    estimate,
    estimate_with_sums,
    expected_half_widths,
    features,
    pilot_features,
    predict_pilots,
    stratify,
    sum_strata,
)


def simulate_outcomes(n_networks, n_images, seed, offsets=(0.0, -1.5, -3.0), noise=0.5):
    """Return outcomes (A, S, N), and those under cheap keys, (A, 2, N), of networks that find the same images hard."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(0, 2, n_images)
    ability = rng.normal(0.5, 0.4, (n_networks, 1)) - difficulty + rng.normal(0, 1, (n_networks, n_images))
    margin = ability[:, None] + np.array(offsets)[:, None]
    cheap_margin = ability[:, None] + np.array([0.5, -1.0])[:, None]
    return (margin + rng.normal(0, noise, margin.shape) > 0), cheap_margin > 0


def fit_pilot(outcomes, cheap, count, n_strata=4, seed=0):
    """Fit a model to a pilot, and return the model and a design with a sample of `count` images."""
    network_features = pilot_features(outcomes, cheap)
    model = OutcomeModel().fit(network_features, outcomes)
    predicted = predict_pilots(model, network_features)
    design = stratify(outcomes, n_strata=n_strata, seed=seed, name="pgd", predicted=predicted)
    return model, allocate(design, outcomes, count, predicted)


def iter_designs(stratum, sizes):
    """Yield one design for every possible sample with these sizes of its strata."""
    strata = [np.flatnonzero(stratum == index) for index in range(len(sizes))]
    combinations = [itertools.combinations(images, size) for images, size in zip(strata, sizes, strict=True)]
    for images_by_stratum in itertools.product(*combinations):
        sampled_images = np.concatenate(images_by_stratum)
        order = np.full(len(stratum), len(stratum))
        order[sampled_images] = np.arange(len(sampled_images))
        yield SampleDesign(stratum, np.argsort(np.argsort(order, kind="stable")), np.array(sizes))


@given(st.integers(0, 10_000))
def test_unclipped_estimate_is_unbiased_and_has_the_design_variance(seed):
    rng = np.random.default_rng(seed)
    stratum, sizes = np.repeat([0, 1], [5, 4]), [3, 2]
    correct = rng.random((2, 9)) < 0.5
    predicted = 0.3 + 0.2 * rng.random((2, 9))
    accuracy = correct.mean(axis=1)
    designs = list(iter_designs(stratum, sizes))
    clipped = np.array([estimate(design, correct[:, design.positions], predicted).value for design in designs])
    unclipped = np.array([unclipped_estimate(design, correct, predicted) for design in designs])
    assert len(designs) == math.comb(5, 3) * math.comb(4, 2)
    np.testing.assert_allclose(unclipped.mean(axis=0), accuracy, atol=1e-12)
    assert (np.abs(clipped - accuracy) <= np.abs(unclipped - accuracy) + 1e-12).all()
    residual = correct - predicted
    variance = sum(
        (np.mean(stratum == h)) ** 2 * (1 - sizes[h] / np.sum(stratum == h)) * residual[:, stratum == h].var(1, ddof=1)
        / sizes[h]
        for h in (0, 1)
    )  # fmt: skip
    np.testing.assert_allclose(unclipped.var(axis=0), variance, atol=1e-12)


def unclipped_estimate(design, correct, predicted):
    """Return the difference estimator, whose weights are inverse inclusion probabilities."""
    weights = np.zeros(design.n_images)
    weights[design.positions] = 1 / design.inclusion_probabilities[design.positions]
    return (predicted.sum(axis=1) + ((correct - predicted) * weights).sum(axis=1)) / design.n_images


def test_estimate_matches_the_difference_estimator():
    outcomes, cheap = simulate_outcomes(6, 300, seed=1)
    model, design = fit_pilot(outcomes[:5], cheap[:5], 60)
    predicted = model.predict(features(outcomes[:5], cheap[5], cheap[:5]))
    result = estimate(design, outcomes[5][:, design.positions], predicted)
    np.testing.assert_allclose(result.value, unclipped_estimate(design, outcomes[5], predicted), atol=1e-12)
    assert result.n_seen == 60
    assert (result.low < result.value).all()
    assert (result.value < result.high).all()


@given(st.integers(0, 1000), st.integers(20, 80))
def test_full_sample_gives_the_exact_accuracy_with_zero_error(seed, n_images):
    rng = np.random.default_rng(seed)
    outcomes = rng.random((3, 2, n_images)) < rng.random(n_images)
    design = allocate(stratify(outcomes, n_strata=5, seed=seed, name="x"), outcomes, n_images)
    result = estimate(design, outcomes[0], rng.random((2, n_images)))
    for accuracies in (result.value, result.low, result.high):
        assert (accuracies == outcomes[0].mean(axis=1)).all()
    assert (result.standard_error == 0).all()


@given(st.integers(0, 1000), st.integers(1, 6))
def test_allocate_gives_nested_samples_that_do_not_depend_on_intermediate_sizes(seed, n_strata):
    rng = np.random.default_rng(seed)
    outcomes = rng.random((3, 2, 60)) < rng.random(60)
    empty_design = stratify(outcomes, n_strata=n_strata, seed=seed, name="x")
    previous_design = empty_design
    for count in range(2 * n_strata, 61):
        direct_design, grown_design = (
            allocate(empty_design, outcomes, count),
            allocate(previous_design, outcomes, count),
        )
        assert len(direct_design.positions) == count
        assert set(previous_design.positions) <= set(direct_design.positions)
        np.testing.assert_array_equal(direct_design.positions, grown_design.positions)
        assert direct_design.sizes.min() >= 2
        previous_design = direct_design


def test_allocation_has_the_smallest_expected_variance():
    outcomes, _ = simulate_outcomes(4, 24, seed=3)
    design = stratify(outcomes, n_strata=3, seed=0, name="x")
    counts = design.stratum_counts
    result = allocate(design, outcomes, 12)
    mean_of_others = (outcomes.sum(axis=0) - outcomes + 0.5) / len(outcomes)
    residual = (outcomes - mean_of_others).reshape(-1, 24)
    variances = np.array([residual[:, design.stratum == h].var(axis=1).mean() for h in range(3)])

    def expected_variance(sizes):
        return (counts**2 * variances / sizes).sum()

    allocations = [sizes for sizes in itertools.product(*(range(2, count + 1) for count in counts)) if sum(sizes) == 12]
    assert expected_variance(result.sizes) == pytest.approx(min(map(expected_variance, allocations)))


def test_strata_are_ordered_by_uncertainty_and_images_by_seed_and_name():
    outcomes, _ = simulate_outcomes(5, 400, seed=4)
    design = stratify(outcomes, n_strata=5, seed=7, name="pgd")
    mean = outcomes.mean(axis=0)
    variances = [(mean * (1 - mean))[:, design.stratum == h].mean() for h in range(5)]
    assert variances == sorted(variances)
    repeated = stratify(outcomes, n_strata=5, seed=7, name="pgd")
    np.testing.assert_array_equal(design.order, repeated.order)
    np.testing.assert_array_equal(np.sort(design.order), np.arange(400))
    for other_design in (
        stratify(outcomes, n_strata=5, seed=8, name="pgd"),
        stratify(outcomes, n_strata=5, seed=7, name="fog"),
    ):
        assert (design.order != other_design.order).any()
        np.testing.assert_array_equal(np.bincount(design.stratum), np.bincount(other_design.stratum))


def test_order_of_images_is_the_same_on_every_machine():
    outcomes = np.random.default_rng(0).random((2, 1, 6)) < 0.5
    assert stratify(outcomes, n_strata=1, seed=0, name="pgd").order.tolist() == [3, 2, 5, 0, 4, 1]


def test_images_of_equal_difficulty_have_equal_inclusion_probabilities():
    """Strata must not depend on the random order, or images at a stratum's boundary would be sampled too often."""
    n_images, n_samples = 150, 3000
    outcomes = np.ones((4, 1, n_images), bool)
    outcomes[0, :, 50:] = False  # 100 images on which one of four networks is wrong
    outcomes[:2, :, 120:] = False  # 30 of these on which two are wrong
    designs = [
        allocate(stratify(outcomes, n_strata=3, seed=seed, name="ties"), outcomes, 45) for seed in range(n_samples)
    ]
    assert all(np.array_equal(design.stratum, designs[0].stratum) for design in designs)
    assert len(np.unique(designs[0].stratum[50:120])) > 1  # images of equal difficulty are in several strata
    frequency = np.bincount(np.concatenate([design.positions for design in designs]), minlength=n_images) / n_samples
    expected = designs[0].inclusion_probabilities
    standard_error = np.sqrt(expected * (1 - expected) / n_samples)
    assert np.all(np.abs(frequency - expected) < 5 * standard_error)


def test_inclusion_probabilities_add_up_to_the_sample_size():
    outcomes, _ = simulate_outcomes(4, 200, seed=5)
    design = allocate(stratify(outcomes, n_strata=4, seed=0, name="x"), outcomes, 50)
    assert design.inclusion_probabilities.sum() == pytest.approx(50)
    np.testing.assert_array_equal(np.bincount(design.stratum[design.positions], minlength=4), design.sizes)


@pytest.mark.parametrize(
    ("count", "offsets", "max_variance_ratio"), [(40, (0, -1.5), 0.5), (120, (0, -1.5), 0.5), (120, (5, -6), 1.1)]
)
def test_estimate_has_nominal_coverage_and_less_variance_than_random_sampling(count, offsets, max_variance_ratio):
    # In the last case, accuracies are within a few percent of 0 and 1, so results depend on a few rare images.
    outcomes, cheap = simulate_outcomes(12, 2000, seed=6, offsets=offsets)
    model, design = fit_pilot(outcomes[:6], cheap[:6], count, n_strata=6)
    predicted = np.concatenate(
        [model.predict(features(outcomes[:6], network_cheap, cheap[:6])) for network_cheap in cheap[6:]]
    )
    correct = outcomes[6:].reshape(-1, 2000)
    accuracy = correct.mean(axis=1)
    sums = sum_strata(design, predicted)
    rng = np.random.default_rng(0)
    is_covered, errors = [], []
    for _ in range(400):
        sample = replace(design, order=rng.permutation(2000))
        images = sample.positions
        result = estimate_with_sums(sample, correct[:, images], predicted[:, images], sums)
        is_covered.append((result.low <= accuracy) & (accuracy <= result.high))
        errors.append(result.value - accuracy)
    assert 0.93 < np.mean(is_covered) < 0.985
    random_sampling_variance = accuracy * (1 - accuracy) / count
    assert (np.mean(np.square(errors), axis=0) / random_sampling_variance).mean() < max_variance_ratio


def test_standard_error_is_positive_if_all_sampled_images_are_correct():
    design = SampleDesign(np.repeat([0, 1], 500), np.arange(1000), np.array([20, 20]))
    sampled_outcomes = np.ones((1, 40), bool)
    predicted = np.full((1, 1000), 0.98)
    result = estimate(design, sampled_outcomes, predicted)
    assert result.standard_error[0] > 0.01
    assert result.high[0] == 1.0
    assert result.low[0] < 0.97


def test_outcome_model_explains_most_variance_and_predicts_constant_outcomes():
    outcomes, cheap = simulate_outcomes(6, 500, seed=8)
    outcomes[:, 2] = False  # an attack that fools every network
    model = OutcomeModel().fit(pilot_features(outcomes[:5], cheap[:5]), outcomes[:5])
    predicted = model.predict(features(outcomes[:5], cheap[5], cheap[:5]))
    assert predicted.shape == (3, 500)
    assert predicted[2].max() < 0.01
    unexplained_fraction = ((outcomes[5, :2] - predicted[:2]) ** 2).mean(axis=1) / outcomes[5, :2].var(axis=1)
    assert (unexplained_fraction < 0.5).all()


def test_expected_half_widths_match_the_mean_over_repeated_samples():
    outcomes, cheap = simulate_outcomes(10, 1500, seed=9, offsets=(0.0, -1.0))
    model, design = fit_pilot(outcomes[1:], cheap[1:], 150)
    predicted = model.predict(features(outcomes[1:], cheap[0], cheap[1:]))
    expected = expected_half_widths(design, outcomes[0], predicted)
    rng = np.random.default_rng(0)
    half_widths = []
    for _ in range(300):
        sample = replace(design, order=rng.permutation(1500))
        result = estimate(sample, outcomes[0][:, sample.positions], predicted)
        half_widths.append((result.high - result.low) / 2)
    assert expected == pytest.approx(np.mean(half_widths, axis=0), rel=0.03)
    assert expected_half_widths(allocate(design, outcomes[1:], 1500), outcomes[0], predicted).tolist() == [0.0, 0.0]


OUTCOMES = np.random.default_rng(0).random((3, 2, 20)) < 0.5
DESIGN = allocate(stratify(OUTCOMES, n_strata=2, seed=0, name="x"), OUTCOMES, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stratify(OUTCOMES[:1], n_strata=2, seed=0, name="x"), "pilot of at least 2 networks, got 1"),
        (lambda: stratify(OUTCOMES[0], n_strata=2, seed=0, name="x"), "expected outcomes .*, got shape"),
        (lambda: stratify(OUTCOMES, n_strata=0, seed=0, name="x"), "at least 1 stratum, got 0"),
        (lambda: stratify(OUTCOMES, n_strata=2, seed=0, name="x", predicted=np.zeros((3, 2, 19))), "outcomes' shape"),
        (lambda: allocate(DESIGN, OUTCOMES, 3), "expected a sample of 6 images .* to 20 images, got 3"),
        (lambda: allocate(replace(DESIGN, sizes=np.zeros(2, np.int64)), OUTCOMES, 3), "expected a sample of 4 images"),
        (lambda: allocate(DESIGN, OUTCOMES, 21), "to 20 images, got 21"),
        (lambda: allocate(DESIGN, OUTCOMES[:, :, :19], 8), "the design's 20 images, got 19"),
        (lambda: estimate(DESIGN, OUTCOMES[0], np.full((2, 20), 0.5)), r"outcomes \(S, 6\) of the sample's images"),
        (lambda: estimate(DESIGN, OUTCOMES[0][:, :6], np.full((2, 20), 1.5)), "between 0 and 1"),
        (lambda: estimate(DESIGN, OUTCOMES[0][:, :6], np.full((2, 20), np.nan)), "between 0 and 1"),
        (lambda: estimate(DESIGN, OUTCOMES[0][:, :6], np.full((2, 19), 0.5)), r"predictions \(S, 20\)"),
        (lambda: estimate(DESIGN, OUTCOMES[0][:, :6], np.full((3, 20), 0.5)), "for 2 strengths, got 3 and 3"),
        (
            lambda: estimate(replace(DESIGN, sizes=np.array([6, 0])), OUTCOMES[0][:, :6], np.full((2, 20), 0.5)),
            r"at least 2 sampled images in every stratum \(or all of its images\), got 0 in stratum 1",
        ),
        (lambda: OutcomeModel().fit(np.zeros((3, 19, 4)), OUTCOMES), "features and .* outcomes"),
        (lambda: OutcomeModel().fit(np.zeros((3, 20, 4)), OUTCOMES).predict(np.zeros((20, 5))), r"features \(N, 4\)"),
        (lambda: SampleDesign(np.zeros(3, np.int64), np.arange(4), np.array([1])), "of equal length"),
        (lambda: SampleDesign(np.zeros(3, np.int64), np.arange(3), np.array([4])), "expected sizes from 0"),
    ],
)
def test_sampling_functions_reject_invalid_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
