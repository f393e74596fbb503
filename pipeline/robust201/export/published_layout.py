"""Schema of an export: its Parquet columns, and how each search space names its architectures."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from robust201.core.records import ArchitectureId, Weights
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.tasks import TASKS, Task
from robust201.tasks.columns import COLUMNS, CORRECT_BITS, MEASUREMENTS, ParquetForm, Values, parquet_forms
from robust201.tasks.constraints import LINF

CATEGORICAL = pa.dictionary(pa.int32(), pa.string())
"""Type of columns that repeat few names."""


def _nested(dtype: pa.DataType, n_axes: int) -> pa.DataType:
    for _ in range(n_axes):
        dtype = pa.list_(pa.field("element", dtype))
    return dtype


MATRIX = _nested(pa.float64(), 2)


class ParquetColumn(NamedTuple):
    """A Parquet column: its type, its description and, for a measurement, its source column in the store."""

    dtype: pa.DataType
    meaning: str
    form: ParquetForm | None = None

    @property
    def repeated(self) -> bool:
        return bool(pa.types.is_list(self.dtype))

    @property
    def leaf(self) -> pa.DataType:
        leaf = self.dtype
        while pa.types.is_list(leaf):
            leaf = leaf.value_type
        return leaf

    @property
    def type_name(self) -> str:
        return "string" if self.leaf == CATEGORICAL else str(self.dtype).replace("element: ", "")


_KEY_COLUMNS = {
    "dataset": ParquetColumn(CATEGORICAL, "Dataset of the images and of the network's training."),
    "key": ParquetColumn(CATEGORICAL, "What was done to the images: clean, an attack, or a corruption."),
}
STEPS = "weights_steps"

_WEIGHTS = {
    "weights": ParquetColumn(CATEGORICAL, "Name of the weights among those of the architecture."),
    "weights_recipe": ParquetColumn(
        CATEGORICAL, "Name of the training; null where it has none, or nothing was trained."
    ),
    "weights_epochs": ParquetColumn(pa.int32(), "Epochs of the training, or epoch of the snapshot; null if none."),
    STEPS: ParquetColumn(pa.int64(), "Iterations of the training until the snapshot; null if unknown."),
    "weights_seed": ParquetColumn(pa.int64(), "Seed of the training, or of random weights; null where unknown."),
}
"""Columns that are present only if architectures have several sets of weights; `STEPS` only if a count is known."""

_SIZES = {
    "n_images": ParquetColumn(pa.int32(), "Images evaluated."),
    "n_classes": ParquetColumn(pa.int16(), "Classes C of the dataset."),
}
_ORIGIN = {
    "protocol": ParquetColumn(
        CATEGORICAL, "Digest of the protocol, imported-… if imported; its payload is among those in sweep.json."
    ),
    "checkpoint_sha256": ParquetColumn(
        CATEGORICAL, "SHA-256 of the file of weights; imported where the row was imported."
    ),
}


_OUTCOMES = {
    CORRECT_BITS: ParquetColumn(
        pa.binary(),
        "One bit per image, 1 where it was classified correctly, in the order of the table in images/: image 0 is the "
        "most significant bit of the first byte; bits after the last image are 0.",
    )
}


def describe_strength(task: Task | None) -> str:
    """Describe the strengths of a key; None stands for an unknown key."""
    if task is not None and task.kind == "measure":
        return "0: measures have no strength."
    if task is not None and task.kind == "attack" and task.constraint is None:
        if task.key in TASKS:
            return "0, which means nothing: the grid of rotations and translations is a parameter."
        return "Strength as the attack's function takes it."
    if task is not None and task.constraint not in (None, LINF):
        return f"Epsilon: radius of the {task.constraint.name} ball around an image of pixels in [0, 1]."
    return "Epsilon in units of 1/255 for attacks, severity 1 to 5 for corruptions, 0 for clean."


def _measured_columns(measurements: Sequence[str], example: Values, n_classes: int) -> dict[str, ParquetColumn]:
    columns = {}
    for name, form in (item for measurement in measurements for item in parquet_forms(measurement).items()):
        if form.source in COLUMNS:
            column = COLUMNS[form.source]
            dtype, n_axes = column.dtype_for(n_classes), len(column.dimensions) - (form.element is not None)
        else:
            dtype, n_axes = np.dtype(np.float64), np.ndim(example[name])
        columns[name] = ParquetColumn(_nested(pa.from_numpy_dtype(dtype), n_axes), form.meaning, form)
    return columns


def _weights_columns(weights: Collection[Weights]) -> dict[str, ParquetColumn]:
    if not weights:
        return {}
    with_steps = any(state.steps is not None for state in weights)
    return {name: column for name, column in _WEIGHTS.items() if with_steps or name != STEPS}


def parquet_columns(
    measurements: Sequence[str],
    architecture: Mapping[str, ParquetColumn],
    strength_description: str,
    *,
    measured: Values | None = None,
    weights: Collection[Weights] = (),
    outcomes: bool = False,
    n_classes: int = 0,
) -> dict[str, ParquetColumn]:
    """Return the columns of a file in order.

    Args:
        measurements: names of the measurements, or a measure's columns.
        architecture: the columns that name an architecture (see `layout_of`).
        strength_description: description of the strength column.
        measured: for a measure, the values of one evaluation, which show whether a column has numbers or lists.
        weights: the sets of weights, if architectures have several.
        outcomes: whether there is a column of packed outcomes.
        n_classes: number of classes, which determines the integer type of predicted classes.
    """
    key_columns = dict(_KEY_COLUMNS)
    if measured is not None:
        key_columns["key"] = ParquetColumn(CATEGORICAL, "What was measured of the network.")
    else:
        measurements = [name for name in MEASUREMENTS if name in measurements]
    return {
        **key_columns,
        **architecture,
        **_weights_columns(weights),
        "strength": ParquetColumn(pa.float64(), strength_description),
        **_SIZES,
        **_measured_columns(measurements, measured or {}, n_classes),
        **(_OUTCOMES if outcomes and measured is None else {}),
        **_ORIGIN,
    }


Epsilons = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class SpaceLayout:
    """How an export names the architectures of a space.

    Attributes:
        title: title of the dataset card.
        slug: title as an identifier.
        tags: tags of the dataset card.
        architectures: plural noun for the architectures.
        meta_description: sentence about meta.json in the dataset card.
        columns: the Parquet columns that name an architecture, `architecture` first.
        values: (architectures) → values of these columns.
        meta_text: (epsilons by key, exported architectures) → content of meta.json.
    """

    title: str
    slug: str
    tags: tuple[str, ...]
    architectures: str
    meta_description: str
    columns: Mapping[str, ParquetColumn]
    values: Callable[[Sequence[ArchitectureId]], dict[str, list[Any]]]
    meta_text: Callable[[Epsilons, Iterable[ArchitectureId]], str]


def layout_of(space: str) -> SpaceLayout:
    """Return the layout of a space, by its name."""
    return _PUBLISHED if space == nasbench201.SPACE else _BY_NAME


def _published_values(architectures: Sequence[ArchitectureId]) -> dict[str, list[Any]]:
    cells = [nasbench201.architecture(int(architecture)) for architecture in architectures]
    members = _isomorphs()
    return {
        "architecture": list(architectures),
        "cell": [cell.spec for cell in cells],
        "isomorphs": [members[cell.isomorph] for cell in cells],
    }


@cache
def _isomorphs() -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for index, isomorph in enumerate(nasbench201.isomorphs()):
        members.setdefault(isomorph, []).append(index)
    return members


_PUBLISHED = SpaceLayout(
    title="NAS-Bench-201 robustness",
    slug="nas-bench-201-robustness",
    tags=("neural-architecture-search", "robustness", "nas-bench-201"),
    architectures="NAS-Bench-201 architectures",
    meta_description="`meta.json` names the 15,625 architectures, their isomorphs and the epsilons.",
    columns={
        "architecture": ParquetColumn(pa.int32(), "Index of the architecture in NAS-Bench-201, 0 to 15,624."),
        "cell": ParquetColumn(CATEGORICAL, "Cell string of the architecture, as NAS-Bench-201 writes it."),
        "isomorphs": ParquetColumn(
            pa.list_(pa.field("element", pa.int32())),
            "Indices of all architectures that this row stands for, itself too.",
        ),
    },
    values=_published_values,
    meta_text=lambda epsilons, _architectures: nasbench201.meta_text(epsilons),
)


def _meta_by_name(epsilons: Epsilons, architectures: Iterable[ArchitectureId]) -> str:
    names = dict.fromkeys(map(str, architectures))
    ids = {name: {"string": name, "isomorph": name} for name in names}
    return json.dumps({"ids": ids, "epsilons": {key: list(map(float, values)) for key, values in epsilons.items()}})


_BY_NAME = SpaceLayout(
    title="Network robustness",
    slug="network-robustness",
    tags=("robustness",),
    architectures="networks",
    meta_description="`meta.json` names the networks and the epsilons.",
    columns={"architecture": ParquetColumn(pa.string(), "Name of the network.")},
    values=lambda architectures: {"architecture": list(map(str, architectures))},
    meta_text=_meta_by_name,
)
