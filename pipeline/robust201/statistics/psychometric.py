"""Accuracy over the strength of an attack as a psychometric function, whose robustness R has a closed form."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError

MIN_POINTS = 5
"""One more than the parameters."""


class PsychometricCurve(NamedTuple):
    """Accuracy lower + (upper - lower) / (1 + exp((strength - midpoint) / scale)).

    Attributes:
        upper: accuracy far below the midpoint.
        lower: accuracy far above it.
        midpoint: strength at which the accuracy is half-way between them.
        scale: strength within which it falls; above 0.
        error: root mean square of the residuals.
    """

    upper: float
    lower: float
    midpoint: float
    scale: float
    error: float

    def accuracy(self, strengths: ArrayLike) -> NDArray[np.float64]:
        """Return the accuracy at some strengths."""
        from scipy.special import expit

        steps = (np.asarray(strengths, np.float64) - self.midpoint) / self.scale
        values: NDArray[np.float64] = self.lower + (self.upper - self.lower) * expit(-steps)
        return values

    def robustness(self, low: float, high: float) -> float:
        """Return R over an interval of strengths: the integral in closed form over that of its first accuracy.

        See `statistics.robustness.robustness_r` for R; here the measured points decide the curve only.
        """
        width = high - low
        begin, end = ((strength - self.midpoint) / self.scale for strength in (low, high))
        fallen = self.scale * (np.logaddexp(0.0, end) - np.logaddexp(0.0, begin))
        area = self.lower * width + (self.upper - self.lower) * (width - fallen)
        first = float(self.accuracy(low))
        return float(area / (first * width)) if first > 0 else float("nan")


def fit_psychometric(strengths: ArrayLike, accuracies: ArrayLike) -> PsychometricCurve:
    """Fit a falling logistic curve by least squares.

    Args:
        strengths: (S,) ascending, five or more.
        accuracies: (S,) fractions at these.

    Raises:
        ConfigError: there are fewer points, or they do not ascend.

    Source: the closed form that Kunhardt, Deza and Poggio (CBMM memo 116, 2021, section 2) name as an alternative to
    trapezoids; the logistic function, with both asymptotes free, is our choice.
    """
    from scipy.optimize import least_squares

    points, values = np.asarray(strengths, np.float64), np.asarray(accuracies, np.float64)
    if points.shape != values.shape or len(points) < MIN_POINTS or (np.diff(points) <= 0).any():
        raise ConfigError(
            f"Fitting a psychometric function failed: expected accuracies at {MIN_POINTS} ascending strengths or more, "
            f"got {values.shape} at {points.tolist()}. Evaluate more strengths."
        )
    span = points[-1] - points[0]

    def residuals(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        upper, lower, midpoint, scale = parameters
        return PsychometricCurve(upper, lower, midpoint, scale, error=0.0).accuracy(points) - values

    half = (values.max() + values.min()) / 2
    start = (values.max(), values.min(), points[np.abs(values - half).argmin()], span / 10)
    # The midpoint may lie before the first strength: the curves of natural networks fall from there on.
    bounds = ([0.0, 0.0, points[0] - span, span / 1000], [2.0, 1.0, points[-1] + span, 10 * span])
    fitted = least_squares(residuals, np.clip(start, *bounds), bounds=bounds)
    error = float(np.sqrt(np.mean(np.square(fitted.fun))))
    upper, lower, midpoint, scale = map(float, fitted.x)
    return PsychometricCurve(upper, lower, midpoint, scale, error)
