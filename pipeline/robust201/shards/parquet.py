"""The file format of a shard: columns and footer, writing, and reading of values.

A shard is a Parquet file (https://parquet.apache.org/docs/file-format/) with one row per evaluation or slice of one.
Its columns are those of `IDENTITY_TYPES` and `MEASUREMENT_TYPES`. The footer's key `robust201` contains a JSON value:
format version, kind (``shard`` or ``compacted``) and measurement columns. For a shard, it also contains a copy of the
identity of its rows (`unit` and `rows`); for a compacted shard, the names of the shards that it replaces. The copy
makes scanning cheap: one read of a few kilobytes per file.

Measured on rows like those of trained networks: byte-stream-split makes the confidences 10% smaller under zstd, and a
dictionary makes them 20% larger. Leaving out statistics and the Arrow schema halves the footer, which is a tenth of a
small shard.
"""

import errno
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.errors import FormatVersionError, ShardDamagedError, StorageError
from robust201.core.files import open_file
from robust201.core.parquet_footer import parse_row_groups, read_footer_bytes
from robust201.core.records import EvaluationResult, canonical_json
from robust201.shards.arrow_arrays import from_numpy, from_values, join_chunks, numbers_of, to_numpy
from robust201.shards.backends import damaged, unreadable
from robust201.shards.object_store import StorageBackend
from robust201.shards.validation import WrongShardError, check_row_count, check_schema, check_sizes, check_table
from robust201.tasks.columns import COLUMNS, count_classes, stored_order

FORMAT_VERSION = 1
"""Version of a shard's columns and footer; it does not depend on protocols."""

ROW_GROUP_BYTES = 16 << 20
"""Maximum size of compacted shards' row groups, in memory before compression; a larger row has its own row group."""

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
"""Columns that identify a row; `n_images` is that of the whole unit, `start` and `stop` are the row's image
positions."""

MEASUREMENT_TYPES: dict[str, pa.DataType] = {
    name: pa.list_(pa.field("element", kind)) if column.dimensions else kind
    for name, column in COLUMNS.items()
    for kind in (pa.from_numpy_dtype(column.dtype),)
}
"""Stored types of the measurement columns in `tasks.columns.COLUMNS`; matrices are flattened by row."""

WIDE_TYPES: dict[str, pa.DataType] = {
    name: pa.list_(pa.field("element", pa.from_numpy_dtype(column.wide_dtype)))
    for name, column in COLUMNS.items()
    if column.wide_dtype is not None
}
"""Types of columns that need more bytes beyond `tasks.columns.MAX_COUNTED_CLASSES` classes."""

LOCATING_COLUMNS = ("n_classes", "start", "stop")
"""Identity columns that determine the shapes of a row's measurements."""

_STRING_COLUMNS = [name for name, kind in IDENTITY_TYPES.items() if kind == pa.string()]
_float_list = pa.list_(pa.field("element", pa.float64()))


