"""Two forms that files of the published layout may have and exports never do: shares for counts, zeros for no value.

Neither the paper nor the published helper says whether rows of `cm` are counts, or what is written for a mean over no
image. Both readings of each are accepted, as no file can mean the one by the other.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.reader.value_checks import are_counts, hold_row_shares, share_rounding
from robust201.tasks.columns import COLUMNS, COUNTS, Values


def holds_shares(row: Any, n_images: int, *, is_single: bool) -> bool:
    """Whether an architecture's JSON value of `cm`, or the first of a list by strength, holds shares of so many images.

    The number is 0 where it is not known. Of one image per class the shares are the counts.
    """
    matrix = np.array(row if is_single else row[0], dtype=np.float64)
    return hold_row_shares(matrix) and not (are_counts(matrix) and n_images == len(matrix))


def counts_of_shares(matrix: Any, n_images: int) -> NDArray[np.float64]:
    """Get the counts back of a confusion matrix of shares, of equally many images per class.

    Raises:
        ValueError: the images are not equally many per class, or the shares are none of so many images.
    """
    shares = np.array(matrix, dtype=np.float64)
    per_class, left_over = divmod(n_images, len(shares))
    if left_over:
        raise ValueError(f"{COUNTS} with shares, whose counts need equally many images per class")
    counts: NDArray[np.float64] = np.rint(shares * per_class)
    exact = np.abs(shares * per_class - counts).max() <= per_class * share_rounding(shares)
    if not exact or not (counts.sum(axis=1) == per_class).all():
        raise ValueError(f"{COUNTS} with shares that are none of {per_class:,} images per class")
    return counts


def zeros_to_missing(values: Values) -> dict[str, NDArray[Any]]:
    """Put NaN where a mean over no image is 0; arrays that need it not are the same objects.

    If counts are there, they decide. If not: a mean softmax has a sum of 1 and the confidence in a
    prediction is at least 1 / classes, so zeros are over no image.
    """
    completed = dict(values)
    for name, array in values.items():
        column = COLUMNS.get(name)
        if column is None or column.counts is None:
            continue
        if COUNTS in values:
            counts = column.counts(values[COUNTS].astype(np.int64))
            empty = np.broadcast_to(counts == 0, array.shape) & (array == 0)
        elif column.is_distribution:
            empty = np.broadcast_to((array == 0).all(axis=-1, keepdims=True), array.shape)
        else:
            empty = array == 0
        if empty.any():
            completed[name] = np.where(empty, np.nan, array)
    return completed
