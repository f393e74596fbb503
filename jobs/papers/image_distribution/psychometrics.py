"""Alternatives to the robustness R by the trapezoidal rule: R of a psychometric function, and sensitivities d'."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares
from scipy.special import expit, ndtr


def sensitivity(accuracies: ArrayLike, n_classes: int, n_images: int) -> NDArray[np.float64]:
    """Return the sensitivity d' of an observer with these accuracies in a choice among `n_classes` classes.

    At chance level, d' is 0 for every number of classes, so tasks with different numbers of classes can be compared.
    Below chance level, d' is negative. Accuracies of 0 and 1, for which d' would be infinite, are moved inwards by half
    an image.

    Args:
        accuracies: array of fractions, of any shape.
        n_classes: number of classes, at least 2.
        n_images: number of images on which each accuracy was measured.

    Source: Hacker and Ratcliff, "A revised table of d' for M-alternative forced choice", Perception & Psychophysics 26
    (1979): P(correct) is the integral of phi(x - d') Phi(x)^(M - 1).
    """
    x = np.linspace(-8.0, 16.0, 2_401)
    probability_others_below = ndtr(x) ** (n_classes - 1)
    d_primes = np.linspace(-8.0, 8.0, 1_601)
    density = np.exp(-np.square(x - d_primes[:, None]) / 2) / np.sqrt(2 * np.pi)
    correct_probabilities = np.trapezoid(density * probability_others_below, x, axis=-1)
    fractions = np.clip(np.asarray(accuracies, np.float64), 0.5 / n_images, 1 - 0.5 / n_images)
    return np.interp(fractions, correct_probabilities, d_primes)


MIN_POINTS = 5
"""Minimum number of points of a psychometric fit, which is one more than the number of parameters."""


class PsychometricCurve(NamedTuple):
    """Logistic accuracy curve lower + (upper - lower) / (1 + exp((strength - midpoint) / scale)).

    Attributes:
        upper: accuracy at strengths far below the midpoint.
        lower: accuracy at strengths far above the midpoint.
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
        scaled_strengths = (np.asarray(strengths, np.float64) - self.midpoint) / self.scale
        values: NDArray[np.float64] = self.lower + (self.upper - self.lower) * expit(-scaled_strengths)
        return values

    def robustness(self, low: float, high: float) -> float:
        """Return R over the interval of strengths from `low` to `high`, in closed form.

        R is as in `robust201.statistics.robustness`, but of the fitted curve instead of the measured accuracies.
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
        ValueError: there are too few points, they do not ascend, or the two shapes differ.

    Source: Kunhardt, Deza and Poggio (CBMM memo 116, 2021, section 2) mention a closed form as an alternative to
    trapezoids. The logistic function with two free asymptotes is our choice.
    """
    points, accuracy_values = np.asarray(strengths, np.float64), np.asarray(accuracies, np.float64)
    if points.shape != accuracy_values.shape or len(points) < MIN_POINTS or (np.diff(points) <= 0).any():
        raise ValueError(
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