@dataclass(frozen=True)
class Footer:
    """The contents of a shard's footer.

    `kind` is ``"shard"`` or ``"compacted"``. The footer of a shard contains its identity (`unit` and `rows` as JSON
    values), that of a compacted shard its inputs, which are the names of the shards that it replaces.
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
    def from_json(cls, text: bytes, label: str) -> "Footer":
        """Parse the result of `to_json`.

        Raises FormatVersionError for another version, and ValueError, KeyError or TypeError for other contents.
        """
        payload = json.loads(text)
        if payload["format_version"] != FORMAT_VERSION:
            raise FormatVersionError(
                f"Reading failed for result file {label}: expected format version {FORMAT_VERSION}, "
                f"got {payload['format_version']!r}. Use the version of robust201 that wrote it."
            )
        names = [payload["kind"], *payload["columns"], *payload["inputs"]]
        "".join(names).encode()  # raises an error if they are not text, or cannot be encoded
        return cls(payload["kind"], tuple(payload["columns"]), tuple(payload["inputs"]), payload["identity"])


def encode(results: Sequence[EvaluationResult]) -> bytes:
    """Encode the results of one part, one per strength and with the same columns, as the bytes of a shard."""
    part, unit = results[0].part, results[0].part.unit
    identity = {
        "unit": [unit.id, unit.architecture, unit.dataset, unit.key, unit.protocol, unit.n_images],
        "rows": [
            [result.strength for result in results],
            part.start,
            part.stop,
            [float(np.float32(result.seconds)) for result in results],
        ],
    }
    sink = pa.BufferOutputStream()
    write_tables(sink, [_table_of(results)], Footer("shard", stored_order(results[0].values), identity=identity))
    return bytes(sink.getvalue())


def _table_of(results: Sequence[EvaluationResult]) -> pa.Table:
    part, unit = results[0].part, results[0].part.unit
    columns = stored_order(results[0].values)
    kinds = IDENTITY_TYPES | ({"architecture": pa.string()} if isinstance(unit.architecture, str) else {})
    shared = {
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
    cells: dict[str, list[Any]] = {name: [value] * len(results) for name, value in shared.items()}
    cells["strength"] = [result.strength for result in results]
    cells["seconds"] = [result.seconds for result in results]
    cells["provenance"] = [canonical_json(dict(result.provenance)) for result in results]
    arrays = {name: from_values(values, kinds[name]) for name, values in cells.items()}
    for name in columns:
        values = [np.asarray(result.values[name]) for result in results]
        kinds[name] = MEASUREMENT_TYPES.get(name, _float_list if values[0].ndim else pa.float64())
        if name in WIDE_TYPES and values[0].dtype == COLUMNS[name].wide_dtype:
            kinds[name] = WIDE_TYPES[name]
        flat = _flat_lists(values, kinds[name]) if values[0].ndim else from_numpy(np.stack(values))
        arrays[name] = flat.cast(kinds[name])
    return pa.table(arrays, schema=pa.schema(kinds))


def write_tables(sink: Any, tables: Iterable[pa.Table], footer: Footer) -> int:
    """Write one or more tables of the same schema as row groups of one shard, and return the number of rows."""
    n_rows = 0
    remaining = iter(tables)
    first = next(remaining)
    floats = [f"{field.name}.list.element" for field in first.schema if field.type == _float_list]
    writer = pq.ParquetWriter(
        sink,
        first.schema,
        compression="zstd",
        use_dictionary=_STRING_COLUMNS,
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        write_statistics=False,
        store_schema=False,
    )
    with writer:
        for table in chain([first], remaining):
            writer.write_table(table, row_group_size=len(table))
            n_rows += len(table)
        writer.add_key_value_metadata({FOOTER_KEY: footer.to_json()})
    return n_rows


def _flat_lists(values: Sequence[NDArray[Any]], kind: pa.DataType) -> pa.Array:
    flat = [value.ravel() for value in values]
    offsets = np.cumsum([0, *(len(value) for value in flat)], dtype=np.int32)
    return pa.ListArray.from_arrays(from_numpy(offsets), from_numpy(np.concatenate(flat)), type=kind)


def damaged_shard_error(label: str, fault: object) -> ShardDamagedError:
    """Return the error of a shard that cannot be read."""
    return damaged(label, "a whole Parquet file of this project", fault)


def parquet_read_error(label: str, error: Exception) -> StorageError:
    """Return the error of a failed Parquet reader: wrong bytes are damage, errors of the operating system are not."""
    # For wrong bytes, readers raise an error without errno, or that of a seek to an invalid position.
    if isinstance(error, OSError) and error.errno not in {None, errno.EINVAL}:
        return unreadable(label, error)
    return damaged_shard_error(label, error if isinstance(error, WrongShardError) else repr(error))


def parse_provenance(text: str) -> dict[str, str]:
    """Parse a row's provenance (see `EvaluationResult.provenance`); raise WrongShardError if it is something else."""
    try:
        provenance = json.loads(text)
    except (ValueError, RecursionError):
        provenance = None
    if not isinstance(provenance, dict) or not all(isinstance(value, str) for value in provenance.values()):
        raise WrongShardError("a provenance that is not a JSON object of strings")
    return provenance


