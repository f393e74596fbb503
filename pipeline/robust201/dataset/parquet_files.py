"""The analysis-ready Parquet files of an export: one row per evaluation, one file per dataset and key.

They lie in ``parquet/dataset=<dataset>/key=<key>/part-0.parquet`` (Hive's layout), carry `dataset` and `key` as columns
too, and need nothing of ours to be read. Both columns are dictionaries of strings because that is what Arrow makes of
the folders' names: the two then agree, and libraries that do not know Hive's layout still have them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.records import Unit
from robust201.dataset.result_file import ResultFile
from robust201.images import DATASETS
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.tasks.columns import MEASUREMENTS

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
        return "string" if self.leaf == _NAMES else str(self.kind).replace("element: ", "")


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


def parquet_columns(measurements: Sequence[str]) -> dict[str, ParquetColumn]:
    """Columns of the files of a sweep with the given measurements."""
    held = {column for name in measurements for column in _column_names(name)}
    return {name: column for name, column in PARQUET_COLUMNS.items() if not column.source or column.source in held}


def _column_names(measurement: str) -> tuple[str, ...]:
    form = MEASUREMENTS[measurement]
    return (form,) if isinstance(form, str) else tuple(form.values())


@dataclass(frozen=True, eq=False, kw_only=True)
class ParquetFile(ResultFile):
    """A Parquet file of all measurements of a dataset and key.

    Attributes:
        measurements: names of the measurements.
        metadata: of the file's schema.
    """

    measurements: tuple[str, ...]
    metadata: Mapping[bytes, bytes] | None = None

    def _ingredients(self) -> list[Any]:
        return [PARQUET_VERSION, pa.__version__, self.name, list(self.measurements)]

    @property
    def _columns(self) -> dict[str, ParquetColumn]:
        return parquet_columns(self.measurements)

    @property
    def _schema(self) -> pa.Schema:
        fields = [pa.field(name, c.kind, metadata={"description": c.meaning}) for name, c in self._columns.items()]
        return pa.schema(fields, metadata=self.metadata)

    def _write_content(self, stream: BinaryIO, on_row: Callable[[], None]) -> None:
        columns = self._columns
        matrices = [f"{name}.list.element.list.element" for name, c in columns.items() if c.kind == _MATRIX]
        with pq.ParquetWriter(
            pa.PythonFile(stream, mode="w"),
            self._schema,
            compression="zstd",
            use_dictionary=[name for name, column in columns.items() if column.kind == _NAMES],
            column_encoding=dict.fromkeys(matrices, "BYTE_STREAM_SPLIT"),
            write_statistics=_STATISTICS,
            write_page_checksum=True,
        ) as writer:
            for table in self.tables(on_row):
                writer.write_table(table, row_group_size=len(table))
                del table  # before the next is made

    def tables(self, on_row: Callable[[], None] = lambda: None) -> Iterator[pa.Table]:
        """Make the file's row groups."""
        for pieces in self._row_groups(on_row):
            table = self._table(pieces)
            pieces.clear()  # the table has copies, and writing it takes as much again
            yield table
            del table

    def _row_groups(self, on_row: Callable[[], None]) -> Iterator[list[tuple[Unit, float, Mapping[str, Any]]]]:
        pieces: list[tuple[Unit, float, Mapping[str, Any]]] = []
        n_bytes = 0
        for unit, values in self.read_units(None):
            for strength in unit.strengths:
                pieces.append((unit, strength, values[strength]))
                n_bytes += sum(array.nbytes for array in values[strength].values())
            on_row()
            if n_bytes >= ROW_GROUP_BYTES:
                yield pieces
                pieces, n_bytes = [], 0
        if pieces:
            yield pieces

    def _table(self, pieces: Sequence[tuple[Unit, float, Mapping[str, Any]]]) -> pa.Table:
        columns = self._columns
        units = [unit for unit, _, _ in pieces]
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
            "protocol": [unit.protocol or None for unit in units],
            "checkpoint_sha256": [unit.checkpoint_sha256 or None for unit in units],
        }
        for name, column in columns.items():
            if column.source:
                stacked = [values[column.source] for _, _, values in pieces]
                if name in _PREDICTION_FIELDS:
                    stacked = [pair[_PREDICTION_FIELDS.index(name)] for pair in stacked]
                arrays[name] = _lists(stacked, column.kind)
        return pa.table([pa.array(arrays[name], kind.kind) for name, kind in columns.items()], schema=self._schema)


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
