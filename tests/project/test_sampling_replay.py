"""Simulation of sampled sweeps on complete results: sample sizes fit the budget, and rankings are compared."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.sampling import (
    CHEAP_KEYS,
    N_NETWORKS,
    N_PILOT_NETWORKS,
    PAPER_SWEEP_YAML,
    compare_rankings,
    count_passes,
    is_sampled,
    sample_sizes,
)


@pytest.mark.parametrize("cost", [0.025, 0.1])
def test_sample_sizes_use_exactly_the_budget(cost):
    passes = count_passes(PAPER_SWEEP_YAML)
    sizes = sample_sizes(cost, passes, 10_000)
    full_cost, pilot_fraction = sum(passes.values()), N_PILOT_NETWORKS / N_NETWORKS
    mean_cost = sum(passes[key] * (sizes[key] if is_sampled(key) else 10_000) for key in passes) / 10_000
    assert pilot_fraction + (1 - pilot_fraction) * mean_cost / full_cost == pytest.approx(cost, rel=1e-3)
    assert sizes["pgd"] / sizes["aa_square"] == pytest.approx((passes["aa_square"] / passes["pgd"]) ** 0.5, rel=0.01)
    assert sizes["fog"] == 10_000 * cost
    assert not any(map(is_sampled, CHEAP_KEYS))


def test_budget_too_small_for_pilot_and_unsampled_keys_is_rejected():
    with pytest.raises(SystemExit, match=r"alone cost 1\.1%"):
        sample_sizes(0.01, count_passes(PAPER_SWEEP_YAML), 10_000)


def test_rankings_are_compared_by_kendalls_tau_and_best_network():
    rng = np.random.default_rng(0)
    truth, estimates, simple_estimates = rng.integers(0, 4, (3, 6, 2)) / 4
    estimates[:, 1] = truth[:, 1]
    agreement = compare_rankings(truth, estimates, simple_estimates, estimates - 0.1, estimates + 0.1)
    for strength in range(2):
        assert agreement[0, strength] == pytest.approx(kendalltau(truth[:, strength], estimates[:, strength]).statistic)
        assert agreement[1, strength] == pytest.approx(
            kendalltau(truth[:, strength], simple_estimates[:, strength]).statistic
        )
    assert agreement[2:, 1].tolist() == [1, 1]  # the network estimated as best is the best; by its interval, too
    reversed_agreement = compare_rankings(truth, -truth, simple_estimates, -truth - 0.01, -truth + 0.01)
    assert reversed_agreement[2:].max() == 0
