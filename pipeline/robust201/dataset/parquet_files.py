"""The analysis-ready Parquet files of an export: one row an evaluation, one file a dataset and key.

They lie in ``parquet/dataset=<dataset>/key=<key>/part-0.parquet`` (Hive's layout), carry `dataset` and `key` as columns
too, and need nothing of ours to be read. Both columns are dictionaries of strings because that is what Arrow makes of
the folders' names: the two then agree, and libraries that do not know Hive's layout still have them.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.records import Unit
from robust201.dataset.card import CardColumn
from robust201.dataset.folder import WrittenFile, hashed_file
from robust201.dataset.json_files import RowSelection, check_row
from robust201.images import DATASETS
from robust201.reader.result_files import parquet_name
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.tasks.measurements import MEASUREMENTS

PARQUET_VERSION = 2
"""Raised when the same rows would give other columns or bytes."""

ROW_GROUP_BYTES = 16 << 20

_NAMES = pa.dictionary(pa.int32(), pa.string())
_MATRIX = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.float64()))))
_COUNTS = pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int32()))))


class ParquetColumn(NamedTuple):
    """A column: its type, what it holds, and the column of `tasks.measurements` that it comes from, if any."""

    kind: pa.DataType
    meaning: str
    source: str = ""


PARQUET_COLUMNS: dict[str, ParquetColumn] = {
    "dataset": ParquetColumn(_NAMES, "Dataset of the images and of the network's training."),
    "key": ParquetColumn(_NAMES, "What was done to the images: clean, an attack, or a corruption."),
    "architecture": ParquetColumn(pa.int32(), "Index of the architecture in NAS-Bench-201, 0 to 15,624."),
    "cell": ParquetColumn(_NAMES, "Cell string of the architecture, as NAS-Bench-201 writes it."),
    "isomorphs": ParquetColumn(
        pa.list_(pa.field("element", pa.int32())), "Indices of all architectures that this row stands for, itself too."
    ),
    "strength": ParquetColumn(
        pa.float64(), "Epsilon in units of 1/255 for attacks, severity 1 to 5 for corruptions, 0 for clean."
    ),
    "n_images": ParquetColumn(pa.int32(), "Images evaluated."),
    "n_classes": ParquetColumn(pa.int16(), "Classes C of the dataset."),
    "accuracy": ParquetColumn(pa.float64(), "Fraction of the images that were classified correctly.", "accuracy"),
    "confidence_label": ParquetColumn(
        _MATRIX, "C x C: row i is the mean softmax over images of true class i.", "confidence_label"
    ),
    "confidence_argmax": ParquetColumn(
        _MATRIX,
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
    "protocol": ParquetColumn(
        _NAMES, "Digest of the protocol, imported-… if imported; its payload is among those in sweep.json."
    ),
    "checkpoint_sha256": ParquetColumn(_NAMES, "SHA-256 of the file of weights; imported where the row was imported."),
}
"""Columns in order; those of measurements are there where the sweep measured them."""

_PREDICTION_FIELDS = ("confidence_correct", "confidence_incorrect")
_STATISTICS = ["architecture", "strength", "accuracy"]


def columns_of(measurements: Sequence[str]) -> dict[str, ParquetColumn]:
    """Columns of the files of a sweep with the given measurements."""
    held = {column for name in measurements for column in _column_names(name)}
    return {name: column for name, column in PARQUET_COLUMNS.items() if not column.source or column.source in held}


def _column_names(measurement: str) -> tuple[str, ...]:
    form = MEASUREMENTS[measurement]
    return (form,) if isinstance(form, str) else tuple(form.values())


@dataclass(frozen=True, eq=False)
class ParquetTask:
    """A Parquet file to write (fields as those of `dataset.json_files.FileTask`).

    Attributes:
        metadata: of the file's schema.
    """

    folder: Path
    dataset: str
    key: str
    measurements: tuple[str, ...]
    units: Sequence[Unit]
    rows: RowSelection
    finished: WrittenFile | None = None
    metadata: Mapping[bytes, bytes] | None = None

    @property
    def name(self) -> str:
        """Name of the file, relative to the folder."""
        return parquet_name(self.dataset, self.key)

    @property
    def recipe(self) -> str:
        """Digest of everything that the file's content follows from."""
        recipe = [PARQUET_VERSION, pa.__version__, self.name, list(self.measurements), self.rows.digest]
        return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()

    def write(self, on_row: Callable[[], None]) -> tuple[WrittenFile, bool]:
        """Write the file, or keep the one that an interrupted export left (see `FileTask.write`)."""
        path = self.folder / self.name
        if self.finished is not None and self.finished.is_at(path):
            for _ in self.units:
                on_row()
            return self.finished, True
        columns, schema = self._form()
        with (
            hashed_file(path) as (stream, hashed),
            pq.ParquetWriter(
                pa.PythonFile(stream, mode="w"),
                schema,
                compression="zstd",
                use_dictionary=[name for name, column in columns.items() if column.kind == _NAMES],
                column_encoding=dict.fromkeys(_float_leaves(columns), "BYTE_STREAM_SPLIT"),
                write_statistics=_STATISTICS,
                write_page_checksum=True,
            ) as writer,
        ):
            for table in self.tables(on_row):
                writer.write_table(table, row_group_size=len(table))
                del table  # before the next is made
        return WrittenFile(self.name, hashed.digest.hexdigest(), hashed.n_bytes, self.recipe), False

    def _form(self) -> tuple[dict[str, ParquetColumn], pa.Schema]:
        columns = columns_of(self.measurements)
        fields = [pa.field(name, c.kind, metadata={"description": c.meaning}) for name, c in columns.items()]
        return columns, pa.schema(fields, metadata=self.metadata)

    def tables(self, on_row: Callable[[], None] = lambda: None) -> Iterator[pa.Table]:
        """Make the file's row groups."""
        columns, schema = self._form()
        for pieces in self._row_groups(on_row):
            table = self._table(pieces, columns, schema)
            pieces.clear()  # the table has copies, and writing it takes as much again
            yield table
            del table

    def _row_groups(self, on_row: Callable[[], None]) -> Iterator[list[tuple[Unit, float, Mapping[str, Any]]]]:
        pieces: list[tuple[Unit, float, Mapping[str, Any]]] = []
        n_bytes = 0
        expected = iter(self.units)
        for unit, values in self.rows.iter_values(None):
            check_row(unit, values, next(expected, None))
            for strength in unit.strengths:
                pieces.append((unit, strength, values[strength]))
                n_bytes += sum(array.nbytes for array in values[strength].values())
            on_row()
            if n_bytes >= ROW_GROUP_BYTES:
                yield pieces
                pieces, n_bytes = [], 0
        if pieces:
            yield pieces

    def _table(
        self,
        pieces: Sequence[tuple[Unit, float, Mapping[str, Any]]],
        columns: Mapping[str, ParquetColumn],
        schema: pa.Schema,
    ) -> pa.Table:
        units = [unit for unit, _, _ in pieces]
        sources = [self.rows.source(unit, strength) for unit, strength, _ in pieces]
        members = _isomorphs()
        arrays: dict[str, Any] = {
            "dataset": [self.dataset] * len(pieces),
            "key": [self.key] * len(pieces),
            "architecture": [unit.architecture for unit in units],
            "cell": [nasbench201.architecture(unit.architecture).spec for unit in units],
            "isomorphs": [members[nasbench201.architecture(unit.architecture).isomorph] for unit in units],
            "strength": [strength for _, strength, _ in pieces],
            "n_images": [unit.n_images or None for unit in units],
            "n_classes": [_count_classes(self.dataset, values) for _, _, values in pieces],
            "protocol": [source.protocol or None for source in sources],
            "checkpoint_sha256": [source.checkpoint_sha256 or None for source in sources],
        }
        for name, column in columns.items():
            if column.source:
                stacked = [values[column.source] for _, _, values in pieces]
                if name in _PREDICTION_FIELDS:
                    stacked = [pair[_PREDICTION_FIELDS.index(name)] for pair in stacked]
                arrays[name] = _lists(stacked, column.kind)
        return pa.table([pa.array(arrays[name], kind.kind) for name, kind in columns.items()], schema=schema)


