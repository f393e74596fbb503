"""The columns of the Parquet files of an export: types and meanings."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from robust201.tasks import Task
from robust201.tasks.columns import Values, columns_in
from robust201.tasks.constraints import LINF

NAMES = pa.dictionary(pa.int32(), pa.string())
MATRIX = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.float64()))))
_NUMBERS = pa.list_(pa.field("element", pa.float64()))
_COUNTS = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int32()))))


class ParquetColumn(NamedTuple):
    """A column: its type, what it holds, and the column of `tasks.columns` that it comes from, if any."""

    kind: pa.DataType
    meaning: str
    source: str = ""

    @property
    def repeated(self) -> bool:
        """Whether a cell holds a list."""
        return bool(pa.types.is_list(self.kind))

    @property
    def leaf(self) -> pa.DataType:
        """Type of a single value in a cell."""
        leaf = self.kind
        while pa.types.is_list(leaf):
            leaf = leaf.value_type
        return leaf

    @property
    def type_name(self) -> str:
        """Type of a cell, for people."""
        return "string" if self.leaf == NAMES else str(self.kind).replace("element: ", "")


_PLACE = {
    "dataset": ParquetColumn(NAMES, "Dataset of the images and of the network's training."),
    "key": ParquetColumn(NAMES, "What was done to the images: clean, an attack, or a corruption."),
}
_WEIGHTS = {
    "weights": ParquetColumn(NAMES, "Name of the weights among those of the architecture."),
    "weights_recipe": ParquetColumn(NAMES, "Name of the training; null where it has none, or nothing was trained."),
    "weights_epochs": ParquetColumn(pa.int32(), "Epochs of the training, or epoch of the snapshot; null if none."),
    "weights_seed": ParquetColumn(pa.int64(), "Seed of the training, or of random weights; null where unknown."),
}
"""Columns that stand only where an architecture has rows of several weights."""

_SIZES = {
    "n_images": ParquetColumn(pa.int32(), "Images evaluated."),
    "n_classes": ParquetColumn(pa.int16(), "Classes C of the dataset."),
}
_ANSWERS = {
    "accuracy": ParquetColumn(pa.float64(), "Fraction of the images that were classified correctly.", "accuracy"),
    "confidence_label": ParquetColumn(
        MATRIX, "C x C: row i is the mean softmax over images of true class i.", "confidence_label"
    ),
    "confidence_argmax": ParquetColumn(
        MATRIX,
        "C x C: row j is the mean softmax over images predicted as j; null where there are none.",
        "confidence_argmax",
    ),
    "confidence_correct": ParquetColumn(
        pa.float64(),
        "Mean confidence in the predicted class of correctly classified images; null if none.",
        "confidence_prediction",
    ),
    "confidence_incorrect": ParquetColumn(
        pa.float64(),
        "Mean confidence in the predicted class of misclassified images; null if none.",
        "confidence_prediction",
    ),
    "cm": ParquetColumn(_COUNTS, "C x C: entry (i, j) counts images of true class i predicted as j.", "cm"),
    "predictions": ParquetColumn(
        pa.list_(pa.field("element", pa.uint8())), "Predicted class of every image, in order.", "predictions"
    ),
}
"""Columns of answers to images; they are there where the sweep measured them."""

_ORIGIN = {
    "protocol": ParquetColumn(
        NAMES, "Digest of the protocol, imported-… if imported; its payload is among those in sweep.json."
    ),
    "checkpoint_sha256": ParquetColumn(NAMES, "SHA-256 of the file of weights; imported where the row was imported."),
}

PREDICTION_FIELDS = ("confidence_correct", "confidence_incorrect")
"""Columns that hold the two numbers of `confidence_prediction`."""


def describe_strength(task: Task | None) -> str:
    """Say what the strengths of a key are; None for a key that nothing is known of."""
    if task is not None and task.kind == "measure":
        return "0: measures have no strength."
    if task is not None and task.kind == "attack" and task.constraint is None:
        return "Strength as the attack's function takes it."
    if task is not None and task.constraint not in (None, LINF):
        return f"Epsilon: radius of the {task.constraint.name} ball around an image of pixels in [0, 1]."
    return "Epsilon in units of 1/255 for attacks, severity 1 to 5 for corruptions, 0 for clean."


def measure_columns(measurements: Sequence[str], example: Values) -> dict[str, ParquetColumn]:
    """Make the columns of a measure; values of one evaluation tell numbers from lists."""
    return {
        name: ParquetColumn(
            _NUMBERS if np.ndim(example[name]) else pa.float64(), f"Measure {name} of the network.", name
        )
        for name in measurements
    }


def parquet_columns(
    measurements: Sequence[str],
    architecture: Mapping[str, ParquetColumn],
    strength: str,
    *,
    measured: Mapping[str, ParquetColumn] | None = None,
    several_weights: bool = False,
) -> dict[str, ParquetColumn]:
    """List the columns of a file, in order.

    Args:
        measurements: of answers to images.
        architecture: columns that tell the architecture (see `dataset.published_layout`).
        strength: what a strength is.
        measured: columns of a measure, in place of those of answers.
        several_weights: whether an architecture has rows of several weights.
    """
    held = {column for name in measurements for column in columns_in(name)}
    place = dict(_PLACE)
    if measured is not None:
        place["key"] = ParquetColumn(NAMES, "What was measured of the network.")
    values = {name: column for name, column in _ANSWERS.items() if column.source in held}
    return {
        **place,
        **architecture,
        **(_WEIGHTS if several_weights else {}),
        "strength": ParquetColumn(pa.float64(), strength),
        **_SIZES,
        **(values if measured is None else measured),
        **_ORIGIN,
    }
