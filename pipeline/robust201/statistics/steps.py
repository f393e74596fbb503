"""Numbers of steps or queries that an attack needs to fool each image, and the accuracy after any number of steps.

The number is 0 for a misclassified clean image, and infinity for an image that the attack never fools. Therefore the
accuracy after k steps, for k up to the attack's maximum, is the fraction of images whose number is larger than k.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Floats = NDArray[np.float64]


class StepsOfSuccess(NamedTuple):
    """Mean and median number of steps over the images that an attack fools; NaN if it fools no image.

    Misclassified clean images and images that the attack never fools are ignored. Therefore both numbers can only
    increase with the attack's maximum number of steps.
    """

    mean: float
    median: float


def summarise_steps_of_success(steps: ArrayLike) -> StepsOfSuccess:
    """Summarise the numbers of steps (N,) that images need, from 0 to infinity."""
    array = np.asarray(steps, np.float64)
    fooled = array[(array > 0) & np.isfinite(array)]
    if not len(fooled):
        return StepsOfSuccess(float("nan"), float("nan"))
    return StepsOfSuccess(float(fooled.mean()), float(np.median(fooled)))


def accuracies_after(steps: ArrayLike, budgets: ArrayLike) -> _Floats:
    """Return the accuracy after each number of steps in `budgets`.

    Args:
        steps: (…, N) from 0 to infinity.
        budgets: (K,) finite numbers of steps.

    Returns:
        (…, K) fractions of images that need more steps.
    """
    array, step_counts = np.asarray(steps, np.float64), np.asarray(budgets, np.float64)
    sorted_steps = np.sort(array, axis=-1)
    n_fooled = np.apply_along_axis(np.searchsorted, -1, sorted_steps, step_counts, side="right")
    accuracies: _Floats = 1 - n_fooled / array.shape[-1]
    return accuracies


def choose_curve_steps(steps: ArrayLike, max_points: int = 200) -> NDArray[np.int64]:
    """Choose the numbers of steps at which to draw a curve of accuracy over steps.

    The curve falls only at steps at which an image is fooled, so all of these are chosen if there are few enough.

    Args:
        steps: numbers of steps that images need, for all networks in a figure, in any shape.
        max_points: maximum number of chosen steps in addition to 0. If there are more steps at which an image is
            fooled, they are selected evenly.

    Returns:
        (K,) ascending, from 0 to the last step at which an image is fooled.
    """
    array = np.asarray(steps, np.float64).ravel()
    unique_steps = np.unique(array[np.isfinite(array)])
    indices = np.unique(
        np.linspace(0, len(unique_steps) - 1, min(len(unique_steps), max_points)).round().astype(np.int64)
    )
    return np.union1d([0], unique_steps[indices]).astype(np.int64)
