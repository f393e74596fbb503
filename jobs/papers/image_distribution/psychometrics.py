"""R of a psychometric function, an alternative to the robustness R by the trapezoidal rule."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import curve_fit
from scipy.special import expit


def logistic(strengths: ArrayLike, upper: float, lower: float, midpoint: float, scale: float) -> NDArray[np.float64]:
    """Return the accuracies of a falling logistic curve.

    Args:
        strengths: strengths of the attack.
        upper: accuracy at strengths far below the midpoint.
        lower: accuracy at strengths far above the midpoint.
        midpoint: strength at which the accuracy is half-way between `upper` and `lower`.
        scale: width of the decrease in units of strength; above 0.
    """
    falling: NDArray[np.float64] = expit((midpoint - np.asarray(strengths, np.float64)) / scale)
    return lower + (upper - lower) * falling


def logistic_robustness(parameters: Sequence[float], low: float, high: float) -> float:
    """Return R of a logistic curve over the strengths from `low` to `high`, in closed form; NaN if it starts at 0."""
    upper, lower, midpoint, scale = parameters
    width = high - low
    start, end = ((strength - midpoint) / scale for strength in (low, high))
    lost_width = scale * (np.logaddexp(0.0, end) - np.logaddexp(0.0, start))
    first_accuracy = float(logistic(low, *parameters))
    area = lower * width + (upper - lower) * (width - lost_width)
    return float(area / (first_accuracy * width)) if first_accuracy > 0 else float("nan")


def fit_logistic(strengths: NDArray[np.float64], accuracies: NDArray[np.float64]) -> tuple[float, ...]:
    """Fit the parameters of `logistic` to accuracies (S,) at ascending strengths (S,), at least five.

    Raises:
        RuntimeError: the fit does not converge.

    Source: Kunhardt, Deza and Poggio (CBMM memo 116, 2021, section 2) mention a closed form as an alternative to
    trapezoids. The logistic function with two free asymptotes is our choice.
    """
    span = strengths[-1] - strengths[0]
    half_accuracy = (accuracies.max() + accuracies.min()) / 2
    midpoint = strengths[np.abs(accuracies - half_accuracy).argmin()]
    # The midpoint may be below the first strength, because curves of non-robust networks decrease from the start.
    bounds = ([0.0, 0.0, strengths[0] - span, span / 1000], [2.0, 1.0, strengths[-1] + span, 10 * span])
    start = np.clip((accuracies.max(), accuracies.min(), midpoint, span / 10), *bounds)
    return tuple(curve_fit(logistic, strengths, accuracies, start, bounds=bounds)[0].tolist())
