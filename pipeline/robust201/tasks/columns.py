"""The columns of results.

Tasks that classify images use the columns of `COLUMNS`; the sweep's measurements select among them. A measure defines
other columns, which contain float64 numbers or lists of them.

To add a column, add an entry to `COLUMNS` and write a function that computes the contribution of an image. Other
modules then accumulate, merge, store, check, export and read the column (tested in `tests/tasks/test_columns.py`). This
module does not import torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2, prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

FRACTION_BITS = 32
"""Number of bits of a per-image number in fixed point; for a number in [0, 1], all of them are fractional bits."""

Values = Mapping[str, NDArray[Any]]
"""Column name → array, as in `EvaluationResult.values`."""

Counts = NDArray[np.int64]

_FLOAT64 = np.dtype(np.float64)

MAX_COUNTED_CLASSES = 256
"""Maximum number of classes for which every result has a confusion matrix. A predicted class then fits into one
byte."""

MAX_MATRIX_CLASSES = 4096
"""Maximum number of classes for which class-by-class matrices may be requested. A float64 matrix then takes 128 MiB."""

Dimension = Literal["classes", "images"] | int
"""Length of an array's axis: the number of classes C, the number of images N, or a constant."""


@dataclass(frozen=True)
class ModelOutputs:
    """A network's outputs for a batch, on its device.

    Attributes:
        positions: (B,) int64, positions of the images within the part.
        labels: (B,) int64 true classes.
        predicted: (B,) int64, predicted classes; the first class if several have the largest logit.
        logits: (B, C) float32.
        measure_distances: function that returns the images' distances (B,) float64 from the original images in the
            key's norm; None for a key without a norm.
    """

    positions: "torch.Tensor"
    labels: "torch.Tensor"
    predicted: "torch.Tensor"
    logits: "torch.Tensor"
    measure_distances: "Callable[[], torch.Tensor] | None" = None

    @property
    def is_wrong(self) -> "torch.Tensor":
        """(B,) bool, whether each image is misclassified."""
        return self.predicted != self.labels

    @cached_property
    def confidences(self) -> "torch.Tensor":
        """(B, C) int64, softmax of the logits in fixed point."""
        return to_fixed_point(self.logits.nan_to_num().softmax(dim=1))


def to_fixed_point(values: "torch.Tensor", largest: float = 1.0) -> "torch.Tensor":
    """Return numbers from 0 to `largest` as int64 in units of 1 / `units_per_one`; larger numbers become `largest`."""
    fixed_point: torch.Tensor = (values.double().clamp(0, largest) * units_per_one(largest)).round().long()
    return fixed_point


def units_per_one(largest: float) -> float:
    """Return the number of fixed-point units in 1, chosen so that the largest number has `FRACTION_BITS` bits."""
    return 2.0 ** (FRACTION_BITS - ceil(log2(largest)))


class ColumnSource(NamedTuple):
    """A column of exported Parquet files.

    Attributes:
        meaning: description.
        source: column of results that contains the values.
        element: index of the element of `source`; None for all elements.
    """

    meaning: str
    source: str
    element: int | None = None


