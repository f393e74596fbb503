"""Reading of evaluations' values from shards, in any order; reading is cheap in storage order."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robust201.core.errors import StorageError
from robust201.core.memory import give_back_freed_memory
from robust201.core.records import Unit
from robust201.shards.arrow_arrays import from_numpy
from robust201.shards.folder import ResultsFolder
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import LOCATING_COLUMNS, ShardFile, row_values, values_of_rows
from robust201.tasks.columns import COUNTS, OUTCOME_COUNTS, fields_of
from robust201.tasks.measurements import merge_values

SELECTION_CACHE_BYTES = 64 << 20
_OPEN_FILES = 64
_BATCH_BYTES = 2 << 20  # decoded rows that are read together
_READ_BYTES = 2 << 20  # bytes read before freed memory is released; less often than after each small shard
_CACHE_BYTES = 256 << 20  # sixteen row groups: reading stays fast while up to sixteen compacted shards overlap


class RowReader:
    """Reads rows of shards through a cache of open files and decoded row groups.

    `cache_bytes` limits the cached row groups; a larger one is cached alone, while it is in use. `contents` are bytes
    of shards by name, which need not be read again. Methods raise ShardDamagedError, and StorageError if a shard has
    disappeared or cannot be read now.
    """

    def __init__(
        self, folder: ResultsFolder, cache_bytes: int = _CACHE_BYTES, contents: Mapping[str, bytes] | None = None
    ) -> None:
        self._folder = folder
        self._contents = contents or {}
        self._cache_bytes = cache_bytes
        self._files: OrderedDict[str, ShardFile] = OrderedDict()
        self._tables: OrderedDict[tuple[str, int, frozenset[str] | None], pa.Table] = OrderedDict()
        self._cached_bytes = self._read_bytes = 0

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
        self._tables.clear()
        self._cached_bytes = 0

    def _file(self, shard: str) -> ShardFile:
        if shard in self._files:
            self._files.move_to_end(shard)
            return self._files[shard]
        try:
            self._files[shard] = ShardFile(self._folder.backend, shard, self._contents.get(shard))
        except FileNotFoundError as error:
            raise StorageError(
                f"Reading failed for result file {self._folder.backend.label(shard)}: it no longer exists, because "
                "it was set aside, or replaced by a compaction. Run the same command again."
            ) from error
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return self._files[shard]

    def locate(self, shard: str, position: int) -> tuple[int, int]:
        """Return the row group of a row, and its position in the row group."""
        first_rows = self._file(shard).first_rows
        group = int(np.searchsorted(first_rows, position, side="right")) - 1
        return group, position - int(first_rows[group])

    def row_group(self, shard: str, group: int, columns: frozenset[str] | None = None) -> pa.Table:
        """Return a row group or some of its columns, from the cache if possible."""
        cache_key = shard, group, columns
        if cache_key in self._tables:
            self._tables.move_to_end(cache_key)
            return self._tables[cache_key]
        file = self._file(shard)
        n_bytes = file.encoded_bytes(group, columns)
        # Evict before reading, since reading temporarily takes more than the size of the result.
        while self._tables and self._cached_bytes + n_bytes > self._cache_bytes:
            self._cached_bytes -= self._tables.popitem(last=False)[1].nbytes
        table = file.read(group, None if columns is None else sorted(columns))
        self._tables[cache_key] = table
        self._cached_bytes += table.nbytes
        self._read_bytes += n_bytes
        if self._read_bytes > _READ_BYTES:
            self._read_bytes = 0
            give_back_freed_memory()
        return table

    def count_columns(self, shard: str) -> tuple[str, ...]:
        """Return the columns of a shard that count images: the confusion matrix, or the column that replaces it."""
        return tuple(name for name in (COUNTS, OUTCOME_COUNTS) if name in self._file(shard).columns)

    def rows_of_group(self, shard: str, group: int) -> tuple[int, int]:
        """Return the range of a row group's rows in their shard, as first and last + 1."""
        first, stop = self._file(shard).first_rows[group : group + 2].tolist()
        return first, stop

    def bytes_per_row(self, shard: str, group: int, table: pa.Table) -> float:
        """Return a row's mean size in memory or encoded, whichever is larger: bytes of `predictions` take four each."""
        n_bytes: int = max(table.nbytes, self._file(shard).encoded_bytes(group))
        return n_bytes / len(table)

    def row(self, shard: str, position: int, columns: Collection[str]) -> dict[str, NDArray[Any]]:
        """Return the measurements of one row, in arrays that share no memory with the cache."""
        group, row = self.locate(shard, position)
        table = self.row_group(shard, group, frozenset(columns) | set(LOCATING_COLUMNS))
        return row_values(table, row, sorted(columns))

    def merged(self, rows: Sequence[tuple[str, int]], columns: Collection[str]) -> dict[str, NDArray[Any]]:
        """Return the merged measurements of the rows of one evaluation, given as shards and positions."""
        parts = [self.row(shard, position, columns) for shard, position in rows]
        return parts[0] if len(parts) == 1 else dict(merge_values(parts))


