"""The analysis-ready Parquet files of an export: one row per evaluation, one file per dataset and key.

Their paths are ``parquet/dataset=<dataset>/key=<key>/part-0.parquet`` (Hive partitioning). Any Parquet library can
read them. They also contain `dataset` and `key` as columns, for libraries that do not support Hive partitioning. These
columns have the Arrow type dictionary (of strings), because Arrow derives this type from the names of the folders.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.records import ImageSet, Weights
from robust201.dataset.published_layout import CATEGORICAL, MATRIX, ParquetColumn, layout_of, parquet_columns
from robust201.dataset.shard_rows import RowBatch
from robust201.statistics.outcomes import pack_outcomes
from robust201.store.shards import StackedColumn
from robust201.tasks.columns import CORRECT_BITS, PREDICTIONS, count_classes

_COLUMNS_WITH_STATISTICS = ("architecture", "strength", "accuracy")
"""Columns with statistics, such as minimum and maximum, of each row group."""

_IMAGES_SCHEMA = pa.schema(
    [
        pa.field("dataset", CATEGORICAL, metadata={"description": "Dataset of the images."}),
        pa.field("position", pa.int32(), metadata={"description": "Index of the image's bit or class in a row."}),
        pa.field("row", pa.int64(), metadata={"description": "Row of the image in the dataset's test split."}),
        pa.field("label", pa.int32(), metadata={"description": "True class."}),
        pa.field("sha256", pa.string(), metadata={"description": "SHA-256 of its pixels: uint8, channels first."}),
    ]
)


@dataclass(frozen=True, eq=False, kw_only=True)
class KeyFormat:
    """Contents of a key's files besides its results.

    Attributes:
        dataset: name of the dataset.
        key: the key as it is spelled in files.
        measurements: names of the measurements, or a measure's columns.
        space: name of the search space.
        strength_description: description of the column `strength`.
        is_measure: whether the key is a measure.
        n_classes: number of classes, for rows whose values do not determine it; None if unknown.
        weights: weights by name, if architectures have rows for several weights.
        labels: (N,) labels of the images, if packed outcomes are written.
    """

    dataset: str
    key: str
    measurements: tuple[str, ...]
    space: str
    strength_description: str
    is_measure: bool = False
    n_classes: int | None = None
    weights: Mapping[str, Weights] = field(default_factory=dict)
    labels: NDArray[np.int64] | None = None


class ParquetWriter:
    """Writes a Parquet file, one row group per batch. The first batch determines the columns."""

    def __init__(self, stream: io.RawIOBase, key_format: KeyFormat) -> None:
        self._stream, self._key_format = stream, key_format
        self._writer: pq.ParquetWriter | None = None
        self._columns: dict[str, ParquetColumn] = {}

    def add(self, batch: RowBatch) -> None:
        self._writer = self._writer or self._open(batch)
        table = self._make_table(batch, self._writer.schema)
        self._writer.write_table(table, row_group_size=len(table))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open(self, first_batch: RowBatch) -> pq.ParquetWriter:
        key_format = self._key_format
        # A measure's first row determines whether its columns have numbers or lists.
        example_values = {name: np.asarray(column[0]) for name, column in first_batch.columns.items()}
        self._columns = columns = parquet_columns(
            key_format.measurements,
            layout_of(key_format.space).columns,
            key_format.strength_description,
            example_values=example_values if key_format.is_measure else None,
            weights=key_format.weights.values(),
            has_outcomes=key_format.labels is not None,
            n_classes=key_format.n_classes or 0,
        )
        matrix_columns = [
            f"{name}.list.element.list.element" for name, column in columns.items() if column.dtype == MATRIX
        ]
        fields = [
            pa.field(name, column.dtype, metadata={"description": column.meaning}) for name, column in columns.items()
        ]
        return pq.ParquetWriter(
            pa.PythonFile(self._stream, mode="w"),
            pa.schema(fields),
            compression="zstd",
            use_dictionary=[name for name, column in columns.items() if column.dtype == CATEGORICAL],
            column_encoding=dict.fromkeys(matrix_columns, "BYTE_STREAM_SPLIT"),
            write_statistics=[name for name in _COLUMNS_WITH_STATISTICS if name in columns],
            write_page_checksum=True,
        )

    def _make_table(self, batch: RowBatch, schema: pa.Schema) -> pa.Table:
        key_format, columns = self._key_format, self._columns
        units = [unit for unit in batch.units for _ in unit.strengths]
        n_classes = count_classes({name: np.asarray(column[0]) for name, column in batch.columns.items()})
        column_values: dict[str, Any] = {
            "dataset": [key_format.dataset] * len(units),
            "key": [key_format.key] * len(units),
            **layout_of(key_format.space).values([unit.architecture for unit in units]),
            "strength": [strength for unit in batch.units for strength in unit.strengths],
            "n_images": [unit.n_images or None for unit in units],
            "n_classes": [n_classes or key_format.n_classes] * len(units),
            "protocol": [unit.protocol or None for unit in units],
            "checkpoint_sha256": [unit.checkpoint_sha256 or None for unit in units],
        }
        if key_format.weights:
            weights_of_rows = [key_format.weights[unit.weights] for unit in units]
            column_values |= {
                "weights": [unit.weights for unit in units],
                "weights_recipe": [weights.recipe or None for weights in weights_of_rows],
                "weights_epochs": [weights.epochs for weights in weights_of_rows],
                "weights_steps": [weights.steps for weights in weights_of_rows],
                "weights_seed": [weights.seed for weights in weights_of_rows],
            }
        if CORRECT_BITS in columns:
            is_correct = batch.columns[PREDICTIONS] == key_format.labels
            column_values[CORRECT_BITS] = [bits.tobytes() for bits in pack_outcomes(is_correct)]
        column_values |= {
            name: self._measured_values(batch.columns[column.source_column.source], column)
            for name, column in columns.items()
            if column.source_column is not None
        }
        return pa.table(
            [pa.array(column_values[name], column.dtype) for name, column in columns.items()], schema=schema
        )

    def _measured_values(self, values: StackedColumn, column: ParquetColumn) -> Any:
        if self._key_format.is_measure or isinstance(values, list):
            return [array.tolist() for array in values]
        element = column.source_column.element if column.source_column else None
        return _to_nested_lists(values if element is None else values[:, element], column.dtype)


def _to_nested_lists(values: NDArray[Any], dtype: pa.DataType) -> pa.Array:
    """Convert an array (evaluations, …) to nested Arrow lists, with NaN as null."""
    array = pa.array(values.ravel(), from_pandas=values.dtype.kind == "f")
    for level in range(values.ndim - 1, 0, -1):
        n_lists = int(np.prod(values.shape[:level]))
        array = pa.ListArray.from_arrays(np.arange(n_lists + 1, dtype=np.int32) * values.shape[level], array)
    return array.cast(dtype)


def image_table_bytes(images: ImageSet) -> bytes:
    """Return a Parquet file with the table of a dataset's images, in the order of the outcomes.

    An outcome is a bit, which is set if a network classifies an image correctly.
    """
    hashes = [hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest() for pixels in images.images]
    arrays = [
        pa.array([images.dataset] * len(images), CATEGORICAL),
        pa.array(np.arange(len(images), dtype=np.int32)),
        pa.array(images.indices),
        pa.array(images.labels.astype(np.int32)),
        pa.array(hashes),
    ]
    stream = io.BytesIO()
    pq.write_table(pa.table(arrays, schema=_IMAGES_SCHEMA), stream, compression="zstd", write_page_checksum=True)
    return stream.getvalue()
