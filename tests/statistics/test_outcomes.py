"""Functions of bit-packed outcomes match the same computations on boolean arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from robust201.statistics.outcomes import (
    attack_success_rates,
    count_correct,
    pack_outcomes,
    unpack_outcomes,
    worst_case,
)


def make_outcomes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < 0.7


@given(st.integers(1, 70), st.integers(0, 2**31))
def test_pack_outcomes_is_lossless(n_images, seed):
    correct = make_outcomes(3, n_images, seed=seed)
    packed = pack_outcomes(correct)
    assert packed.shape == (3, -(-n_images // 8))
    np.testing.assert_array_equal(unpack_outcomes(packed, n_images), correct)
    np.testing.assert_array_equal(count_correct(packed), correct.sum(axis=1))
    assert packed[0, 0] >> 7 == correct[0, 0]  # the first image is the most significant bit


def test_worst_case_is_correct_only_if_all_tasks_are_correct():
    correct = make_outcomes(4, 5, 83)
    combined = worst_case([pack_outcomes(task) for task in correct])
    np.testing.assert_array_equal(unpack_outcomes(combined, 83), correct.all(axis=0))


def test_attack_success_rate_is_a_ratio_of_counts():
    clean, attacked = make_outcomes(6, 101), make_outcomes(6, 101, seed=1)
    clean[5] = False
    rates = attack_success_rates(pack_outcomes(clean), pack_outcomes(attacked))
    expected = [
        (network_clean & ~network_attacked).sum() / network_clean.sum()
        for network_clean, network_attacked in zip(clean[:5], attacked[:5], strict=True)
    ]
    np.testing.assert_array_equal(rates[:5], expected)
    assert np.isnan(rates[5])
