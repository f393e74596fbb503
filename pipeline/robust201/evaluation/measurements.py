"""Measurements of a network's outputs, as sums of integers, which are exact in any order.

Confidences and other per-image values with a stored mean are added as integers of `FRACTION_BITS` bits, so the sum
depends neither on the order of images nor on whether they are evaluated in several parts. The sum can be recovered from
the mean and the counts in `cm`, the confusion matrix (or `outcome_counts`): with at most 2**18 images, it is at most
2**50. A float64 represents integers up to 2**53 exactly, which leaves a margin for the rounding of the mean and of its
product with the count.

Torch is imported only where values are computed on a device; shards and exports need only checks and merging.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError
from robust201.core.records import MAX_CLASSES
from robust201.tasks.columns import (
    COLUMNS,
    COUNTS,
    MEASUREMENTS,
    OUTCOME_COUNTS,
    PREDICTIONS,
    Column,
    ModelOutputs,
    Values,
    columns_of,
    count_classes,
    count_matrix,
    stored_order,
    units_per_one,
)

if TYPE_CHECKING:
    import torch

MAX_IMAGES = 2**18
"""Maximum number of images per strength. A mean then determines its sum, since 2**(18 + FRACTION_BITS) < 2**52."""


def row_sum_tolerance(n_classes: int) -> float:
    """Return the maximum deviation from 1 of the sum of a mean softmax vector over its classes.

    It is at least 1e-5. The deviation allowed per class is the spacing of float32 numbers just below 1.
    """
    return max(1e-5, 2.0**-24 * n_classes)


class Accumulator:
    """Accumulates the measurements of one strength on a device. Images may be added in any order.

    Args:
        measurements: names from `MEASUREMENTS`, or of single columns.
        n_classes: number of classes C, up to `MAX_CLASSES`.
        device: device of the logits.
        n_images: number of images N, up to `MAX_IMAGES`.
        name: name of the evaluation, for messages.
        indices: (N,) image numbers for messages; by default the positions.
    """

    def __init__(
        self,
        measurements: Sequence[str],
        n_classes: int,
        device: "torch.device | str",
        n_images: int,
        *,
        name: str = "a result",
        indices: NDArray[np.int64] | None = None,
    ) -> None:
        import torch

        self.name = name
        self.n_images = n_images
        self._indices = indices
        self._columns = columns_of(measurements, n_classes)
        _check_sizes(name, n_classes, n_images)
        self._n_classes = n_classes
        self._totals = {
            name: torch.zeros(COLUMNS[name].shape(n_classes, n_images), dtype=torch.int64, device=device)
            for name in self._columns
            if COLUMNS[name].contribute is not None
        }
        self._is_not_finite = torch.zeros(n_images, dtype=torch.bool, device=device)

    def update(
        self,
        positions: "torch.Tensor",
        logits: "torch.Tensor",
        labels: "torch.Tensor",
        measure_distances: "Callable[[], torch.Tensor] | None" = None,
    ) -> None:
        """Add a batch at positions (B,) int64 in [0, N), with logits (B, C) and labels (B,); see `ModelOutputs`."""
        import torch

        logits = logits.float()
        self._is_not_finite[positions] = (~torch.isfinite(logits)).any(dim=1)
        outputs = ModelOutputs(positions, labels, logits.argmax(dim=1), logits, measure_distances)
        for name, total in self._totals.items():
            contribute = COLUMNS[name].contribute
            assert contribute is not None  # noqa: S101 - the column has a total
            indices, terms = contribute(outputs)
            total.view(-1, *terms.shape[1:]).index_add_(0, indices, terms)

    @property
    def totals(self) -> dict[str, "torch.Tensor"]:
        """Totals over the images so far, by name; `update` changes these tensors."""
        return self._totals | {"is_not_finite": self._is_not_finite}

    def finalise(self) -> dict[str, NDArray[Any]]:
        """Return the measurements on the CPU, by column.

        Raises:
            EvaluationError: logits were not finite, or images are missing or were added twice.
        """
        from robust201.networks.watch import NOT_FINITE_ADVICE, name_images

        is_not_finite = self._is_not_finite.cpu().numpy()
        if is_not_finite.any():
            positions = np.flatnonzero(is_not_finite)
            image_numbers = positions if self._indices is None else self._indices[positions]
            raise EvaluationError(
                f"Measuring failed for {self.name}: expected finite logits, got NaN or infinity for {len(positions)} "
                f"of {self.n_images} images ({name_images(image_numbers.tolist())}). {NOT_FINITE_ADVICE}"
            )
        totals = {name: total.cpu().numpy() for name, total in self._totals.items()}
        n_added = int(count_matrix(totals).sum())
        if n_added != self.n_images:
            raise EvaluationError(
                f"Measuring failed for {self.name}: expected {self.n_images} images, got {n_added}. "
                "This is a bug in the evaluation."
            )
        return _finalise(totals, {name: COLUMNS[name].dtype_for(self._n_classes) for name in self._columns})


def merge_values(parts: Sequence[Values], *, name: str = "a result") -> dict[str, NDArray[Any]]:
    """Merge the measurements of the parts of a unit, which is one network under one key.

    The result is byte-identical to an evaluation of the whole unit. Merging is associative; a single part is returned
    unchanged. The parts must be in the order of their image positions, and have the same columns.

    Raises:
        EvaluationError: there are no parts, they have different columns or classes, or too many images.
    """
    if len(parts) == 1 and not has_predictions(parts[0]):
        return dict(parts[0])
    layouts = {f"{', '.join(sorted(part))} of {count_classes(part)} classes" for part in parts}
    if len(layouts) != 1:
        raise EvaluationError(
            f"Merging failed for {name}: expected parts with equal columns, "
            f"got {' and '.join(sorted(layouts)) or 'no parts'}. Evaluate the unit again."
        )
    totals = [_totals_of(part) for part in parts]
    merged: dict[str, NDArray[np.int64]] = {}
    for column in totals[0]:
        part_totals = [total[column] for total in totals]
        merged[column] = np.concatenate(part_totals) if COLUMNS[column].is_per_image else np.sum(part_totals, axis=0)
    _check_sizes(name, count_classes(parts[0]), int(count_matrix(merged).sum()))
    return _finalise(merged, {name: np.result_type(*(part[name] for part in parts)) for name in stored_order(parts[0])})


def _check_sizes(name: str, n_classes: int, n_images: int) -> None:
    """Raise EvaluationError if sums or predictions could overflow."""
    for count, maximum, noun in ((n_images, MAX_IMAGES, "images"), (n_classes, MAX_CLASSES, "classes")):
        if count > maximum:
            raise EvaluationError(
                f"Measuring failed for {name}: expected up to {maximum:,} {noun}, got {count:,}. Evaluate fewer."
            )


def _totals_of(values: Values) -> dict[str, NDArray[np.int64]]:
    """Recover the integer totals from which the columns were computed."""
    cm = count_matrix(values)
    return {name: _total_of(COLUMNS[name], array, cm) for name, array in values.items() if COLUMNS[name].contribute}


def _total_of(column: Column, array: NDArray[Any], cm: NDArray[np.int64]) -> NDArray[np.int64]:
    if column.count_images_per_mean is None:
        return array.astype(np.int64)
    counts = np.broadcast_to(column.count_images_per_mean(cm), array.shape)
    means = np.where(counts > 0, array, 0.0)
    total: NDArray[np.int64] = np.rint(means * (counts * units_per_one(column.largest))).astype(np.int64)
    return total


def _finalise(totals: Mapping[str, NDArray[np.int64]], dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, NDArray[Any]]:
    """Compute columns from the totals; `dtypes` are the types of the columns by name."""
    cm = count_matrix(totals)
    values: dict[str, NDArray[Any]] = {}
    for name, dtype in dtypes.items():
        column = COLUMNS[name]
        if column.value_from_counts is not None:
            values[name] = np.array(column.value_from_counts(cm), dtype=dtype)
        elif column.count_images_per_mean is None:
            values[name] = totals[name].astype(dtype)
        else:
            counts = np.broadcast_to(column.count_images_per_mean(cm), totals[name].shape)
            values[name] = np.full(totals[name].shape, np.nan)
            np.divide(totals[name], counts * units_per_one(column.largest), out=values[name], where=counts > 0)
    return values


def check_values(
    values: Values,
    n_images: int,
    label_counts: NDArray[np.integer[Any]] | None = None,
    *,
    name: str = "a result",
) -> None:
    """Check the invariants of a result.

    Args:
        values: columns of one evaluation, or of a part of it.
        n_images: number of images N in the result.
        label_counts: (C,) number of images of each true class, if known.
        name: name of the evaluation, for messages.

    Raises:
        EvaluationError: columns are missing or have the wrong type or shape; `cm` does not count N images (or each
            class's images); a value is out of range, or cannot result from the counts or a sum of integers; a mean over
            one image or more is NaN; or a row of confidences does not sum to 1.
    """
    if not has_predictions(values):
        check_measure_values(values, name=name)
        return
    failure = _layout_failure(values, n_images) or _value_failure(values, n_images, label_counts)
    if failure is not None:
        raise EvaluationError(
            f"Checking measurements failed for {name}: expected {failure}. The result is damaged; evaluate it again."
        )


def has_predictions(values: Values) -> bool:
    """Return whether a result comes from predictions instead of a measure."""
    return not COLUMNS.keys().isdisjoint(values)


def summarise(values: Values) -> tuple[int, float]:
    """Return the number of correctly classified images, and the mean confidence in the predicted class."""
    column = MEASUREMENTS["confidence"]["prediction"]
    assert column.count_images_per_mean is not None  # noqa: S101 - the column holds means
    counts = column.count_images_per_mean(count_matrix(values))
    # A mean over zero images is NaN, and its weight is 0.
    return int(counts[0]), float(np.average(np.nan_to_num(values[column.name]), weights=counts))


def check_measure_values(
    values: Values, declared_columns: Sequence[str] | None = None, *, name: str = "a result"
) -> None:
    """Check the invariants of a measure's result.

    Raises:
        EvaluationError: there are no columns, they differ from the declared ones (None: unknown), or a column is not a
            finite float64 number or a list of such numbers.
    """
    failure = None if values else "one column or more, got none"
    for column, array in values.items():
        if array.dtype != np.float64 or array.ndim > 1:
            failure = failure or f"{column} as float64 numbers, got {array.dtype} of shape {array.shape}"
        elif not np.isfinite(array).all():
            failure = failure or f"{column} to be finite, got {array.tolist()}"
    if declared_columns is not None and set(declared_columns) != set(values):
        failure = f"the columns {', '.join(declared_columns)}, got {', '.join(values) or 'none'}"
    if failure is not None:
        raise EvaluationError(
            f"Checking a measure failed for {name}: expected {failure}. Check the network's weights and the task's "
            "function."
        )


def _layout_failure(values: Values, n_images: int) -> str | None:
    counts = OUTCOME_COUNTS if OUTCOME_COUNTS in values else COUNTS
    if not {"accuracy", counts} <= set(values) <= set(COLUMNS):
        return f"the columns accuracy, {counts} and any of {', '.join(COLUMNS)}, got {', '.join(values)}"
    if n_images < 1:
        return f"one image or more, got {n_images}"
    n_classes = count_classes(values)
    for name, array in values.items():
        column = COLUMNS[name]
        # Without a matrix, the number of classes is unknown.
        dtypes = {column.dtype_for(n_classes)} if n_classes else {column.dtype, column.wide_dtype or column.dtype}
        shape = column.shape(n_classes, n_images)
        if array.shape != shape or array.dtype not in dtypes:
            return f"{name} {' or '.join(map(str, dtypes))} {shape}, got {array.dtype} {array.shape}"
    return None


def _value_failure(values: Values, n_images: int, label_counts: NDArray[np.integer[Any]] | None) -> str | None:
    cm = count_matrix(values)
    if cm.sum() != n_images or cm.min() < 0:
        return f"{n_images} images in cm and no negative count, got {cm.sum()} and a minimum of {cm.min()}"
    if COUNTS in values and label_counts is not None and not np.array_equal(cm.sum(axis=1), label_counts):
        return f"rows of cm to count {label_counts.tolist()} images, got {cm.sum(axis=1).tolist()}"
    return next(
        filter(None, (_column_failure(COLUMNS[name], array, cm, values) for name, array in values.items())), None
    )


def _column_failure(column: Column, array: NDArray[Any], cm: NDArray[np.int64], values: Values) -> str | None:
    name = column.name
    if column.is_integer:
        # Without a confusion matrix, the counts of single classes are unknown.
        agrees_with_cm = None if COUNTS not in values and name == PREDICTIONS else column.agrees_with_cm
        is_mismatch = agrees_with_cm is not None and not agrees_with_cm(array, cm)
        return f"{name} to match cm, got a mismatch" if is_mismatch else None
    if (array < 0).any() or (array > column.largest).any():
        return f"{name} in [0, {column.largest:g}], got [{np.nanmin(array)}, {np.nanmax(array)}]"
    with np.errstate(invalid="ignore"):  # casting NaN to integers
        totals = {COUNTS: cm, name: _total_of(column, array, cm)}
    if not np.array_equal(_finalise(totals, {name: column.dtype})[name], array, equal_nan=True):
        return f"{name} to follow from cm and from a sum of integers, got other numbers"
    if column.is_distribution and (np.abs(array.sum(axis=-1) - 1) > row_sum_tolerance(array.shape[-1])).any():
        return f"rows of {name} to sum to 1, got other sums"
    return None
