"""Steps, or queries, that an attack takes to fool each image, and the accuracy at every smaller budget.

A misclassified clean image has step 0; an image that the attack never fools has infinity. The accuracy after k steps
is therefore the fraction of images whose step is larger.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Floats = NDArray[np.float64]


class StepsOfSuccess(NamedTuple):
    """Mean and median step over the images that an attack fools; NaN if it fools none.

    Misclassified clean images and images that the attack never fools are ignored, so both numbers can only grow at a
    larger budget.
    """

    mean: float
    median: float


def steps_of_success(steps: ArrayLike) -> StepsOfSuccess:
    """Summarise steps (N,) between 0 and infinity."""
    array = np.asarray(steps, np.float64)
    fooled = array[(array > 0) & np.isfinite(array)]
    if not len(fooled):
        return StepsOfSuccess(float("nan"), float("nan"))
    return StepsOfSuccess(float(fooled.mean()), float(np.median(fooled)))


def accuracies_after(steps: ArrayLike, budgets: ArrayLike) -> _Floats:
    """Return the accuracy after each number of steps in `budgets`.

    Args:
        steps: (…, N) between 0 and infinity.
        budgets: (K,) finite numbers of steps.

    Returns:
        (…, K) fractions of images whose step is larger.
    """
    array, step_counts = np.asarray(steps, np.float64), np.asarray(budgets, np.float64)
    ordered = np.sort(array, axis=-1)
    counts = np.apply_along_axis(np.searchsorted, -1, ordered, step_counts, side="right")
    accuracies: _Floats = 1 - counts / array.shape[-1]
    return accuracies


def falling_steps(several: ArrayLike, most: int = 200) -> NDArray[np.int64]:
    """Choose the numbers of steps at which to draw a curve of accuracy over steps.

    Args:
        several: steps of all networks in a figure, in any shape.
        most: maximum number of points; up to this number, every step at which an image falls is a point.

    Returns:
        (K,) ascending, from 0 to the last step at which an image falls; if there are too many, spread over the images.
    """
    array = np.asarray(several, np.float64).ravel()
    unique_steps = np.unique(array[np.isfinite(array)])
    indices = np.unique(np.linspace(0, len(unique_steps) - 1, min(len(unique_steps), most)).round().astype(np.int64))
    return np.union1d([0], unique_steps[indices]).astype(np.int64)
