"""What the benchmark of the engine counts and chooses."""

import pytest

from benchmarks.engine_case import stratified_sample, suite_seconds
from robust201.spaces.nasbench201.cells import evaluated_indices


def test_the_sample_is_fixed_and_spread_over_the_costs():
    sample = stratified_sample(24)
    assert sample == stratified_sample(24)
    assert len(set(sample)) == 24
    assert set(sample) <= set(evaluated_indices())


def test_suite_cost():
    costs = {"fgsm": 1.0, "pgd": 0.01, "aa_apgd-ce": 0.02, "aa_square": 0.001}
    assert suite_seconds(costs) == pytest.approx(1 + 7 * (0.4 + 2 + 1.95))
