"""Vectorised checks that find the rows which may break an invariant, so that only these are checked one by one.

`tasks.measurements.check_values` defines the invariants. Every row that it rejects is among those found here.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robust201.shards.arrow_arrays import join_chunks, numbers_of, to_numpy
from robust201.statistics.calibration import FRACTION_BITS
from robust201.tasks.columns import COLUMNS, COUNTS, STANDARD_COLUMNS, Column
from robust201.tasks.measurements import row_sum_tolerance

RowMask = NDArray[np.bool_]
"""(R,) bool, one per row."""


def find_suspects(table: pa.Table, names: tuple[str, ...]) -> tuple[RowMask, NDArray[np.int64] | None]:
    """Find the rows to check, of R rows that passed `shards.validation.check_table`.

    Args:
        table: table with the named measurements and `shards.parquet.LOCATING_COLUMNS`.
        names: the measurement columns.

    Returns:
        (R,) whether a row may be invalid, and (R, C) images of each true class, or None if rows have no `cm`, or `cm`
        of different sizes.
    """
    n_rows = len(table)
    if COLUMNS.keys().isdisjoint(names):
        finite = all(np.isfinite(_flat(table, name)).all() for name in names)
        return np.full(n_rows, not finite), None
    sizes = np.unique(numbers_of(table["n_classes"]))
    if not {*STANDARD_COLUMNS} <= {*names} <= COLUMNS.keys() or len(sizes) != 1:
        return np.ones(n_rows, dtype=bool), None
    n_classes = int(sizes[0])
    n_images = numbers_of(table["stop"]).astype(np.int64) - numbers_of(table["start"])
    cm = _flat(table, COUNTS).astype(np.int64).reshape(n_rows, n_classes, n_classes)
    images = cm.sum(axis=2)
    wrong: RowMask = (cm.min(axis=(1, 2)) < 0) | (images.sum(axis=1) != n_images)
    totals = []
    for column in (COLUMNS[name] for name in names if name != COUNTS):
        if column.by_image:
            wrong |= _contradicts(column, _flat(table, column.name), n_images, cm)
            continue
        values = _flat(table, column.name).reshape(n_rows, *column.shape(n_classes, 0))
        if column.value_from_counts is not None:
            with np.errstate(invalid="ignore"):  # over zero images: NaN, which no value equals
                wrong |= values != column.value_from_counts(cm)
        elif column.counts is None:
            wrong[:] = True  # no vectorised check for this kind of column
        elif column.is_distribution:
            counts = column.counts(cm)
            wrong |= _are_not_distributions(values, counts[..., 0])
            totals.append(_sums(values, counts))
        else:
            wrong |= _out_of_range(values, column.counts(cm) > 0)
    for total in totals[1:]:
        wrong |= ~(totals[0] == total).all(axis=1)
    return wrong, images


def _flat(table: pa.Table, name: str) -> NDArray[Any]:
    column = join_chunks(table[name])
    return to_numpy(column.flatten() if isinstance(column, pa.ListArray) else column)


def _out_of_range(means: NDArray[Any], has_images: RowMask) -> RowMask:
    """Return the rows with a mean over some images outside of [0, 1] or NaN, or a mean over none that is not NaN."""
    valid = np.where(has_images, (means >= 0) & (means <= 1), np.isnan(means))
    invalid_rows: RowMask = ~np.asarray(valid.all(axis=tuple(range(1, valid.ndim))))
    return invalid_rows


def _are_not_distributions(means: NDArray[Any], counts: NDArray[np.int64]) -> RowMask:
    """Return the rows whose vectors (R, C, C) are not distributions where (R, C) images > 0, or not NaN elsewhere."""
    flat = means.reshape(len(means), -1)
    with np.errstate(invalid="ignore"):  # infinities of both signs
        sums = np.abs(means.sum(axis=-1) - 1) <= row_sum_tolerance(means.shape[-1])
    # Comparisons with NaN, as over zero images, are false, so rows with NaN are checked below.
    is_valid = (flat.min(axis=1) >= 0) & (flat.max(axis=1) <= 1) & (counts > 0).all(axis=1) & sums.all(axis=1)
    invalid: RowMask = ~is_valid
    rows = np.flatnonzero(invalid)
    has_images = counts[rows] > 0
    invalid[rows] = _out_of_range(means[rows], has_images[..., None]) | (has_images & ~sums[rows]).any(axis=1)
    return invalid


def _sums(means: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Return sums over all images, (R, C), from class means (R, C, C) over (R, C, 1) images; exact below 2**53."""
    with np.errstate(invalid="ignore", over="ignore"):  # a damaged mean over zero images
        sums = means * (counts * 2.0**FRACTION_BITS)
    np.rint(sums, out=sums)
    sums[counts[..., 0] <= 0] = 0
    total: NDArray[Any] = sums.sum(axis=1)
    return total


def _contradicts(column: Column, values: NDArray[Any], n_images: NDArray[np.int64], cm: NDArray[np.int64]) -> RowMask:
    """Return the rows whose per-image values contradict the confusion matrix."""
    ends = np.cumsum(n_images)
    rows = np.split(values, ends[:-1])
    if column.contradiction is None:
        return np.zeros(len(cm), dtype=bool)
    contradiction = column.contradiction
    return np.array([contradiction(row, counts) is not None for row, counts in zip(rows, cm, strict=True)])
