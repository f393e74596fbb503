"""Draws are those of resampled images, and intervals follow from them."""

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


def draw(n_networks: int, n_images: int, *, common: bool) -> np.ndarray:
    rng = np.random.default_rng(3)
    difficulty = rng.random(n_images) if common else rng.random((n_networks, n_images))
    return difficulty < np.linspace(0.5, 0.8, n_networks)[:, None]


def test_images_are_drawn_together_for_all_rows() -> None:
    correct = draw(5, 64, common=True)
    counts = image_draws(pack_outcomes(correct), 64, n_draws=40, seed=7)
    rng = np.random.default_rng(7)
    for row in counts:
        images = rng.integers(0, 64, 64)
        np.testing.assert_array_equal(row, correct[:, images].sum(axis=1))


def test_seeds_decide_the_draws() -> None:
    packed = pack_outcomes(draw(4, 50, common=True)).reshape(2, 2, -1)
    for drawn in (
        lambda seed: image_draws(packed, 50, n_draws=5, seed=seed),
        lambda seed: binomial_draws(np.full((2, 2), 0.3), 50, n_draws=5, seed=seed),
    ):
        assert drawn(0).shape == (5, 2, 2)
        np.testing.assert_array_equal(drawn(0), drawn(0))
        assert (drawn(0) != drawn(1)).any()


def test_common_images_make_differences_surer() -> None:
    correct = draw(8, 500, common=True)
    paired = rank_intervals(image_draws(pack_outcomes(correct), 500))
    unpaired = rank_intervals(binomial_draws(correct.mean(axis=1), 500))
    assert (paired.high - paired.low).sum() < (unpaired.high - unpaired.low).sum()


def test_ranks() -> None:
    counts = np.random.default_rng(0).integers(0, 6, (20, 9))
    expected = np.array([rankdata(-row, method="min") for row in counts])
    np.testing.assert_array_equal(ranks_of(counts), expected)
    found = rank_intervals(counts.astype(np.int32), level=0.5)
    assert (found.low <= found.high).all()
    np.testing.assert_array_equal(found.best_share, (expected == 1).mean(axis=0))
    ordered = np.sort(expected, axis=0)
    np.testing.assert_array_equal(found.low, ordered[4])  # a quarter of 20 draws
    np.testing.assert_array_equal(found.high, ordered[14])


def test_intervals_of_medians_hold_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(6)
    truth, n, runs, held = rng.uniform(0.3, 0.9, 25), 300, 200, 0
    expected = np.median(rng.binomial(n, truth, (2_000, 25)), axis=1).mean() / n
    for run in range(runs):
        observed = rng.binomial(n, truth) / n
        found = median_estimate(observed, binomial_draws(observed, n, n_draws=100, seed=run), n, 0.9)
        held += found.low <= expected <= found.high
    assert 0.85 * runs <= held <= 0.95 * runs


def test_two_networks_have_a_tau_and_their_ties_none() -> None:
    drawn = np.array([[3, 5], [2, 4]], np.int32)
    assert kendall_estimate([0.3, 0.5], [0.9, 0.8], drawn, drawn[:, ::-1]) == (-1, -1, -1, 0)
    assert np.isnan(kendall_estimate([0.3, 0.3], [0.9, 0.8], drawn, drawn).value)


def test_intervals_stay_where_numbers_can_be() -> None:
    drawn = np.array([[9, 10, 10], [10, 10, 10], [8, 9, 9]], np.int32)
    found = median_estimate([1.0, 1.0, 1.0], drawn, 10)
    assert found.high == 1.0
    assert 0 < found.low < 1
    ordered, other = [0.1, 0.5, 0.9], np.array([[1, 5, 9], [1, 5, 9], [5, 1, 9]], np.int32)
    found = kendall_estimate(ordered, ordered, other, other[::-1])
    assert found.high == 1.0
    assert found.low >= -1.0
