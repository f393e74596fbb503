"""Confidence intervals of accuracies (over the sampling of images), and of means of independent samples."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

NORMAL_QUANTILE = 1.959963984540054
"""97.5% quantile of the standard normal distribution, for 95% intervals."""

_TAIL = (1 - 0.95) / 2

FEW_IMAGES = 5
"""Number of correct or misclassified images below which `accuracy_intervals` uses the exact interval."""

_MIN_IMAGES_TO_JUDGE = 20
"""Minimum number of images for `is_at_chance` to ignore the upper end of the interval."""

_CHANCE_MARGIN = 0.1

_Floats = NDArray[np.float64]


def clopper_pearson_intervals(n_correct: ArrayLike, n_images: ArrayLike) -> tuple[_Floats, _Floats]:
    """Return exact 95% intervals of fractions; their coverage is at least 95% for any count.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934).
    """
    from scipy.special import betaincinv

    correct, n = np.asarray(n_correct, np.float64), np.asarray(n_images, np.float64)
    # The beta distribution is undefined if no image or every image is correct; one bound is then 0 or 1 by definition.
    low = np.where(correct > 0, betaincinv(np.maximum(correct, 1), n - correct + 1, _TAIL), 0.0)
    high = np.where(correct < n, betaincinv(correct + 1, np.maximum(n - correct, 1), 1 - _TAIL), 1.0)
    return low, high


def accuracy_intervals(accuracies: ArrayLike, n_images: ArrayLike) -> tuple[_Floats, _Floats]:
    """Return the ends, in [0, 1], of each accuracy's 95% interval; NaN if the accuracy or its number of images is NaN.

    Most intervals are Wilson's. Near accuracies of 0 and 1, Wilson's intervals have too low a coverage, so the exact
    interval of Clopper and Pearson is used if fewer than `FEW_IMAGES` images are correct or misclassified.

    Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927); recommended
    over the normal approximation by Brown, Cai and DasGupta, Statistical Science 16 (2001).
    """
    fractions, n_image_array = np.broadcast_arrays(np.asarray(accuracies, np.float64), np.asarray(n_images, np.float64))
    fractions = np.where(np.isnan(n_image_array), np.nan, fractions)
    low, high = _wilson_intervals(fractions, n_image_array)
    correct = np.rint(fractions * n_image_array)
    uses_exact = np.minimum(correct, n_image_array - correct) < FEW_IMAGES
    exact_low, exact_high = clopper_pearson_intervals(
        np.where(uses_exact, correct, 1.0), np.where(uses_exact, n_image_array, 2.0)
    )
    return np.where(uses_exact, exact_low, low), np.where(uses_exact, exact_high, high)


def is_at_chance(accuracy: float, n_images: int, n_classes: int) -> bool:
    """Return whether an accuracy is not significantly above chance, which is 1 / `n_classes`.

    The lower end of its 95% interval must be at most chance. With fewer than `_MIN_IMAGES_TO_JUDGE` images, the upper
    end must also be at most `_CHANCE_MARGIN` above chance, because a wide interval does not show that it is at chance.
    """
    low, high = accuracy_intervals(accuracy, n_images)
    chance = 1 / n_classes
    return bool(low <= chance and (n_images >= _MIN_IMAGES_TO_JUDGE or high <= chance + _CHANCE_MARGIN))


def _wilson_intervals(fractions: Any, n_images: Any) -> tuple[Any, Any]:
    weight = NORMAL_QUANTILE**2 / n_images
    centre = fractions + weight / 2
    half_width = NORMAL_QUANTILE * np.sqrt(fractions * (1 - fractions) / n_images + weight / (4 * n_images))
    low = np.where(fractions == 0, 0.0 * weight, (centre - half_width) / (1 + weight))
    return low, np.where(fractions == 1, 1.0 + 0.0 * weight, (centre + half_width) / (1 + weight))


def mean_intervals(samples: ArrayLike) -> tuple[_Floats, _Floats, _Floats]:
    """Return means over the first axis of independent samples, with 95% intervals from Student's t distribution.

    With one sample, the ends are NaN. Without samples, the means are NaN, too.
    """
    from scipy.special import stdtrit

    sample_array = np.asarray(samples, np.float64)
    n = len(sample_array)
    means = sample_array.mean(axis=0) if n else np.full(sample_array.shape[1:], np.nan)
    if n < 2:
        return means, np.full_like(means, np.nan), np.full_like(means, np.nan)
    half_width = stdtrit(n - 1, 0.975) * sample_array.std(axis=0, ddof=1) / np.sqrt(n)
    return means, means - half_width, means + half_width
