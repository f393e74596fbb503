"""The columns of results. A row of `COLUMNS` defines a column completely; no other module depends on its name.

Tasks that classify images share the columns of the table; the sweep's measurements select among them. A measure defines
its own columns: float64 numbers, or lists of them, whose names are not in the table.

To add a column, write a row here and the function that computes an image's contribution. The column is then
accumulated, merged, stored, checked, exported and read (`tests/tasks/test_columns.py` covers it). This module does not
import torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.statistics.calibration import FRACTION_BITS, N_BINS

if TYPE_CHECKING:
    import torch

Values = Mapping[str, NDArray[Any]]
"""Column name → array, as in `EvaluationResult.values`."""

Counts = NDArray[np.int64]

_FLOAT64 = np.dtype(np.float64)

MAX_COUNTED_CLASSES = 256
"""Maximum number of classes for which every result has a confusion matrix and a predicted class fits into one byte."""

MAX_MATRIX_CLASSES = 4096
"""Maximum number of classes for which class-by-class matrices may be requested: one of float64 takes 128 MiB."""

Dimension = Literal["classes", "images"] | int
"""Length of an array's axis: the number of classes C, the number of images N, or a constant."""


class FoolingSteps(NamedTuple):
    """The steps at which an attack fooled a batch of images (see `tasks.attack_kit.step_log`).

    Attributes:
        first: (B,) int64, the step at which the attack first fooled each image, as far as it checked; `NEVER_FOOLED`
            if it observed none.
        last: the attack's last step, which counts for all other images that it returns misclassified.
    """

    first: "torch.Tensor"
    last: int


@dataclass(frozen=True)
class ModelOutputs:
    """A network's outputs for a batch, on its device.

    Attributes:
        positions: (B,) int64, positions of the images within the part.
        labels: (B,) int64 true classes.
        predicted: (B,) int64, the first of the largest logits.
        logits: (B, C) float32.
        stage: number of the stage that fooled the images, from 1, for a multi-stage attack; otherwise 0.
        measure_distances: returns (B,) float64, distances from the original images in the key's norm; None for a key
            without a norm.
        fooling_steps: steps at which an attack fooled the images; None for a key without steps.
    """

    positions: "torch.Tensor"
    labels: "torch.Tensor"
    predicted: "torch.Tensor"
    logits: "torch.Tensor"
    stage: int = 0
    measure_distances: "Callable[[], torch.Tensor] | None" = None
    fooling_steps: FoolingSteps | None = None

    @cached_property
    def confidences(self) -> "torch.Tensor":
        """(B, C) int64, softmax of the logits in units of 2**-FRACTION_BITS."""
        softmax = self.logits.nan_to_num().softmax(dim=1).double()
        confidences: torch.Tensor = (softmax * 2**FRACTION_BITS).round().long()
        return confidences


class ParquetForm(NamedTuple):
    """A column of exported Parquet files: its description, its source column, and the element of it if not all."""

    meaning: str
    source: str
    element: int | None = None


