"""Images blended from two datasets, as in Kunhardt, Deza and Poggio (2021): one picture, two labels to choose from."""

from fractions import Fraction
from functools import cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.records import ImageSet

LabelFrom: TypeAlias = Literal["first", "second"]
"""Whose labels a blend has."""


def exact_share(alpha: float) -> Fraction:
    """Read a share from 0 to 1 as the decimal number that it is written as: .1 is 1/10, which no float is.

    Raises:
        ConfigError: it is out of range.
    """
    # NaN compares as false.
    if not 0 <= alpha <= 1:
        raise ConfigError(f"Reading the share alpha failed: expected 0 to 1, got {alpha}. Correct alpha.")
    return Fraction(repr(float(alpha)))


def check_same_size(first: ImageSet, second: ImageSet) -> None:
    """Make sure that two sets of images can be blended.

    Raises:
        DatasetError: their images have other sizes.
    """
    if first.images.shape[1:] != second.images.shape[1:]:
        raise DatasetError(
            f"Blending {first.dataset} with {second.dataset} failed: expected images of one size, got "
            f"{first.images.shape[1:]} and {second.images.shape[1:]}. Resize one of them."
        )


def blend(first: NDArray[np.uint8], second: NDArray[np.uint8], alpha: float) -> NDArray[np.uint8]:
    """Blend images pixel by pixel: alpha x first + (1 - alpha) x second, computed exactly and rounded half up.

    Both have the same shape, which is the result's.
    """
    blended: NDArray[np.uint8] = _blended_values(float(alpha))[first, second]
    return blended


@cache
def _blended_values(alpha: float) -> NDArray[np.uint8]:
    """Blend every pair of pixel values, (256, 256) uint8, with Python's integers: a share may have sixteen decimals."""
    share = exact_share(alpha)
    part, whole = share.numerator, share.denominator
    values = range(256)
    return np.array(
        [[(2 * (part * a + (whole - part) * b) + whole) // (2 * whole) for b in values] for a in values], np.uint8
    )