@dataclass
class _Piece:
    """Selected rows of one row group: their positions in it, and in the output table."""

    table: pa.Table
    bytes_per_row: float
    positions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


def read_row_groups(
    reader: RowReader, inventory: Inventory, rows: NDArray[np.integer[Any]], row_group_bytes: int
) -> Iterator[pa.Table]:
    """Yield rows of an inventory in a given order, in tables of about a given size, with one chunk per column."""
    pending: dict[tuple[str, int], _Piece] = {}
    n_rows, n_bytes = 0, 0.0
    for row in rows.tolist():
        shard, position = inventory.locate(row)
        group, position_in_group = reader.locate(shard, position)
        piece = pending.get((shard, group))
        if piece is None:
            table = reader.row_group(shard, group)
            piece = _Piece(table, reader.bytes_per_row(shard, group, table))
        if pending and n_bytes + piece.bytes_per_row > row_group_bytes:
            yield _gather(pending.values(), n_rows)
            pending, n_rows, n_bytes = {}, 0, 0.0
            piece = _Piece(piece.table, piece.bytes_per_row)
        pending[shard, group] = piece
        piece.positions.append(position_in_group)
        piece.targets.append(n_rows)
        n_rows += 1
        n_bytes += piece.bytes_per_row
    if pending:
        yield _gather(pending.values(), n_rows)


def _gather(pieces: Collection[_Piece], n_rows: int) -> pa.Table:
    order = np.empty(n_rows, dtype=np.int64)
    slices, offset = [], 0
    for piece in pieces:
        positions = np.array(piece.positions)
        low = int(positions.min())
        slices.append(piece.table.slice(low, int(positions.max()) + 1 - low))
        order[piece.targets] = positions - low + offset
        offset += len(slices[-1])
    return pa.concat_tables(slices).combine_chunks().take(from_numpy(order))


