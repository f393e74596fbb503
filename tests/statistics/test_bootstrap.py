"""Bootstrap samples match explicit resampling of images, and intervals follow from them."""

import numpy as np
from scipy.stats import rankdata

from robust201.statistics.bootstrap import (
    binomial_draws,
    image_draws,
    kendall_estimate,
    median_estimate,
    rank_intervals,
    ranks_of,
)
from robust201.statistics.outcomes import pack_outcomes


def make_outcomes(n_networks: int, n_images: int, *, common: bool) -> np.ndarray:
    rng = np.random.default_rng(3)
    difficulty = rng.random(n_images) if common else rng.random((n_networks, n_images))
    return difficulty < np.linspace(0.5, 0.8, n_networks)[:, None]


def test_image_draws_resample_images_jointly_for_all_rows() -> None:
    correct = make_outcomes(5, 64, common=True)
    counts = image_draws(pack_outcomes(correct), 64, n_draws=40, seed=7)
    rng = np.random.default_rng(7)
    for row in counts:
        images = rng.integers(0, 64, 64)
        np.testing.assert_array_equal(row, correct[:, images].sum(axis=1))


def test_draws_are_determined_by_their_seed() -> None:
    packed = pack_outcomes(make_outcomes(4, 50, common=True)).reshape(2, 2, -1)
    for sampled in (
        lambda seed: image_draws(packed, 50, n_draws=5, seed=seed),
        lambda seed: binomial_draws(np.full((2, 2), 0.3), 50, n_draws=5, seed=seed),
    ):
        assert sampled(0).shape == (5, 2, 2)
        np.testing.assert_array_equal(sampled(0), sampled(0))
        assert (sampled(0) != sampled(1)).any()


def test_common_images_narrow_rank_intervals() -> None:
    correct = make_outcomes(8, 500, common=True)
    paired = rank_intervals(image_draws(pack_outcomes(correct), 500))
    unpaired = rank_intervals(binomial_draws(correct.mean(axis=1), 500))
    assert (paired.high - paired.low).sum() < (unpaired.high - unpaired.low).sum()


def test_ranks_of_matches_scipy() -> None:
    counts = np.random.default_rng(0).integers(0, 6, (20, 9))
    expected = np.array([rankdata(-row, method="min") for row in counts])
    np.testing.assert_array_equal(ranks_of(counts), expected)
    result = rank_intervals(counts.astype(np.int32), level=0.5)
    assert (result.low <= result.high).all()
    np.testing.assert_array_equal(result.best_share, (expected == 1).mean(axis=0))
    ordered = np.sort(expected, axis=0)
    np.testing.assert_array_equal(result.low, ordered[4])  # a quarter of 20 draws
    np.testing.assert_array_equal(result.high, ordered[14])


def test_median_estimate_has_nominal_coverage() -> None:
    rng = np.random.default_rng(6)
    truth, n, runs, n_covered = rng.uniform(0.3, 0.9, 25), 300, 200, 0
    expected = np.median(rng.binomial(n, truth, (2_000, 25)), axis=1).mean() / n
    for run in range(runs):
        observed = rng.binomial(n, truth) / n
        result = median_estimate(observed, binomial_draws(observed, n, n_draws=100, seed=run), n, 0.9)
        n_covered += result.low <= expected <= result.high
    assert 0.85 * runs <= n_covered <= 0.95 * runs


def test_kendall_estimate_of_two_networks_is_nan_with_ties() -> None:
    sampled = np.array([[3, 5], [2, 4]], np.int32)
    assert kendall_estimate([0.3, 0.5], [0.9, 0.8], sampled, sampled[:, ::-1]) == (-1, -1, -1, 0)
    assert np.isnan(kendall_estimate([0.3, 0.3], [0.9, 0.8], sampled, sampled).value)


def test_estimates_stay_within_their_limits() -> None:
    sampled = np.array([[9, 10, 10], [10, 10, 10], [8, 9, 9]], np.int32)
    result = median_estimate([1.0, 1.0, 1.0], sampled, 10)
    assert result.high == 1.0
    assert 0 < result.low < 1
    ordered, counts = [0.1, 0.5, 0.9], np.array([[1, 5, 9], [1, 5, 9], [5, 1, 9]], np.int32)
    result = kendall_estimate(ordered, ordered, counts, counts[::-1])
    assert result.high == 1.0
    assert result.low >= -1.0
