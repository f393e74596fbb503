"""Psychometric functions: planted curves are found, and the closed form is the integral."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from robust201.core.errors import ConfigError
from robust201.statistics.psychometric import PsychometricCurve, fit_psychometric

STRENGTHS = np.array([0, 0.0125, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])


@given(st.floats(0.5, 1.0), st.floats(0.0, 0.3), st.floats(-0.1, 0.3), st.floats(0.01, 0.2))
def test_the_closed_form_is_the_integral(upper, lower, midpoint, scale):
    curve = PsychometricCurve(upper, lower, midpoint, scale, 0.0)
    area, _ = quad(lambda strength: float(curve.accuracy(strength)), 0, 0.3, points=[min(max(midpoint, 0), 0.3)])
    assert curve.robustness(0, 0.3) == pytest.approx(area / (float(curve.accuracy(0)) * 0.3), rel=1e-6)


@pytest.mark.parametrize("planted", [(0.98, 0.02, 0.12, 0.03), (0.9, 0.0, 0.02, 0.01), (0.7, 0.2, 0.2, 0.05)])
def test_a_planted_curve_is_found(planted):
    curve = PsychometricCurve(*planted, 0.0)
    found = fit_psychometric(STRENGTHS, curve.accuracy(STRENGTHS))
    assert found.error < 1e-4
    np.testing.assert_allclose(found.accuracy(STRENGTHS), curve.accuracy(STRENGTHS), atol=1e-3)
    assert found.robustness(0, 0.3) == pytest.approx(curve.robustness(0, 0.3), abs=1e-3)


def test_too_few_points_are_rejected():
    with pytest.raises(ConfigError, match="5 ascending strengths or more"):
        fit_psychometric([0, 1, 2, 3], [0.9, 0.5, 0.3, 0.1])
