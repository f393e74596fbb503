"""What a shard says of its rows, read without their values: the end of a small shard, columns of a compacted one."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robust201.shards.backends import Entry, ShardPlace
from robust201.shards.identity import Rows, UnitFacts
from robust201.shards.parquet import FOOTER_KEY, IDENTITY_TYPES, Footer, damaged, failed_to_read

_SCAN_COLUMNS = [
    "unit_id",
    "architecture",
    "dataset",
    "key",
    "protocol",
    "n_images",
    "strength",
    "start",
    "stop",
    "seconds",
]
_TAIL_BYTES = 1 << 14
_FOOTER_END_BYTES = 8  # four bytes of length, four of magic


def read_footer(place: ShardPlace, entry: Entry) -> Footer:
    """Read what a shard says of itself, from its last bytes only.

    Raises:
        ShardDamagedError: the file is no whole shard.
        FormatVersionError: another format version wrote it.
        StorageError: it cannot be read now.
        FileNotFoundError: there is no such file.
    """
    shard, n_bytes = entry.name, entry.n_bytes
    tail = place.read(shard, max(0, n_bytes - _TAIL_BYTES), n_bytes)
    footer_bytes = int.from_bytes(tail[-_FOOTER_END_BYTES:-4], "little") + _FOOTER_END_BYTES
    if len(tail) < footer_bytes <= n_bytes:
        tail = place.read(shard, n_bytes - footer_bytes, n_bytes)
    return parse_footer(tail, place.label(shard))


def parse_footer(tail: bytes, label: str) -> Footer:
    """Read what a shard says of itself.

    Args:
        tail: its last bytes, the whole footer among them.
        label: path or URL of the shard, for messages.

    Raises:
        ShardDamagedError: the file is no whole shard.
        FormatVersionError: another format version wrote it.
    """
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail)).metadata
        return Footer.from_json(metadata[FOOTER_KEY.encode()], label)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(label, repr(error)) from error


def read_rows(place: ShardPlace, shard: str, footer: Footer) -> Rows:
    """Read the identity of a shard's rows: from the footer of a shard, from the columns of a compacted one.

    Raises:
        ShardDamagedError: the file is no whole shard.
        StorageError: it cannot be read now.
        FileNotFoundError: there is no such file.
    """
    try:
        return _rows_of_footer(footer) if footer.identity else _rows_of_columns(place.source(shard))
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise failed_to_read(place.label(shard), error) from error


def _rows_of_footer(footer: Footer) -> Rows:
    strengths, start, stop, seconds = footer.identity["rows"]
    n_rows = len(strengths)
    unit = UnitFacts(*footer.identity["unit"])
    "".join([unit.id, unit.dataset, unit.key, unit.protocol]).encode()  # texts, and such as can be stored
    np.array([unit.architecture, unit.n_images], dtype=np.int32)  # numbers, and small ones
    return Rows(
        (unit,),
        np.zeros(n_rows, dtype=np.int64),
        np.array(strengths, dtype=np.float64),
        np.full(n_rows, start, dtype=np.int32),
        np.full(n_rows, stop, dtype=np.int32),
        np.array(seconds, dtype=np.float32),
    )


def _rows_of_columns(source: Path | BinaryIO) -> Rows:
    dictionaries, pre_buffer = ["unit_id", "dataset", "key", "protocol"], not isinstance(source, Path)
    with pq.ParquetFile(source, read_dictionary=dictionaries, pre_buffer=pre_buffer) as file:
        table = file.read(columns=_SCAN_COLUMNS, use_threads=False)
    table = table.unify_dictionaries()
    arrays = {name: _checked(table[name]) for name in _SCAN_COLUMNS}
    _, first, unit = np.unique(arrays["unit_id"].indices.to_numpy(), return_index=True, return_inverse=True)
    heads = {name: arrays[name].take(pa.array(first)) for name in _SCAN_COLUMNS[:6]}
    decoded = {name: head.dictionary_decode() if name in dictionaries else head for name, head in heads.items()}
    units = UnitColumns({name: array.cast(IDENTITY_TYPES[name]) for name, array in decoded.items()})
    numbers = {name: arrays[name].cast(IDENTITY_TYPES[name]).to_numpy() for name in _SCAN_COLUMNS[6:]}
    return Rows(units, unit.astype(np.int64), **numbers)


def _checked(column: pa.ChunkedArray) -> pa.Array:
    """The one array of a column whose dictionaries are equal.

    Raises:
        pa.ArrowInvalid, ValueError: it holds what no writer of ours puts there; readers of pages do not notice.
    """
    array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    array.validate(full=True)
    if array.null_count:
        raise ValueError("empty cells")
    return array


class UnitColumns(Sequence[UnitFacts]):
    """Units of a compacted shard as columns, since a scan of a whole sweep needs no object for each of them.

    Args:
        columns: Arrow arrays by name, in the order of the fields of `UnitFacts`.
    """

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self.columns = columns

    @cached_property
    def _units(self) -> list[UnitFacts]:
        return list(map(UnitFacts._make, zip(*(column.to_pylist() for column in self.columns.values()), strict=True)))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @overload
    def __getitem__(self, place: int) -> UnitFacts: ...

    @overload
    def __getitem__(self, place: slice) -> list[UnitFacts]: ...

    def __getitem__(self, place: int | slice) -> UnitFacts | list[UnitFacts]:
        return self._units[place]


def table_rows(table: pa.Table) -> Rows:
    """Identity of a table's rows, each row a unit of its own: what `verify` compares with the scan."""
    facts = table.select(["unit_id", *_SCAN_COLUMNS[1:6]]).to_pydict()
    units = tuple(UnitFacts(*row) for row in zip(*facts.values(), strict=True))
    numbers = {name: table[name].to_numpy() for name in _SCAN_COLUMNS[6:]}
    return Rows(units, np.arange(len(table)), **numbers)