@dataclass(frozen=True)
class Column:
    """A column of results: what one evaluation stores of a measurement.

    During an evaluation, a column is a total of integers: counts, or sums of fractions in [0, 1] in units of
    2**-FRACTION_BITS. Totals of parts are added; per-image values are concatenated. The total can be computed exactly
    from the stored value, so merged parts are byte-identical to the whole. All checks follow from the fields: counts
    must not be negative, fractions lie in [0, 1], and a fraction read from a dataset's files may differ by half a unit
    of its last digit.

    Attributes:
        name: name in shards.
        measurement: the column's measurement, as named in sweeps and in result files.
        meaning: description for people; unused if `elements` has descriptions.
        field: name in the measurement's JSON object; empty if the column is the whole value.
        dtype: NumPy type.
        dimensions: lengths of the axes.
        add: (outputs) → (B,) int64 indices into the leading axes, flattened, and the values (B, …) int64 that the
            images add to the total there. None if the column follows from the counts.
        counts: (`cm` (…, C, C) int64) → number of images in each mean, with a shape that broadcasts after the leading
            axes; None if the column holds no means.
        value_from_counts: (`cm`, as above) → value of a column that has no total of its own, a fraction.
        is_distribution: whether rows are means of softmax vectors, which sum to 1 and have a known sum over all images.
        images: (value) → number of images, if it follows from the value.
        contradiction: (value, `cm`) → "expected, got" text if the two contradict each other, else None.
        elements: name → description of the elements' Parquet columns, if each has its own.
        most: maximum that an image adds to a total of integers.
        wide_dtype: NumPy type for more than `MAX_COUNTED_CLASSES` classes; None if it is the same.
    """

    name: str
    measurement: str
    meaning: str = ""
    field: str = ""
    dtype: np.dtype[Any] = _FLOAT64
    dimensions: tuple[Dimension, ...] = ()
    add: "Callable[[ModelOutputs], tuple[torch.Tensor, torch.Tensor]] | None" = None
    counts: Callable[[Counts], Counts] | None = None
    value_from_counts: Callable[[Counts], NDArray[np.float64]] | None = None
    is_distribution: bool = False
    images: Callable[[NDArray[Any]], int] | None = None
    contradiction: Callable[[NDArray[Any], Counts], str | None] | None = None
    elements: Mapping[str, str] | None = None
    most: int = 1
    wide_dtype: np.dtype[Any] | None = None

    def dtype_for(self, n_classes: int) -> np.dtype[Any]:
        """Return the NumPy type for a number of classes."""
        return self.wide_dtype if self.wide_dtype is not None and n_classes > MAX_COUNTED_CLASSES else self.dtype

    @property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """All NumPy types that the column may have."""
        return (self.dtype,) if self.wide_dtype is None else (self.dtype, self.wide_dtype)

    @property
    def is_matrix(self) -> bool:
        """Whether the size is quadratic in the number of classes."""
        return self.dimensions == _MATRIX

    def shape(self, n_classes: int, n_images: int) -> tuple[int, ...]:
        sizes = {"classes": n_classes, "images": n_images}
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.dimensions)

    @property
    def by_image(self) -> bool:
        return "images" in self.dimensions

    @property
    def is_exact(self) -> bool:
        """Whether the values are whole numbers, which no file format rounds."""
        return self.dtype.kind != "f"

    @property
    def parquet(self) -> dict[str, ParquetForm]:
        """The column's representation in exported Parquet files, by Parquet column name."""
        if self.elements is None:
            return {self.name: ParquetForm(self.meaning, self.name)}
        return {
            name: ParquetForm(meaning, self.name, index) for index, (name, meaning) in enumerate(self.elements.items())
        }


