"""Checks of many rows at once: which of them may break an invariant, so that only those are looked at one by one.

`tasks.measurements.check_values` says what must be true of a row, and a row that it refuses is always among those
found here. Anything that this module does not know makes every row one to look at.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robust201.tasks.columns import ALWAYS, COLUMNS, FRACTION_BITS
from robust201.tasks.measurements import ROW_SUM_TOLERANCE

_KNOWN = {"accuracy", "cm", "confidence_label", "confidence_argmax", "confidence_prediction", "predictions"}


def find_suspects(table: pa.Table, names: tuple[str, ...]) -> tuple[NDArray[np.bool_], NDArray[np.int64] | None]:
    """Find the rows to look at, of R rows that `shards.validation.check_table` let pass.

    Args:
        table: with the measurements named and `shards.parquet.LOCATING_COLUMNS`.
        names: the measurement columns.

    Returns:
        (R,) whether a row may be wrong, and (R, C) images by true class, or None where rows have no `cm` of one size.
    """
    n_rows = len(table)
    everything = np.ones(n_rows, dtype=bool)
    if COLUMNS.keys().isdisjoint(names):
        finite = all(np.isfinite(_flat(table, name)).all() for name in names)
        return np.full(n_rows, not finite), None
    n_classes = {*table["n_classes"].to_pylist()}
    if not {*ALWAYS} <= {*names} <= _KNOWN or len(n_classes) != 1:
        return everything, None
    n_images = table["stop"].to_numpy().astype(np.int64) - table["start"].to_numpy()
    (size,) = n_classes
    cm = _flat(table, "cm").astype(np.int64).reshape(n_rows, size, size)
    by_label, by_prediction = cm.sum(axis=2), cm.sum(axis=1)
    correct = np.trace(cm, axis1=1, axis2=2)
    wrong = (cm < 0).any(axis=(1, 2)) | (by_label.sum(axis=1) != n_images)
    wrong |= _flat(table, "accuracy") != correct / n_images
    if "predictions" in names:
        wrong |= _miscounted(_flat(table, "predictions"), n_images, by_prediction)
    totals = []
    for name, counts in (("confidence_label", by_label), ("confidence_argmax", by_prediction)):
        if name in names:
            means = _flat(table, name).reshape(n_rows, size, size)
            filled = counts > 0
            wrong |= _out_of_range(means, filled[:, :, None])
            error = np.abs(means.sum(axis=2) - 1)
            wrong |= (filled & ~(error <= ROW_SUM_TOLERANCE)).any(axis=1)
            sums = np.where(filled[:, :, None], means, 0.0) * (counts[:, :, None] * 2.0**FRACTION_BITS)
            totals.append(np.rint(sums).sum(axis=1))  # whole numbers below 2**53
    if len(totals) == 2:
        wrong |= ~(totals[0] == totals[1]).all(axis=1)
    if "confidence_prediction" in names:
        means = _flat(table, "confidence_prediction").reshape(n_rows, 2)
        wrong |= _out_of_range(means, np.stack([correct > 0, n_images > correct], axis=1))
    return wrong, by_label


def _flat(table: pa.Table, name: str) -> NDArray[np.generic]:
    """Values of all rows, one row after the other."""
    column = table[name].combine_chunks()
    array: NDArray[np.generic] = (column.flatten() if isinstance(column, pa.ListArray) else column).to_numpy()
    return array


def _out_of_range(means: NDArray[np.generic], filled: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Find the rows with a mean that is no number in [0, 1] over some images, or a number over none."""
    sound = np.where(filled, (means >= 0) & (means <= 1), np.isnan(means))
    found: NDArray[np.bool_] = ~sound.reshape(len(means), -1).all(axis=1)
    return found


def _miscounted(
    predictions: NDArray[np.generic], n_images: NDArray[np.int64], by_prediction: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Find the rows whose predictions are not those that the confusion matrix counts."""
    n_rows, n_classes = by_prediction.shape
    places = np.repeat(np.arange(n_rows), n_images) * 256 + predictions
    counted = np.bincount(places, minlength=256 * n_rows).reshape(n_rows, 256)
    found: NDArray[np.bool_] = (counted[:, :n_classes] != by_prediction).any(axis=1) | counted[:, n_classes:].any(
        axis=1
    )
    return found
