"""Metrics of accuracy curves: robustness R, relative change C, corruption errors relative to a reference network."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError

_Floats = NDArray[np.float64]


class RobustnessCurve(NamedTuple):
    """Robustness R of accuracy curves, with qualifications.

    Attributes:
        value: (…) R, never clipped; NaN if the accuracy at the first strength is 0 or any accuracy is missing.
        floor: R of a curve whose accuracies are 0 except for the first, which depends only on the strengths' spacing.
        exceeds_one: (…) whether R is above 1, for instance because accuracies under attack exceed the clean one.
        rises: (…) whether any accuracy exceeds the first.
    """

    value: _Floats
    floor: float
    exceeds_one: NDArray[np.bool_]
    rises: NDArray[np.bool_]


def robustness_r(strengths: ArrayLike, accuracies: ArrayLike) -> RobustnessCurve:
    """Integrate accuracies over strengths, relative to the first one: R is 1 for a constant curve.

    R = (1 / (f(e0) (e1 - e0))) times the integral of f from e0 to e1, by the trapezoidal rule over the measured
    strengths. Values are comparable only if their strengths are equal.

    Args:
        strengths: (S,) ascending, at least two; the first is the reference, usually 0 (clean).
        accuracies: (…, S) fractions f at these strengths.

    Raises:
        ConfigError: there are fewer than two strengths, or they do not ascend.

    Source: Kunhardt, Deza and Poggio, "The Effects of Image Distribution and Task on Adversarial Robustness", CBMM memo
    116 (2021), eq. 1, which uses [0, 0.3] in pixels of [0, 1].
    """
    points, curves = _check_curves(strengths, accuracies)
    weights = trapezoid_weights(points) / (points[-1] - points[0])
    first = curves[..., 0]
    value = np.full(first.shape, np.nan)
    np.divide(curves @ weights, first, out=value, where=first > 0)
    with np.errstate(invalid="ignore"):
        rises = np.asarray((curves > first[..., None]).any(axis=-1))
        return RobustnessCurve(value, float(weights[0]), value > 1, rises)


def relative_changes(strengths: ArrayLike, accuracies: ArrayLike) -> _Floats:
    """Return C = (f(e) - f(e0)) / f(e0) at every strength, (…, S); NaN if f(e0) is 0.

    Its mean over the interval of strengths is R - 1. Errors and source: see `robustness_r`.
    """
    _, curves = _check_curves(strengths, accuracies)
    first = curves[..., :1]
    changes = np.full(curves.shape, np.nan)
    np.divide(curves - first, first, out=changes, where=first > 0)
    return changes


def trapezoid_weights(points: _Floats) -> _Floats:
    """Return the weights (S,) that integrate values at ascending points by the trapezoidal rule."""
    widths = np.diff(points)
    weights = np.zeros(len(points))
    weights[:-1] += widths / 2
    weights[1:] += widths / 2
    return weights


def _check_curves(strengths: ArrayLike, accuracies: ArrayLike) -> tuple[_Floats, _Floats]:
    points, curves = np.asarray(strengths, np.float64), np.asarray(accuracies, np.float64)
    if points.ndim != 1 or len(points) < 2 or (np.diff(points) <= 0).any() or curves.shape[-1:] != points.shape:
        raise ConfigError(
            f"Computing robustness failed for {curves.shape[-1:]} accuracies: expected at least two ascending "
            f"strengths, one per accuracy, got {points.tolist()}. Evaluate the clean images and one more strength."
        )
    return points, curves


def sensitivity(accuracies: ArrayLike, n_classes: int, n_images: int) -> _Floats:
    """Return the sensitivity d' of an observer with these accuracies when choosing among `n_classes`.

    Chance level has d' = 0 for every number of classes, so tasks with different numbers of classes can be compared;
    below chance d' is negative. Accuracies of 0 and 1, whose d' is infinite, are moved inwards by half an image.

    Args:
        accuracies: fractions of any shape.
        n_classes: number of classes, at least 2.
        n_images: number of images of each accuracy.

    Source: Hacker and Ratcliff, "A revised table of d' for M-alternative forced choice", Perception & Psychophysics 26
    (1979): P(correct) is the integral of phi(x - d') Phi(x)^(M - 1).
    """
    from scipy.special import ndtr

    noise = np.linspace(-8.0, 16.0, 2_401)
    others = ndtr(noise) ** (n_classes - 1)
    signals = np.linspace(-8.0, 8.0, 1_601)
    density = np.exp(-np.square(noise - signals[:, None]) / 2) / np.sqrt(2 * np.pi)
    correct_probabilities = np.trapezoid(density * others, noise, axis=-1)
    fractions = np.clip(np.asarray(accuracies, np.float64), 0.5 / n_images, 1 - 0.5 / n_images)
    return np.interp(fractions, correct_probabilities, signals)


def corruption_errors(accuracies: ArrayLike, reference: ArrayLike) -> _Floats:
    """Return each corruption's error relative to a reference network's: (…, K) from (…, K, S) and (K, S) accuracies.

    Errors are summed over severities before the division: a CE of 1 is an error as large as the reference's. NaN if the
    reference makes no error.

    Source: Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations",
    ICLR 2019, section 4.2, whose reference is AlexNet.
    """
    errors = (1 - np.asarray(accuracies, np.float64)).sum(axis=-1)
    return _ratio(errors, (1 - np.asarray(reference, np.float64)).sum(axis=-1))


def relative_corruption_errors(
    accuracies: ArrayLike, clean: ArrayLike, reference: ArrayLike, reference_clean: float
) -> _Floats:
    """Return each corruption's error beyond the clean error, relative to the reference network's.

    `clean` contains the networks' clean accuracies (…). NaN if corruption does not harm the reference.
    """
    excess_errors = (np.asarray(clean, np.float64)[..., None, None] - np.asarray(accuracies, np.float64)).sum(axis=-1)
    return _ratio(excess_errors, (reference_clean - np.asarray(reference, np.float64)).sum(axis=-1))


def _ratio(errors: _Floats, reference: _Floats) -> _Floats:
    ratios = np.full(errors.shape, np.nan)
    np.divide(errors, reference, out=ratios, where=reference > 0)
    return ratios


MIN_POINTS = 5
"""Minimum number of points: one more than the number of parameters."""


class PsychometricCurve(NamedTuple):
    """Accuracy lower + (upper - lower) / (1 + exp((strength - midpoint) / scale)).

    Attributes:
        upper: accuracy far below the midpoint.
        lower: accuracy far above the midpoint.
        midpoint: strength at which the accuracy is half-way between `upper` and `lower`.
        scale: width of the fall in units of strength; above 0.
        error: root mean square of the residuals.
    """

    upper: float
    lower: float
    midpoint: float
    scale: float
    error: float

    def accuracy(self, strengths: ArrayLike) -> NDArray[np.float64]:
        from scipy.special import expit

        steps = (np.asarray(strengths, np.float64) - self.midpoint) / self.scale
        values: NDArray[np.float64] = self.lower + (self.upper - self.lower) * expit(-steps)
        return values

    def robustness(self, low: float, high: float) -> float:
        """Return R over an interval of strengths, in closed form.

        See `statistics.robustness.robustness_r` for R; here, measured points only determine the curve.
        """
        width = high - low
        start, end = ((strength - self.midpoint) / self.scale for strength in (low, high))
        lost_width = self.scale * (np.logaddexp(0.0, end) - np.logaddexp(0.0, start))
        area = self.lower * width + (self.upper - self.lower) * (width - lost_width)
        first = float(self.accuracy(low))
        return float(area / (first * width)) if first > 0 else float("nan")


def fit_psychometric(strengths: ArrayLike, accuracies: ArrayLike) -> PsychometricCurve:
    """Fit a falling logistic curve by least squares.

    Args:
        strengths: (S,) ascending, at least five.
        accuracies: (S,) fractions at these strengths.

    Raises:
        ConfigError: there are too few points, or they do not ascend.

    Source: the closed form that Kunhardt, Deza and Poggio (CBMM memo 116, 2021, section 2) name as an alternative to
    trapezoids; the logistic function with two free asymptotes is our choice.
    """
    from scipy.optimize import least_squares

    points, values = np.asarray(strengths, np.float64), np.asarray(accuracies, np.float64)
    if points.shape != values.shape or len(points) < MIN_POINTS or (np.diff(points) <= 0).any():
        raise ConfigError(
            f"Fitting a psychometric function failed: expected accuracies at {MIN_POINTS} or more ascending strengths, "
            f"got {values.shape} at {points.tolist()}. Evaluate more strengths."
        )
    span = points[-1] - points[0]

    def residuals(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        upper, lower, midpoint, scale = parameters
        return PsychometricCurve(upper, lower, midpoint, scale, error=0.0).accuracy(points) - values

    half = (values.max() + values.min()) / 2
    start = (values.max(), values.min(), points[np.abs(values - half).argmin()], span / 10)
    # The midpoint may lie below the first strength: curves of non-robust networks fall from there on.
    bounds = ([0.0, 0.0, points[0] - span, span / 1000], [2.0, 1.0, points[-1] + span, 10 * span])
    fitted = least_squares(residuals, np.clip(start, *bounds), bounds=bounds)
    error = float(np.sqrt(np.mean(np.square(fitted.fun))))
    upper, lower, midpoint, scale = map(float, fitted.x)
    return PsychometricCurve(upper, lower, midpoint, scale, error)
