"""Schema of an export: its Parquet columns, and the names of architectures in each search space."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from robust201.core.records import ArchitectureId, Weights
from robust201.networks.nb201 import cells as nasbench201
from robust201.tasks import TASKS, Task
from robust201.tasks.columns import COLUMNS, CORRECT_BITS, MEASUREMENTS, ColumnSource, Values, column_sources
from robust201.tasks.constraints import LINF

CATEGORICAL = pa.dictionary(pa.int32(), pa.string())
"""Type of columns with few distinct names."""


def _nested_list_type(dtype: pa.DataType, n_axes: int) -> pa.DataType:
    for _ in range(n_axes):
        dtype = pa.list_(pa.field("element", dtype))
    return dtype


MATRIX = _nested_list_type(pa.float64(), 2)


class ParquetColumn(NamedTuple):
    """A Parquet column: its type, its description and, for a measurement, its source column in the store."""

    dtype: pa.DataType
    meaning: str
    source_column: ColumnSource | None = None


_KEY_COLUMNS = {
    "dataset": ParquetColumn(CATEGORICAL, "Dataset of the images and of the network's training."),
    "key": ParquetColumn(CATEGORICAL, "What was done to the images: clean, an attack, or a corruption."),
}
STEPS_COLUMN = "weights_steps"

_WEIGHTS_COLUMNS = {
    "weights": ParquetColumn(CATEGORICAL, "Name of the weights among those of the architecture."),
    "weights_recipe": ParquetColumn(
        CATEGORICAL, "Name of the training; null where it has none, or nothing was trained."
    ),
    "weights_epochs": ParquetColumn(pa.int32(), "Epochs of the training, or epoch of the snapshot; null if none."),
    STEPS_COLUMN: ParquetColumn(pa.int64(), "Iterations of the training until the snapshot; null if unknown."),
    "weights_seed": ParquetColumn(pa.int64(), "Seed of the training, or of random weights; null where unknown."),
}
"""Columns for architectures with several sets of weights. `STEPS_COLUMN` is omitted if no number of steps is known."""

_SIZE_COLUMNS = {
    "n_images": ParquetColumn(pa.int32(), "Images evaluated."),
    "n_classes": ParquetColumn(pa.int16(), "Classes C of the dataset."),
}
_ORIGIN_COLUMNS = {
    "protocol": ParquetColumn(
        CATEGORICAL, "Digest of the protocol, imported-… if imported; its payload is among those in sweep.json."
    ),
    "checkpoint_sha256": ParquetColumn(
        CATEGORICAL, "SHA-256 of the file of weights; imported where the row was imported."
    ),
}


_OUTCOME_COLUMNS = {
    CORRECT_BITS: ParquetColumn(
        pa.binary(),
        "One bit per image, 1 where it was classified correctly, in the order of the table in images/: image 0 is the "
        "most significant bit of the first byte; bits after the last image are 0.",
    )
}


def describe_strength(task: Task | None) -> str:
    """Return the description of a key's strengths for its Parquet column; `task` is None for an unknown key."""
    if task is not None and task.kind == "measure":
        return "0: measures have no strength."
    if task is not None and task.kind == "attack" and task.constraint is None:
        if task.key in TASKS:
            return "0, which means nothing: the grid of rotations and translations is a parameter."
        return "Strength as the attack's function takes it."
    if task is not None and task.constraint not in (None, LINF):
        return f"Epsilon: radius of the {task.constraint.name} ball around an image of pixels in [0, 1]."
    return "Epsilon in units of 1/255 for attacks, severity 1 to 5 for corruptions, 0 for clean."


def _measurement_columns(
    measurements: Sequence[str], example_values: Values, n_classes: int
) -> dict[str, ParquetColumn]:
    columns = {}
    for name, source_column in (
        name_and_source for measurement in measurements for name_and_source in column_sources(measurement).items()
    ):
        if source_column.source in COLUMNS:
            column = COLUMNS[source_column.source]
            dtype, n_axes = column.dtype_for(n_classes), len(column.dimensions) - (source_column.element is not None)
        else:
            dtype, n_axes = np.dtype(np.float64), np.ndim(example_values[name])
        arrow_type = _nested_list_type(pa.from_numpy_dtype(dtype), n_axes)
        columns[name] = ParquetColumn(arrow_type, source_column.meaning, source_column)
    return columns


def _weights_columns(weights: Collection[Weights]) -> dict[str, ParquetColumn]:
    if not weights:
        return {}
    has_steps = any(weights_state.steps is not None for weights_state in weights)
    return {name: column for name, column in _WEIGHTS_COLUMNS.items() if has_steps or name != STEPS_COLUMN}


