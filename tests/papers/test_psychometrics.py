"""Sensitivities and psychometric curves match their formulas and integrals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from jobs.papers.image_distribution.psychometrics import PsychometricCurve, fit_psychometric, sensitivity

PAPER_STRENGTHS = (0, 0.0125, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)


def test_sensitivity_for_two_alternatives_matches_the_closed_form():
    """For two alternatives, d' is the square root of 2 times the normal quantile of the accuracy."""
    accuracies = np.array([0.5, 0.6, 0.76, 0.9, 0.99])
    result = sensitivity(accuracies, 2, 10_000)
    np.testing.assert_allclose(result, np.sqrt(2) * norm.ppf(accuracies), atol=2e-4)


@pytest.mark.parametrize("n_classes", [2, 10, 100])
def test_sensitivity_is_zero_at_chance_level_and_increases_with_accuracy(n_classes):
    assert sensitivity(1 / n_classes, n_classes, 10_000) == pytest.approx(0, abs=1e-4)
    sensitivities = sensitivity(np.linspace(0.001, 0.999, 50), n_classes, 10_000)
    assert (np.diff(sensitivities) > 0).all()
    extreme_sensitivities = sensitivity([0.0, 1.0], n_classes, 100)
    assert np.isfinite(extreme_sensitivities).all()
    np.testing.assert_allclose(extreme_sensitivities, sensitivity([0.005, 0.995], n_classes, 10_000))


@given(st.floats(0.5, 1.0), st.floats(0.0, 0.3), st.floats(-0.1, 0.3), st.floats(0.01, 0.2))
def test_psychometric_robustness_matches_the_integral(upper, lower, midpoint, scale):
    curve = PsychometricCurve(upper, lower, midpoint, scale, 0.0)
    area, _ = quad(lambda strength: float(curve.accuracy(strength)), 0, 0.3, points=[min(max(midpoint, 0), 0.3)])
    assert curve.robustness(0, 0.3) == pytest.approx(area / (float(curve.accuracy(0)) * 0.3), rel=1e-6)


@pytest.mark.parametrize("parameters", [(0.98, 0.02, 0.12, 0.03), (0.9, 0.0, 0.02, 0.01), (0.7, 0.2, 0.2, 0.05)])
def test_fit_psychometric_recovers_a_known_curve(parameters):
    curve = PsychometricCurve(*parameters, 0.0)
    result = fit_psychometric(PAPER_STRENGTHS, curve.accuracy(PAPER_STRENGTHS))
    assert result.error < 1e-4
    np.testing.assert_allclose(result.accuracy(PAPER_STRENGTHS), curve.accuracy(PAPER_STRENGTHS), atol=1e-3)
    assert result.robustness(0, 0.3) == pytest.approx(curve.robustness(0, 0.3), abs=1e-3)
