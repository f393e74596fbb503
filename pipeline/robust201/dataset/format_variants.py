"""Variants of the published format that exports never write: fractions in `cm`, and 0 for empty means.

A mean is empty if it is over zero images. The paper and the published helper script do not specify whether `cm`
contains counts or fractions, or how an empty mean is written. All variants can be read, because the values of a file
show which variant it uses.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.dataset.values import are_counts, are_row_fractions, max_rounding_error
from robust201.tasks.columns import COLUMNS, COUNTS, Values


def contains_fractions(matrix: NDArray[Any], n_images: int) -> bool:
    """Return whether a confusion matrix contains fractions of each row's images instead of counts.

    With one image per class, fractions and counts are equal, and the value is treated as counts. `n_images` is the
    number of images, or 0 if unknown.
    """
    return are_row_fractions(matrix) and not (are_counts(matrix) and n_images == len(matrix))


def counts_from_fractions(matrix: Any, n_images: int) -> NDArray[np.float64]:
    """Convert a confusion matrix of fractions to counts. All classes must have the same number of images.

    Raises:
        ValueError: `n_images` is not a multiple of the number of classes, or the counts would not be whole numbers.
    """
    fractions = np.array(matrix, dtype=np.float64)
    n_per_class, remainder = divmod(n_images, len(fractions))
    if remainder:
        raise ValueError(
            f"{COUNTS} contains fractions, which can only be converted to counts if all classes have the "
            "same number of images"
        )
    counts: NDArray[np.float64] = np.rint(fractions * n_per_class)
    are_whole_numbers = np.abs(fractions * n_per_class - counts).max() <= n_per_class * max_rounding_error(fractions)
    if not are_whole_numbers or not (counts.sum(axis=1) == n_per_class).all():
        raise ValueError(
            f"{COUNTS} contains fractions that are not multiples of 1/{n_per_class:,}, for {n_per_class:,} images per "
            "class"
        )
    return counts


def zeros_to_missing(values: Values) -> dict[str, NDArray[Any]]:
    """Replace 0 by NaN in empty means (over zero images); arrays without empty means are not copied.

    Confusion matrices show which means are empty. Without them, every zero is an empty mean, because the elements of a
    mean softmax sum to 1, and the confidence in a prediction is at least one divided by the number of classes.
    """
    values_with_nan = dict(values)
    for name, array in values.items():
        column = COLUMNS.get(name)
        if column is None or column.count_images_per_mean is None:
            continue
        if COUNTS in values:
            counts = column.count_images_per_mean(values[COUNTS].astype(np.int64))
            is_empty_mean = np.broadcast_to(counts == 0, array.shape) & (array == 0)
        elif column.is_distribution:
            is_empty_mean = np.broadcast_to((array == 0).all(axis=-1, keepdims=True), array.shape)
        else:
            is_empty_mean = array == 0
        if is_empty_mean.any():
            values_with_nan[name] = np.where(is_empty_mean, np.nan, array)
    return values_with_nan
