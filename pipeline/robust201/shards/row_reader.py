"""Reading of evaluations' values from shards in any order; storage order is the fastest.

A unit is all evaluations of one network on one dataset under one key. An evaluation is one row, or several rows (parts)
with disjoint ranges of images, whose values are merged.
"""

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
from robust201.shards.parquet import SHAPE_COLUMNS, ShardFile, copy_row_values, copy_values_of_rows
from robust201.tasks.columns import COUNTS, OUTCOME_COUNTS, fields_of
from robust201.tasks.measurements import merge_values

SELECTION_CACHE_BYTES = 64 << 20
"""Default size of the cache with which a `RowSelection` is read."""

_MAX_OPEN_FILES = 64
_BATCH_BYTES = 2 << 20
"""Maximum size of a `RowBatch` of several units, in decoded bytes."""

_BYTES_BETWEEN_RELEASES = 2 << 20
"""Number of bytes to read before freed memory is released again. Releasing it after each small shard would be slow."""

_CACHE_BYTES = 256 << 20
"""Default size of a reader's cache: sixteen row groups, so that reading stays fast while up to sixteen compacted shards
overlap."""


class RowReader:
    """Reads rows of shards, with a cache of open files and decoded row groups.

    `cache_bytes` limits the total size of cached row groups; a row group above this limit is cached alone. `contents`
    maps names of shards to their bytes if these were already read. Methods raise ShardDamagedError, and StorageError if
    a shard has disappeared or cannot be read at the moment.
    """

    def __init__(
        self, folder: ResultsFolder, cache_bytes: int = _CACHE_BYTES, contents: Mapping[str, bytes] | None = None
    ) -> None:
        self._folder = folder
        self._contents = contents or {}
        self._cache_bytes = cache_bytes
        self._files: OrderedDict[str, ShardFile] = OrderedDict()
        self._tables: OrderedDict[tuple[str, int, frozenset[str] | None], pa.Table] = OrderedDict()
        self._cached_bytes = self._bytes_since_release = 0

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()
        self._tables.clear()
        self._cached_bytes = 0

    def _get_file(self, shard: str) -> ShardFile:
        if shard in self._files:
            self._files.move_to_end(shard)
            return self._files[shard]
        try:
            self._files[shard] = ShardFile(self._folder.backend, shard, self._contents.get(shard))
        except FileNotFoundError as error:
            raise StorageError(
                f"Reading failed for result file {self._folder.backend.label(shard)}: the file no longer exists, "
                "because it was set aside, or replaced by a compaction. Run the same command again."
            ) from error
        if len(self._files) > _MAX_OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return self._files[shard]

    def locate(self, shard: str, position: int) -> tuple[int, int]:
        """Return the row group that contains a shard's row, and the row's position in the row group."""
        first_rows = self._get_file(shard).first_rows
        row_group = int(np.searchsorted(first_rows, position, side="right")) - 1
        return row_group, position - int(first_rows[row_group])

    def read_row_group(self, shard: str, group: int, columns: frozenset[str] | None = None) -> pa.Table:
        """Return a row group, or some of its columns, from the cache if possible."""
        cache_key = shard, group, columns
        if cache_key in self._tables:
            self._tables.move_to_end(cache_key)
            return self._tables[cache_key]
        file = self._get_file(shard)
        n_bytes = file.count_encoded_bytes(group, columns)
        # Old row groups are evicted before reading, because reading temporarily needs more memory than its result.
        while self._tables and self._cached_bytes + n_bytes > self._cache_bytes:
            self._cached_bytes -= self._tables.popitem(last=False)[1].nbytes
        table = file.read(group, None if columns is None else sorted(columns))
        self._tables[cache_key] = table
        self._cached_bytes += table.nbytes
        self._bytes_since_release += n_bytes
        if self._bytes_since_release > _BYTES_BETWEEN_RELEASES:
            self._bytes_since_release = 0
            give_back_freed_memory()
        return table

    def find_count_columns(self, shard: str) -> tuple[str, ...]:
        """Return the names of a shard's columns that count images: `cm`, or the column that replaces it."""
        return tuple(name for name in (COUNTS, OUTCOME_COUNTS) if name in self._get_file(shard).columns)

    def find_row_range(self, shard: str, group: int) -> tuple[int, int]:
        """Return the range [first, stop) of a row group's rows in the shard."""
        first_row, end_row = self._get_file(shard).first_rows[group : group + 2].tolist()
        return first_row, end_row

    def measure_bytes_per_row(self, shard: str, group: int, table: pa.Table) -> float:
        """Return the mean size of a row, in memory or encoded, whichever is larger.

        The encoded size is larger for `predictions`, because Parquet stores each byte as four bytes.
        """
        n_bytes: int = max(table.nbytes, self._get_file(shard).count_encoded_bytes(group))
        return n_bytes / len(table)

    def read_row(self, shard: str, position: int, columns: Collection[str]) -> dict[str, NDArray[Any]]:
        """Return the measurements of one row, in arrays that share no memory with the cache."""
        group, position_in_group = self.locate(shard, position)
        table = self.read_row_group(shard, group, frozenset(columns) | set(SHAPE_COLUMNS))
        return copy_row_values(table, position_in_group, sorted(columns))

    def read_merged(self, rows: Sequence[tuple[str, int]], columns: Collection[str]) -> dict[str, NDArray[Any]]:
        """Return the merged measurements of one evaluation, whose rows are (shard, position) pairs."""
        values_by_row = [self.read_row(shard, position, columns) for shard, position in rows]
        return values_by_row[0] if len(values_by_row) == 1 else dict(merge_values(values_by_row))


