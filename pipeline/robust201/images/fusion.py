"""Blends of images of two datasets with the label of one of them, as in Kunhardt, Deza and Poggio (2021)."""

from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.noise import generator
from robust201.core.records import ImageSet, Split
from robust201.images.checks import LabelledImages
from robust201.images.store import find_made_split, write_made_split

LabelFrom: TypeAlias = Literal["first", "second"]
"""Dataset that provides the label of a blend."""


def exact_fraction(alpha: float) -> Fraction:
    """Return exactly the decimal number that Python prints for a float in [0, 1]: 1/10 for 0.1.

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
        DatasetError: their images differ in size.
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


def pair(n_first: int, n_second: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair the images of two sets at random, each at most once, so that every image of the smaller set is paired.

    Returns:
        Ascending rows (n,) of the first set, and the rows (n,) of the second set that are paired with them.
    """
    n_pairs = min(n_first, n_second)
    # NumPy guarantees the raw stream of a bit generator across versions, but not the results of `permutation`.
    rows = [
        np.argsort(generator(seed, "fusion", set_name).bit_generator.random_raw(n_images), kind="stable")[:n_pairs]
        for set_name, n_images in (("first", n_first), ("second", n_second))
    ]
    return np.sort(rows[0]), rows[1]


def write_fusion(
    folder: Path, first: ImageSet, second: ImageSet, *, split: Split, alpha: float, label: LabelFrom, seed: int
) -> str:
    """Write the blends of two splits, and return their hash.

    The pairing depends only on the seed and the numbers of images, so both choices of `label` give the same images.

    Raises:
        DatasetError: the images differ in size, or the folder contains other images.
        ConfigError: alpha is out of range.
    """
    exact_fraction(alpha)  # checks the range
    check_same_size(first, second)
    recipe: dict[str, Any] = {
        "kind": "fusion",
        "first": {"dataset": first.dataset, "sha256": first.sha256},
        "second": {"dataset": second.dataset, "sha256": second.sha256},
        "split": split,
        "alpha": float(alpha),
        "label": label,
        "seed": seed,
        "rounding": "half up to 8 bits",
    }
    existing_digest = find_made_split(folder, split, recipe)
    if existing_digest is not None:
        return existing_digest
    first_rows, second_rows = pair(len(first), len(second), seed)
    label_source, label_rows = (first, first_rows) if label == "first" else (second, second_rows)
    images = blend(first.images[first_rows], second.images[second_rows], alpha)
    return write_made_split(
        folder,
        split,
        LabelledImages(images, label_source.labels[label_rows]),
        recipe=recipe,
        n_classes=label_source.n_classes,
        first_rows=first_rows,
        second_rows=second_rows,
    )