class ShardFile:
    """An open shard, read by row group, from its bytes if they were read already (errors as in `shards.backends`)."""

    def __init__(self, backend: StorageBackend, shard: str, content: bytes | None = None) -> None:
        self.label = backend.label(shard)
        try:
            self._source = backend.source(shard) if content is None else io.BytesIO(content)
            file = open_file(self._source, None) if isinstance(self._source, Path) else nullcontext(self._source)
            with file as stream:
                groups = parse_row_groups(read_footer_bytes(stream))
            self._file = pq.ParquetFile(self._source, pre_buffer=not isinstance(self._source, Path))
            check_schema(self._file.schema_arrow, IDENTITY_TYPES, MEASUREMENT_TYPES, WIDE_TYPES)
            check_sizes(groups, self._file.metadata.num_columns)
            counts = [group.n_rows for group in groups]
            check_row_count(sum(counts), sum(chunk.n_compressed for group in groups for chunk in group.chunks))
            self._columns_of_groups = [{chunk.column: chunk.n_bytes for chunk in group.chunks} for group in groups]
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise parquet_read_error(self.label, error) from error
        self.columns = tuple(name for name in self._file.schema_arrow.names if name not in IDENTITY_TYPES)
        self.first_rows = np.cumsum([0, *counts])
        """(G + 1,) int64: first row of each row group, followed by the number of rows."""

    def read(self, row_group: int, columns: Sequence[str] | None = None, *, stop: int | None = None) -> pa.Table:
        """Read one row group, or all before `stop`, or some of their columns (raises like the constructor)."""
        try:
            groups = [row_group] if stop is None else [*range(row_group, stop)]
            table = self._file.read_row_groups(groups, columns=columns, use_threads=False)
            check_table(table)
            for text in table["provenance"].unique().to_pylist() if "provenance" in table.schema.names else ():
                parse_provenance(text)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise parquet_read_error(self.label, error) from error
        return table

    def encoded_bytes(self, row_group: int, columns: Collection[str] | None = None) -> int:
        """Return the size of a row group, or of some of its columns, before compression."""
        sizes = self._columns_of_groups[row_group]
        return sum(size for name, size in sizes.items() if columns is None or name in columns)

    def runs(self, n_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield runs of row groups, as first and last + 1: at most `n_bytes` before compression, or a single group."""
        first, size = 0, 0
        for group in range(len(self._columns_of_groups)):
            group_bytes = self.encoded_bytes(group)
            if group > first and size + group_bytes > n_bytes:
                yield first, group
                first, size = group, 0
            size += group_bytes
        yield first, len(self._columns_of_groups)

    def close(self) -> None:
        self._file.close()
        if not isinstance(self._source, Path):
            self._source.close()


def row_values(table: pa.Table, row: int, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Copy one row's measurements from a table that has `LOCATING_COLUMNS`, with the original shapes and types."""
    values = values_of_rows(table.slice(row, 1), np.zeros(1, np.int64), columns) or {}
    return {name: np.asarray(array[0]) for name, array in values.items()}


def values_of_rows(
    table: pa.Table, rows: NDArray[np.integer[Any]], columns: Sequence[str]
) -> dict[str, NDArray[Any]] | None:
    """Copy the measurements of some rows from a table, like `row_values`: (R, …); return None if shapes differ."""
    sizes = np.column_stack([numbers_of(table[name])[rows] for name in LOCATING_COLUMNS]).astype(np.int64)
    if (sizes != sizes[0]).any():
        return None
    n_classes, start, stop = sizes[0].tolist()
    values: dict[str, NDArray[Any]] = {}
    for name in columns:
        array, column = join_chunks(table[name]), COLUMNS.get(name)
        if not isinstance(array, pa.ListArray):
            values[name] = to_numpy(array)[rows]
        else:
            offsets, flat = to_numpy(array.offsets), to_numpy(array.values)
            lengths = offsets[rows + 1] - offsets[rows]
            if (lengths != lengths[0]).any():
                return None
            if (np.diff(rows) == 1).all():
                values[name] = flat[offsets[rows[0]] : offsets[rows[-1] + 1]].reshape(len(rows), -1).copy()
            else:
                values[name] = np.stack([flat[first : first + lengths[0]] for first in offsets[rows].tolist()])
        if column is not None:
            shape = column.shape(n_classes, stop - start)
            dtype = column.wide_dtype if array.type == WIDE_TYPES.get(name) else column.dtype
            values[name] = values[name].astype(dtype, copy=False).reshape(len(rows), *shape)
    return values
