"""Read the identities of a shard's rows without their measurements.

A row's identity is its unit (a network on one dataset under one key), its strength and its range of images.
An uncompacted shard has the identities in its footer; a compacted shard has them in its columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from robust201.core.records import ArchitectureId
from robust201.shards.arrow_arrays import from_numpy, to_numpy
from robust201.shards.backends import ShardEntry
from robust201.shards.object_store import StorageBackend
from robust201.shards.parquet import (
    FOOTER_KEY,
    IDENTITY_TYPES,
    MEASUREMENT_TYPES,
    WIDE_TYPES,
    Footer,
    invalid_shard_error,
    parquet_read_error,
)
from robust201.shards.validation import WrongShardError, check_identity, check_schema

_UNIT_COLUMNS = ["unit_id", "architecture", "dataset", "key", "protocol", "n_images"]  # in order of `StoredUnit`
_NUMBER_COLUMNS = ["strength", "start", "stop", "seconds"]
_TEXT_COLUMNS = ["unit_id", "dataset", "key", "protocol"]
_TAIL_BYTES = 1 << 14
_FOOTER_END_BYTES = 8  # four bytes for the footer's length, and four for Parquet's magic number


class StoredUnit(NamedTuple):
    """The identity of a unit, as stored in a shard."""

    id: str
    architecture: ArchitectureId
    dataset: str
    key: str
    protocol: str
    n_images: int


@dataclass(frozen=True, eq=False)
class ShardRows:
    """Identities of the R rows of one shard, in file order. `unit` is the index of each row's unit in `units`."""

    units: "Sequence[StoredUnit] | UnitColumns"
    unit: NDArray[np.int64]
    strength: NDArray[np.float64]
    start: NDArray[np.int32]
    stop: NDArray[np.int32]
    seconds: NDArray[np.float32]


def read_footer(backend: StorageBackend, entry: ShardEntry) -> Footer:
    """Read a shard's footer from its last bytes.

    Raises FileNotFoundError, ShardDamagedError or StorageError (see `shards.backends`), and FormatVersionError if
    another version of robust201 wrote the shard.
    """
    shard, n_bytes = entry.name, entry.n_bytes
    tail = backend.read(shard, max(0, n_bytes - _TAIL_BYTES), n_bytes)
    footer_bytes = int.from_bytes(tail[-_FOOTER_END_BYTES:-4], "little") + _FOOTER_END_BYTES
    if len(tail) < footer_bytes <= n_bytes:
        tail = backend.read(shard, n_bytes - footer_bytes, n_bytes)
    return parse_footer(tail, backend.label(shard))


def parse_footer(tail: bytes, label: str) -> Footer:
    """Parse a shard's footer from its last bytes, which must include the whole footer.

    Raises ShardDamagedError if the footer is invalid, and FormatVersionError if another version of robust201 wrote it.
    """
    try:
        return _parse_metadata(pq.read_metadata(pa.BufferReader(tail)), label)
    except WrongShardError as error:
        raise invalid_shard_error(label, error) from error
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise invalid_shard_error(label, repr(error)) from error


def _parse_metadata(metadata: pq.FileMetaData, label: str) -> Footer:
    footer = Footer.from_json(metadata.metadata[FOOTER_KEY.encode()], label)
    check_schema(metadata.schema.to_arrow_schema(), IDENTITY_TYPES, MEASUREMENT_TYPES, WIDE_TYPES, footer.columns)
    n_rows = len(footer.identity["rows"][0]) if footer.identity else metadata.num_rows
    if n_rows != metadata.num_rows:
        raise WrongShardError(f"{metadata.num_rows:,} rows, but identities of {n_rows:,} rows in its footer")
    return footer


def read_shard_rows(backend: StorageBackend, shard: str, footer: Footer) -> ShardRows:
    """Read the identities of a shard's rows, from the footer or the columns.

    Raises FileNotFoundError, ShardDamagedError or StorageError (see `shards.backends`).
    """
    try:
        return _rows_from_footer(footer) if footer.identity else _rows_from_columns(backend.source(shard))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise parquet_read_error(backend.label(shard), error) from error


