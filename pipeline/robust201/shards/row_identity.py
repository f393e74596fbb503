"""What a shard says of its rows, read without their values: the end of a small shard, columns of a compacted one."""

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
from robust201.shards.backends import Entry
from robust201.shards.object_store import StorageBackend
from robust201.shards.parquet import (
    FOOTER_KEY,
    IDENTITY_TYPES,
    MEASUREMENT_TYPES,
    WIDE_TYPES,
    Footer,
    damaged_shard,
    failed_to_read,
)
from robust201.shards.validation import WrongShardError, check_identity, check_row_count, check_schema

_UNIT_COLUMNS = ["unit_id", "architecture", "dataset", "key", "protocol", "n_images"]  # as the fields of `StoredUnit`
_NUMBER_COLUMNS = ["strength", "start", "stop", "seconds"]
_TEXT_COLUMNS = ["unit_id", "dataset", "key", "protocol"]
_TAIL_BYTES = 1 << 14
_FOOTER_END_BYTES = 8  # four bytes of length, four of magic


class StoredUnit(NamedTuple):
    """What a shard says of a unit."""

    id: str
    architecture: ArchitectureId
    dataset: str
    key: str
    protocol: str
    n_images: int


@dataclass(frozen=True, eq=False)
class ShardRows:
    """Identity of the R rows of one shard, in file order; `unit` holds positions in `units`."""

    units: "Sequence[StoredUnit] | UnitColumns"
    unit: NDArray[np.int64]
    strength: NDArray[np.float64]
    start: NDArray[np.int32]
    stop: NDArray[np.int32]
    seconds: NDArray[np.float32]


def read_footer(backend: StorageBackend, entry: Entry) -> Footer:
    """Read what a shard says of itself, from its last bytes only (raises as `ShardFile`, and FormatVersionError)."""
    shard, n_bytes = entry.name, entry.n_bytes
    tail = backend.read(shard, max(0, n_bytes - _TAIL_BYTES), n_bytes)
    footer_bytes = int.from_bytes(tail[-_FOOTER_END_BYTES:-4], "little") + _FOOTER_END_BYTES
    if len(tail) < footer_bytes <= n_bytes:
        tail = backend.read(shard, n_bytes - footer_bytes, n_bytes)
    return parse_footer(tail, backend.label(shard))


def parse_footer(tail: bytes, label: str) -> Footer:
    """Read what a shard says of itself from its last bytes, the whole footer among them.

    Raises ShardDamagedError, and FormatVersionError if another version wrote it.
    """
    try:
        return _read_checked(pq.read_metadata(pa.BufferReader(tail)), label)
    except WrongShardError as error:
        raise damaged_shard(label, error) from error
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise damaged_shard(label, repr(error)) from error


def _read_checked(metadata: pq.FileMetaData, label: str) -> Footer:
    footer = Footer.from_json(metadata.metadata[FOOTER_KEY.encode()], label)
    check_schema(metadata.schema.to_arrow_schema(), IDENTITY_TYPES, MEASUREMENT_TYPES, WIDE_TYPES, footer.columns)
    n_rows = len(footer.identity["rows"][0]) if footer.identity else metadata.num_rows
    if n_rows != metadata.num_rows:
        raise WrongShardError(f"{metadata.num_rows:,} rows where the footer names {n_rows:,}")
    return footer


def read_shard_rows(backend: StorageBackend, shard: str, footer: Footer) -> ShardRows:
    """Read the identity of a shard's rows: from its footer or, of a compacted one, columns (raises as `ShardFile`)."""
    try:
        return _rows_of_footer(footer) if footer.identity else _rows_of_columns(backend.source(shard))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise failed_to_read(backend.label(shard), error) from error


