"""Checks of many rows at once: which of them may break an invariant, so that only those are looked at one by one.

`tasks.measurements.check_values` says what must be true of a row, and a row that it refuses is always among those
found here.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robust201.shards.arrow_arrays import numbers_of, one_array, to_numpy
from robust201.tasks.columns import ALWAYS, COLUMNS, COUNTS, FRACTION_BITS, Column
from robust201.tasks.measurements import row_sum_tolerance

RowMask = NDArray[np.bool_]
"""(R,) which of R rows."""


def find_suspects(table: pa.Table, names: tuple[str, ...]) -> tuple[RowMask, NDArray[np.int64] | None]:
    """Find the rows to look at, of R rows that `shards.validation.check_table` let pass.

    Args:
        table: with the measurements named and `shards.parquet.LOCATING_COLUMNS`.
        names: the measurement columns.

    Returns:
        (R,) whether a row may be wrong, and (R, C) images by true class, or None where rows have no `cm` of one size.
    """
    n_rows = len(table)
    if COLUMNS.keys().isdisjoint(names):
        finite = all(np.isfinite(_flat(table, name)).all() for name in names)
        return np.full(n_rows, not finite), None
    sizes = np.unique(numbers_of(table["n_classes"]))
    if not {*ALWAYS} <= {*names} <= COLUMNS.keys() or len(sizes) != 1:
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
        if column.of_counts is not None:
            with np.errstate(invalid="ignore"):  # of no image: NaN, which no value equals
                wrong |= values != column.of_counts(cm)
        elif column.counts is None:
            wrong[:] = True  # of a kind that this module does not know
        elif column.is_distribution:
            counts = column.counts(cm)
            wrong |= _are_no_distributions(values, counts[..., 0])
            totals.append(_sums(values, counts))
        else:
            wrong |= _out_of_range(values, column.counts(cm) > 0)
    for total in totals[1:]:
        wrong |= ~(totals[0] == total).all(axis=1)
    return wrong, images


def _flat(table: pa.Table, name: str) -> NDArray[Any]:
    column = one_array(table[name])
    return to_numpy(column.flatten() if isinstance(column, pa.ListArray) else column)


def _out_of_range(means: NDArray[Any], filled: RowMask) -> RowMask:
    """Find the rows with a mean that is no number in [0, 1] over some images, or a number over none."""
    sound = np.where(filled, (means >= 0) & (means <= 1), np.isnan(means))
    found: RowMask = ~np.asarray(sound.all(axis=tuple(range(1, sound.ndim))))
    return found


def _are_no_distributions(means: NDArray[Any], counts: NDArray[np.int64]) -> RowMask:
    """Find the rows with vectors (R, C, C) over some images, (R, C), not in [0, 1] or of another sum, or over none."""
    flat = means.reshape(len(means), -1)
    with np.errstate(invalid="ignore"):  # of infinities of both signs
        sums = np.abs(means.sum(axis=-1) - 1) <= row_sum_tolerance(means.shape[-1])
    # NaN, as over no image, is neither.
    found: RowMask = ~((flat.min(axis=1) >= 0) & (flat.max(axis=1) <= 1) & (counts > 0).all(axis=1) & sums.all(axis=1))
    rows = np.flatnonzero(found)
    filled = counts[rows] > 0
    found[rows] = _out_of_range(means[rows], filled[..., None]) | (filled & ~sums[rows]).any(axis=1)
    return found


def _sums(means: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[Any]:
    """Sum over all images, (R, C), from means of each class (R, C, C) over (R, C, 1) images: whole below 2**53."""
    with np.errstate(invalid="ignore", over="ignore"):  # of a damaged mean over no image
        sums = means * (counts * 2.0**FRACTION_BITS)
    np.rint(sums, out=sums)
    sums[counts[..., 0] <= 0] = 0
    total: NDArray[Any] = sums.sum(axis=1)
    return total


def _contradicts(column: Column, values: NDArray[Any], n_images: NDArray[np.int64], cm: NDArray[np.int64]) -> RowMask:
    """Find the rows with values of single images that contradict the confusion matrix."""
    ends = np.cumsum(n_images)
    rows = np.split(values, ends[:-1])
    if column.contradiction is None:
        return np.zeros(len(cm), dtype=bool)
    contradiction = column.contradiction
    return np.array([contradiction(row, counts) is not None for row, counts in zip(rows, cm, strict=True)])
