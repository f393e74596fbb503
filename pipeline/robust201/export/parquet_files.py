"""The analysis-ready Parquet files of an export: one row per evaluation, one file per dataset and key.

Their paths are ``parquet/dataset=<dataset>/key=<key>/part-0.parquet`` (Hive partitioning). Any Parquet library can read
them. They also contain `dataset` and `key` as columns, for libraries that do not support Hive partitioning. These
columns have the Arrow type dictionary (of strings), because Arrow derives this type from the names of the folders.
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

MIN_ROW_GROUP_BYTES = 16 << 20
"""Minimum size of all row groups except the last, in memory before compression."""

_COLUMNS_WITH_STATISTICS = ("architecture", "strength", "accuracy")
"""Columns with statistics, such as minimum and maximum, of each row group."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ParquetResultFile(ResultFile):
    """A Parquet file with all measurements under one key on one dataset.

    Attributes:
        measurements: names of the measurements, or a measure's columns.
        space: name of the search space.
        strength_description: description of the column `strength`.
        is_measure: whether the key is a measure.
        n_classes: number of classes, for rows whose values do not determine it; None if unknown.
        weights: weights by name, if architectures have rows for several weights.
        metadata: metadata of the schema.
        labels: (N,) labels of the images, if packed outcomes are written.
    """

    measurements: tuple[str, ...]
    space: str
    strength_description: str
    is_measure: bool = False
    n_classes: int | None = None
    weights: Mapping[str, Weights] = field(default_factory=dict)
    metadata: Mapping[bytes, bytes] | None = None
    labels: NDArray[np.int64] | None = None

    @cached_property
    def columns(self) -> dict[str, ParquetColumn]:
        """Columns in order. A measure's first row determines whether its columns contain numbers or lists."""
        example_values = None
        if self.is_measure:
            batch = next(iter(self.read_batches(None)))
            example_values = {name: np.asarray(column[0]) for name, column in batch.columns.items()}
        return parquet_columns(
            self.measurements,
            layout_of(self.space).columns,
            self.strength_description,
            example_values=example_values,
            weights=self.weights.values(),
            has_outcomes=self.labels is not None,
            n_classes=self.n_classes or 0,
        )

    @property
    def _schema(self) -> pa.Schema:
        fields = [
            pa.field(name, column.dtype, metadata={"description": column.meaning})
            for name, column in self.columns.items()
        ]
        return pa.schema(fields, metadata=self.metadata)

    def _write_content(self, stream: BinaryIO, on_units: Callable[[int], None]) -> None:
        columns = self.columns
        matrix_columns = [
            f"{name}.list.element.list.element" for name, column in columns.items() if column.dtype == MATRIX
        ]
        with pq.ParquetWriter(
            pa.PythonFile(stream, mode="w"),
            self._schema,
            compression="zstd",
            use_dictionary=[name for name, column in columns.items() if column.dtype == CATEGORICAL],
            column_encoding=dict.fromkeys(matrix_columns, "BYTE_STREAM_SPLIT"),
            write_statistics=[name for name in _COLUMNS_WITH_STATISTICS if name in columns],
            write_page_checksum=True,
        ) as writer:
            for table in self.tables(on_units):
                writer.write_table(table, row_group_size=len(table))
                del table  # free its memory before the next table is built

    def tables(self, on_units: Callable[[int], None] = lambda _n_units: None) -> Iterator[pa.Table]:
        for batches in self._row_groups(on_units):
            table = self._make_table(batches)
            batches.clear()  # the table has copies of the values, and writing it needs another copy
            yield table
            del table

    def _row_groups(self, on_units: Callable[[int], None]) -> Iterator[list[RowBatch]]:
        batches: list[RowBatch] = []
        n_bytes = 0
        for batch in self.read_batches(None):
            first_unit = 0
            for end_unit, unit_bytes in enumerate(batch.bytes_by_unit(), start=1):
                n_bytes += unit_bytes
                if n_bytes >= MIN_ROW_GROUP_BYTES:
                    yield [*batches, batch[first_unit:end_unit]]
                    batches, n_bytes, first_unit = [], 0, end_unit
            if first_unit < len(batch.units):
                batches.append(batch[first_unit:])
            on_units(len(batch.units))
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
        column_values: dict[str, Any] = {
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
            weights_of_rows = [self.weights[unit.weights] for unit in units]
            column_values |= {
                "weights": [unit.weights for unit in units],
                "weights_recipe": [weights_state.recipe or None for weights_state in weights_of_rows],
                "weights_epochs": [weights_state.epochs for weights_state in weights_of_rows],
                "weights_steps": [weights_state.steps for weights_state in weights_of_rows],
                "weights_seed": [weights_state.seed for weights_state in weights_of_rows],
            }
        if CORRECT_BITS in columns:
            predicted = np.concatenate([batch.columns["predictions"] for batch in batches])
            column_values[CORRECT_BITS] = [bits.tobytes() for bits in pack_outcomes(predicted == self.labels)]
        for name, column in columns.items():
            if column.source_column is not None:
                arrays_of_batches = [batch.columns[column.source_column.source] for batch in batches]
                if self.is_measure:
                    column_values[name] = [
                        array.tolist() for batch_values in arrays_of_batches for array in batch_values
                    ]
                else:
                    stacked = np.concatenate(arrays_of_batches)
                    element = column.source_column.element
                    column_values[name] = _to_nested_lists(
                        stacked if element is None else stacked[:, element], column.dtype
                    )
        return pa.table(
            [pa.array(column_values[name], column.dtype) for name, column in columns.items()], schema=self._schema
        )


def _to_nested_lists(values: NDArray[Any], dtype: pa.DataType) -> pa.Array:
    """Convert an array (evaluations, …) to nested Arrow lists, with NaN as null."""
    array = pa.array(values.ravel(), from_pandas=values.dtype.kind == "f")
    for level in range(values.ndim - 1, 0, -1):
        n_lists = int(np.prod(values.shape[:level]))
        array = pa.ListArray.from_arrays(np.arange(n_lists + 1, dtype=np.int32) * values.shape[level], array)
    return array.cast(dtype)