@dataclass(frozen=True)
class Column:
    """A column of results, which contains a measurement or a part of one.

    During an evaluation, a column is a total of integers: counts, or sums over images of numbers in [0, `largest`] in
    fixed point. To merge parts, their totals are added and their per-image values are concatenated. The total can
    be computed exactly from the stored value, so merging gives the same bytes as evaluating the whole unit. The fields
    determine all checks: counts must not be negative, and means must be in [0, `largest`].

    Attributes:
        name: name in shards.
        measurement: the column's measurement, as named in sweeps and in result files.
        meaning: description for readers; not used if `elements` has descriptions.
        field: name in the measurement's JSON object; empty if this is the measurement's only column.
        dtype: NumPy type.
        dimensions: lengths of the axes.
        contribute: (outputs) → flat indices (B,) int64 into the leading axes, and the images' terms (B, …) int64 of the
            total at these indices, as counts or in fixed point. None if the column is computed from `cm`.
        count_images_per_mean: (`cm` (…, C, C) int64) → number of images in each mean, in a shape that broadcasts to the
            column's; None if the column contains no means.
        largest: largest per-image number, for means; `to_fixed_point` clips larger numbers to it.
        value_from_counts: (`cm`, as above) → value of a column that is computed from `cm` and has no total.
        agrees_with_cm: (array, `cm`) → whether a column of integers agrees with `cm`; None if this cannot be checked.
        elements: name → description of Parquet columns, if each element has a separate Parquet column.
        wide_dtype: NumPy type for more than `MAX_COUNTED_CLASSES` classes; None if it is the same.
    """

    name: str
    measurement: str
    meaning: str = ""
    field: str = ""
    dtype: np.dtype[Any] = _FLOAT64
    dimensions: tuple[Dimension, ...] = ()
    contribute: "Callable[[ModelOutputs], tuple[torch.Tensor, torch.Tensor]] | None" = None
    count_images_per_mean: Callable[[Counts], Counts] | None = None
    largest: float = 1.0
    value_from_counts: Callable[[Counts], NDArray[np.float64]] | None = None
    agrees_with_cm: Callable[[NDArray[Any], Counts], bool] | None = None
    elements: Mapping[str, str] | None = None
    wide_dtype: np.dtype[Any] | None = None

    def dtype_for(self, n_classes: int) -> np.dtype[Any]:
        """Return the NumPy type for a number of classes."""
        return self.wide_dtype if self.wide_dtype is not None and n_classes > MAX_COUNTED_CLASSES else self.dtype

    @property
    def is_matrix(self) -> bool:
        """Whether the column is a matrix with a row and a column for each class."""
        return self.dimensions == _MATRIX

    def shape(self, n_classes: int, n_images: int) -> tuple[int, ...]:
        sizes = {"classes": n_classes, "images": n_images}
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.dimensions)

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether an array of this shape has the column's axes, all of them non-empty."""
        sizes: dict[Dimension, int] = {}
        return len(shape) == len(self.dimensions) and all(
            size and size == (axis if isinstance(axis, int) else sizes.setdefault(axis, size))
            for axis, size in zip(self.dimensions, shape, strict=True)
        )

    @property
    def is_per_image(self) -> bool:
        return "images" in self.dimensions

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers, which no file format rounds."""
        return self.dtype.kind != "f"

    @property
    def is_distribution(self) -> bool:
        """Whether rows are means of softmax vectors, which sum to 1."""
        return self.is_matrix and not self.is_integer

    @property
    def parquet_sources(self) -> dict[str, ColumnSource]:
        """The column's representation in exported Parquet files, by Parquet column name."""
        if self.elements is None:
            return {self.name: ColumnSource(self.meaning, self.name)}
        return {
            name: ColumnSource(meaning, self.name, index) for index, (name, meaning) in enumerate(self.elements.items())
        }


