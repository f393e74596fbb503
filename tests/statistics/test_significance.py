"""Significance tests between networks match SciPy, and Holm's correction matches its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2_contingency, sem, ttest_rel
from scipy.stats import t as student

from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.outcomes import pack_outcomes
from robust201.statistics.significance import (
    holm_adjust,
    mcnemar_p_values,
    mean_accuracy_intervals,
    mean_accuracy_ties,
    paired_difference_intervals,
    paired_differences,
    ties_with_best,
    two_proportion_p_values,
)


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_p_values_match_the_binomial_test(only_first, only_second):
    expected = binomtest(only_first, only_first + only_second).pvalue if only_first + only_second else 1.0
    assert float(mcnemar_p_values(only_first, only_second)) == pytest.approx(expected, rel=1e-9)


@given(st.integers(2, 500), st.data())
def test_two_proportion_p_values_match_the_chi_square_test(n, data):
    correct_first, correct_second = data.draw(st.integers(0, n)), data.draw(st.integers(0, n))
    p_value = float(two_proportion_p_values(correct_first, correct_second, n, n))
    if 0 < correct_first + correct_second < 2 * n:
        table = [[correct_first, n - correct_first], [correct_second, n - correct_second]]
        assert p_value == pytest.approx(chi2_contingency(table, correction=False).pvalue, rel=1e-6, abs=1e-12)
    else:
        assert p_value == 1.0


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.001, 0.5))
def test_holm_adjust_matches_the_step_down_procedure(p_values, level):
    rejected = set()
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if (len(p_values) - step) * p_values[index] > level:
            break
        rejected.add(index)
    adjusted = holm_adjust(p_values)
    assert {index for index, adjusted_p_value in enumerate(adjusted) if adjusted_p_value <= level} == rejected
    assert all(raw <= corrected for raw, corrected in zip(p_values, adjusted, strict=True))


def make_outcomes(accuracies: list[float], n: int, shared_fraction: float) -> np.ndarray:
    """Return outcomes of networks with these accuracies; a fraction of the images is equally hard for all."""
    rng = np.random.default_rng(1)
    common, separate = rng.random(n), rng.random((len(accuracies), n))
    difficulty = np.where(np.arange(n) < shared_fraction * n, common, separate)
    return difficulty < np.array(accuracies)[:, None]


def test_ties_with_best_uses_mcnemars_test_if_outcomes_are_passed():
    n = 1_000
    correct = make_outcomes([0.9, 0.892, 0.885, 0.87, 0.5], n, shared_fraction=1.0)
    accuracies = correct.mean(axis=1)
    paired_ties = ties_with_best(accuracies, n, outcomes=pack_outcomes(correct))
    best_index = int(accuracies.argmax())
    raw_p_values = [
        binomtest(int((correct[best_index] & ~outcomes).sum()), int((correct[best_index] != outcomes).sum())).pvalue
        for outcomes in correct[1:]
    ]
    assert paired_ties.best_index == best_index == 0
    np.testing.assert_allclose(paired_ties.p_values[1:], holm_adjust(raw_p_values))
    assert paired_ties.is_paired
    unpaired_ties = ties_with_best(accuracies, n)
    # The same images are hard for all networks, so the paired test finds smaller differences significant.
    assert paired_ties.tied.sum() < unpaired_ties.tied.sum()
    assert not unpaired_ties.tied[-1]
    assert not unpaired_ties.is_paired


def test_ties_with_best_includes_the_best_and_equal_networks():
    result = ties_with_best([0.5, np.nan, 0.9, 0.9], 100)
    assert (result.best_index, result.tied.tolist()) == (2, [False, False, True, True])
    assert np.isnan(result.p_values[1])
    assert ties_with_best([np.nan], 100).best_index == -1


def test_paired_differences_count_images_and_match_mcnemar():
    first, second = np.array([[1, 1, 0, 0, 1, 1, 1, 1, 1]], bool), np.array([[1, 0, 1, 1, 1, 1, 1, 1, 1]], bool)
    result = paired_differences(pack_outcomes(first), pack_outcomes(second), 9)
    assert (result.only_first.tolist(), result.only_second.tolist()) == ([1], [2])
    assert result.difference[0] == pytest.approx(1 / 9)
    assert result.p_value[0] == pytest.approx(1.0)  # 2 * P(X <= 1 | n = 3, 1/2)


def test_paired_differences_are_antisymmetric_and_zero_for_equal_networks():
    rng = np.random.default_rng(0)
    first, second = (pack_outcomes(rng.random((20, 200)) < accuracy) for accuracy in (0.6, 0.7))
    zero_differences = paired_differences(first, first, 200)
    assert (zero_differences.difference == 0).all()
    assert ((zero_differences.low <= 0) & (zero_differences.high >= 0)).all()
    forward, backward = paired_differences(first, second, 200), paired_differences(second, first, 200)
    np.testing.assert_allclose(forward.low, -backward.high, atol=1e-12)
    np.testing.assert_allclose(forward.p_value, backward.p_value)


@pytest.mark.parametrize("n_images", [60, 300])
@pytest.mark.parametrize(
    "fractions", [(0.5, 0.1, 0.15), (0.85, 0.05, 0.05), (0.3, 0.02, 0.2), (0.02, 0.01, 0.03)], ids=str
)
def test_paired_difference_intervals_have_nominal_coverage(n_images, fractions):
    counts = np.random.default_rng(1).multinomial(n_images, [*fractions, 1 - sum(fractions)], size=20_000)
    low, high = paired_difference_intervals(*counts[:, :3].T, n_images)
    coverage = ((low <= fractions[2] - fractions[1]) & (fractions[2] - fractions[1] <= high)).mean()
    assert 0.935 < coverage <= 1.0


def test_mean_accuracy_intervals_have_a_positive_width_if_all_images_have_equal_counts():
    counts = np.array([[4] * 10, [0] * 10, [2] * 10], np.uint16)
    low, high = mean_accuracy_intervals(counts, 4)
    expected_low, expected_high = accuracy_intervals([1.0, 0.0, 0.5], 10)
    assert (low.tolist(), high.tolist()) == (expected_low.tolist(), expected_high.tolist())
    assert low[0] < 0.75
    result = mean_accuracy_ties(counts, 4)
    expected = binomtest(10, 10).pvalue
    np.testing.assert_allclose(result.p_values, [1.0, 2 * expected, 2 * expected])
    assert result.tied.tolist() == [True, False, False]


@pytest.mark.parametrize("n_images", [1, 2, 3])
def test_all_networks_tie_in_mean_accuracy_if_there_are_few_images(n_images):
    counts = np.array([[2] * n_images, [1] * n_images, [2] * n_images], np.uint16)
    result = mean_accuracy_ties(counts, 2)
    assert result.tied.all()
    assert not np.isnan(result.p_values).any()
    low, high = mean_accuracy_intervals(counts, 2)
    assert ((low < high) & (high - low > 0.5)).all()


def test_mean_accuracy_ties_match_students_t_test():
    counts = np.random.default_rng(2).integers(0, 6, (3, 40)).astype(np.uint16)
    floats = counts.astype(float)
    result = mean_accuracy_ties(counts, 5)
    other_indices = [index for index in range(3) if index != result.best_index]
    raw_p_values = [ttest_rel(floats[result.best_index], floats[other_index]).pvalue for other_index in other_indices]
    np.testing.assert_allclose(result.p_values[other_indices], holm_adjust(raw_p_values))
    low, high = mean_accuracy_intervals(counts, 5)
    expected = student.interval(0.95, 39, floats[0].mean() / 5, sem(floats[0] / 5))
    np.testing.assert_allclose((low[0], high[0]), expected)
