"""The analysis-ready Parquet files of an export: one row per evaluation, one file per dataset and key.

Their paths are ``parquet/dataset=<dataset>/key=<key>/part-0.parquet`` (Hive partitioning), and any Parquet library can
read them. They also contain `dataset` and `key` as columns, for libraries without support for Hive partitioning. These
columns are dictionaries of strings, the type that Arrow derives from the folder names.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.records import Weights
from robust201.export.published_layout import CATEGORICAL, MATRIX, ParquetColumn, layout_of, parquet_columns
from robust201.export.written_file import ResultFile
from robust201.shards import RowBatch
from robust201.statistics.outcomes import pack_outcomes
from robust201.tasks.columns import CORRECT_BITS, count_classes

EXPORTED_GROUP_BYTES = 16 << 20

_STATISTICS = ("architecture", "strength", "accuracy")


@dataclass(frozen=True, eq=False, kw_only=True)
class ParquetFile(ResultFile):
    """A Parquet file with all measurements under one key on one dataset.

    Attributes:
        measurements: names of the measurements, or a measure's columns.
        space: name of the search space.
        strength: description of the strength column.
        is_measure: whether the key is a measure.
        n_classes: number of classes, for rows whose values do not show it; None if unknown.
        weights: weights by name, if architectures have rows of several weights.
        metadata: metadata of the schema.
        labels: (N,) labels of the images, if packed outcomes are written.
    """

    measurements: tuple[str, ...]
    space: str
    strength: str
    is_measure: bool = False
    n_classes: int | None = None
    weights: Mapping[str, Weights] = field(default_factory=dict)
    metadata: Mapping[bytes, bytes] | None = None
    labels: NDArray[np.int64] | None = None

    @cached_property
    def columns(self) -> dict[str, ParquetColumn]:
        """Columns in order. A measure's first row is read, because its columns may be numbers or lists."""
        measured = None
        if self.is_measure:
            batch = next(iter(self.read_batches(None)))
            measured = {name: np.asarray(column[0]) for name, column in batch.columns.items()}
        return parquet_columns(
            self.measurements,
            layout_of(self.space).columns,
            self.strength,
            measured=measured,
            weights=self.weights.values(),
            outcomes=self.labels is not None,
            n_classes=self.n_classes or 0,
        )

    @property
    def _schema(self) -> pa.Schema:
        fields = [pa.field(name, c.dtype, metadata={"description": c.meaning}) for name, c in self.columns.items()]
        return pa.schema(fields, metadata=self.metadata)

    def _write_content(self, stream: BinaryIO, on_rows: Callable[[int], None]) -> None:
        columns = self.columns
        matrices = [f"{name}.list.element.list.element" for name, c in columns.items() if c.dtype == MATRIX]
        with pq.ParquetWriter(
            pa.PythonFile(stream, mode="w"),
            self._schema,
            compression="zstd",
            use_dictionary=[name for name, column in columns.items() if column.dtype == CATEGORICAL],
            column_encoding=dict.fromkeys(matrices, "BYTE_STREAM_SPLIT"),
            write_statistics=[name for name in _STATISTICS if name in columns],
            write_page_checksum=True,
        ) as writer:
            for table in self.tables(on_rows):
                writer.write_table(table, row_group_size=len(table))
                del table  # free its memory before the next table is built

    def tables(self, on_rows: Callable[[int], None] = lambda _units: None) -> Iterator[pa.Table]:
        for batches in self._row_groups(on_rows):
            table = self._make_table(batches)
            batches.clear()  # the table has copies of the values, and writing it needs as much memory again
            yield table
            del table

    def _row_groups(self, on_rows: Callable[[int], None]) -> Iterator[list[RowBatch]]:
        batches: list[RowBatch] = []
        n_bytes = 0
        for batch in self.read_batches(None):
            first = 0
            for stop, size in enumerate(batch.bytes_by_unit(), start=1):
                n_bytes += size
                if n_bytes >= EXPORTED_GROUP_BYTES:
                    yield [*batches, batch[first:stop]]
                    batches, n_bytes, first = [], 0, stop
            if first < len(batch.units):
                batches.append(batch[first:])
            on_rows(len(batch.units))
        if batches:
            yield batches

    def _make_table(self, batches: Sequence[RowBatch]) -> pa.Table:
        columns, layout = self.columns, layout_of(self.space)
        units = [unit for batch in batches for unit in batch.units for _ in unit.strengths]
        n_classes = [
            count_classes({name: np.asarray(column[0]) for name, column in batch.columns.items()}) or self.n_classes
            for batch in batches
            for _ in range(batch.n_evaluations)
        ]
        arrays: dict[str, Any] = {
            "dataset": [self.dataset] * len(units),
            "key": [self.key] * len(units),
            **layout.values([unit.architecture for unit in units]),
            "strength": [strength for batch in batches for unit in batch.units for strength in unit.strengths],
            "n_images": [unit.n_images or None for unit in units],
            "n_classes": n_classes,
            "protocol": [unit.protocol or None for unit in units],
            "checkpoint_sha256": [unit.checkpoint_sha256 or None for unit in units],
        }
        if self.weights:
            states = [self.weights[unit.weights] for unit in units]
            arrays |= {
                "weights": [unit.weights for unit in units],
                "weights_recipe": [state.recipe or None for state in states],
                "weights_epochs": [state.epochs for state in states],
                "weights_steps": [state.steps for state in states],
                "weights_seed": [state.seed for state in states],
            }
        if CORRECT_BITS in columns:
            predicted = np.concatenate([batch.columns["predictions"] for batch in batches])
            arrays[CORRECT_BITS] = [row.tobytes() for row in pack_outcomes(predicted == self.labels)]
        for name, column in columns.items():
            if column.form is not None:
                values = [batch.columns[column.form.source] for batch in batches]
                if self.is_measure:
                    arrays[name] = [array.tolist() for batch_values in values for array in batch_values]
                else:
                    stacked = np.concatenate(values)
                    element = column.form.element
                    arrays[name] = _lists(stacked if element is None else stacked[:, element], column.dtype)
        return pa.table([pa.array(arrays[name], dtype.dtype) for name, dtype in columns.items()], schema=self._schema)


def _lists(values: NDArray[Any], dtype: pa.DataType) -> pa.Array:
    """Convert an array (E, …) to nested Arrow lists, with NaN as null."""
    array = pa.array(values.ravel(), from_pandas=values.dtype.kind == "f")
    for level in range(values.ndim - 1, 0, -1):
        n_lists = int(np.prod(values.shape[:level]))
        array = pa.ListArray.from_arrays(np.arange(n_lists + 1, dtype=np.int32) * values.shape[level], array)
    return array.cast(dtype)