StoredColumn: TypeAlias = NDArray[Any] | list[NDArray[Any]]


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Columns of the E evaluations of some units, in the order of unit and strength.

    A column has the shape (E, …), or is a list of E arrays if their shapes differ.
    """

    units: tuple[Unit, ...]
    columns: Mapping[str, StoredColumn]

    @classmethod
    def of_unit(cls, unit: Unit, by_strength: Mapping[float, Mapping[str, NDArray[Any]]]) -> Self:
        rows = [by_strength[strength] for strength in unit.strengths if strength in by_strength]
        columns: dict[str, StoredColumn] = {}
        for name in rows[0] if rows else ():
            arrays = [np.asarray(row[name]) for row in rows]
            columns[name] = np.stack(arrays) if len({array.shape for array in arrays}) == 1 else arrays
        return cls((unit,), columns)

    @property
    def n_evaluations(self) -> int:
        return sum(len(unit.strengths) for unit in self.units)

    def __getitem__(self, units: slice) -> "RowBatch":
        starts = np.cumsum([0, *(len(unit.strengths) for unit in self.units)])
        first, stop, _ = units.indices(len(self.units))
        rows = slice(starts[first], starts[stop])
        return RowBatch(self.units[units], {name: column[rows] for name, column in self.columns.items()})

    def bytes_by_unit(self) -> list[int]:
        sizes = np.zeros(self.n_evaluations, np.int64)
        for column in self.columns.values():
            sizes += column.nbytes // len(column) if isinstance(column, np.ndarray) else [a.nbytes for a in column]
        starts = np.cumsum([0, *(len(unit.strengths) for unit in self.units)])[:-1]
        by_unit: list[int] = np.add.reduceat(sizes, starts).tolist()
        return by_unit

    def by_unit(self) -> Iterator[tuple[Unit, dict[float, dict[str, NDArray[Any]]]]]:
        evaluation = 0
        for unit in self.units:
            values = {}
            for strength in unit.strengths:
                values[strength] = {name: np.asarray(column[evaluation]) for name, column in self.columns.items()}
                evaluation += 1
            yield unit, values


@dataclass(frozen=True, eq=False)
class RowSelection:
    """Locations of the values of some units: 8 bytes per row, and the shards' names, to be sent to other processes.

    Units are in reading order. `offsets` are the first rows of their E evaluations, by unit and strength, followed by
    the number of rows. `shard` and `position`, (R,) int32, are indices into `shards` and into the shard.
    """

    root: Path
    units: tuple[Unit, ...]
    measurements: tuple[str, ...]
    shards: tuple[str, ...]
    offsets: NDArray[np.int32]
    shard: NDArray[np.int32]
    position: NDArray[np.int32]
    cache_bytes: int = SELECTION_CACHE_BYTES

    def iter_values(
        self, measurement: str | None = None
    ) -> Iterator[tuple[Unit, Mapping[float, dict[str, NDArray[Any]]]]]:
        """Yield one measurement, or all, unit by unit: columns by strength (raises like `iter_batches`)."""
        for batch in self.iter_batches(measurement):
            yield from batch.by_unit()

    def iter_batches(self, measurement: str | None = None) -> Iterator[RowBatch]:
        """Yield one measurement, or all, of several units at a time, reading only its columns (see `RowReader`)."""
        measurements = self.measurements if measurement is None else (measurement,)
        names = [column for name in measurements for column in fields_of(name).values()]
        starts = np.cumsum([0, *(len(unit.strengths) for unit in self.units)])
        reader = RowReader(ResultsFolder(self.root), self.cache_bytes)
        first = 0
        try:
            while first < len(self.units):
                n_units, columns = self._read_together(reader, starts[first:], names)
                if columns is None:
                    n_units, batch = 1, self._read_one(reader, self.units[first], int(starts[first]), names)
                else:
                    batch = RowBatch(self.units[first : first + n_units], columns)
                yield batch
                first += n_units
        finally:
            reader.close()

    def _read_together(
        self, reader: RowReader, starts: NDArray[np.int64], names: Sequence[str]
    ) -> tuple[int, Mapping[str, StoredColumn] | None]:
        """Read the first units whose rows are in one row group, and return their number and their columns.

        `starts` are the units' first evaluations, followed by the end of the last. The columns are None if the first
        unit is in several row groups or in parts, or if the shapes of its rows differ.
        """
        first = int(self.offsets[starts[0]])
        shard = self.shards[self.shard[first]]
        group, _ = reader.locate(shard, int(self.position[first]))
        table = reader.row_group(shard, group, frozenset(names) | set(LOCATING_COLUMNS))
        low, high = reader.rows_of_group(shard, group)
        max_rows = max(int(starts[1] - starts[0]), int(_BATCH_BYTES * len(table) / max(1, table.nbytes)))
        n_rows = np.diff(self.offsets[starts[0] : min(starts[0] + max_rows, starts[-1]) + 1])
        rows = slice(first, first + len(n_rows))
        is_in_group = (n_rows == 1) & (self.shard[rows] == self.shard[first])
        is_in_group &= (self.position[rows] >= low) & (self.position[rows] < high)
        n_evaluations = len(is_in_group) if is_in_group.all() else int(is_in_group.argmin())
        n_units = int(np.searchsorted(starts, starts[0] + n_evaluations, side="right")) - 1
        if not n_units:
            return 0, None
        stop = first + int(starts[n_units] - starts[0])
        return n_units, values_of_rows(table, self.position[first:stop] - low, names)

    def _read_one(self, reader: RowReader, unit: Unit, evaluation: int, names: Sequence[str]) -> RowBatch:
        """Read a unit's evaluations one by one; `evaluation` is the number of the first."""
        by_strength = {}
        edges = self.offsets[evaluation : evaluation + len(unit.strengths) + 1].tolist()
        for strength, (first, stop) in zip(unit.strengths, pairwise(edges), strict=True):
            rows = [(self.shards[self.shard[row]], int(self.position[row])) for row in range(first, stop)]
            # Parts are merged by their counts; an evaluation in one row needs only the requested columns.
            columns: Collection[str] = names
            if len(rows) > 1:
                columns = {*names, "accuracy", *reader.count_columns(rows[0][0])}
            merged = reader.merged(rows, columns)
            by_strength[strength] = {name: merged[name] for name in names}
        return RowBatch.of_unit(unit, by_strength)