def parquet_columns(
    measurements: Sequence[str],
    architecture_columns: Mapping[str, ParquetColumn],
    strength_description: str,
    *,
    example_values: Values | None = None,
    weights: Collection[Weights] = (),
    has_outcomes: bool = False,
    n_classes: int = 0,
) -> dict[str, ParquetColumn]:
    """Return the columns of a Parquet file, in order.

    Args:
        measurements: names of the measurements, or a measure's columns.
        architecture_columns: the columns that identify an architecture (see `layout_of`).
        strength_description: description of the strength column.
        example_values: for a measure, the values of one evaluation. They determine whether a column has numbers or
            lists.
        weights: the sets of weights, if architectures have several.
        has_outcomes: whether there is a column of packed outcomes.
        n_classes: number of classes, which determines the integer type of predicted classes.
    """
    key_columns = dict(_KEY_COLUMNS)
    if example_values is not None:
        key_columns["key"] = ParquetColumn(CATEGORICAL, "What was measured of the network.")
    else:
        measurements = [name for name in MEASUREMENTS if name in measurements]
    return {
        **key_columns,
        **architecture_columns,
        **_weights_columns(weights),
        "strength": ParquetColumn(pa.float64(), strength_description),
        **_SIZE_COLUMNS,
        **_measurement_columns(measurements, example_values or {}, n_classes),
        **(_OUTCOME_COLUMNS if has_outcomes and example_values is None else {}),
        **_ORIGIN_COLUMNS,
    }


Epsilons = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class SpaceLayout:
    """Names of a space's architectures in an export, and texts about the space.

    Attributes:
        title: title of the dataset card.
        tags: tags of the dataset card.
        architectures_noun: plural noun for the architectures in the dataset card.
        meta_sentence: sentence in the dataset card that describes meta.json.
        columns: the Parquet columns that identify an architecture, `architecture` first.
        values: function that returns the values of these columns, by column, for some architectures.
        meta_text: function that returns the content of meta.json, given the epsilons by key and the exported
            architectures.
    """

    title: str
    tags: tuple[str, ...]
    architectures_noun: str
    meta_sentence: str
    columns: Mapping[str, ParquetColumn]
    values: Callable[[Sequence[ArchitectureId]], dict[str, list[Any]]]
    meta_text: Callable[[Epsilons, Iterable[ArchitectureId]], str]


def layout_of(space: str) -> SpaceLayout:
    """Return the layout for the space with the given name."""
    return _NASBENCH201_LAYOUT if space == nasbench201.SPACE else _NAMED_LAYOUT


def _nasbench201_values(architectures: Sequence[ArchitectureId]) -> dict[str, list[Any]]:
    cells = [nasbench201.resolve(architecture) for architecture in architectures]
    members, isomorphs = _isomorph_members(), nasbench201.isomorphs()
    return {
        "architecture": list(architectures),
        "cell": [nasbench201.specs()[cell] for cell in cells],
        "isomorphs": [members[isomorphs[cell]] for cell in cells],
    }


@cache
def _isomorph_members() -> dict[int, list[int]]:
    """Return the indices of the cells in each isomorphism class, by the lowest of these indices."""
    members: dict[int, list[int]] = {}
    for index, isomorph in enumerate(nasbench201.isomorphs()):
        members.setdefault(isomorph, []).append(index)
    return members


_NASBENCH201_LAYOUT = SpaceLayout(
    title="NAS-Bench-201 robustness",
    tags=("neural-architecture-search", "robustness", "nas-bench-201"),
    architectures_noun="NAS-Bench-201 architectures",
    meta_sentence="`meta.json` names the 15,625 architectures, their isomorphs and the epsilons.",
    columns={
        "architecture": ParquetColumn(pa.int32(), "Index of the architecture in NAS-Bench-201, 0 to 15,624."),
        "cell": ParquetColumn(CATEGORICAL, "Cell string of the architecture, as NAS-Bench-201 writes it."),
        "isomorphs": ParquetColumn(
            pa.list_(pa.field("element", pa.int32())),
            "Indices of all architectures that this row stands for, itself too.",
        ),
    },
    values=_nasbench201_values,
    meta_text=lambda epsilons, _architectures: nasbench201.meta_text(epsilons),
)


def _meta_text_of_names(epsilons: Epsilons, architectures: Iterable[ArchitectureId]) -> str:
    names = dict.fromkeys(map(str, architectures))
    ids = {name: {"string": name, "isomorph": name} for name in names}
    return json.dumps({"ids": ids, "epsilons": {key: list(map(float, values)) for key, values in epsilons.items()}})


_NAMED_LAYOUT = SpaceLayout(
    title="Network robustness",
    tags=("robustness",),
    architectures_noun="networks",
    meta_sentence="`meta.json` names the networks and the epsilons.",
    columns={"architecture": ParquetColumn(pa.string(), "Name of the network.")},
    values=lambda architectures: {"architecture": list(map(str, architectures))},
    meta_text=_meta_text_of_names,
)