def _count_classes(dataset: str, values: Mapping[str, NDArray[Any]]) -> int | None:
    sizes = (len(array) for array in values.values() if array.ndim == 2)
    return next(sizes, None) or (DATASETS[dataset].n_classes if dataset in DATASETS else None)


@cache
def _isomorphs() -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for index, isomorph in enumerate(nasbench201.isomorphs()):
        members.setdefault(isomorph, []).append(index)
    return members


def _lists(values: Sequence[NDArray[Any]], kind: pa.DataType) -> pa.Array:
    """Put equal arrays below each other as nested lists, NaN as null."""
    stacked = np.stack(values)
    array = pa.array(stacked.ravel(), from_pandas=stacked.dtype.kind == "f")
    for level in range(stacked.ndim - 1, 0, -1):
        n_lists = int(np.prod(stacked.shape[:level]))
        array = pa.ListArray.from_arrays(np.arange(n_lists + 1, dtype=np.int32) * stacked.shape[level], array)
    return array.cast(kind)


def _float_leaves(columns: Mapping[str, ParquetColumn]) -> list[str]:
    return [f"{name}.list.element.list.element" for name, column in columns.items() if column.kind == _MATRIX]


def card_columns(measurements: Sequence[str]) -> list[CardColumn]:
    """Columns of the files of a sweep with the given measurements, as a dataset card tells of them."""
    told = []
    for name, column in columns_of(measurements).items():
        leaf = column.kind
        while pa.types.is_list(leaf):
            leaf = leaf.value_type
        base = "text" if leaf == _NAMES else "float" if pa.types.is_floating(leaf) else "int"
        kind = "string" if leaf == _NAMES else str(column.kind).replace("element: ", "")
        told.append(CardColumn(name, kind, column.meaning, base, pa.types.is_list(column.kind)))
    return told
