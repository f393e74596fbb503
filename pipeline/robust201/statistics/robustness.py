"""Metrics of accuracy curves: robustness R and relative change C."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from robust201.core.errors import ConfigError

_Floats = NDArray[np.float64]


class Robustness(NamedTuple):
    """Robustness R of accuracy curves, with values that help to interpret R.

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


def robustness_r(strengths: ArrayLike, accuracies: ArrayLike) -> Robustness:
    """Integrate accuracies over strengths, relative to the first accuracy, so that R is 1 for a constant curve.

    R is the integral of the accuracy f from e0 to e1, divided by f(e0) (e1 - e0). The trapezoidal rule is applied to
    the measured strengths (S,), which ascend; the first is the reference, usually 0 (clean). Accuracies are (…, S).
    Values of R are comparable only if their strengths are equal.

    Raises:
        ConfigError: there are fewer than two strengths, they do not ascend, or the number of accuracies differs.

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
        return Robustness(value, float(weights[0]), value > 1, rises)


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