def _add_count(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    return outputs.labels * outputs.logits.shape[1] + outputs.predicted, outputs.labels.new_ones(len(outputs.labels))


def _add_by_correctness(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    wrong = (outputs.predicted != outputs.labels).long()
    return wrong, outputs.confidences.gather(1, outputs.predicted[:, None])[:, 0]


def _accuracy(cm: Counts) -> NDArray[np.float64]:
    correct, wrong = np.moveaxis(_correct_and_wrong(cm), -1, 0)
    accuracy: NDArray[np.float64] = np.asarray(correct / (correct + wrong))
    return accuracy


def _correct_and_wrong(cm: Counts) -> Counts:
    correct = np.trace(cm, axis1=-2, axis2=-1)
    return np.stack([correct, cm.sum(axis=(-2, -1)) - correct], axis=-1)


def _add_outcome(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    wrong = (outputs.predicted != outputs.labels).long()
    return wrong, outputs.labels.new_ones(len(wrong))


def _contradiction_of_predictions(predictions: NDArray[Any], cm: Counts) -> str | None:
    if predictions.max(initial=0) >= len(cm):
        return f"classes below {len(cm)}, got {int(predictions.max())}"
    counted = np.bincount(predictions, minlength=len(cm))
    expected = cm.sum(axis=0)
    return None if np.array_equal(counted, expected) else f"{expected.tolist()}, got {counted.tolist()}"


def _bins(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return the confidence in the predicted class, and its bin ((m - 1) / M, m / M], computed in integers."""
    confidences = outputs.confidences.gather(1, outputs.predicted[:, None])[:, 0]
    whole = 2**FRACTION_BITS
    bins = (confidences * N_BINS + whole - 1).div(whole, rounding_mode="floor") - 1
    return confidences, bins.clamp(0, N_BINS - 1)


def _add_bin_counts(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    right = (outputs.predicted == outputs.labels).long()
    pairs = right[:, None].repeat(1, 2)
    pairs[:, 0] = 1
    return _bins(outputs)[1], pairs


def _add_bin_confidence(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    confidences, bins = _bins(outputs)
    return bins, confidences


def _contradiction_of_bins(counts: NDArray[Any], cm: Counts) -> str | None:
    right, counted = int(np.trace(cm)), int(counts[:, 1].sum())
    if (counts[:, 1] > counts[:, 0]).any():
        return "no more right images in a bin than images, got more"
    return None if counted == right else f"{right} right images, got {counted}"


STAGES = 4
"""Maximum number of stages of an attack: AutoAttack has four."""


def _add_stage(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    right = outputs.predicted == outputs.labels
    return right.long() * (STAGES + 1 - outputs.stage) + outputs.stage, outputs.labels.new_ones(len(outputs.labels))


def _contradiction_of_stages(stages: NDArray[Any], cm: Counts) -> str | None:
    right = int(np.trace(cm))
    return None if stages[-1] == right else f"{right} right images, got {int(stages[-1])}"


UNITS_PER_DISTANCE = 1e9
"""Stored distances are whole numbers of billionths of the pixel range (of a value, in L0). Scaling by a whole number
recovers whole distances exactly."""

NOT_FOOLED = 2**53 - 1
"""Stored distance of an image that is not fooled: the largest integer that all JSON parsers represent exactly."""

CALIBRATION = "calibration"
"""Measurement of binned confidences, which the expected calibration error is computed from."""

DISTANCES = "distances"
"""Column of per-image distances; the measurement has the same name."""


def _add_distance(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    wrong = outputs.predicted != outputs.labels
    if outputs.measure_distances is None:
        return outputs.positions, (~wrong).long() * NOT_FOOLED
    distances = outputs.measure_distances().double()
    # Rounded down, so that no distance is overestimated; 0 is reserved for images without a perturbation.
    units = (distances * UNITS_PER_DISTANCE).floor().long().maximum((distances > 0).long())
    return outputs.positions, units.where(wrong, units.new_full((), NOT_FOOLED))


def _contradiction_of_distances(distances: NDArray[Any], cm: Counts) -> str | None:
    fooled, wrong = int((distances != NOT_FOOLED).sum()), int(cm.sum() - np.trace(cm))
    if distances.max(initial=0) > NOT_FOOLED:
        return f"numbers up to {NOT_FOOLED}, got {int(distances.max())}"
    return None if fooled == wrong else f"{wrong} of wrong images, got {fooled}"


def distances_of(stored: NDArray[Any]) -> NDArray[np.float64]:
    """Convert stored distances to float64, with infinity for images that are not fooled."""
    return np.where(stored == NOT_FOOLED, np.inf, stored / UNITS_PER_DISTANCE)


NEVER_FOOLED = 2**31 - 1
"""Stored step of an image that the attack does not fool: the largest signed 32-bit integer."""

STEPS = "steps"
"""Column of per-image steps; the measurement has the same name."""


def _add_step(outputs: ModelOutputs) -> "tuple[torch.Tensor, torch.Tensor]":
    wrong = outputs.predicted != outputs.labels
    never = outputs.positions.new_full((), NEVER_FOOLED)
    if outputs.fooling_steps is None:
        return outputs.positions, (~wrong).long() * NEVER_FOOLED
    return outputs.positions, outputs.fooling_steps.first.minimum(
        (wrong.long() * outputs.fooling_steps.last).where(wrong, never)
    )


def _contradiction_of_steps(steps: NDArray[Any], cm: Counts) -> str | None:
    fallen, wrong = int((steps != NEVER_FOOLED).sum()), int(cm.sum() - np.trace(cm))
    if steps.max(initial=0) > NEVER_FOOLED:
        return f"numbers up to {NEVER_FOOLED}, got {int(steps.max())}"
    # An image that is fooled at an earlier step may be classified correctly at the last one.
    return None if fallen >= wrong else f"at least {wrong} of wrong images, got {fallen}"


def steps_of(stored: NDArray[Any]) -> NDArray[np.float64]:
    """Convert stored steps to float64, with infinity for images that the attack does not fool."""
    return np.where(stored == NEVER_FOOLED, np.inf, stored)


COUNTS = "cm"
"""Column of the confusion matrix, whose counts are needed for means, merging and checks."""

OUTCOME_COUNTS = "outcome_counts"
"""Column that replaces the confusion matrix beyond `MAX_COUNTED_CLASSES` classes."""

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
            add=lambda outputs: (outputs.labels, outputs.confidences),
            counts=lambda cm: cm.sum(axis=-1)[..., None],
            is_distribution=True,
        ),
        Column(
            "confidence_argmax",
            "confidence",
            "C x C: row j is the mean softmax over images predicted as j; null where there are none.",
            field="argmax",
            dimensions=_MATRIX,
            add=lambda outputs: (outputs.predicted, outputs.confidences),
            counts=lambda cm: cm.sum(axis=-2)[..., None],
            is_distribution=True,
        ),
        Column(
            "confidence_prediction",
            "confidence",
            field="prediction",
            dimensions=(2,),
            add=_add_by_correctness,
            counts=_correct_and_wrong,
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
            add=_add_count,
            images=lambda cm: int(cm.sum()),
        ),
        Column(
            "predictions",
            "predictions",
            "Predicted class of every image, in order.",
            dtype=np.dtype(np.uint8),
            wide_dtype=np.dtype(np.uint16),
            dimensions=("images",),
            add=lambda outputs: (outputs.positions, outputs.predicted),
            images=len,
            contradiction=_contradiction_of_predictions,
        ),
        Column(
            "stages",
            "stages",
            "Images that were misclassified from the start, that stages 1 to 4 of the attack fooled, and that are "
            "right; of an attack without stages all misclassified ones come first.",
            dtype=np.dtype(np.int32),
            dimensions=(STAGES + 2,),
            add=_add_stage,
            images=lambda stages: int(stages.sum()),
            contradiction=_contradiction_of_stages,
        ),
        Column(
            "calibration_counts",
            CALIBRATION,
            "15 pairs: images whose confidence in the predicted class is in ((m - 1) / 15, m / 15], and how many of "
            "them are right.",
            field="counts",
            dtype=np.dtype(np.int32),
            dimensions=(N_BINS, 2),
            add=_add_bin_counts,
            images=lambda counts: int(counts[:, 0].sum()),
            contradiction=_contradiction_of_bins,
        ),
        Column(
            "calibration_confidence",
            CALIBRATION,
            "Sum of these confidences in each bin, in units of 2**-32.",
            field="confidence",
            dtype=np.dtype(np.int64),
            dimensions=(N_BINS,),
            add=_add_bin_confidence,
            most=2**FRACTION_BITS,
        ),
        Column(
            DISTANCES,
            "distances",
            "Distance of every image, in order, from the original in the norm of the key, in billionths of the pixel "
            "range (L0: of values), where it is misclassified; 9007199254740991 where it is not. 0 without a norm.",
            dtype=np.dtype(np.int64),
            dimensions=("images",),
            add=_add_distance,
            images=len,
            contradiction=_contradiction_of_distances,
        ),
        Column(
            STEPS,
            "steps",
            "Step (of Square: query) of the attack at which it first fools each image, in order; 0 where the clean "
            "image is misclassified, 2147483647 where the attack never fools it. Without an attack 0 or 2147483647.",
            dtype=np.dtype(np.uint32),
            dimensions=("images",),
            add=_add_step,
            images=len,
            contradiction=_contradiction_of_steps,
        ),
        Column(
            OUTCOME_COUNTS,
            OUTCOME_COUNTS,
            "Images that were classified correctly, and images that were not.",
            dtype=np.dtype(np.int32),
            dimensions=(2,),
            add=_add_outcome,
            images=lambda counts: int(counts.sum()),
        ),
    )
}
"""Columns by name, in the order of exported files. The confidences are defined as in Jung et al. (ICLR 2023, section
3). Means over zero images are NaN."""

STANDARD_COLUMNS = ("accuracy", COUNTS)
"""Columns of every result, the first in shards; merging needs the counts in `cm`. Beyond `MAX_COUNTED_CLASSES` classes,
`outcome_counts` replaces `cm` unless a matrix is requested."""

MEASUREMENTS: dict[str, dict[str, Column]] = {
    measurement: {column.field: column for column in COLUMNS.values() if column.measurement == measurement}
    for measurement in dict.fromkeys(column.measurement for column in COLUMNS.values())
}
"""Columns of each measurement, by field of its JSON object. Measurements are named as in the sweep YAML and in exported
files."""

PUBLISHED = ("accuracy", "confidence", "cm")
"""Measurements of the published dataset, which are also the default of a sweep."""

DESCRIPTIVE_COLUMNS = (
    *("dataset", "key", "architecture", "cell", "isomorphs", "weights", "weights_recipe", "weights_epochs"),
    *("weights_steps", "weights_seed", "strength", "n_images", "n_classes", "protocol", "checkpoint_sha256"),
)
"""Columns of exported Parquet files that describe a row."""

CORRECT_BITS = "correct_bits"
"""Column of exported Parquet files with packed per-image outcomes, computed from predictions and labels."""

RESERVED = frozenset(
    {
        *DESCRIPTIVE_COLUMNS,
        CORRECT_BITS,
        *("unit_id", "start", "stop", "provenance", "seconds"),  # columns of shards
        "value",  # column of a DataFrame
        *COLUMNS,
        *MEASUREMENTS,
        *(name for column in COLUMNS.values() for name in column.parquet),
    }
)
"""Names that a measure's columns must not have."""


def stored_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sort columns as in shards: first those of every result, then the table's others, then a measure's by name."""
    known = list(dict.fromkeys((*STANDARD_COLUMNS, *COLUMNS)))
    return tuple(sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name)))


def columns_of(measurements: Sequence[str], n_classes: int) -> tuple[str, ...]:
    """Return the columns of a result, in the order of shards: the requested ones, accuracy and counts.

    Args:
        measurements: names of measurements, or of single columns.
        n_classes: number of classes.
    """
    requested = requested_columns(measurements)
    needs_matrix = n_classes <= MAX_COUNTED_CLASSES or any(COLUMNS[name].is_matrix for name in requested)
    return stored_order({*requested, "accuracy", COUNTS if needs_matrix else OUTCOME_COUNTS})


def requested_columns(measurements: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of measurements, which may also be names of single columns."""
    return tuple(name for name, column in COLUMNS.items() if {name, column.measurement} & {*measurements})


def count_matrix(values: Values) -> Counts:
    """Return the counts of a result as a confusion matrix.

    If the result has none, return one of a single class whose second column counts the misclassified images. All means
    over correct or misclassified images are the same.
    """
    if COUNTS in values:
        return values[COUNTS].astype(np.int64)
    correct, wrong = values[OUTCOME_COUNTS].astype(np.int64).tolist()
    return np.array([[correct, wrong], [0, 0]], np.int64)


def has_counts(values: Values) -> bool:
    """Return whether a result has counts of its images."""
    return COUNTS in values or OUTCOME_COUNTS in values


def fields_of(measurement: str) -> dict[str, str]:
    """Return a measurement's columns by JSON field; a measure has one column, with an empty field."""
    if measurement not in MEASUREMENTS:
        return {"": measurement}
    return {name: column.name for name, column in MEASUREMENTS[measurement].items()}


def parquet_forms(measurement: str) -> dict[str, ParquetForm]:
    """Return a measurement's columns in exported Parquet files, by name."""
    if measurement not in MEASUREMENTS:
        return {measurement: ParquetForm(f"Measure {measurement} of the network.", measurement)}
    return {name: form for column in MEASUREMENTS[measurement].values() for name, form in column.parquet.items()}


def numbers_of(columns: Iterable[str], n_classes: int, n_images: int) -> tuple[int, int]:
    """Return how many integers, and how many other numbers, a row's columns contain."""
    sizes = [(COLUMNS[name].is_exact, prod(COLUMNS[name].shape(n_classes, n_images))) for name in columns]
    return sum(size for exact, size in sizes if exact), sum(size for exact, size in sizes if not exact)


def match_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[Dimension, int] | None:
    """Return the number of classes and images that shapes imply, by column; None if they do not match the columns."""
    sizes: dict[Dimension, int] = {}
    for name, shape in shapes.items():
        dimensions = COLUMNS[name].dimensions
        if len(shape) != len(dimensions):
            return None
        for dimension, size in zip(dimensions, shape, strict=True):
            if size != (dimension if isinstance(dimension, int) else sizes.setdefault(dimension, size)):
                return None
    return sizes


def count_classes(values: Values) -> int:
    """Return a result's number of classes; 0 if no column shows it."""
    for name, array in values.items():
        dimensions = COLUMNS[name].dimensions if name in COLUMNS else ()
        if "classes" in dimensions and array.ndim == len(dimensions):
            return int(array.shape[dimensions.index("classes")])
    return 0


def columns_of_json(measurement: str, value: Any) -> dict[str, NDArray[Any]]:
    """Convert a measurement's JSON value to columns, null to NaN; raise ValueError if a count does not fit its type."""
    columns = {}
    for name, column in fields_of(measurement).items():
        dtypes = COLUMNS[column].dtypes if column in COLUMNS else (_FLOAT64,)
        array = np.array(value[name] if name else value, dtype=np.float64)
        columns[column] = array.astype(_fitting(array, dtypes, column))
    return columns


def _fitting(array: NDArray[np.float64], dtypes: Sequence[np.dtype[Any]], column: str) -> np.dtype[Any]:
    """Return the first type that represents the numbers exactly; raise ValueError if there is none."""
    for dtype in dtypes:
        if dtype.kind == "f":
            return dtype
        if np.array_equal(array, np.rint(array)) and np.abs(array).max(initial=0) <= np.iinfo(dtype).max:
            return dtype
    raise ValueError(f"{column} that are not whole numbers up to {np.iinfo(dtypes[-1]).max}")


def count_images(measurement: str, row: Any, *, is_single: bool) -> int | None:
    """Count a measurement's images from its JSON value, or from a list of values by strength; None if unknown."""
    for column in MEASUREMENTS.get(measurement, {}).values():
        if column.images is not None:
            return column.images(columns_of_json(measurement, row if is_single else row[0])[column.name])
    return None