@dataclass
class _SelectedRows:
    """Selected rows of one row group: their `positions` in it, and `targets`, their positions in the output table."""

    table: pa.Table
    bytes_per_row: float
    positions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


def read_rows_in_order(
    reader: RowReader, inventory: Inventory, rows: NDArray[np.integer[Any]], row_group_bytes: int
) -> Iterator[pa.Table]:
    """Yield rows of an inventory in the given order, as tables of about `row_group_bytes` with one chunk per column."""
    pending: dict[tuple[str, int], _SelectedRows] = {}
    n_rows, n_bytes = 0, 0.0
    for row in rows.tolist():
        shard, position = inventory.locate(row)
        group, position_in_group = reader.locate(shard, position)
        selected = pending.get((shard, group))
        if selected is None:
            table = reader.read_row_group(shard, group)
            selected = _SelectedRows(table, reader.measure_bytes_per_row(shard, group, table))
        if pending and n_bytes + selected.bytes_per_row > row_group_bytes:
            yield _gather(pending.values(), n_rows)
            pending, n_rows, n_bytes = {}, 0, 0.0
            selected = _SelectedRows(selected.table, selected.bytes_per_row)
        pending[shard, group] = selected
        selected.positions.append(position_in_group)
        selected.targets.append(n_rows)
        n_rows += 1
        n_bytes += selected.bytes_per_row
    if pending:
        yield _gather(pending.values(), n_rows)


def _gather(selections: Collection[_SelectedRows], n_rows: int) -> pa.Table:
    """Return one table of the selected rows, each at its target position."""
    order = np.empty(n_rows, dtype=np.int64)
    slices, offset = [], 0
    for selected in selections:
        positions = np.array(selected.positions)
        first_position = int(positions.min())
        slices.append(selected.table.slice(first_position, int(positions.max()) + 1 - first_position))
        order[selected.targets] = positions - first_position + offset
        offset += len(slices[-1])
    return pa.concat_tables(slices).combine_chunks().take(from_numpy(order))


StoredColumn: TypeAlias = NDArray[Any] | list[NDArray[Any]]


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Columns of the E evaluations of some units, ordered by unit and strength.

    A column is an array (E, …), or a list of E arrays if their shapes differ.
    """

    units: tuple[Unit, ...]
    columns: Mapping[str, StoredColumn]

    @classmethod
    def of_unit(cls, unit: Unit, columns_by_strength: Mapping[float, Mapping[str, NDArray[Any]]]) -> Self:
        evaluations = [columns_by_strength[strength] for strength in unit.strengths if strength in columns_by_strength]
        columns: dict[str, StoredColumn] = {}
        for name in evaluations[0] if evaluations else ():
            arrays = [np.asarray(values[name]) for values in evaluations]
            columns[name] = np.stack(arrays) if len({array.shape for array in arrays}) == 1 else arrays
        return cls((unit,), columns)

    @property
    def n_evaluations(self) -> int:
        return sum(len(unit.strengths) for unit in self.units)

    def __getitem__(self, units: slice) -> "RowBatch":
        """Return a batch of a slice of the units."""
        starts = np.cumsum([0, *(len(unit.strengths) for unit in self.units)])
        first, stop, _ = units.indices(len(self.units))
        evaluations = slice(starts[first], starts[stop])
        return RowBatch(self.units[units], {name: column[evaluations] for name, column in self.columns.items()})

    def bytes_by_unit(self) -> list[int]:
        """Return the size of each unit's columns in bytes."""
        evaluation_bytes = np.zeros(self.n_evaluations, np.int64)
        for column in self.columns.values():
            evaluation_bytes += (
                column.nbytes // len(column) if isinstance(column, np.ndarray) else [array.nbytes for array in column]
            )
        starts = np.cumsum([0, *(len(unit.strengths) for unit in self.units)])[:-1]
        unit_bytes: list[int] = np.add.reduceat(evaluation_bytes, starts).tolist()
        return unit_bytes

    def by_unit(self) -> Iterator[tuple[Unit, dict[float, dict[str, NDArray[Any]]]]]:
        """Yield each unit and its columns by strength."""
        index = 0
        for unit in self.units:
            values = {}
            for strength in unit.strengths:
                values[strength] = {name: np.asarray(column[index]) for name, column in self.columns.items()}
                index += 1
            yield unit, values


