"""Steps, or queries, at which images fall to an attack, and the accuracy that follows for every smaller budget.

An image that the network misclassifies when clean has step 0; one that the attack never fools has infinity. So the
accuracy after k steps is the share of images whose step is larger.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Floats = NDArray[np.float64]


class StepsOfSuccess(NamedTuple):
    """Mean and median step over the images that an attack fools; NaN if it fools none.

    Images that are misclassified when clean do not count, nor do those that the attack never fools: at a larger budget
    both numbers can only grow.
    """

    mean: float
    median: float


def steps_of_success(steps: ArrayLike) -> StepsOfSuccess:
    """Summarise steps (N,), 0 to infinity."""
    array = np.asarray(steps, np.float64)
    fooled = array[(array > 0) & np.isfinite(array)]
    if not len(fooled):
        return StepsOfSuccess(float("nan"), float("nan"))
    return StepsOfSuccess(float(fooled.mean()), float(np.median(fooled)))


def accuracies_after(steps: ArrayLike, budgets: ArrayLike) -> _Floats:
    """Compute the accuracy after each of some numbers of steps.

    Args:
        steps: (…, N) 0 to infinity.
        budgets: (K,) finite numbers of steps.

    Returns:
        (…, K) shares of the images whose step is larger.
    """
    array, at = np.asarray(steps, np.float64), np.asarray(budgets, np.float64)
    ordered = np.sort(array, axis=-1)
    counts = np.apply_along_axis(np.searchsorted, -1, ordered, at, side="right")
    accuracies: _Floats = 1 - counts / array.shape[-1]
    return accuracies


def falling_steps(several: ArrayLike, most: int = 200) -> NDArray[np.int64]:
    """Choose the numbers of steps at which a curve of accuracy over steps is drawn.

    Args:
        several: steps of all networks of a figure, of any shape.
        most: number of points up to which every step at which an image falls has one.

    Returns:
        (K,) ascending, from 0 to the last step at which an image falls; of many, spread over the images that fall.
    """
    array = np.asarray(several, np.float64).ravel()
    found = np.unique(array[np.isfinite(array)])
    places = np.unique(np.linspace(0, len(found) - 1, min(len(found), most)).round().astype(np.int64))
    return np.union1d([0], found[places]).astype(np.int64)
