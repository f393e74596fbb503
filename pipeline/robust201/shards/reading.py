"""Values of evaluations, read from shards in any order, cheaply in the order in which they are stored."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import StorageError
from robust201.core.freed_memory import give_back_freed_memory
from robust201.core.records import Unit
from robust201.shards.folder import ResultsFolder
from robust201.shards.inventory import Inventory, columns_needed
from robust201.shards.parquet import LOCATING_COLUMNS, ShardFile, Table, row_values
from robust201.tasks.measurements import merge_values

_OPEN_FILES = 64
_READ_BYTES = 2 << 20  # at a row group's columns, not at each small shard
_CACHE_BYTES = 256 << 20  # sixteen row groups: as many compacted shards may overlap before reading slows down


class RowReader:
    """Reads rows of shards through a cache of open files and decoded row groups.

    Args:
        folder: the results folder.
        cache_bytes: bound on decoded row groups kept; a larger one is kept alone, while it is in use.
        contents: bytes of shards that need not be read again, by name.
    """

    def __init__(
        self, folder: ResultsFolder, cache_bytes: int = _CACHE_BYTES, contents: Mapping[str, bytes] | None = None
    ) -> None:
        self._folder = folder
        self._contents = contents or {}
        self._cache_bytes = cache_bytes
        self._files: OrderedDict[str, ShardFile] = OrderedDict()
        self._tables: OrderedDict[tuple[str, int, frozenset[str] | None], Table] = OrderedDict()
        self._held_bytes = self._read_bytes = 0

    def close(self) -> None:
        """Close every file and forget every row group."""
        while self._files:
            self._files.popitem()[1].close()
        self._tables.clear()
        self._held_bytes = 0

    def _file(self, shard: str) -> ShardFile:
        if shard in self._files:
            self._files.move_to_end(shard)
            return self._files[shard]
        try:
            self._files[shard] = ShardFile(self._folder.place, shard, self._contents.get(shard))
        except FileNotFoundError as error:
            raise StorageError(
                f"Reading failed for shard {self._folder.place.label(shard)}: expected it to stay, got none: it was "
                "set aside or replaced by a compaction meanwhile. Run the same command again."
            ) from error
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return self._files[shard]

    def locate(self, shard: str, position: int) -> tuple[int, int]:
        """Find a row: its row group, and its position in that."""
        first_rows = self._file(shard).first_rows
        group = int(np.searchsorted(first_rows, position, side="right")) - 1
        return group, position - int(first_rows[group])

    def row_group(self, shard: str, group: int, columns: frozenset[str] | None = None) -> Table:
        """Read a row group, or take it from the cache.

        Args:
            shard: name of the shard.
            group: position of the row group.
            columns: names of columns; None for all.

        Raises:
            ShardDamagedError: its pages are not whole.
            StorageError: the shard vanished, or cannot be read now.
        """
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

    def bytes_per_row(self, shard: str, group: int, table: Table) -> float:
        """Mean size of a row, in memory or encoded, whichever is more: bytes of `predictions` are stored as four."""
        n_bytes: int = max(table.nbytes, self._file(shard).encoded_bytes(group))
        return n_bytes / len(table)

    def row(self, shard: str, position: int, columns: Collection[str]) -> dict[str, NDArray[Any]]:
        """Read the measurements of one row.

        Args:
            shard: name of the shard.
            position: of the row in the shard.
            columns: measurement columns.

        Returns:
            Arrays by column; they share no memory with the cache.

        Raises:
            ShardDamagedError: the shard is not whole.
            StorageError: it vanished, or cannot be read now.
        """
        group, row = self.locate(shard, position)
        table = self.row_group(shard, group, frozenset(columns) | set(LOCATING_COLUMNS))
        return row_values(table, row, sorted(columns))

    def values(
        self, unit: Unit, strength: float, inventory: Inventory, measurements: Collection[str]
    ) -> dict[str, NDArray[Any]]:
        """Read an evaluation, its parts merged (see `ShardStore.values`)."""
        columns = columns_needed(unit, measurements)
        rows = [item.row for item in inventory.slices(unit, strength, columns)]
        parts = [self.row(*inventory.place(row), columns) for row in rows]
        return parts[0] if len(parts) == 1 else dict(merge_values(parts))


def iterate_values(
    reader: RowReader, units: Iterable[Unit], inventory: Inventory, measurements: Collection[str]
) -> Iterator[tuple[Unit, dict[float, dict[str, NDArray[Any]]]]]:
    """Read the complete evaluations of units, unit by unit (see `ShardStore.iter_values`)."""
    for unit in units:
        yield (
            unit,
            {
                strength: reader.values(unit, strength, inventory, measurements)
                for strength in unit.strengths
                if inventory.is_complete(unit, strength, measurements)
            },
        )
