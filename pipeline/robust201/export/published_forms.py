"""Two variants of the published format that exports never write: fractions for counts, and 0 for a mean over no image.

The paper and the published helper script do not say whether `cm` contains counts or fractions, or how a mean over no
image is written. Both variants are accepted, since a file's values show which one it uses.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.reader.value_checks import are_counts, are_row_fractions, fraction_rounding
from robust201.tasks.columns import COLUMNS, COUNTS, Values


def holds_fractions(row: Any, n_images: int, *, is_single: bool) -> bool:
    """Return whether a JSON value of `cm` contains fractions of each row instead of counts of images.

    With one image per class, fractions and counts are equal, and the value is taken as counts.

    Args:
        row: an architecture's value, or its list of values by strength, of which the first is examined.
        n_images: number of images, or 0 if unknown.
        is_single: whether `row` is a single value.
    """
    matrix = np.array(row if is_single else row[0], dtype=np.float64)
    return are_row_fractions(matrix) and not (are_counts(matrix) and n_images == len(matrix))


def counts_from_fractions(matrix: Any, n_images: int) -> NDArray[np.float64]:
    """Convert a confusion matrix of fractions to counts, given that all classes have equally many images.

    Raises:
        ValueError: `n_images` is not a multiple of the number of classes, or the counts would not be whole numbers.
    """
    fractions = np.array(matrix, dtype=np.float64)
    per_class, remainder = divmod(n_images, len(fractions))
    if remainder:
        raise ValueError(f"{COUNTS} with fractions, whose counts need equally many images per class")
    counts: NDArray[np.float64] = np.rint(fractions * per_class)
    exact = np.abs(fractions * per_class - counts).max() <= per_class * fraction_rounding(fractions)
    if not exact or not (counts.sum(axis=1) == per_class).all():
        raise ValueError(
            f"{COUNTS} with fractions that are not multiples of 1/{per_class:,}, for as many images a class"
        )
    return counts


def zeros_to_missing(values: Values) -> dict[str, NDArray[Any]]:
    """Replace 0 by NaN in means over no image; arrays without such means are returned unchanged.

    Confusion matrices show which means are over no image. Without them, every zero is one: a mean softmax sums to 1,
    and the confidence in a prediction is at least 1 / classes.
    """
    completed = dict(values)
    for name, array in values.items():
        column = COLUMNS.get(name)
        if column is None or column.counts is None:
            continue
        if COUNTS in values:
            counts = column.counts(values[COUNTS].astype(np.int64))
            is_empty = np.broadcast_to(counts == 0, array.shape) & (array == 0)
        elif column.is_distribution:
            is_empty = np.broadcast_to((array == 0).all(axis=-1, keepdims=True), array.shape)
        else:
            is_empty = array == 0
        if is_empty.any():
            completed[name] = np.where(is_empty, np.nan, array)
    return completed
