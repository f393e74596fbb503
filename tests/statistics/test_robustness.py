"""Robustness R and relative changes match their formulas and integrals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid

from robust201.core.errors import ConfigError
from robust201.statistics.robustness import relative_changes, robustness_r, trapezoid_weights

PAPER_STRENGTHS = np.array([0, 0.0125, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])


def test_robustness_r_uses_the_papers_trapezoid_weights():
    weights = trapezoid_weights(PAPER_STRENGTHS) / 0.3
    expected = [0.020833, 0.041667, 0.0625, 0.125, *[0.166667] * 4, 0.083333]
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    curve = robustness_r(PAPER_STRENGTHS, [0.8, *[0.1] * 8])
    assert curve.value == pytest.approx(0.143, abs=5e-4)
    assert curve.floor == pytest.approx(1 / 48)


@given(st.lists(st.floats(0.01, 1), min_size=2, max_size=8), st.integers(0, 2**31))
def test_robustness_r_is_the_area_relative_to_a_constant_curve(accuracies, seed):
    strengths = np.cumsum(np.random.default_rng(seed).uniform(0.1, 3, len(accuracies)))
    result = robustness_r(strengths, [accuracies, [0.5] * len(accuracies)])
    width = strengths[-1] - strengths[0]
    assert result.value[0] == pytest.approx(trapezoid(accuracies, strengths) / (accuracies[0] * width))
    assert result.value[1] == pytest.approx(1)
    changes = relative_changes(strengths, accuracies)
    assert trapezoid(changes, strengths) / width == pytest.approx(result.value[0] - 1, abs=1e-9)
    assert result.exceeds_one[0] == (result.value[0] > 1)
    assert result.rises[0] == (max(accuracies) > accuracies[0])


def test_robustness_r_above_one_is_flagged_and_not_clipped():
    result = robustness_r([0, 1, 2], [[0.2, 0.4, 0.2], [0.5, 0.6, 0.1], [0.5, 0, 0], [0, 0.1, 0.1]])
    np.testing.assert_allclose(result.value, [1.5, 0.9, 0.25, np.nan])
    assert result.exceeds_one.tolist() == [True, False, False, False]
    assert result.rises.tolist() == [True, True, False, True]
    assert result.floor == result.value[2]


@pytest.mark.parametrize("strengths", [[0], [0, 0], [1, 0], [0, 1, 2]])
def test_robustness_r_rejects_strengths_that_do_not_ascend_or_do_not_match_the_accuracies(strengths):
    with pytest.raises(ConfigError, match="expected at least two ascending strengths"):
        robustness_r(strengths, [0.5, 0.4])
