"""Vectorised checks that find suspects: rows that may break an invariant.

`tasks.measurements.check_values` defines the invariants, but checks one row at a time, so it is only called for
suspects. The suspects include every row that it would reject.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robust201.shards.arrow_arrays import join_chunks, numbers_of, to_numpy
from robust201.tasks.columns import COLUMNS, COUNTS, FRACTION_BITS, STANDARD_COLUMNS, Column
from robust201.tasks.measurements import row_sum_tolerance

RowMask = NDArray[np.bool_]
"""(R,) bool, one per row."""


def find_suspects(table: pa.Table, columns: tuple[str, ...]) -> RowMask:
    """Find suspects among R rows that passed `shards.validation.check_table`.

    Args:
        table: table with the measurement columns and `shards.parquet.SHAPE_COLUMNS`.
        columns: names of the measurement columns.

    Returns:
        (R,) booleans, true for suspects.
    """
    n_rows = len(table)
    if COLUMNS.keys().isdisjoint(columns):  # rows of a measure, whose values only need to be finite
        is_finite = all(np.isfinite(_flatten_column(table, name)).all() for name in columns)
        return np.full(n_rows, not is_finite)
    distinct_n_classes = np.unique(numbers_of(table["n_classes"]))
    if not {*STANDARD_COLUMNS} <= {*columns} <= COLUMNS.keys() or len(distinct_n_classes) != 1:
        return np.ones(n_rows, dtype=bool)
    n_classes = int(distinct_n_classes[0])
    n_images = numbers_of(table["stop"]).astype(np.int64) - numbers_of(table["start"])
    cm = _flatten_column(table, COUNTS).astype(np.int64).reshape(n_rows, n_classes, n_classes)
    is_suspect: RowMask = (cm.min(axis=(1, 2)) < 0) | (cm.sum(axis=(1, 2)) != n_images)
    summed_confidences = []
    for column in (COLUMNS[name] for name in columns if name != COUNTS):
        if column.is_per_image:
            is_suspect |= _find_contradictions(column, _flatten_column(table, column.name), n_images, cm)
            continue
        values = _flatten_column(table, column.name).reshape(n_rows, *column.shape(n_classes, 0))
        if column.value_from_counts is not None:
            with np.errstate(invalid="ignore"):  # values over zero images are NaN, which does not equal itself
                is_suspect |= values != column.value_from_counts(cm)
        elif column.count_images_per_mean is None:
            is_suspect[:] = True  # no vectorised check for this kind of column
        elif column.is_distribution:
            counts = column.count_images_per_mean(cm)
            is_suspect |= _find_invalid_distributions(values, counts[..., 0])
            summed_confidences.append(_sum_in_fixed_point(values, counts))
        else:
            is_suspect |= _find_out_of_range(values, column.count_images_per_mean(cm) > 0)
    # All confidence columns are means of the same softmax vectors, so their sums over all images must be equal.
    for sums in summed_confidences[1:]:
        is_suspect |= ~(summed_confidences[0] == sums).all(axis=1)
    return is_suspect


def _flatten_column(table: pa.Table, name: str) -> NDArray[Any]:
    column = join_chunks(table[name])
    return to_numpy(column.flatten() if isinstance(column, pa.ListArray) else column)


def _find_out_of_range(means: NDArray[Any], has_images: NDArray[np.bool_]) -> RowMask:
    """Return a mask of the rows with an invalid mean.

    A mean over images must be in [0, 1], and a mean over zero images must be NaN.
    """
    is_valid = np.where(has_images, (means >= 0) & (means <= 1), np.isnan(means))
    is_invalid_row: RowMask = ~np.asarray(is_valid.all(axis=tuple(range(1, is_valid.ndim))))
    return is_invalid_row


def _find_invalid_distributions(means: NDArray[Any], counts: NDArray[np.int64]) -> RowMask:
    """Return a mask of the rows with an invalid mean distribution.

    `means`, (R, C, C), are mean distributions; `counts`, (R, C), are their numbers of images. A mean over zero images
    must be NaN.
    """
    flat_means = means.reshape(len(means), -1)
    with np.errstate(invalid="ignore"):  # the sum of infinities of both signs is NaN
        sums_to_one = np.abs(means.sum(axis=-1) - 1) <= row_sum_tolerance(means.shape[-1])
    # Means over zero images are NaN, and comparisons with NaN are false, so rows with NaN are checked below.
    is_valid = (
        (flat_means.min(axis=1) >= 0)
        & (flat_means.max(axis=1) <= 1)
        & (counts > 0).all(axis=1)
        & sums_to_one.all(axis=1)
    )
    is_invalid: RowMask = ~is_valid
    rows = np.flatnonzero(is_invalid)
    has_images = counts[rows] > 0
    is_invalid[rows] = _find_out_of_range(means[rows], has_images[..., None]) | (has_images & ~sums_to_one[rows]).any(
        axis=1
    )
    return is_invalid


def _sum_in_fixed_point(means: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Return fixed-point sums over all images, (R, C), which are exact below 2**53.

    `means`, (R, C, C), are means per true class; `counts`, (R, C, 1), are their numbers of images.
    """
    with np.errstate(invalid="ignore", over="ignore"):  # damaged means may be infinite or very large
        sums = means * (counts * 2.0**FRACTION_BITS)
    np.rint(sums, out=sums)
    sums[counts[..., 0] <= 0] = 0
    total: NDArray[Any] = sums.sum(axis=1)
    return total


def _find_contradictions(
    column: Column, values: NDArray[Any], n_images: NDArray[np.int64], cm: NDArray[np.int64]
) -> RowMask:
    """Return a mask of the rows whose per-image values contradict the confusion matrix."""
    ends = np.cumsum(n_images)
    values_of_rows = np.split(values, ends[:-1])
    is_counted = column.is_counted
    if is_counted is None:
        return np.zeros(len(cm), dtype=bool)
    return np.array([not is_counted(row_values, row_cm) for row_values, row_cm in zip(values_of_rows, cm, strict=True)])
