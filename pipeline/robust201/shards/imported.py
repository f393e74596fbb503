"""Results that were not computed here but read from the files of a dataset: rounded, and perhaps not all of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError
from robust201.tasks.columns import COLUMNS, MEANS, Values
from robust201.tasks.measurements import ROW_SUM_TOLERANCE, check_measured, holds_answers

_EXACT = 1e-12


def half_unit(decimals: int | None) -> float:
    """Half a unit of the last of some decimals, and a little for the arithmetic; None means that none were cut off."""
    return _EXACT + (0.0 if decimals is None else 0.5 * 10.0**-decimals)


def check_imported(
    values: Values, n_images: int, decimals: Mapping[str, int | None], *, name: str = "an imported result"
) -> None:
    """Hold an imported result of N images to what must be true of it, as far as its decimals reach (None: all).

    Raises:
        EvaluationError: a column is of the wrong form, `cm` does not count N images, `accuracy` differs from that of
            `cm` by more than half a unit of its last digit, or a mean confidence is out of [0, 1] or a row of them
            does not sum to 1 by more than its digits explain.
    """
    if not holds_answers(values):
        check_measured(values, name=name)
        return
    for column, array in values.items():
        form = COLUMNS[column]
        shape = form.shape(len(array) if array.ndim else 0, n_images)
        if array.shape != shape or array.dtype != form.dtype:
            raise _failure(name, f"{column} {form.dtype} {shape}, got {array.dtype} {array.shape}")
    slack = half_unit(decimals.get("accuracy"))
    accuracy = float(values["accuracy"]) if "accuracy" in values else None
    if accuracy is not None and not -_EXACT <= accuracy <= 1 + _EXACT:
        raise _failure(name, f"accuracy in [0, 1], got {accuracy}")
    if "cm" in values:
        cm = values["cm"].astype(np.int64)
        if cm.min() < 0 or int(cm.sum()) != n_images:
            raise _failure(name, f"cm to count {n_images} images, got counts from {cm.min()} that sum to {cm.sum()}")
        counted = int(np.trace(cm)) / n_images
        if accuracy is not None and abs(accuracy - counted) > slack:
            raise _failure(name, f"accuracy {counted} within {slack:.2g}, which is that of cm, got {accuracy}")
    slack = half_unit(decimals.get("confidence"))
    for column in (column for column in MEANS if column in values):
        _check_means(values[column], slack, name, column)


def _check_means(means: NDArray[Any], slack: float, name: str, column: str) -> None:
    held = means[~np.isnan(means)]
    if held.size and not (held.min() >= -slack and held.max() <= 1 + slack):
        raise _failure(name, f"{column} in [0, 1], got [{held.min()}, {held.max()}]")
    if means.ndim == 2:
        sums = means[~np.isnan(means).any(axis=1)].sum(axis=1)
        error = float(np.abs(sums - 1).max()) if sums.size else 0.0
        if error > ROW_SUM_TOLERANCE + means.shape[1] * slack:
            raise _failure(name, f"rows of {column} to sum to 1, got one that is {error:.3g} off")


def _failure(name: str, expected: str) -> EvaluationError:
    return EvaluationError(f"Checking measurements failed for {name}: expected {expected}. Download the file again.")
