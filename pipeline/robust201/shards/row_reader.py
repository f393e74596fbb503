"""Values of evaluations, read from shards in any order, cheaply in the order in which they are stored."""

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
_BATCH_BYTES = 2 << 20  # of decoded rows that are read together
_READ_BYTES = 2 << 20  # at a row group's columns, not at each small shard
_CACHE_BYTES = 256 << 20  # sixteen row groups: as many compacted shards may overlap before reading slows down


class RowReader:
    """Reads rows of shards through a cache of open files and decoded row groups.

    `cache_bytes` bounds the row groups kept; a larger one is kept alone, while it is in use. `contents` are bytes of
    shards that need not be read again, by name. Methods raise ShardDamagedError, and StorageError where a shard
    vanished or cannot be read now.
    """

    def __init__(
        self, folder: ResultsFolder, cache_bytes: int = _CACHE_BYTES, contents: Mapping[str, bytes] | None = None
    ) -> None:
        self._folder = folder
        self._contents = contents or {}
        self._cache_bytes = cache_bytes
        self._files: OrderedDict[str, ShardFile] = OrderedDict()
        self._tables: OrderedDict[tuple[str, int, frozenset[str] | None], pa.Table] = OrderedDict()
        self._held_bytes = self._read_bytes = 0

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
        self._tables.clear()
        self._held_bytes = 0

    def _file(self, shard: str) -> ShardFile:
        if shard in self._files:
            self._files.move_to_end(shard)
            return self._files[shard]
        try:
            self._files[shard] = ShardFile(self._folder.backend, shard, self._contents.get(shard))
        except FileNotFoundError as error:
            raise StorageError(
                f"Reading failed for result file {self._folder.backend.label(shard)}: expected it to stay, got none: "
                "it was set aside or replaced by a compaction meanwhile. Run the same command again."
            ) from error
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return self._files[shard]

    def locate(self, shard: str, position: int) -> tuple[int, int]:
        """Find a row: its row group, and its position in that."""
        first_rows = self._file(shard).first_rows
        group = int(np.searchsorted(first_rows, position, side="right")) - 1
        return group, position - int(first_rows[group])

    def row_group(self, shard: str, group: int, columns: frozenset[str] | None = None) -> pa.Table:
        """Read a row group, or some of its columns, or take it from the cache."""
        place = shard, group, columns
        if place in self._tables:
            self._tables.move_to_end(place)
            return self._tables[place]
        file = self._file(shard)
        coming = file.encoded_bytes(group, columns)
        # Room is made before, since reading takes more than the size of what is read meanwhile.
        while self._tables and self._held_bytes + coming > self._cache_bytes:
            self._held_bytes -= self._tables.popitem(last=False)[1].nbytes
        table = file.read(group, None if columns is None else sorted(columns))
        self._tables[place] = table
        self._held_bytes += table.nbytes
        self._read_bytes += coming
        if self._read_bytes > _READ_BYTES:
            self._read_bytes = 0
            give_back_freed_memory()
        return table

    def count_columns(self, shard: str) -> tuple[str, ...]:
        """Columns of a shard that count its images: a confusion matrix, or what stands in for it."""
        return tuple(name for name in (COUNTS, OUTCOME_COUNTS) if name in self._file(shard).columns)

    def rows_of_group(self, shard: str, group: int) -> tuple[int, int]:
        """Positions in a shard of the rows of a row group: first, and last + 1."""
        first, stop = self._file(shard).first_rows[group : group + 2].tolist()
        return first, stop

    def bytes_per_row(self, shard: str, group: int, table: pa.Table) -> float:
        """Mean size of a row, in memory or encoded, whichever is more: bytes of `predictions` are stored as four."""
        n_bytes: int = max(table.nbytes, self._file(shard).encoded_bytes(group))
        return n_bytes / len(table)

    def row(self, shard: str, position: int, columns: Collection[str]) -> dict[str, NDArray[Any]]:
        """Read the measurements of one row; the arrays share no memory with the cache."""
        group, row = self.locate(shard, position)
        table = self.row_group(shard, group, frozenset(columns) | set(LOCATING_COLUMNS))
        return row_values(table, row, sorted(columns))

    def merged(self, rows: Sequence[tuple[str, int]], columns: Collection[str]) -> dict[str, NDArray[Any]]:
        """Read rows that make up one evaluation, each a shard and a position in it, and merge them."""
        parts = [self.row(shard, position, columns) for shard, position in rows]
        return parts[0] if len(parts) == 1 else dict(merge_values(parts))


