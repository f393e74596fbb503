"""The file format of shards: columns and footer, writing of shards, and reading of values.

A shard is a Parquet file (https://parquet.apache.org/docs/file-format/) with one row for each evaluation or slice of an
evaluation. `IDENTITY_TYPES` and `MEASUREMENT_TYPES` define its columns. The key `robust201` of the footer's metadata
contains a JSON object with the format version, the kind (``shard`` or ``compacted``) and the measurement columns. For
an uncompacted shard, it also contains a copy of the identities of the rows (`unit` and `rows`), so that a scan only
needs to read a few kilobytes per file. For a compacted shard, it contains the names of the shards that it replaces.

The settings of the writer were chosen by measurements on rows of trained networks. With zstd, the encoding
byte-stream-split makes the confidences 10% smaller, and a dictionary makes them 20% larger. Omitting statistics and the
Arrow schema halves the footer, which is a tenth of a small shard.
"""

import errno
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.errors import FormatVersionError, ShardDamagedError, StorageError
from robust201.core.records import EvaluationResult, canonical_json
from robust201.shards.arrow_arrays import from_numpy, from_values, join_chunks, numbers_of, to_numpy
from robust201.shards.backends import damage_error, unreadable_error
from robust201.shards.object_store import StorageBackend
from robust201.shards.validation import WrongShardError, check_schema, check_table
from robust201.tasks.columns import COLUMNS, count_classes, stored_order

FORMAT_VERSION = 1
"""Version of the format of columns and footer. It is independent of the versions of protocols."""

ROW_GROUP_BYTES = 16 << 20
"""Maximum size of a compacted shard's row group in memory, before compression. A larger row forms its own row group."""

FOOTER_KEY = "robust201"

IDENTITY_TYPES: dict[str, pa.DataType] = {
    "unit_id": pa.string(),
    "architecture": pa.int32(),
    "dataset": pa.string(),
    "key": pa.string(),
    "strength": pa.float64(),
    "protocol": pa.string(),
    "checkpoint_sha256": pa.string(),
    "start": pa.int32(),
    "stop": pa.int32(),
    "n_images": pa.int32(),
    "n_classes": pa.int16(),
    "seconds": pa.float32(),
    "provenance": pa.string(),
}
"""Types of the columns that identify or describe a row. `n_images` is the number of images of the whole unit, and
[`start`, `stop`) is the range of image positions of the row."""

MEASUREMENT_TYPES: dict[str, pa.DataType] = {
    name: pa.list_(pa.field("element", dtype)) if column.dimensions else dtype
    for name, column in COLUMNS.items()
    for dtype in (pa.from_numpy_dtype(column.dtype),)
}
"""Stored types of the measurement columns in `tasks.columns.COLUMNS`. Matrices are flattened in row-major order."""

WIDE_TYPES: dict[str, pa.DataType] = {
    name: pa.list_(pa.field("element", pa.from_numpy_dtype(column.wide_dtype)))
    for name, column in COLUMNS.items()
    if column.wide_dtype is not None
}
"""Types of the columns that need a wider type if there are more than `tasks.columns.MAX_COUNTED_CLASSES` classes."""

SHAPE_COLUMNS = ("n_classes", "start", "stop")
"""Identity columns that determine the shapes of a row's measurements."""

_STRING_COLUMNS = [name for name, dtype in IDENTITY_TYPES.items() if dtype == pa.string()]
_FLOAT_LIST = pa.list_(pa.field("element", pa.float64()))


@dataclass(frozen=True)
class Footer:
    """The part of a shard's footer that robust201 defines.

    `kind` is ``"shard"`` or ``"compacted"``. An uncompacted shard has an `identity` (`unit` and `rows` as JSON values).
    A compacted shard has `inputs`, the names of the shards that it replaces.
    """

    kind: str
    columns: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    identity: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return canonical_json(
            {
                "format_version": FORMAT_VERSION,
                "kind": self.kind,
                "columns": list(self.columns),
                "inputs": list(self.inputs),
                "identity": dict(self.identity),
            }
        )

    @classmethod
    def from_json(cls, encoded_json: bytes, label: str) -> "Footer":
        """Parse the result of `to_json`.

        Raises FormatVersionError for another version, and ValueError, KeyError or TypeError for invalid contents.
        """
        payload = json.loads(encoded_json)
        if payload["format_version"] != FORMAT_VERSION:
            raise FormatVersionError(
                f"Reading failed for result file {label}: expected format version {FORMAT_VERSION}, "
                f"got {payload['format_version']!r}. Use the version of robust201 that wrote it."
            )
        strings = [payload["kind"], *payload["columns"], *payload["inputs"]]
        "".join(strings).encode()  # raises an error if they are not text, or cannot be encoded
        return cls(payload["kind"], tuple(payload["columns"]), tuple(payload["inputs"]), payload["identity"])


