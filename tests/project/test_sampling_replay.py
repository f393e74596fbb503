"""Replays of sampled sweeps: sample sizes fit the budget, and rank correlations match SciPy."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.sampling import (
    CHEAP,
    PAPER,
    PILOT_OF_SPACE,
    SPACE,
    compare_orders,
    count_passes,
    is_sampled,
    sample_sizes,
)


@pytest.mark.parametrize("cost", [0.025, 0.1])
def test_sample_sizes_cost_the_budget(cost):
    passes = count_passes(PAPER)
    sizes = sample_sizes(cost, passes, 10_000)
    whole, pilot = sum(passes.values()), PILOT_OF_SPACE / SPACE
    seen = sum(passes[key] * (sizes[key] if is_sampled(key) else 10_000) for key in passes) / 10_000
    assert pilot + (1 - pilot) * seen / whole == pytest.approx(cost, rel=1e-3)
    assert sizes["pgd"] / sizes["aa_square"] == pytest.approx((passes["aa_square"] / passes["pgd"]) ** 0.5, rel=0.01)
    assert sizes["fog"] == 10_000 * cost
    assert not any(map(is_sampled, CHEAP))


def test_budget_too_small_for_pilot_and_unsampled_keys_is_rejected():
    with pytest.raises(SystemExit, match=r"more than 1\.1%"):
        sample_sizes(0.01, count_passes(PAPER), 10_000)


def test_rankings_are_compared_by_kendalls_tau_and_best_network():
    draws = np.random.default_rng(0)
    truth, value, simple = draws.integers(0, 4, (3, 6, 2)) / 4
    value[:, 1] = truth[:, 1]
    taus = compare_orders(truth, value, simple, value - 0.1, value + 0.1)
    for strength in range(2):
        assert taus[0, strength] == pytest.approx(kendalltau(truth[:, strength], value[:, strength]).statistic)
        assert taus[1, strength] == pytest.approx(kendalltau(truth[:, strength], simple[:, strength]).statistic)
    assert taus[2:, 1].tolist() == [1, 1]
    worst = compare_orders(truth, -truth, simple, -truth - 0.01, -truth + 0.01)
    assert worst[2:].max() == 0
