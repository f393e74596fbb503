"""Bootstrap samples match explicit resampling of images, and their intervals have the right coverage and bounds."""

import numpy as np
from scipy.stats import rankdata

from robust201.statistics.bootstrap import (
    binomial_counts,
    kendall_estimate,
    median_estimate,
    rank_intervals,
    ranks_of,
    resampled_counts,
)
from robust201.statistics.outcomes import pack_outcomes


def make_outcomes(n_networks: int, n_images: int, *, shared_difficulty: bool) -> np.ndarray:
    """Return outcomes of networks with accuracies from 0.5 to 0.8, which may find the same images difficult."""
    rng = np.random.default_rng(3)
    difficulty = rng.random(n_images) if shared_difficulty else rng.random((n_networks, n_images))
    return difficulty < np.linspace(0.5, 0.8, n_networks)[:, None]


def test_resampled_counts_use_the_same_images_for_all_networks() -> None:
    correct = make_outcomes(5, 64, shared_difficulty=True)
    counts = resampled_counts(pack_outcomes(correct), 64, n_draws=40, seed=7)
    rng = np.random.default_rng(7)
    for sample_counts in counts:
        images = rng.integers(0, 64, 64)
        np.testing.assert_array_equal(sample_counts, correct[:, images].sum(axis=1))


def test_bootstrap_samples_depend_only_on_the_seed() -> None:
    packed = pack_outcomes(make_outcomes(4, 50, shared_difficulty=True)).reshape(2, 2, -1)
    for counts_with_seed in (
        lambda seed: resampled_counts(packed, 50, n_draws=5, seed=seed),
        lambda seed: binomial_counts(np.full((2, 2), 0.3), 50, n_draws=5, seed=seed),
    ):
        assert counts_with_seed(0).shape == (5, 2, 2)
        np.testing.assert_array_equal(counts_with_seed(0), counts_with_seed(0))
        assert (counts_with_seed(0) != counts_with_seed(1)).any()


def test_paired_rank_intervals_are_narrower_than_unpaired_ones() -> None:
    correct = make_outcomes(8, 500, shared_difficulty=True)
    paired_intervals = rank_intervals(resampled_counts(pack_outcomes(correct), 500))
    unpaired_intervals = rank_intervals(binomial_counts(correct.mean(axis=1), 500))
    assert (paired_intervals.high - paired_intervals.low).sum() < (
        unpaired_intervals.high - unpaired_intervals.low
    ).sum()


def test_ranks_match_scipy_and_rank_intervals_match_quantiles() -> None:
    counts = np.random.default_rng(0).integers(0, 6, (20, 9))
    expected = np.array([rankdata(-sample_counts, method="min") for sample_counts in counts])
    np.testing.assert_array_equal(ranks_of(counts), expected)
    intervals = rank_intervals(counts.astype(np.int32), level=0.5)
    assert (intervals.low <= intervals.high).all()
    np.testing.assert_array_equal(intervals.best_share, (expected == 1).mean(axis=0))
    sorted_ranks = np.sort(expected, axis=0)
    np.testing.assert_array_equal(intervals.low, sorted_ranks[4])  # index of the first quartile of 20 samples
    np.testing.assert_array_equal(intervals.high, sorted_ranks[14])


def test_median_estimate_has_nominal_coverage() -> None:
    rng = np.random.default_rng(6)
    true_accuracies, n_images, n_runs, n_covered = rng.uniform(0.3, 0.9, 25), 300, 200, 0
    expected = np.median(rng.binomial(n_images, true_accuracies, (2_000, 25)), axis=1).mean() / n_images
    for run in range(n_runs):
        observed = rng.binomial(n_images, true_accuracies) / n_images
        counts = binomial_counts(observed, n_images, n_draws=100, seed=run)
        estimate = median_estimate(observed, counts, n_images, 0.9)
        n_covered += estimate.low <= expected <= estimate.high
    assert 0.85 * n_runs <= n_covered <= 0.95 * n_runs


def test_kendall_estimate_of_two_networks_is_nan_with_ties() -> None:
    counts = np.array([[3, 5], [2, 4]], np.int32)
    assert kendall_estimate([0.3, 0.5], [0.9, 0.8], counts, counts[:, ::-1]) == (-1, -1, -1, 0)
    assert np.isnan(kendall_estimate([0.3, 0.3], [0.9, 0.8], counts, counts).value)


def test_interval_ends_are_clipped_to_valid_values() -> None:
    resampled = np.array([[9, 10, 10], [10, 10, 10], [8, 9, 9]], np.int32)
    estimate = median_estimate([1.0, 1.0, 1.0], resampled, 10)
    assert estimate.high == 1.0
    assert 0 < estimate.low < 1
    accuracies, counts = [0.1, 0.5, 0.9], np.array([[1, 5, 9], [1, 5, 9], [5, 1, 9]], np.int32)
    estimate = kendall_estimate(accuracies, accuracies, counts, counts[::-1])
    assert estimate.high == 1.0
    assert estimate.low >= -1.0