@dataclass(frozen=True, eq=False)
class RowSelection:
    """Locations of the stored values of some units, for reading in another process.

    A selection takes 8 bytes per row, in addition to the names of the shards. Units are in reading order. `offsets`,
    (E + 1,) int32, contains the first row of each of E evaluations, ordered by unit and strength, followed by the
    number of rows. `shard_index`, (R,) int32, contains indices into `shard_names`, and `row_position`, (R,) int32, row
    indices in these shards.
    """

    root: Path
    units: tuple[Unit, ...]
    measurements: tuple[str, ...]
    shard_names: tuple[str, ...]
    offsets: NDArray[np.int32]
    shard_index: NDArray[np.int32]
    row_position: NDArray[np.int32]
    cache_bytes: int = SELECTION_CACHE_BYTES

    def iter_values(
        self, measurement: str | None = None
    ) -> Iterator[tuple[Unit, Mapping[float, dict[str, NDArray[Any]]]]]:
        """Yield each unit with its columns of one or all measurements, by strength (raises like `iter_batches`)."""
        for batch in self.iter_batches(measurement):
            yield from batch.by_unit()

    def iter_batches(self, measurement: str | None = None) -> Iterator[RowBatch]:
        """Yield the columns of one or all measurements in batches of units (raises like `RowReader`)."""
        measurements = self.measurements if measurement is None else (measurement,)
        columns_to_read = [column for name in measurements for column in fields_of(name).values()]
        first_evaluations = np.cumsum([0, *(len(unit.strengths) for unit in self.units)])
        reader = RowReader(ResultsFolder(self.root), self.cache_bytes)
        first_unit = 0
        try:
            while first_unit < len(self.units):
                n_units, columns = self._read_rows_of_group(reader, first_evaluations[first_unit:], columns_to_read)
                if columns is None:
                    n_units = 1
                    batch = self._read_unit(
                        reader, self.units[first_unit], int(first_evaluations[first_unit]), columns_to_read
                    )
                else:
                    batch = RowBatch(self.units[first_unit : first_unit + n_units], columns)
                yield batch
                first_unit += n_units
        finally:
            reader.close()

    def _read_rows_of_group(
        self, reader: RowReader, first_evaluations: NDArray[np.int64], column_names: Sequence[str]
    ) -> tuple[int, Mapping[str, StoredColumn] | None]:
        """Read the next units whose rows are all in one row group, and return their number and their columns.

        `first_evaluations` contains the first evaluation of each remaining unit, followed by the number of evaluations.
        The columns are None if the next unit is in several row groups or in parts, or if the shapes of its rows differ.
        """
        first_row = int(self.offsets[first_evaluations[0]])
        shard = self.shard_names[self.shard_index[first_row]]
        group, _ = reader.locate(shard, int(self.row_position[first_row]))
        table = reader.read_row_group(shard, group, frozenset(column_names) | set(SHAPE_COLUMNS))
        group_start, group_stop = reader.find_row_range(shard, group)
        # One unit, or as many rows as fit into a batch.
        max_rows = max(
            int(first_evaluations[1] - first_evaluations[0]), int(_BATCH_BYTES * len(table) / max(1, table.nbytes))
        )
        n_rows_of_evaluations = np.diff(
            self.offsets[first_evaluations[0] : min(first_evaluations[0] + max_rows, first_evaluations[-1]) + 1]
        )
        rows = slice(first_row, first_row + len(n_rows_of_evaluations))
        is_in_group = (n_rows_of_evaluations == 1) & (self.shard_index[rows] == self.shard_index[first_row])
        is_in_group &= (self.row_position[rows] >= group_start) & (self.row_position[rows] < group_stop)
        n_evaluations = len(is_in_group) if is_in_group.all() else int(is_in_group.argmin())
        n_units = int(np.searchsorted(first_evaluations, first_evaluations[0] + n_evaluations, side="right")) - 1
        if not n_units:
            return 0, None
        end_row = first_row + int(first_evaluations[n_units] - first_evaluations[0])
        return n_units, copy_values_of_rows(table, self.row_position[first_row:end_row] - group_start, column_names)

    def _read_unit(self, reader: RowReader, unit: Unit, first_evaluation: int, column_names: Sequence[str]) -> RowBatch:
        """Read a unit's evaluations one by one; `first_evaluation` is the index of the first."""
        columns_by_strength = {}
        offsets = self.offsets[first_evaluation : first_evaluation + len(unit.strengths) + 1].tolist()
        for strength, (first_row, end_row) in zip(unit.strengths, pairwise(offsets), strict=True):
            locations = [
                (self.shard_names[self.shard_index[row]], int(self.row_position[row]))
                for row in range(first_row, end_row)
            ]
            # Parts can only be merged with their counts. An evaluation in one row needs only the requested columns.
            columns: Collection[str] = column_names
            if len(locations) > 1:
                columns = {*column_names, "accuracy", *reader.find_count_columns(locations[0][0])}
            values = reader.read_merged(locations, columns)
            columns_by_strength[strength] = {name: values[name] for name in column_names}
        return RowBatch.of_unit(unit, columns_by_strength)