def _contribute_count(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    return outputs.labels * outputs.logits.shape[1] + outputs.predicted, outputs.labels.new_ones(len(outputs.labels))


def _contribute_outcome(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    return outputs.is_wrong.long(), outputs.labels.new_ones(len(outputs.labels))


def _contribute_confidence_by_correctness(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    return outputs.is_wrong.long(), outputs.confidences.gather(1, outputs.predicted[:, None])[:, 0]


def _accuracy(cm: Counts) -> NDArray[np.float64]:
    n_correct, n_wrong = np.moveaxis(_correct_and_wrong(cm), -1, 0)
    return np.asarray(n_correct / (n_correct + n_wrong), np.float64)


def _correct_and_wrong(cm: Counts) -> Counts:
    n_correct = np.trace(cm, axis1=-2, axis2=-1)
    return np.stack([n_correct, cm.sum(axis=(-2, -1)) - n_correct], axis=-1)


def _predictions_agree(predictions: NDArray[Any], cm: Counts) -> bool:
    return np.array_equal(np.bincount(predictions, minlength=len(cm)), cm.sum(axis=0))


UNITS_PER_DISTANCE = 1e9
"""Distances are stored as integers, in units of 1e-9, where pixels are in [0, 1]."""

NOT_FOOLED_DISTANCE = 2**53 - 1
"""Stored distance of an image that the attack does not fool: the largest integer that all JSON parsers represent
exactly."""

DISTANCES = "distances"
"""Column of per-image distances; the measurement has the same name."""


def _contribute_distance(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    if outputs.measure_distances is None:
        return outputs.positions, (~outputs.is_wrong).long() * NOT_FOOLED_DISTANCE
    distances = outputs.measure_distances().double()
    # Round down, so that no distance is overestimated. 0 is reserved for images without a perturbation.
    units = (distances * UNITS_PER_DISTANCE).floor().long().maximum((distances > 0).long())
    return outputs.positions, units.where(outputs.is_wrong, units.new_full((), NOT_FOOLED_DISTANCE))


def _distances_agree(distances: NDArray[Any], cm: Counts) -> bool:
    n_fooled = np.count_nonzero(distances != NOT_FOOLED_DISTANCE)
    return bool(n_fooled == cm.sum() - np.trace(cm) and distances.max(initial=0) <= NOT_FOOLED_DISTANCE)


def distances_of(stored_distances: NDArray[Any]) -> NDArray[np.float64]:
    """Convert stored distances to float64, with infinity for images that the attack does not fool."""
    return np.where(stored_distances == NOT_FOOLED_DISTANCE, np.inf, stored_distances / UNITS_PER_DISTANCE)


COUNTS = "cm"
"""Column of the confusion matrix, whose counts are used for means, merging and checks."""

OUTCOME_COUNTS = "outcome_counts"
"""Column that replaces the confusion matrix for more than `MAX_COUNTED_CLASSES` classes."""

PREDICTIONS = "predictions"
"""Column of per-image predicted classes, from which outcomes follow; the measurement has the same name."""

_MATRIX: tuple[Dimension, ...] = ("classes", "classes")

COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column(
            "accuracy",
            "accuracy",
            "Fraction of the images that were classified correctly.",
            value_from_counts=_accuracy,
        ),
        Column(
            "confidence_label",
            "confidence",
            "C x C: row i is the mean softmax over images of true class i.",
            field="label",
            dimensions=_MATRIX,
            contribute=lambda outputs: (outputs.labels, outputs.confidences),
            count_images_per_mean=lambda cm: cm.sum(axis=-1)[..., None],
        ),
        Column(
            "confidence_argmax",
            "confidence",
            "C x C: row j is the mean softmax over images predicted as j; null where there are none.",
            field="argmax",
            dimensions=_MATRIX,
            contribute=lambda outputs: (outputs.predicted, outputs.confidences),
            count_images_per_mean=lambda cm: cm.sum(axis=-2)[..., None],
        ),
        Column(
            "confidence_prediction",
            "confidence",
            field="prediction",
            dimensions=(2,),
            contribute=_contribute_confidence_by_correctness,
            count_images_per_mean=_correct_and_wrong,
            elements={
                "confidence_correct": "Mean confidence in the predicted class of correctly classified images; null if "
                "none.",
                "confidence_incorrect": "Mean confidence in the predicted class of misclassified images; null if none.",
            },
        ),
        Column(
            COUNTS,
            "cm",
            "C x C: entry (i, j) counts images of true class i predicted as j.",
            dtype=np.dtype(np.int32),
            dimensions=_MATRIX,
            contribute=_contribute_count,
        ),
        Column(
            "predictions",
            "predictions",
            "Predicted class of every image, in order.",
            dtype=np.dtype(np.uint8),
            wide_dtype=np.dtype(np.uint16),
            dimensions=("images",),
            contribute=lambda outputs: (outputs.positions, outputs.predicted),
            agrees_with_cm=_predictions_agree,
        ),
        Column(
            DISTANCES,
            "distances",
            "Distance of every image from the original, in order, in the key's norm, times 1e9, for pixels in "
            "[0, 1]; 9007199254740991 if it is classified correctly. If the "
            "key has no norm, 0 for misclassified images.",
            dtype=np.dtype(np.int64),
            dimensions=("images",),
            contribute=_contribute_distance,
            agrees_with_cm=_distances_agree,
        ),
        Column(
            OUTCOME_COUNTS,
            OUTCOME_COUNTS,
            "Images that were classified correctly, and images that were not.",
            dtype=np.dtype(np.int32),
            dimensions=(2,),
            contribute=_contribute_outcome,
            agrees_with_cm=lambda counts, cm: np.array_equal(counts, _correct_and_wrong(cm)),
        ),
    )
}
"""Columns by name, in the order of exported files. Jung et al. (ICLR 2023, section 3) define the confidences. Means
over zero images are NaN."""

STANDARD_COLUMNS = ("accuracy", COUNTS)
"""Columns of every result except a measure's; they come first in shards. Merging needs the counts in `cm`. For more
than `MAX_COUNTED_CLASSES` classes, `outcome_counts` replaces `cm` unless a matrix is requested."""

MEASUREMENTS: dict[str, dict[str, Column]] = {
    measurement: {column.field: column for column in COLUMNS.values() if column.measurement == measurement}
    for measurement in dict.fromkeys(column.measurement for column in COLUMNS.values())
}
"""Columns of each measurement, by field of its JSON object. Measurements are named as in the sweep YAML and in exported
files."""

ELEMENT_COLUMNS: dict[str, tuple[str, ColumnSource]] = {
    name: (column.measurement, source)
    for column in COLUMNS.values()
    for name, source in column.parquet_sources.items()
    if source.element is not None
}
"""Parquet column with one element of an array, such as ``confidence_correct`` → its measurement and source."""

PUBLISHED_MEASUREMENTS = ("accuracy", "confidence", "cm")
"""Measurements of the published dataset; also a sweep's default for up to `MAX_COUNTED_CLASSES` classes."""

DESCRIPTIVE_COLUMNS = (
    *("dataset", "key", "architecture", "cell", "isomorphs", "weights", "weights_recipe", "weights_epochs"),
    *("weights_steps", "weights_seed", "strength", "n_images", "n_classes", "protocol", "checkpoint_sha256"),
)
"""Columns of exported Parquet files that identify or describe an evaluation."""

CORRECT_BITS = "correct_bits"
"""Column of exported Parquet files with packed per-image outcomes, computed from predictions and labels."""

RESERVED_NAMES = frozenset(
    {
        *DESCRIPTIVE_COLUMNS,
        CORRECT_BITS,
        *("unit_id", "start", "stop", "provenance", "seconds"),  # columns of shards
        "value",  # column of a DataFrame
        *COLUMNS,
        *MEASUREMENTS,
        *(name for column in COLUMNS.values() for name in column.parquet_sources),
    }
)
"""Names that a measure's columns must not have."""


def stored_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort columns as in shards: standard columns, other columns of the table, then a measure's columns by name."""
    table_order = list(dict.fromkeys((*STANDARD_COLUMNS, *COLUMNS)))
    return tuple(
        sorted(names, key=lambda name: (table_order.index(name) if name in table_order else len(table_order), name))
    )


def columns_of(measurements: Sequence[str], n_classes: int) -> tuple[str, ...]:
    """Return the columns of a result in the order of shards: the requested columns, accuracy and counts.

    Args:
        measurements: names of measurements, or of single columns.
        n_classes: number of classes.
    """
    requested = requested_columns(measurements)
    needs_matrix = n_classes <= MAX_COUNTED_CLASSES or any(COLUMNS[name].is_matrix for name in requested)
    return stored_order({*requested, "accuracy", COUNTS if needs_matrix else OUTCOME_COUNTS})


def requested_columns(measurements: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of measurements; `measurements` may also contain names of single columns."""
    return tuple(name for name, column in COLUMNS.items() if {name, column.measurement} & {*measurements})


def count_matrix(values: Values) -> Counts:
    """Return the counts of a result as a confusion matrix.

    If the result has no confusion matrix, the returned matrix is [[correct, misclassified], [0, 0]]. It gives the same
    numbers of correct and of misclassified images.
    """
    if COUNTS in values:
        return values[COUNTS].astype(np.int64)
    n_correct, n_wrong = values[OUTCOME_COUNTS].astype(np.int64).tolist()
    return np.array([[n_correct, n_wrong], [0, 0]], np.int64)


def fields_of(measurement: str) -> dict[str, str]:
    """Return the column of each JSON field of a measurement; for a column of a measure, the only field is ``""``."""
    if measurement not in MEASUREMENTS:
        return {"": measurement}
    return {name: column.name for name, column in MEASUREMENTS[measurement].items()}


def column_sources(measurement: str) -> dict[str, ColumnSource]:
    """Return a measurement's columns in exported Parquet files, by name."""
    if measurement not in MEASUREMENTS:
        return {measurement: ColumnSource(f"Measure {measurement} of the network.", measurement)}
    return dict(item for column in MEASUREMENTS[measurement].values() for item in column.parquet_sources.items())


def count_numbers(columns: Iterable[str], n_classes: int, n_images: int) -> tuple[int, int]:
    """Return how many integers and how many floating-point numbers these columns of one result contain."""
    sizes = [(COLUMNS[name].is_integer, prod(COLUMNS[name].shape(n_classes, n_images))) for name in columns]
    n_integers = sum(size for is_integer, size in sizes if is_integer)
    return n_integers, sum(size for _, size in sizes) - n_integers


def count_classes(values: Values) -> int:
    """Return the number of classes of a result; 0 if no column's shape contains it."""
    for name, array in values.items():
        dimensions = COLUMNS[name].dimensions if name in COLUMNS else ()
        if "classes" in dimensions and array.ndim == len(dimensions):
            return int(array.shape[dimensions.index("classes")])
    return 0