@dataclass
class _Piece:
    """Rows wanted of one row group: their positions in it, and in the table that is being gathered."""

    table: pa.Table
    bytes_per_row: float
    positions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


def read_row_groups(
    reader: RowReader, inventory: Inventory, rows: NDArray[np.integer[Any]], row_group_bytes: int
) -> Iterator[pa.Table]:
    """Read rows of an inventory in the given order, in tables of about the given size, each with one chunk a column."""
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

    A column has the shape (E, …), or is a list of E arrays where these differ in shape.
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
            sizes += column.nbytes // len(column) if isinstance(column, np.ndarray) else [one.nbytes for one in column]
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
    """Where the values of some units lie: 8 bytes per row and the names of the shards, to be sent to other processes.

    Units are in the order in which they are read, `offsets` are the first rows of their E evaluations, by unit and
    strength, and the number of rows; `shard` and `position`, (R,) int32, are positions in `shards` and in the shard.
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
        """Read one measurement, or all, unit by unit: columns by strength (raises as `iter_batches` does)."""
        for batch in self.iter_batches(measurement):
            yield from batch.by_unit()

    def iter_batches(self, measurement: str | None = None) -> Iterator[RowBatch]:
        """Read one measurement, or all, of some units at a time, of each row what is needed (raises as `RowReader`)."""
        measurements = self.measurements if measurement is None else (measurement,)
        wanted = [column for name in measurements for column in fields_of(name).values()]
        starts = np.cumsum([0, *(len(unit.strengths) for unit in self.units)])
        reader = RowReader(ResultsFolder(self.root), self.cache_bytes)
        first = 0
        try:
            while first < len(self.units):
                n_units, columns = self._read_together(reader, starts[first:], wanted)
                if columns is None:
                    n_units, batch = 1, self._read_one(reader, self.units[first], int(starts[first]), wanted)
                else:
                    batch = RowBatch(self.units[first : first + n_units], columns)
                yield batch
                first += n_units
        finally:
            reader.close()

    def _read_together(
        self, reader: RowReader, starts: NDArray[np.int64], wanted: Sequence[str]
    ) -> tuple[int, Mapping[str, StoredColumn] | None]:
        """Read the first of some units, as far as their rows lie in one row group: how many, and their columns.

        `starts` are the first evaluations of the units, and the end of the last. None in place of the columns: the
        first unit lies in several row groups or in parts, or its rows differ in shape.
        """
        first = int(self.offsets[starts[0]])
        shard = self.shards[self.shard[first]]
        group, _ = reader.locate(shard, int(self.position[first]))
        table = reader.row_group(shard, group, frozenset(wanted) | set(LOCATING_COLUMNS))
        low, high = reader.rows_of_group(shard, group)
        most = max(int(starts[1] - starts[0]), int(_BATCH_BYTES * len(table) / max(1, table.nbytes)))
        n_rows = np.diff(self.offsets[starts[0] : min(starts[0] + most, starts[-1]) + 1])
        rows = slice(first, first + len(n_rows))
        is_here = (n_rows == 1) & (self.shard[rows] == self.shard[first])
        is_here &= (self.position[rows] >= low) & (self.position[rows] < high)
        n_evaluations = len(is_here) if is_here.all() else int(is_here.argmin())
        n_units = int(np.searchsorted(starts, starts[0] + n_evaluations, side="right")) - 1
        if not n_units:
            return 0, None
        stop = first + int(starts[n_units] - starts[0])
        return n_units, values_of_rows(table, self.position[first:stop] - low, wanted)

    def _read_one(self, reader: RowReader, unit: Unit, evaluation: int, wanted: Sequence[str]) -> RowBatch:
        """Read the evaluations of a unit, from a number on, each from its own rows."""
        by_strength = {}
        edges = self.offsets[evaluation : evaluation + len(unit.strengths) + 1].tolist()
        for strength, (first, stop) in zip(unit.strengths, pairwise(edges), strict=True):
            rows = [(self.shards[self.shard[row]], int(self.position[row])) for row in range(first, stop)]
            # Parts are merged by their counts; a whole needs nothing but what is asked for.
            columns: Collection[str] = wanted
            if len(rows) > 1:
                columns = {*wanted, "accuracy", *reader.count_columns(rows[0][0])}
            merged = reader.merged(rows, columns)
            by_strength[strength] = {name: merged[name] for name in wanted}
        return RowBatch.of_unit(unit, by_strength)
