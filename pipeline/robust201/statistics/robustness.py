"""Metrics of accuracy curves: robustness R, relative change C, and corruption errors relative to a reference."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError

_Floats = NDArray[np.float64]


class RobustnessCurve(NamedTuple):
    """Robustness R of accuracy curves, with information that limits its interpretation.

    Attributes:
        value: (…) R, never clipped; NaN if the accuracy at the first strength is 0 or any accuracy is missing.
        floor: R of a curve whose accuracies are 0 except the first accuracy; it depends only on the strengths.
        exceeds_one: (…) whether R is above 1, for example because accuracies under attack exceed the clean accuracy.
        rises: (…) whether any accuracy exceeds the first accuracy.
    """

    value: _Floats
    floor: float
    exceeds_one: NDArray[np.bool_]
    rises: NDArray[np.bool_]


def robustness_r(strengths: ArrayLike, accuracies: ArrayLike) -> RobustnessCurve:
    """Integrate accuracies over strengths, relative to the first accuracy, so that R is 1 for a constant curve.

    R is the integral of the accuracy f from e0 to e1, divided by f(e0) (e1 - e0). The trapezoidal rule is applied to
    the measured strengths. Values of R are comparable only if their strengths are equal.

    Args:
        strengths: (S,) ascending, at least two; the first is the reference, usually 0 (clean).
        accuracies: (…, S) accuracies f at these strengths, as fractions.

    Raises:
        ConfigError: there are fewer than two strengths, or they do not ascend.

    Source: Kunhardt, Deza and Poggio, "The Effects of Image Distribution and Task on Adversarial Robustness", CBMM memo
    116 (2021), eq. 1, with epsilons from 0 to 0.3 for pixels in [0, 1].
    """
    points, curves = _check_curves(strengths, accuracies)
    weights = trapezoid_weights(points) / (points[-1] - points[0])
    first_accuracy = curves[..., 0]
    value = np.full(first_accuracy.shape, np.nan)
    np.divide(curves @ weights, first_accuracy, out=value, where=first_accuracy > 0)
    with np.errstate(invalid="ignore"):
        rises = np.asarray((curves > first_accuracy[..., None]).any(axis=-1))
        return RobustnessCurve(value, float(weights[0]), value > 1, rises)


def relative_changes(strengths: ArrayLike, accuracies: ArrayLike) -> _Floats:
    """Return C = (f(e) - f(e0)) / f(e0) at every strength, (…, S); NaN if f(e0) is 0.

    The mean of C over the interval of strengths is R - 1. See `robustness_r` for errors and the source.
    """
    _, curves = _check_curves(strengths, accuracies)
    first_accuracy = curves[..., :1]
    changes = np.full(curves.shape, np.nan)
    np.divide(curves - first_accuracy, first_accuracy, out=changes, where=first_accuracy > 0)
    return changes


def trapezoid_weights(points: _Floats) -> _Floats:
    """Return the weights (S,) of the trapezoidal rule for values at ascending points."""
    widths = np.diff(points)
    weights = np.zeros(len(points))
    weights[:-1] += widths / 2
    weights[1:] += widths / 2
    return weights


def _check_curves(strengths: ArrayLike, accuracies: ArrayLike) -> tuple[_Floats, _Floats]:
    points, curves = np.asarray(strengths, np.float64), np.asarray(accuracies, np.float64)
    if points.ndim != 1 or len(points) < 2 or (np.diff(points) <= 0).any() or curves.shape[-1:] != points.shape:
        raise ConfigError(
            f"Computing robustness failed for accuracies of shape {curves.shape}: expected at least two ascending "
            f"strengths, one per accuracy, got {points.tolist()}. Evaluate the clean images and one more strength."
        )
    return points, curves


def sensitivity(accuracies: ArrayLike, n_classes: int, n_images: int) -> _Floats:
    """Return the sensitivity d' of an observer with these accuracies in a choice among `n_classes` classes.

    At chance level, d' is 0 for every number of classes, so tasks with different numbers of classes can be compared.
    Below chance level, d' is negative. Accuracies of 0 and 1, for which d' would be infinite, are moved inwards by half
    an image.

    Args:
        accuracies: fractions of any shape.
        n_classes: number of classes, at least 2.
        n_images: number of images on which each accuracy was measured.

    Source: Hacker and Ratcliff, "A revised table of d' for M-alternative forced choice", Perception & Psychophysics 26
    (1979): P(correct) is the integral of phi(x - d') Phi(x)^(M - 1).
    """
    from scipy.special import ndtr

    x = np.linspace(-8.0, 16.0, 2_401)
    probability_others_below = ndtr(x) ** (n_classes - 1)
    d_primes = np.linspace(-8.0, 8.0, 1_601)
    density = np.exp(-np.square(x - d_primes[:, None]) / 2) / np.sqrt(2 * np.pi)
    correct_probabilities = np.trapezoid(density * probability_others_below, x, axis=-1)
    fractions = np.clip(np.asarray(accuracies, np.float64), 0.5 / n_images, 1 - 0.5 / n_images)
    return np.interp(fractions, correct_probabilities, d_primes)


def corruption_errors(accuracies: ArrayLike, reference: ArrayLike) -> _Floats:
    """Return the error under each corruption divided by the error of a reference network.

    Errors are summed over severities before the division. A corruption error (CE) of 1 means as many errors as the
    reference network makes. CE is NaN if the reference network makes no errors.

    Args:
        accuracies: (…, K, S) accuracies of networks under K corruptions at S severities.
        reference: (K, S) accuracies of the reference network.

    Returns:
        (…, K) corruption errors.

    Source: Hendrycks and Dietterich, "Benchmarking neural network robustness to common corruptions and perturbations",
    ICLR 2019, section 4.2, whose reference is AlexNet.
    """
    errors = (1 - np.asarray(accuracies, np.float64)).sum(axis=-1)
    return _divide_errors(errors, (1 - np.asarray(reference, np.float64)).sum(axis=-1))


def relative_corruption_errors(
    accuracies: ArrayLike, clean: ArrayLike, reference: ArrayLike, reference_clean: float
) -> _Floats:
    """Return the increase in error under each corruption, relative to the increase for the reference network.

    The increase is over the error on clean images. The result is NaN if the reference network makes no more errors
    under a corruption than on clean images.

    Args:
        accuracies: see `corruption_errors`.
        clean: (…) clean accuracies of the networks.
        reference: see `corruption_errors`.
        reference_clean: clean accuracy of the reference network.
    """
    excess_errors = (np.asarray(clean, np.float64)[..., None, None] - np.asarray(accuracies, np.float64)).sum(axis=-1)
    return _divide_errors(excess_errors, (reference_clean - np.asarray(reference, np.float64)).sum(axis=-1))


def _divide_errors(errors: _Floats, reference: _Floats) -> _Floats:
    ratios = np.full(errors.shape, np.nan)
    np.divide(errors, reference, out=ratios, where=reference > 0)
    return ratios


MIN_POINTS = 5
"""Minimum number of points of a psychometric fit, which is one more than the number of parameters."""


class PsychometricCurve(NamedTuple):
    """Logistic accuracy curve lower + (upper - lower) / (1 + exp((strength - midpoint) / scale)).

    Attributes:
        upper: accuracy far below the midpoint.
        lower: accuracy far above the midpoint.
        midpoint: strength at which the accuracy is half-way between `upper` and `lower`.
        scale: width of the decrease in units of strength; above 0.
        error: root mean square of the residuals of the fit.
    """

    upper: float
    lower: float
    midpoint: float
    scale: float
    error: float

    def accuracy(self, strengths: ArrayLike) -> NDArray[np.float64]:
        from scipy.special import expit

        scaled_strengths = (np.asarray(strengths, np.float64) - self.midpoint) / self.scale
        values: NDArray[np.float64] = self.lower + (self.upper - self.lower) * expit(-scaled_strengths)
        return values

    def robustness(self, low: float, high: float) -> float:
        """Return R over the interval of strengths from `low` to `high`, in closed form.

        R is defined in `robustness_r`, but here the curve is integrated instead of the measured accuracies.
        """
        width = high - low
        start, end = ((strength - self.midpoint) / self.scale for strength in (low, high))
        lost_width = self.scale * (np.logaddexp(0.0, end) - np.logaddexp(0.0, start))
        area = self.lower * width + (self.upper - self.lower) * (width - lost_width)
        first_accuracy = float(self.accuracy(low))
        return float(area / (first_accuracy * width)) if first_accuracy > 0 else float("nan")


def fit_psychometric(strengths: ArrayLike, accuracies: ArrayLike) -> PsychometricCurve:
    """Fit a decreasing logistic curve by least squares.

    Args:
        strengths: (S,) ascending, at least five.
        accuracies: (S,) accuracies at these strengths, as fractions.

    Raises:
        ConfigError: there are too few points, or they do not ascend.

    Source: Kunhardt, Deza and Poggio (CBMM memo 116, 2021, section 2) mention a closed form as an alternative to
    trapezoids. The logistic function with two free asymptotes is our choice.
    """
    from scipy.optimize import least_squares

    points, accuracy_values = np.asarray(strengths, np.float64), np.asarray(accuracies, np.float64)
    if points.shape != accuracy_values.shape or len(points) < MIN_POINTS or (np.diff(points) <= 0).any():
        raise ConfigError(
            f"Fitting a psychometric function failed: expected accuracies at {MIN_POINTS} or more ascending strengths, "
            f"got accuracies of shape {accuracy_values.shape} at {points.tolist()}. Evaluate more strengths."
        )
    span = points[-1] - points[0]

    def residuals(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        upper, lower, midpoint, scale = parameters
        return PsychometricCurve(upper, lower, midpoint, scale, error=0.0).accuracy(points) - accuracy_values

    half_accuracy = (accuracy_values.max() + accuracy_values.min()) / 2
    initial_parameters = (
        accuracy_values.max(),
        accuracy_values.min(),
        points[np.abs(accuracy_values - half_accuracy).argmin()],
        span / 10,
    )
    # The midpoint may be below the first strength, because curves of non-robust networks decrease from the start.
    bounds = ([0.0, 0.0, points[0] - span, span / 1000], [2.0, 1.0, points[-1] + span, 10 * span])
    solution = least_squares(residuals, np.clip(initial_parameters, *bounds), bounds=bounds)
    error = float(np.sqrt(np.mean(np.square(solution.fun))))
    upper, lower, midpoint, scale = map(float, solution.x)
    return PsychometricCurve(upper, lower, midpoint, scale, error)
