"""Functions of bit-packed outcomes match the same computations on boolean arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from robust201.statistics.outcomes import (
    attack_success_rates,
    count_correct,
    error_consistency,
    image_difficulty,
    pack_outcomes,
    pairwise_agreement,
    unpack_outcomes,
    weighted_counts,
    worst_case,
)


def make_outcomes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape) < 0.7


@given(st.integers(1, 70), st.integers(0, 2**31))
def test_pack_outcomes_is_lossless(n_images: int, seed: int) -> None:
    correct = make_outcomes(3, n_images, seed=seed)
    packed = pack_outcomes(correct)
    assert packed.shape == (3, -(-n_images // 8))
    np.testing.assert_array_equal(unpack_outcomes(packed, n_images), correct)
    np.testing.assert_array_equal(count_correct(packed), correct.sum(axis=1))
    assert packed[0, 0] >> 7 == correct[0, 0]  # the first image is the most significant bit


def test_worst_case_is_correct_only_if_all_tasks_are_correct() -> None:
    correct = make_outcomes(4, 5, 83)
    combined = worst_case([pack_outcomes(task) for task in correct])
    np.testing.assert_array_equal(unpack_outcomes(combined, 83), correct.all(axis=0))


def test_attack_success_rate_is_a_ratio_of_counts() -> None:
    clean, attacked = make_outcomes(6, 101), make_outcomes(6, 101, seed=1)
    clean[5] = False
    rates = attack_success_rates(pack_outcomes(clean), pack_outcomes(attacked))
    expected = [
        (network_clean & ~network_attacked).sum() / network_clean.sum()
        for network_clean, network_attacked in zip(clean[:5], attacked[:5], strict=True)
    ]
    np.testing.assert_array_equal(rates[:5], expected)
    assert np.isnan(rates[5])


@pytest.mark.parametrize("n_networks", [1, 7, 300])
def test_image_difficulty_and_agreement_match_means_of_unpacked_outcomes(n_networks: int) -> None:
    correct = make_outcomes(n_networks, 61)
    packed = pack_outcomes(correct)
    np.testing.assert_allclose(image_difficulty(packed, 61), 1 - correct.mean(axis=0))
    agreement = pairwise_agreement(packed, 61)
    np.testing.assert_allclose(agreement, (correct[:, None] == correct[None, :]).mean(axis=-1))


def test_error_consistency_matches_cohens_kappa() -> None:
    correct = make_outcomes(4, 200)
    correct[3] = True
    kappa = error_consistency(pack_outcomes(correct), 200)
    for i in range(3):
        for j in range(3):
            assert kappa[i, j] == pytest.approx(cohen_kappa_score(correct[i], correct[j]))
    assert np.isnan(kappa[3, 3])


def test_weighted_counts_match_a_matrix_product() -> None:
    correct = make_outcomes(300, 45)
    weights = np.random.default_rng(2).integers(0, 4, (45, 6)).astype(np.float32)
    np.testing.assert_array_equal(weighted_counts(pack_outcomes(correct), weights), (correct @ weights).T)