def _rows_from_footer(footer: Footer) -> ShardRows:
    strengths, start, stop, seconds = footer.identity["rows"]
    n_rows = len(strengths)
    unit = StoredUnit(*footer.identity["unit"])
    strings, integers = [unit.id, unit.dataset, unit.key, unit.protocol], [unit.n_images]
    if isinstance(unit.architecture, str):
        strings.append(unit.architecture)
    else:
        integers.append(unit.architecture)
    "".join(strings).encode()  # raises an error if they are not text, or cannot be encoded
    # NumPy would also convert text and booleans to numbers.
    if {*map(type, (start, stop, *integers))} != {int} or not {*map(type, (*strengths, *seconds))} <= {int, float}:
        raise WrongShardError("identities of wrong types")
    if len(seconds) != n_rows or len({*strengths}) < n_rows:
        raise WrongShardError("a repeated strength, or strengths and computation times that differ in number")
    np.array(integers, dtype=np.int32)  # raises an error if they are too large
    rows = ShardRows(
        units=(unit,),
        unit=np.zeros(n_rows, dtype=np.int64),
        strength=np.array(strengths, dtype=np.float64),
        start=np.full(n_rows, start, dtype=np.int32),
        stop=np.full(n_rows, stop, dtype=np.int32),
        seconds=np.array(seconds, dtype=np.float32),
    )
    check_identity(rows.strength, rows.start, rows.stop, np.full(n_rows, unit.n_images))
    return rows


def _rows_from_columns(source: Path | BinaryIO) -> ShardRows:
    """Read and check the identities of a shard's rows from its columns."""
    column_names = [*_UNIT_COLUMNS, *_NUMBER_COLUMNS]
    with pq.ParquetFile(source, read_dictionary=_TEXT_COLUMNS, pre_buffer=not isinstance(source, Path)) as file:
        table = file.read(columns=column_names, use_threads=False).unify_dictionaries()
    arrays = {name: _join_and_validate(table[name]) for name in column_names}
    _, first_rows, unit_of_row = np.unique(to_numpy(arrays["unit_id"].indices), return_index=True, return_inverse=True)
    unit_arrays = {name: arrays[name].take(from_numpy(first_rows)) for name in _UNIT_COLUMNS}
    decoded_columns = {
        name: unit_array.dictionary_decode() if name in _TEXT_COLUMNS else unit_array
        for name, unit_array in unit_arrays.items()
    }
    # Indices of architectures are stored as integers, but all architectures are text in memory.
    types = IDENTITY_TYPES | {"architecture": pa.string()}
    units = UnitColumns({name: array.cast(types[name]) for name, array in decoded_columns.items()})
    number_columns = {name: to_numpy(arrays[name]) for name in _NUMBER_COLUMNS}
    check_identity(
        number_columns["strength"], number_columns["start"], number_columns["stop"], to_numpy(arrays["n_images"])
    )
    return ShardRows(units, unit_of_row.astype(np.int64), **number_columns)


def _decode_shared(column: pa.Array) -> list[Any]:
    """Return a column's values as a list that has only one object for each distinct value, to save memory."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    return [values[code] for code in encoded.indices.to_pylist()]


def _parse_architecture(text: str) -> ArchitectureId:
    return int(text) if text.isdecimal() else text


def _join_and_validate(column: pa.ChunkedArray) -> pa.Array:
    """Join a column's chunks; raise pa.ArrowInvalid or ValueError for contents that robust201 never writes."""
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    array.validate(full=True)
    if array.null_count:
        raise ValueError("null values")
    return array


class UnitColumns:
    """A sequence of units, stored as columns in the order of `StoredUnit` to avoid one object per unit in a scan."""

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self.columns = columns

    @cached_property
    def _units(self) -> list[StoredUnit]:
        columns = {name: _decode_shared(column) for name, column in self.columns.items() if name != "unit_id"}
        columns["architecture"] = list(map(_parse_architecture, columns["architecture"]))
        ids = self.columns["unit_id"].to_pylist()
        return list(map(StoredUnit._make, zip(ids, *columns.values(), strict=True)))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[StoredUnit]:
        return iter(self._units)

    def __getitem__(self, position: int) -> StoredUnit:
        return self._units[position]


def matches_units(table: pa.Table, units: Mapping[str, pa.Array]) -> bool:
    """Return whether each row of a table belongs to the unit at its position; architectures are compared as text."""
    column_pairs = ((table[name].combine_chunks(), expected) for name, expected in units.items())
    return all(column.cast(expected.type).equals(expected) for column, expected in column_pairs)


def iter_table_units(table: pa.Table) -> Iterator[StoredUnit]:
    """Yield the unit of each row of a table."""
    return map(StoredUnit._make, zip(*table.select(_UNIT_COLUMNS).to_pydict().values(), strict=True))
