"""Blends of images of two datasets, as in Kunhardt, Deza and Poggio (2021)."""

from fractions import Fraction
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.records import ImageSet

LabelFrom: TypeAlias = Literal["first", "second"]
"""Dataset that provides the label of a blend."""


def exact_fraction(alpha: float) -> Fraction:
    """Return the exact fraction of the decimal number that Python prints for a float in [0, 1]: 1/10 for 0.1.

    Raises:
        ConfigError: alpha is out of range.
    """
    # The comparison is false for NaN, too.
    if not 0 <= alpha <= 1:
        raise ConfigError(f"Reading alpha failed: expected a number from 0 to 1, got {alpha}. Correct alpha.")
    return Fraction(repr(float(alpha)))


def check_same_size(first: ImageSet, second: ImageSet) -> None:
    """Check that two sets of images can be blended.

    Raises:
        DatasetError: their images differ in channels, height or width.
    """
    if first.images.shape[1:] != second.images.shape[1:]:
        raise DatasetError(
            f"Blending {first.dataset} with {second.dataset} failed: expected images of equal size, got "
            f"{first.images.shape[1:]} and {second.images.shape[1:]}. Resize one of them."
        )


def blend(first: NDArray[np.uint8], second: NDArray[np.uint8], alpha: float) -> NDArray[np.uint8]:
    """Return alpha * first + (1 - alpha) * second, computed exactly and rounded half up.

    `first` and `second` are images of equal shape.
    """
    blended: NDArray[np.uint8] = _blended_values(float(alpha))[first, second]
    return blended


@cache
def _blended_values(alpha: float) -> NDArray[np.uint8]:
    """Return the blend of every pair of pixel values, (256, 256) uint8, computed with Python's exact integers."""
    fraction = exact_fraction(alpha)
    numerator, denominator = fraction.numerator, fraction.denominator
    pixel_values = range(256)
    return np.array(
        [
            [
                (2 * (numerator * a + (denominator - numerator) * b) + denominator) // (2 * denominator)
                for b in pixel_values
            ]
            for a in pixel_values
        ],
        np.uint8,
    )
