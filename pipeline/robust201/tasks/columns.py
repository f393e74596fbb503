"""The columns of results. One row of `COLUMNS` says everything of a column; no other module knows one by name.

Tasks that show images to a network share the columns of the table; the sweep's measurements choose among them. A
measure declares its own columns: float64 numbers, or lists of them, under names that are not in the table.

To add a column: a row here, and the function that computes what an image adds to it. It is then accumulated, merged,
stored, checked, exported and read (`tests/tasks/test_columns.py` covers it). No torch is imported here.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

FRACTION_BITS = 32
"""Fractional bits of a confidence in a sum."""

Values = Mapping[str, NDArray[Any]]
"""Column name → array, as in `EvaluationResult.values`."""

Counts = NDArray[np.int64]

_FLOAT64 = np.dtype(np.float64)

MAX_COUNTED_CLASSES = 256
"""Number of classes up to which every result has a confusion matrix, and a predicted class fits into one byte."""

MAX_MATRIX_CLASSES = 4096
"""Number of classes up to which matrices of classes may be asked for: one of float64 takes 128 MiB."""

Dimension = Literal["classes", "images"] | int
"""Length of an array along one axis: the number of classes C, of images N, or always the same."""


class Falls(NamedTuple):
    """When the images of a batch fell to an attack (see `tasks.attack_kit.step_log`).

    Attributes:
        first: (B,) int64, the step at which the attack first fooled each image, as far as it looked; `NEVER_FOOLED`
            where it did not see that.
        last: the attack's last step, at which all others fell that are misclassified as it returns them.
    """

    first: "torch.Tensor"
    last: int


@dataclass(frozen=True)
class Answers:
    """What a network answers to a batch, on its device.

    Attributes:
        positions: (B,) int64, positions of the images among those of the part.
        labels: (B,) int64 true classes.
        predicted: (B,) int64, the first of the largest logits.
        logits: (B, C) float32.
        stage: number of the stage of an attack in stages that fooled the images, from 1; else 0.
        measure_distances: makes (B,) float64, distances from the original images in the key's norm; None for a key
            without a norm.
        falls: steps at which an attack fooled the images; None for a key without steps.
    """

    positions: "torch.Tensor"
    labels: "torch.Tensor"
    predicted: "torch.Tensor"
    logits: "torch.Tensor"
    stage: int = 0
    measure_distances: "Callable[[], torch.Tensor] | None" = None
    falls: Falls | None = None

    @cached_property
    def confidences(self) -> "torch.Tensor":
        """(B, C) int64, softmax of the logits in units of 2**-FRACTION_BITS."""
        softmax = self.logits.nan_to_num().softmax(dim=1).double()
        confidences: torch.Tensor = (softmax * 2**FRACTION_BITS).round().long()
        return confidences


class ParquetForm(NamedTuple):
    """A column of exported Parquet files: what it holds, of which column, and which element of it if not all."""

    meaning: str
    source: str
    element: int | None = None


@dataclass(frozen=True)
class Column:
    """A column of results: what one evaluation stores of a measurement.

    While images come, a column is a total of integers: counts, or sums of fractions in [0, 1] in units of
    2**-FRACTION_BITS. Totals of parts are added up, those of single images put behind each other. What is stored
    gives the total back exactly, so parts merge to the byte. Everything else follows from the fields: counts must not
    be negative, fractions lie in [0, 1], and a fraction read from a dataset's files
    may be off by half a unit of its last digit.

    Attributes:
        name: its name in shards.
        measurement: the measurement it belongs to, as sweeps and files of results name it.
        meaning: what it holds, for people; of `elements` they say it.
        field: its name in the JSON object of the measurement; empty where the column is the whole value.
        dtype: its NumPy type.
        dimensions: the lengths of its axes.
        add: (answers) → what each image adds to the total, (B, …) int64, and before it where: (B,) int64 places
            along the leading axes, flattened. None where the column follows from the counts.
        counts: (`cm` (…, C, C) int64) → images that each mean is over, of a shape that broadcasts behind the leading
            axes; None if it holds no means.
        of_counts: (`cm`, as above) → its value, a fraction, if it has no total.
        is_distribution: whether its rows are means of softmax vectors: they sum to 1, and over all images to the same.
        images: (its value) → images it is of, where each leaves a trace in it.
        contradiction: (its value, `cm`) → what it should be and is, where both cannot be true of the same images.
        elements: name → meaning of the Parquet columns of its elements, if each has its own column.
        most: largest number that an image adds to a total of integers.
        wide_dtype: its NumPy type beyond `MAX_COUNTED_CLASSES` classes; None where it stays the same.
    """

    name: str
    measurement: str
    meaning: str = ""
    field: str = ""
    dtype: np.dtype[Any] = _FLOAT64
    dimensions: tuple[Dimension, ...] = ()
    add: "Callable[[Answers], tuple[torch.Tensor, torch.Tensor]] | None" = None
    counts: Callable[[Counts], Counts] | None = None
    of_counts: Callable[[Counts], NDArray[np.float64]] | None = None
    is_distribution: bool = False
    images: Callable[[NDArray[Any]], int] | None = None
    contradiction: Callable[[NDArray[Any], Counts], str | None] | None = None
    elements: Mapping[str, str] | None = None
    most: int = 1
    wide_dtype: np.dtype[Any] | None = None

    def dtype_for(self, n_classes: int) -> np.dtype[Any]:
        """Return its NumPy type for a number of classes."""
        return self.wide_dtype if self.wide_dtype is not None and n_classes > MAX_COUNTED_CLASSES else self.dtype

    @property
    def dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The NumPy types that it may have."""
        return (self.dtype,) if self.wide_dtype is None else (self.dtype, self.wide_dtype)

    @property
    def is_matrix(self) -> bool:
        """Whether it grows with the square of the number of classes."""
        return self.dimensions == _MATRIX

    def shape(self, n_classes: int, n_images: int) -> tuple[int, ...]:
        sizes = {"classes": n_classes, "images": n_images}
        return tuple(one if isinstance(one, int) else sizes[one] for one in self.dimensions)

    @property
    def by_image(self) -> bool:
        return "images" in self.dimensions

    @property
    def is_exact(self) -> bool:
        """Whether it holds whole numbers, which no file rounds."""
        return self.dtype.kind != "f"

    @property
    def parquet(self) -> dict[str, ParquetForm]:
        """Columns of exported Parquet files that hold it, by name."""
        if self.elements is None:
            return {self.name: ParquetForm(self.meaning, self.name)}
        return {
            name: ParquetForm(meaning, self.name, place) for place, (name, meaning) in enumerate(self.elements.items())
        }