def encode(results: Sequence[EvaluationResult]) -> bytes:
    """Return the bytes of a shard with the results of one part (one unit's results on a range of images).

    There must be at most one result per strength, and all results must have the same columns.
    """
    part, unit = results[0].part, results[0].part.unit
    identity = {  # `row_identity` reads both lists, and depends on the order of their elements
        "unit": [unit.id, unit.architecture, unit.dataset, unit.key, unit.protocol, unit.n_images],
        "rows": [
            [result.strength for result in results],
            part.start,
            part.stop,
            [float(np.float32(result.seconds)) for result in results],
        ],
    }
    sink = pa.BufferOutputStream()
    write_tables(sink, [_make_table(results)], Footer("shard", stored_order(results[0].values), identity=identity))
    return bytes(sink.getvalue())


def _make_table(results: Sequence[EvaluationResult]) -> pa.Table:
    part, unit = results[0].part, results[0].part.unit
    columns = stored_order(results[0].values)
    types = IDENTITY_TYPES | ({"architecture": pa.string()} if isinstance(unit.architecture, str) else {})
    shared_fields = {
        "unit_id": unit.id,
        "architecture": unit.architecture,
        "dataset": unit.dataset,
        "key": unit.key,
        "protocol": unit.protocol,
        "checkpoint_sha256": unit.checkpoint_sha256,
        "start": part.start,
        "stop": part.stop,
        "n_images": unit.n_images,
        "n_classes": count_classes(results[0].values),
    }
    cells: dict[str, list[Any]] = {name: [field_value] * len(results) for name, field_value in shared_fields.items()}
    cells["strength"] = [result.strength for result in results]
    cells["seconds"] = [result.seconds for result in results]
    cells["provenance"] = [canonical_json(dict(result.provenance)) for result in results]
    arrays = {name: from_values(column_cells, types[name]) for name, column_cells in cells.items()}
    for name in columns:
        arrays_of_results = [np.asarray(result.values[name]) for result in results]
        types[name] = MEASUREMENT_TYPES.get(name, _FLOAT_LIST if arrays_of_results[0].ndim else pa.float64())
        if name in WIDE_TYPES and arrays_of_results[0].dtype == COLUMNS[name].wide_dtype:
            types[name] = WIDE_TYPES[name]
        column = (
            _make_list_array(arrays_of_results, types[name])
            if arrays_of_results[0].ndim
            else from_numpy(np.stack(arrays_of_results))
        )
        arrays[name] = column.cast(types[name])
    return pa.table(arrays, schema=pa.schema(types))