def _rows_of_footer(footer: Footer) -> ShardRows:
    strengths, start, stop, seconds = footer.identity["rows"]
    n_rows = len(strengths)
    unit = StoredUnit(*footer.identity["unit"])
    texts, numbers = [unit.id, unit.dataset, unit.key, unit.protocol], [unit.n_images]
    if isinstance(unit.architecture, str):
        texts.append(unit.architecture)
    else:
        numbers.append(unit.architecture)
    "".join(texts).encode()  # texts, and such as can be stored
    # NumPy would also convert text and truth values to numbers.
    if {*map(type, (start, stop, *numbers))} != {int} or not {*map(type, (*strengths, *seconds))} <= {int, float}:
        raise WrongShardError("identities of other types")
    if len(seconds) != n_rows or len({*strengths}) < n_rows:
        raise WrongShardError("a strength twice, or without its seconds")
    np.array(numbers, dtype=np.int32)  # small ones
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


def _rows_of_columns(source: Path | BinaryIO) -> ShardRows:
    """Read the identities of the rows of a shard with a checked schema."""
    names = [*_UNIT_COLUMNS, *_NUMBER_COLUMNS]
    with pq.ParquetFile(source, read_dictionary=_TEXT_COLUMNS, pre_buffer=not isinstance(source, Path)) as file:
        n_bytes = source.stat().st_size if isinstance(source, Path) else source.seek(0, 2)
        check_row_count(file.metadata.num_rows, n_bytes)
        table = file.read(columns=names, use_threads=False).unify_dictionaries()
    arrays = {name: _checked(table[name]) for name in names}
    _, first, unit = np.unique(to_numpy(arrays["unit_id"].indices), return_index=True, return_inverse=True)
    heads = {name: arrays[name].take(from_numpy(first)) for name in _UNIT_COLUMNS}
    decoded = {name: head.dictionary_decode() if name in _TEXT_COLUMNS else head for name, head in heads.items()}
    # Ids that are indices are stored as numbers; in memory all are text, of which there are many equal ones.
    kinds = IDENTITY_TYPES | {"architecture": pa.string()}
    units = UnitColumns({name: array.cast(kinds[name]) for name, array in decoded.items()})
    numbers = {name: to_numpy(arrays[name]) for name in _NUMBER_COLUMNS}
    check_identity(numbers["strength"], numbers["start"], numbers["stop"], to_numpy(arrays["n_images"]))
    return ShardRows(units, unit.astype(np.int64), **numbers)


def _shared_values(column: pa.Array) -> list[Any]:
    """Values of a column that has a few different ones: one object for each."""
    encoded = column.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    return [values[code] for code in encoded.indices.to_pylist()]


def _parse_architecture(text: str) -> ArchitectureId:
    return int(text) if text.isdecimal() else text


def _checked(column: pa.ChunkedArray) -> pa.Array:
    """The one array of a column; pa.ArrowInvalid and ValueError say that it holds what no writer of ours puts there."""
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
    array.validate(full=True)
    if array.null_count:
        raise ValueError("empty cells")
    return array


class UnitColumns:
    """Units as columns in the order of `StoredUnit`: a scan needs no object for each of them."""

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self.columns = columns

    @cached_property
    def _units(self) -> list[StoredUnit]:
        columns = {name: _shared_values(column) for name, column in self.columns.items() if name != "unit_id"}
        columns["architecture"] = list(map(_parse_architecture, columns["architecture"]))
        ids = self.columns["unit_id"].to_pylist()
        return list(map(StoredUnit._make, zip(ids, *columns.values(), strict=True)))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __iter__(self) -> Iterator[StoredUnit]:
        return iter(self._units)

    def __getitem__(self, position: int) -> StoredUnit:
        return self._units[position]


def is_of_units(table: pa.Table, units: Mapping[str, pa.Array]) -> bool:
    """Whether the rows of a table are of these units, row by row; ids of architectures are compared as text."""
    stored = ((table[name].combine_chunks(), expected) for name, expected in units.items())
    return all(column.cast(expected.type).equals(expected) for column, expected in stored)


def units_of_table(table: pa.Table) -> Iterator[StoredUnit]:
    """Yield the unit of each row of a table."""
    return map(StoredUnit._make, zip(*table.select(_UNIT_COLUMNS).to_pydict().values(), strict=True))
