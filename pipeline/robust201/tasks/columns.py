"""The columns of results, in one place: type, shape, how a mean is added up, and the JSON form. No torch.

Tasks that show images to a network share the columns of `COLUMNS`. A measure declares columns of its own: float64
numbers, or lists of them, under names that are not in the table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

FRACTION_BITS = 32
"""Fractional bits of a confidence in a sum."""

Values = Mapping[str, NDArray[Any]]
"""Column name → array, as in `EvaluationResult.values`."""


@dataclass(frozen=True)
class Answers:
    """What a network answers to a batch, on its device.

    Attributes:
        labels: (B,) int64 true classes.
        predicted: (B,) int64, the first of the largest logits.
        confidences: (B, C) int64, softmax of the logits in units of 2**-FRACTION_BITS.
    """

    labels: "torch.Tensor"
    predicted: "torch.Tensor"
    confidences: "torch.Tensor"


@dataclass(frozen=True)
class Mean:
    """How a column of mean confidences is added up.

    Attributes:
        select: (answers) → each image's group (B,) int64, and what it adds to the group, (B,) or (B, C) int64.
        counts: (`cm` (C, C) int64) → images in each group, of a shape that broadcasts to the column's.
    """

    select: "Callable[[Answers], tuple[torch.Tensor, torch.Tensor]]"
    counts: Callable[[NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True)
class Column:
    """A column of results: what a shard stores of one measurement.

    Attributes:
        measurement: the measurement it belongs to.
        shape: (number of classes, number of images) → shape of the array.
        dtype: its NumPy type.
        mean: how it is added up, where it holds mean confidences.
    """

    measurement: str
    shape: Callable[[int, int], tuple[int, ...]]
    dtype: np.dtype[Any]
    mean: Mean | None = None


def _by_label(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    return answers.labels, answers.confidences


def _by_prediction(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    return answers.predicted, answers.confidences


def _by_correctness(answers: Answers) -> "tuple[torch.Tensor, torch.Tensor]":
    wrong = (answers.predicted != answers.labels).long()
    return wrong, answers.confidences.gather(1, answers.predicted[:, None])[:, 0]


def _correct_and_wrong(cm: NDArray[np.int64]) -> NDArray[np.int64]:
    correct = int(np.trace(cm))
    return np.array([correct, int(cm.sum()) - correct])


_FLOAT64 = np.dtype(np.float64)

COLUMNS: dict[str, Column] = {
    "accuracy": Column("accuracy", lambda _c, _n: (), _FLOAT64),
    "cm": Column("cm", lambda c, _: (c, c), np.dtype(np.int32)),
    "confidence_label": Column(
        "confidence", lambda c, _: (c, c), _FLOAT64, Mean(_by_label, lambda cm: cm.sum(axis=1)[:, None])
    ),
    "confidence_argmax": Column(
        "confidence", lambda c, _: (c, c), _FLOAT64, Mean(_by_prediction, lambda cm: cm.sum(axis=0)[:, None])
    ),
    "confidence_prediction": Column(
        "confidence", lambda _c, _n: (2,), _FLOAT64, Mean(_by_correctness, _correct_and_wrong)
    ),
    "predictions": Column("predictions", lambda _, n: (n,), np.dtype(np.uint8)),
}
"""Column name to column. `accuracy` is a fraction; `cm[i, j]` counts images of true class i predicted as j;
`confidence_label[i]` is the mean softmax over images of true class i, `confidence_argmax[j]` over images predicted
as j, `confidence_prediction` the mean confidence in the predicted class of correct and of incorrect images (Jung et
al., ICLR 2023, section 3); `predictions` are predicted classes by image position. Means over no image are NaN."""

RESERVED = frozenset(
    {
        *(
            "unit_id",
            "dataset",
            "key",
            "architecture",
            "cell",
            "isomorphs",
            "strength",
            "n_images",
            "n_classes",
            "start",
            "stop",
        ),
        *("protocol", "checkpoint_sha256", "provenance", "seconds"),
        *("weights", "weights_recipe", "weights_epochs", "weights_seed"),
        *("value", "confidence", "confidence_correct", "confidence_incorrect"),
    }
)
"""Names that say what a row of a shard, an exported file or a DataFrame is about: none of a measure's columns."""

ALWAYS = ("accuracy", "cm")
"""Columns that every result has: `cm` holds the counts that merging needs."""

MEANS: dict[str, Mean] = {name: column.mean for name, column in COLUMNS.items() if column.mean is not None}
"""The columns that hold mean confidences."""


def _plain(array: NDArray[Any]) -> Any:
    array = np.asarray(array)
    missing = np.isnan(array)
    if not missing.any():
        return array.tolist()
    plain = array.astype(object)
    plain[missing] = None
    return plain.tolist()


MEASUREMENTS: dict[str, str | dict[str, str]] = {
    "accuracy": "accuracy",
    "confidence": {name: f"confidence_{name}" for name in ("label", "argmax", "prediction")},
    "cm": "cm",
    "predictions": "predictions",
}
"""Name of a measurement, as in the sweep YAML and in exported files, to its column, or to the columns of its fields."""


def columns_of(measurements: Sequence[str]) -> tuple[str, ...]:
    """List the columns that a result holds, in the order of the table.

    Args:
        measurements: names from `MEASUREMENTS`.

    Returns:
        Column names: those of the measurements, and `accuracy` and `cm` in any case.
    """
    return tuple(name for name, column in COLUMNS.items() if name in ALWAYS or column.measurement in measurements)


def columns_in(measurement: str) -> tuple[str, ...]:
    """List the columns that a measurement is made of: a measure's is one column of its name."""
    form = MEASUREMENTS.get(measurement, measurement)
    return (form,) if isinstance(form, str) else tuple(form.values())


def measurement_of(column: str) -> str:
    """Name the measurement that a column belongs to."""
    return COLUMNS[column].measurement if column in COLUMNS else column


def to_json(measurement: str, values: Values) -> Any:
    """Turn a measurement into its JSON value.

    Args:
        measurement: a name from `MEASUREMENTS`, or a column of a measure.
        values: columns of one evaluation.

    Returns:
        `accuracy`: a float. `cm`: C lists of C integers. `predictions`: N integers. `confidence`:
        ``{"label": C×C, "argmax": C×C, "prediction": 2}`` of floats, None where a mean is over no image. Of a measure's
        column: a float or a list of floats, None where there is none.
    """
    form = MEASUREMENTS.get(measurement, measurement)
    if isinstance(form, str):
        return _plain(values[form])
    return {name: _plain(values[column]) for name, column in form.items()}