def write_tables(sink: Any, tables: Iterable[pa.Table], footer: Footer) -> int:
    """Write a shard with one row group per table, and return the number of rows. There must be at least one table."""
    n_rows = 0
    remaining = iter(tables)
    first_table = next(remaining)
    float_columns = [f"{field.name}.list.element" for field in first_table.schema if field.type == _FLOAT_LIST]
    writer = pq.ParquetWriter(
        sink,
        first_table.schema,
        compression="zstd",
        use_dictionary=_STRING_COLUMNS,
        column_encoding=dict.fromkeys(float_columns, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        store_schema=False,
    )
    with writer:
        for table in chain([first_table], remaining):
            writer.write_table(table, row_group_size=len(table))
            n_rows += len(table)
        writer.add_key_value_metadata({FOOTER_KEY: footer.to_json()})
    return n_rows


def _make_list_array(values: Sequence[NDArray[Any]], list_type: pa.DataType) -> pa.Array:
    flat_arrays = [array.ravel() for array in values]
    offsets = np.cumsum([0, *(len(array) for array in flat_arrays)], dtype=np.int32)
    return pa.ListArray.from_arrays(from_numpy(offsets), from_numpy(np.concatenate(flat_arrays)), type=list_type)


def invalid_shard_error(label: str, fault: object) -> ShardDamagedError:
    """Return an error for a shard with invalid contents."""
    return damage_error(label, "a complete Parquet file written by robust201", fault)


def parquet_read_error(label: str, error: Exception) -> StorageError:
    """Return an error for a shard that a Parquet reader failed to read.

    Invalid bytes count as damage; errors of the operating system do not.
    """
    # For invalid bytes, readers raise an error without errno, or with EINVAL for a seek to an invalid position.
    if isinstance(error, OSError) and error.errno not in {None, errno.EINVAL}:
        return unreadable_error(label, error)
    return invalid_shard_error(label, error if isinstance(error, WrongShardError) else repr(error))


def parse_provenance(text: str) -> dict[str, str]:
    """Parse a row's provenance (see `EvaluationResult.provenance`); raise WrongShardError if it is invalid."""
    try:
        provenance = json.loads(text)
    except (ValueError, RecursionError):
        provenance = None
    if not isinstance(provenance, dict) or not all(isinstance(item, str) for item in provenance.values()):
        raise WrongShardError("a provenance that is not a JSON object of strings")
    return provenance


class ShardFile:
    """An open shard, whose row groups can be read one at a time.

    `content` contains the bytes of the shard if they were already read. Methods raise the errors listed in
    `shards.backends`. The caller has compared the shard with the hash in its name, because a damaged column can make
    Arrow abort the process.
    """

    def __init__(self, backend: StorageBackend, shard: str, content: bytes | None = None) -> None:
        self.label = backend.label(shard)
        try:
            self._source = backend.source(shard) if content is None else io.BytesIO(content)
            self._file = pq.ParquetFile(self._source, pre_buffer=not isinstance(self._source, Path))
            check_schema(self._file.schema_arrow, IDENTITY_TYPES, MEASUREMENT_TYPES, WIDE_TYPES)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise parquet_read_error(self.label, error) from error
        self.columns = tuple(name for name in self._file.schema_arrow.names if name not in IDENTITY_TYPES)
        self._metadata = self._file.metadata
        row_groups = map(self._metadata.row_group, range(self._metadata.num_row_groups))
        self.first_rows = np.cumsum([0, *(group.num_rows for group in row_groups)])
        """(G + 1,) int64: the first row of each of G row groups, followed by the number of rows."""

    def read(self, row_group: int, columns: Sequence[str] | None = None, *, stop: int | None = None) -> pa.Table:
        """Read one row group, or all row groups in [row_group, stop), with all or some columns."""
        try:
            groups = [row_group] if stop is None else [*range(row_group, stop)]
            table = self._file.read_row_groups(groups, columns=columns, use_threads=False)
            check_table(table)
            for text in table["provenance"].unique().to_pylist() if "provenance" in table.schema.names else ():
                parse_provenance(text)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise parquet_read_error(self.label, error) from error
        return table

    def count_encoded_bytes(self, row_group: int, columns: Collection[str] | None = None) -> int:
        """Return the size of a row group, or of some of its columns, before compression."""
        group = self._metadata.row_group(row_group)
        chunks = map(group.column, range(group.num_columns))
        return sum(
            chunk.total_uncompressed_size
            for chunk in chunks
            if columns is None or chunk.path_in_schema.partition(".")[0] in columns
        )

    def iter_group_ranges(self, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield ranges [first, stop) of row groups that have at most `max_bytes` before compression.

        A larger row group forms a separate range.
        """
        first_group, n_range_bytes = 0, 0
        for group in range(self._metadata.num_row_groups):
            group_bytes = self.count_encoded_bytes(group)
            if group > first_group and n_range_bytes + group_bytes > max_bytes:
                yield first_group, group
                first_group, n_range_bytes = group, 0
            n_range_bytes += group_bytes
        yield first_group, self._metadata.num_row_groups

    def close(self) -> None:
        self._file.close()
        if not isinstance(self._source, Path):
            self._source.close()


def copy_row_values(table: pa.Table, row: int, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Copy one row's measurements from a table with `SHAPE_COLUMNS`, and restore their shapes and types."""
    values = copy_values_of_rows(table.slice(row, 1), np.zeros(1, np.int64), columns) or {}
    return {name: np.asarray(array[0]) for name, array in values.items()}


def copy_values_of_rows(
    table: pa.Table, rows: NDArray[np.integer[Any]], columns: Sequence[str]
) -> dict[str, NDArray[Any]] | None:
    """Copy the measurements of R rows from a table as arrays (R, …); return None if shapes differ between rows."""
    shape_values = np.column_stack([numbers_of(table[name])[rows] for name in SHAPE_COLUMNS]).astype(np.int64)
    if (shape_values != shape_values[0]).any():
        return None
    n_classes, start, stop = shape_values[0].tolist()
    values: dict[str, NDArray[Any]] = {}
    for name in columns:
        array, column = join_chunks(table[name]), COLUMNS.get(name)
        if not isinstance(array, pa.ListArray):
            values[name] = to_numpy(array)[rows]
        else:
            offsets, flat_values = to_numpy(array.offsets), to_numpy(array.values)
            n_values = offsets[rows + 1] - offsets[rows]
            if (n_values != n_values[0]).any():
                return None
            if (np.diff(rows) == 1).all():
                values[name] = flat_values[offsets[rows[0]] : offsets[rows[-1] + 1]].reshape(len(rows), -1).copy()
            else:
                values[name] = np.stack(
                    [flat_values[offset : offset + n_values[0]] for offset in offsets[rows].tolist()]
                )
        if column is not None:
            shape = column.shape(n_classes, stop - start)
            dtype = column.wide_dtype if array.type == WIDE_TYPES.get(name) else column.dtype
            values[name] = values[name].astype(dtype, copy=False).reshape(len(rows), *shape)
    return values
