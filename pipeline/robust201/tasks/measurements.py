"""What is measured of a network's answers to images, as sums that are exact in any order and merge exactly.

Confidences are added up as 64-bit integers with 32 fractional bits, so neither the order of images nor the split of a
unit into parts leaves a trace. A finalised mean and the counts in `cm` give back the integer sum, because with at most
2**18 images it fits the 53 bits of a float64 with room for the rounding of one division and one product.

This module imports torch only where it computes on a device: shards and exports check and merge by it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError
from robust201.tasks.columns import ALWAYS, COLUMNS, FRACTION_BITS, MEANS, Answers, Values, columns_of

if TYPE_CHECKING:
    import torch

MAX_IMAGES = 2**18
"""Images per strength up to which a mean gives back its sum: 2**(18 + FRACTION_BITS) is below 2**52."""

MAX_CLASSES = 256
"""Predictions are stored in one byte."""

ROW_SUM_TOLERANCE = 1e-5
"""How far a mean of softmax vectors may be from summing to 1: float32 rounding of up to 120 terms."""


class Accumulator:
    """Adds up one strength's measurements on the device, in one pass and in any order.

    Args:
        measurements: names from `MEASUREMENTS`.
        n_classes: number of classes C, up to `MAX_CLASSES`.
        device: where the logits lie.
        n_images: number of images N, up to `MAX_IMAGES`.
        name: what is measured, for messages.
    """

    def __init__(
        self,
        measurements: Sequence[str],
        n_classes: int,
        device: "torch.device | str",
        n_images: int,
        *,
        name: str = "a result",
    ) -> None:
        import torch

        _check_sizes(name, n_classes, n_images)
        self.name = name
        self.n_images = n_images
        self.n_classes = n_classes
        columns = columns_of(measurements)
        self._means = {name: mean for name, mean in MEANS.items() if name in columns}

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        self._cm = zeros(n_classes * n_classes)
        self._sums = {name: zeros(*COLUMNS[name].shape(n_classes, n_images)) for name in self._means}
        self._predictions = zeros(n_images) if "predictions" in columns else None
        self._not_finite = zeros()

    def update(self, positions: "torch.Tensor", logits: "torch.Tensor", labels: "torch.Tensor") -> None:
        """Add a batch.

        Args:
            positions: (B,) int64, positions of the images in [0, N).
            logits: (B, C) float32.
            labels: (B,) int64 true classes.
        """
        import torch

        logits = logits.float()
        predicted = logits.argmax(dim=1)
        self._not_finite += (~torch.isfinite(logits)).any(dim=1).sum()
        self._cm.index_add_(0, labels * self.n_classes + predicted, torch.ones_like(labels))
        if self._predictions is not None:
            self._predictions[positions] = predicted
        if self._means:
            softmax = logits.nan_to_num().softmax(dim=1).double()
            answers = Answers(labels, predicted, (softmax * 2**FRACTION_BITS).round().long())
            for name, mean in self._means.items():
                self._sums[name].index_add_(0, *mean.select(answers))

    def finalise(self) -> dict[str, NDArray[Any]]:
        """Bring the measurements to the CPU.

        Returns:
            Column name → array (see `COLUMNS`).

        Raises:
            EvaluationError: logits were not finite, or not every image was added once.
        """
        not_finite = int(self._not_finite)
        if not_finite:
            raise EvaluationError(
                f"Measuring failed for {self.name}: expected finite logits, got NaN or infinity for "
                f"{not_finite} of {self.n_images} images. Check this network's weights."
            )
        cm: NDArray[np.int64] = self._cm.cpu().numpy().reshape(self.n_classes, self.n_classes)
        if int(cm.sum()) != self.n_images:
            raise EvaluationError(
                f"Measuring failed for {self.name}: expected {self.n_images} images, got {int(cm.sum())}. "
                "This is a bug in the evaluation."
            )
        sums = {name: total.cpu().numpy() for name, total in self._sums.items()}
        predictions = None if self._predictions is None else self._predictions.cpu().numpy().astype(np.uint8)
        return _finalise(cm, sums, predictions)


def merge_values(parts: Sequence[Values], *, name: str = "a result") -> dict[str, NDArray[Any]]:
    """Merge the measurements of a unit's parts, to the byte as if it had been one.

    Args:
        parts: columns of each part, in the order of their image positions; equal columns in each.
        name: what they are parts of, for messages.

    Returns:
        Column name → array for all images of the parts. Merging is associative; a single part comes back unchanged.

    Raises:
        EvaluationError: no parts, parts with different columns or classes, or too many images.
    """
    if len(parts) == 1 and not holds_answers(parts[0]):
        return dict(parts[0])
    forms = {f"{', '.join(sorted(part))} of {len(part.get('cm', ()))} classes" for part in parts}
    if len(forms) != 1:
        raise EvaluationError(
            f"Merging failed for {name}: expected parts with equal columns, "
            f"got {' and '.join(sorted(forms)) or 'none'}. Evaluate it again."
        )
    cms = [part["cm"].astype(np.int64) for part in parts]
    cm = np.sum(cms, axis=0)
    _check_sizes(name, len(cm), int(cm.sum()))
    sums = {
        column: np.sum([_sums_of(part, column, counts) for part, counts in zip(parts, cms, strict=True)], axis=0)
        for column in parts[0]
        if column in MEANS
    }
    predictions = np.concatenate([part["predictions"] for part in parts]) if "predictions" in parts[0] else None
    return _finalise(cm, sums, predictions)


def _check_sizes(name: str, n_classes: int, n_images: int) -> None:
    if not 0 < n_images <= MAX_IMAGES:
        raise EvaluationError(
            f"Measuring failed for {name}: expected 1 to {MAX_IMAGES} images, got {n_images}. Select fewer."
        )
    if n_classes > MAX_CLASSES:
        raise EvaluationError(
            f"Measuring failed for {name}: expected up to {MAX_CLASSES} classes, got {n_classes}. "
            "Predictions are stored in one byte; this dataset needs a wider column."
        )


def _sums_of(values: Values, name: str, cm: NDArray[np.int64]) -> NDArray[np.int64]:
    """Get the integer sums back that the means of a column were made of."""
    counts = np.broadcast_to(MEANS[name].counts(cm), values[name].shape)
    means = np.where(counts > 0, values[name], 0.0)
    sums: NDArray[np.int64] = np.rint(means * (counts * 2.0**FRACTION_BITS)).astype(np.int64)
    return sums


def _finalise(
    cm: NDArray[np.int64], sums: Mapping[str, NDArray[np.int64]], predictions: NDArray[np.uint8] | None
) -> dict[str, NDArray[Any]]:
    values: dict[str, NDArray[Any]] = {
        "accuracy": np.array(int(np.trace(cm)) / int(cm.sum()), dtype=np.float64),
        "cm": cm.astype(np.int32),
    }
    for name, total in sums.items():
        counts = np.broadcast_to(MEANS[name].counts(cm), total.shape)
        values[name] = np.full(total.shape, np.nan)
        np.divide(total, counts * 2.0**FRACTION_BITS, out=values[name], where=counts > 0)
    if predictions is not None:
        values["predictions"] = predictions
    return values


def check_values(
    values: Values, n_images: int, label_counts: NDArray[np.integer[Any]] | None = None, *, name: str = "a result"
) -> None:
    """Hold a result to what must be true of every result.

    Args:
        values: columns of one evaluation, or of a part of one.
        n_images: number of images N that they are about.
        label_counts: (C,) images of each true class, where they are known.
        name: what the values are of, for the message.

    Raises:
        EvaluationError: columns are missing or of the wrong form, `cm` does not count N images (or the classes'),
            `accuracy` is not that of `cm`, a mean confidence is NaN over some images or a number over none, out of
            [0, 1] or a row of them does not sum to 1, means by label and by prediction come from different sums, or
            `predictions` are not those that `cm` counts.
    """
    if not holds_answers(values):
        check_measured(values, name=name)
        return
    failure = _form_failure(values, n_images)
    if failure is None:
        cm = values["cm"].astype(np.int64)
        failure = _count_failure(values, cm, n_images, label_counts) or _mean_failure(values, cm)
    if failure is not None:
        raise EvaluationError(
            f"Checking measurements failed for {name}: expected {failure}. The result is damaged; evaluate it again."
        )


def holds_answers(values: Values) -> bool:
    """Whether values are of answers to images, not of a measure."""
    return not COLUMNS.keys().isdisjoint(values)


def check_measured(values: Values, declared: Sequence[str] | None = None, *, name: str = "a result") -> None:
    """Hold a measure's result to what must be true of every one.

    Args:
        values: columns of one evaluation.
        declared: the columns that the task declares, where they are known.
        name: what the values are of, for the message.

    Raises:
        EvaluationError: there are other columns than declared, or one is no finite float64 number or list of numbers.
    """
    failure = None
    if declared is not None and set(declared) != set(values):
        failure = f"the columns {', '.join(declared)}, got {', '.join(values) or 'none'}"
    for column, array in values.items():
        if array.dtype != np.float64 or array.ndim > 1:
            failure = failure or f"{column} as float64 numbers, got {array.dtype} of shape {array.shape}"
        elif not np.isfinite(array).all():
            failure = failure or f"{column} to be finite, got {array.tolist()}"
    if failure is not None or not values:
        raise EvaluationError(
            f"Checking a measure failed for {name}: expected {failure or 'one column or more, got none'}. "
            "Check the network's weights and the task's function."
        )


def _form_failure(values: Values, n_images: int) -> str | None:
    if not set(ALWAYS) <= set(values) <= set(COLUMNS):
        return f"columns {', '.join(ALWAYS)} and others of {', '.join(COLUMNS)}, got {', '.join(values)}"
    for name, array in values.items():
        shape = COLUMNS[name].shape(len(np.atleast_1d(values["cm"])), n_images)
        if array.shape != shape or array.dtype != COLUMNS[name].dtype:
            return f"{name} {COLUMNS[name].dtype} {shape}, got {array.dtype} {array.shape}"
    return None


def _count_failure(
    values: Values, cm: NDArray[np.int64], n_images: int, label_counts: NDArray[np.integer[Any]] | None
) -> str | None:
    if cm.min() < 0 or int(cm.sum()) != n_images:
        return f"cm to count {n_images} images, got counts from {cm.min()} that sum to {cm.sum()}"
    if label_counts is not None and not np.array_equal(cm.sum(axis=1), label_counts):
        return f"rows of cm to count {label_counts.tolist()} images, got {cm.sum(axis=1).tolist()}"
    accuracy = int(np.trace(cm)) / n_images
    if float(values["accuracy"]) != accuracy:
        return f"accuracy {accuracy}, which is that of cm, got {float(values['accuracy'])}"
    if "predictions" in values:
        predicted = np.bincount(values["predictions"], minlength=len(cm))
        if not np.array_equal(predicted, cm.sum(axis=0)):
            return f"predictions as in cm, {cm.sum(axis=0).tolist()}, got {predicted.tolist()}"
    return None


def _mean_failure(values: Values, cm: NDArray[np.int64]) -> str | None:
    totals = {}
    for name in (name for name in MEANS if name in values):
        means = values[name]
        filled = np.broadcast_to(MEANS[name].counts(cm) > 0, means.shape)
        if not np.array_equal(np.isnan(means), ~filled):
            return f"{name} to be NaN exactly where it is over no image"
        if means[filled].size and not (means[filled].min() >= 0 and means[filled].max() <= 1):
            return f"{name} in [0, 1], got [{means[filled].min()}, {means[filled].max()}]"
        if means.ndim == 2:
            error = np.abs(means[filled[:, 0]].sum(axis=1) - 1).max()
            if error > ROW_SUM_TOLERANCE:
                return f"rows of {name} to sum to 1, got one that is {error:.3g} off"
            totals[name] = _sums_of(values, name, cm).sum(axis=0)
    if len(totals) == 2 and len({total.tobytes() for total in totals.values()}) > 1:
        return f"{' and '.join(totals)} to be means of the same confidences, got different sums"
    return None