def _add_count(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    return answers.labels * answers.logits.shape[1] + answers.predicted, answers.labels.new_ones(len(answers.labels))


def _add_by_correctness(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    wrong = (answers.predicted != answers.labels).long()
    return wrong, answers.confidences.gather(1, answers.predicted[:, None])[:, 0]


def _accuracy(cm: Counts) -> NDArray[np.float64]:
    correct, wrong = np.moveaxis(_correct_and_wrong(cm), -1, 0)
    accuracy: NDArray[np.float64] = np.asarray(correct / (correct + wrong))
    return accuracy


def _correct_and_wrong(cm: Counts) -> Counts:
    correct = np.trace(cm, axis1=-2, axis2=-1)
    return np.stack([correct, cm.sum(axis=(-2, -1)) - correct], axis=-1)


def _add_outcome(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    wrong = (answers.predicted != answers.labels).long()
    return wrong, answers.labels.new_ones(len(wrong))


def _unlike_counts(predictions: NDArray[Any], cm: Counts) -> str | None:
    if predictions.max(initial=0) >= len(cm):
        return f"classes below {len(cm)}, got {int(predictions.max())}"
    counted = np.bincount(predictions, minlength=len(cm))
    expected = cm.sum(axis=0)
    return None if np.array_equal(counted, expected) else f"{expected.tolist()}, got {counted.tolist()}"


CALIBRATION_BINS = 15
"""Of Guo et al., "On calibration of modern neural networks", ICML 2017."""


def _bins(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    """Confidences in the predicted class, and their bins ((m - 1) / M, m / M], in whole numbers."""
    confidences = answers.confidences.gather(1, answers.predicted[:, None])[:, 0]
    whole = 2**FRACTION_BITS
    bins = (confidences * CALIBRATION_BINS + whole - 1).div(whole, rounding_mode="floor") - 1
    return confidences, bins.clamp(0, CALIBRATION_BINS - 1)


def _add_bin_counts(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    right = (answers.predicted == answers.labels).long()
    pairs = right[:, None].repeat(1, 2)
    pairs[:, 0] = 1
    return _bins(answers)[1], pairs


def _add_bin_confidence(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    confidences, bins = _bins(answers)
    return bins, confidences


def _unlike_bins(counts: NDArray[Any], cm: Counts) -> str | None:
    right, counted = int(np.trace(cm)), int(counts[:, 1].sum())
    if (counts[:, 1] > counts[:, 0]).any():
        return "no more right images in a bin than images, got more"
    return None if counted == right else f"{right} right images, got {counted}"


STAGES = 4
"""Stages that an attack in stages has at most: those of AutoAttack."""


def _add_stage(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    right = answers.predicted == answers.labels
    return right.long() * (STAGES + 1 - answers.stage) + answers.stage, answers.labels.new_ones(len(answers.labels))


def _unlike_right(stages: NDArray[Any], cm: Counts) -> str | None:
    right = int(np.trace(cm))
    return None if stages[-1] == right else f"{right} right images, got {int(stages[-1])}"


UNITS_PER_DISTANCE = 1e9
"""A stored distance is a whole number of billionths, in units of the pixel range; in L0, of values. Only multiplying
and dividing by a whole number give whole distances back exactly."""

NOT_FOOLED = 2**53 - 1
"""A stored distance of an image that is right: the largest whole number that JSON's readers keep."""

CALIBRATION = "calibration"
"""The measurement of confidences in bins, from which the expected calibration error follows."""

DISTANCES = "distances"
"""The column of distances by image; the measurement has the same name."""


def _add_distance(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    wrong = answers.predicted != answers.labels
    if answers.measure_distances is None:
        return answers.positions, (~wrong).long() * NOT_FOOLED
    distances = answers.measure_distances().double()
    # Rounded down, so that an image never lies further away than it does; 0 is left to images without a perturbation.
    units = (distances * UNITS_PER_DISTANCE).floor().long().maximum((distances > 0).long())
    return answers.positions, units.where(wrong, units.new_full((), NOT_FOOLED))


def _unlike_wrong(distances: NDArray[Any], cm: Counts) -> str | None:
    fooled, wrong = int((distances != NOT_FOOLED).sum()), int(cm.sum() - np.trace(cm))
    if distances.max(initial=0) > NOT_FOOLED:
        return f"numbers up to {NOT_FOOLED}, got {int(distances.max())}"
    return None if fooled == wrong else f"{wrong} of wrong images, got {fooled}"


def distances_of(stored: NDArray[Any]) -> NDArray[np.float64]:
    """Turn stored distances into float64, infinity for images that are right."""
    return np.where(stored == NOT_FOOLED, np.inf, stored / UNITS_PER_DISTANCE)


NEVER_FOOLED = 2**31 - 1
"""A stored step of an image that the attack does not fool: the largest number of a signed 32-bit integer."""

STEPS = "steps"
"""The column of steps by image; the measurement has the same name."""


def _add_step(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    wrong = answers.predicted != answers.labels
    never = answers.positions.new_full((), NEVER_FOOLED)
    if answers.falls is None:
        return answers.positions, (~wrong).long() * NEVER_FOOLED
    return answers.positions, answers.falls.first.minimum((wrong.long() * answers.falls.last).where(wrong, never))


def _unlike_fallen(steps: NDArray[Any], cm: Counts) -> str | None:
    fallen, wrong = int((steps != NEVER_FOOLED).sum()), int(cm.sum() - np.trace(cm))
    if steps.max(initial=0) > NEVER_FOOLED:
        return f"numbers up to {NEVER_FOOLED}, got {int(steps.max())}"
    # An image that falls on the way may be right again at the last step.
    return None if fallen >= wrong else f"at least {wrong} of wrong images, got {fallen}"


def steps_of(stored: NDArray[Any]) -> NDArray[np.float64]:
    """Turn stored steps into float64, infinity for images that the attack does not fool."""
    return np.where(stored == NEVER_FOOLED, np.inf, stored)


COUNTS = "cm"
"""The column of the confusion matrix: the counts of images that means, merging and checks need."""

OUTCOME_COUNTS = "outcome_counts"
"""The column that stands in for the confusion matrix beyond `MAX_COUNTED_CLASSES` classes."""

PREDICTIONS = "predictions"
"""The column of predicted classes by image, from which outcomes follow; the measurement has the same name."""

_MATRIX: tuple[Dimension, ...] = ("classes", "classes")

COLUMNS: dict[str, Column] = {
    column.name: column
    for column in (
        Column("accuracy", "accuracy", "Fraction of the images that were classified correctly.", of_counts=_accuracy),
        Column(
            "confidence_label",
            "confidence",
            "C x C: row i is the mean softmax over images of true class i.",
            field="label",
            dimensions=_MATRIX,
            add=lambda answers: (answers.labels, answers.confidences),
            counts=lambda cm: cm.sum(axis=-1)[..., None],
            is_distribution=True,
        ),
        Column(
            "confidence_argmax",
            "confidence",
            "C x C: row j is the mean softmax over images predicted as j; null where there are none.",
            field="argmax",
            dimensions=_MATRIX,
            add=lambda answers: (answers.predicted, answers.confidences),
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
            add=lambda answers: (answers.positions, answers.predicted),
            images=len,
            contradiction=_unlike_counts,
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
            contradiction=_unlike_right,
        ),
        Column(
            "calibration_counts",
            CALIBRATION,
            "15 pairs: images whose confidence in the predicted class is in ((m - 1) / 15, m / 15], and how many of "
            "them are right.",
            field="counts",
            dtype=np.dtype(np.int32),
            dimensions=(CALIBRATION_BINS, 2),
            add=_add_bin_counts,
            images=lambda counts: int(counts[:, 0].sum()),
            contradiction=_unlike_bins,
        ),
        Column(
            "calibration_confidence",
            CALIBRATION,
            "Sum of these confidences in each bin, in units of 2**-32.",
            field="confidence",
            dtype=np.dtype(np.int64),
            dimensions=(CALIBRATION_BINS,),
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
            contradiction=_unlike_wrong,
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
            contradiction=_unlike_fallen,
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
"""Column name to column, in the order of exported files. The confidences are those of Jung et al. (ICLR 2023,
section 3). Means over no image are NaN."""

ALWAYS = ("accuracy", COUNTS)
"""Columns that every result has, the first in shards: `cm` holds the counts that merging needs. Beyond
`MAX_COUNTED_CLASSES` classes, `outcome_counts` stands in for `cm` unless a matrix is asked for."""

MEASUREMENTS: dict[str, dict[str, Column]] = {
    measurement: {column.field: column for column in COLUMNS.values() if column.measurement == measurement}
    for measurement in dict.fromkeys(column.measurement for column in COLUMNS.values())
}
"""Name of a measurement, as in the sweep YAML and in exported files, to its columns by field of its JSON object."""

PUBLISHED = ("accuracy", "confidence", "cm")
"""Measurements of the published dataset, and those of a sweep that names none."""

DESCRIPTIONS = (
    *("dataset", "key", "architecture", "cell", "isomorphs", "weights", "weights_recipe", "weights_epochs"),
    *("weights_steps", "weights_seed", "strength", "n_images", "n_classes", "protocol", "checkpoint_sha256"),
)
"""Columns of exported Parquet files that say what a row is about."""

CORRECT_BITS = "correct_bits"
"""Column of exported Parquet files that follows from predictions and labels: packed outcomes by image."""

RESERVED = frozenset(
    {
        *DESCRIPTIONS,
        CORRECT_BITS,
        *("unit_id", "start", "stop", "provenance", "seconds"),  # of shards
        "value",  # of a DataFrame
        *COLUMNS,
        *MEASUREMENTS,
        *(name for column in COLUMNS.values() for name in column.parquet),
    }
)
"""Names that a measure's columns cannot have."""


def stored_order(names: Iterable[str]) -> tuple[str, ...]:
    """Order columns as shards have them: those of every result, the others of the table, then a measure's by name."""
    known = list(dict.fromkeys((*ALWAYS, *COLUMNS)))
    return tuple(sorted(names, key=lambda name: (known.index(name) if name in known else len(known), name)))


def columns_of(measurements: Sequence[str], n_classes: int) -> tuple[str, ...]:
    """List the columns that a result holds, in the order of shards: those asked for, accuracy and counts.

    Args:
        measurements: names of measurements, or of single columns.
        n_classes: number of classes.
    """
    asked = asked_columns(measurements)
    needs_matrix = n_classes <= MAX_COUNTED_CLASSES or any(COLUMNS[name].is_matrix for name in asked)
    return stored_order({*asked, "accuracy", COUNTS if needs_matrix else OUTCOME_COUNTS})


def asked_columns(measurements: Sequence[str]) -> tuple[str, ...]:
    """List the columns of measurements, or single columns, by name."""
    return tuple(name for name, column in COLUMNS.items() if {name, column.measurement} & {*measurements})


def count_matrix(values: Values) -> Counts:
    """Return the counts of a result as a confusion matrix.

    Without one, it is that of a single class whose second column counts the images that were not predicted as it:
    correct and wrong images, and so means over them, come out the same.
    """
    if COUNTS in values:
        return values[COUNTS].astype(np.int64)
    correct, wrong = values[OUTCOME_COUNTS].astype(np.int64).tolist()
    return np.array([[correct, wrong], [0, 0]], np.int64)


def has_counts(values: Values) -> bool:
    """Return whether a result has counts of its images."""
    return COUNTS in values or OUTCOME_COUNTS in values


def fields_of(measurement: str) -> dict[str, str]:
    """Name the columns of a measurement by field: a measure's is one column of its name, without a field."""
    if measurement not in MEASUREMENTS:
        return {"": measurement}
    return {name: column.name for name, column in MEASUREMENTS[measurement].items()}


def parquet_forms(measurement: str) -> dict[str, ParquetForm]:
    """Describe the columns of exported Parquet files that hold a measurement, by name."""
    if measurement not in MEASUREMENTS:
        return {measurement: ParquetForm(f"Measure {measurement} of the network.", measurement)}
    return {name: form for column in MEASUREMENTS[measurement].values() for name, form in column.parquet.items()}


def numbers_of(columns: Iterable[str], n_classes: int, n_images: int) -> tuple[int, int]:
    """Count the whole numbers and the others in arrays of a row's columns."""
    sizes = [(COLUMNS[name].is_exact, prod(COLUMNS[name].shape(n_classes, n_images))) for name in columns]
    return sum(size for exact, size in sizes if exact), sum(size for exact, size in sizes if not exact)


def match_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[Dimension, int] | None:
    """Find the number of classes and of images of arrays of some shapes, by column; None where they do not fit."""
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
    """Number of classes of a result; 0 if no column shows it."""
    for name, array in values.items():
        dimensions = COLUMNS[name].dimensions if name in COLUMNS else ()
        if "classes" in dimensions and array.ndim == len(dimensions):
            return int(array.shape[dimensions.index("classes")])
    return 0


def columns_of_json(measurement: str, value: Any) -> dict[str, NDArray[Any]]:
    """Turn a measurement's JSON value into its columns, null into NaN; ValueError if a count does not fit its type."""
    columns = {}
    for name, column in fields_of(measurement).items():
        dtypes = COLUMNS[column].dtypes if column in COLUMNS else (_FLOAT64,)
        array = np.array(value[name] if name else value, dtype=np.float64)
        columns[column] = array.astype(_fitting(array, dtypes, column))
    return columns


def _fitting(array: NDArray[np.float64], dtypes: Sequence[np.dtype[Any]], column: str) -> np.dtype[Any]:
    """Return the first type that holds numbers exactly; ValueError if none does."""
    for dtype in dtypes:
        if dtype.kind == "f":
            return dtype
        if np.array_equal(array, np.rint(array)) and np.abs(array).max(initial=0) <= np.iinfo(dtype).max:
            return dtype
    raise ValueError(f"{column} that are no whole numbers up to {np.iinfo(dtypes[-1]).max}")


def count_images(measurement: str, row: Any, *, is_single: bool) -> int | None:
    """Count the images of a measurement by its JSON value, or a list of them by strength; None if unknown."""
    for column in MEASUREMENTS.get(measurement, {}).values():
        if column.images is not None:
            return column.images(columns_of_json(measurement, row if is_single else row[0])[column.name])
    return None
