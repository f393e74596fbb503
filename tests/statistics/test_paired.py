"""Differences of two accuracies on the same images: intervals that hold, and published values."""

import numpy as np
import pytest

from robust201.statistics.outcomes import pack_outcomes
from robust201.statistics.paired import paired_difference_intervals, paired_differences


def test_counts_and_the_test_are_those_of_the_outcomes():
    first, second = np.array([[1, 1, 0, 0, 1, 1, 1, 1, 1]], bool), np.array([[1, 0, 1, 1, 1, 1, 1, 1, 1]], bool)
    found = paired_differences(pack_outcomes(first), pack_outcomes(second), 9)
    assert (found.only_first.tolist(), found.only_second.tolist()) == ([1], [2])
    assert found.difference[0] == pytest.approx(1 / 9)
    assert found.p_value[0] == pytest.approx(1.0)  # 2 * P(X <= 1 | n = 3, 1/2)


def test_equal_networks_do_not_differ_and_the_order_only_turns_the_sign():
    rng = np.random.default_rng(0)
    first, second = (pack_outcomes(rng.random((20, 200)) < share) for share in (0.6, 0.7))
    same = paired_differences(first, first, 200)
    assert (same.difference == 0).all()
    assert ((same.low <= 0) & (same.high >= 0)).all()
    one, other = paired_differences(first, second, 200), paired_differences(second, first, 200)
    np.testing.assert_allclose(one.low, -other.high, atol=1e-12)
    np.testing.assert_allclose(one.p_value, other.p_value)


def test_networks_that_err_on_the_same_images_have_a_narrower_interval():
    alike, unlike = (
        paired_difference_intervals(both=both, only_first=b, only_second=c, n_images=100)
        for both, b, c in ((68, 2, 12), (58, 12, 22))  # accuracies .70 and .80 in both
    )
    assert alike[1] - alike[0] < unlike[1] - unlike[0]


@pytest.mark.parametrize("n_images", [60, 300])
@pytest.mark.parametrize(
    "shares", [(0.5, 0.1, 0.15), (0.85, 0.05, 0.05), (0.3, 0.02, 0.2), (0.02, 0.01, 0.03)], ids=str
)
def test_intervals_hold_in_about_95_percent_of_samples(n_images, shares):
    draws = np.random.default_rng(1).multinomial(n_images, [*shares, 1 - sum(shares)], size=20_000)
    low, high = paired_difference_intervals(*draws[:, :3].T, n_images)
    held = ((low <= shares[2] - shares[1]) & (shares[2] - shares[1] <= high)).mean()
    assert 0.935 < held <= 1.0
