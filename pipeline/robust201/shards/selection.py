"""Where the values of chosen units lie: small enough to be sent to another process, which needs no inventory."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import Unit
from robust201.shards.folder import ResultsFolder
from robust201.shards.inventory import Inventory, columns_needed, columns_of
from robust201.shards.reading import RowReader
from robust201.tasks.columns import COLUMNS
from robust201.tasks.measurements import merge_values

CACHE_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Selection:
    """The rows of some units, chosen from an inventory: 8 bytes a row, and the names of the shards.

    Attributes:
        root: the results folder.
        units: the units, in the order in which they are read.
        measurements: names of the measurements that every row has.
        shards: names of the shards.
        offsets: (E + 1,) int32, the first row of each evaluation (by unit and strength), then the number of rows.
        shard: (R,) int32, position in `shards`.
        position: (R,) int32, position of the row in its shard.
        cache_bytes: bound on decoded row groups kept while reading.
    """

    root: Path
    units: tuple[Unit, ...]
    measurements: tuple[str, ...]
    shards: tuple[str, ...]
    offsets: NDArray[np.int32]
    shard: NDArray[np.int32]
    position: NDArray[np.int32]
    cache_bytes: int = CACHE_BYTES

    @cached_property
    def digest(self) -> str:
        """Name of what is read, by content: shards are named by their bytes, so equal digests mean equal values."""
        digest = hashlib.sha256()
        for unit in self.units:
            digest.update(f"{unit.id} {unit.architecture} {unit.strengths}\n".encode())
        digest.update("\n".join(self.shards).encode())
        for array in (self.offsets, self.shard, self.position):
            digest.update(array.tobytes())
        return digest.hexdigest()

    def iter_values(
        self, measurement: str | None = None
    ) -> Iterator[tuple[Unit, Mapping[float, dict[str, NDArray[Any]]]]]:
        """Read one measurement, or all, unit by unit, and of each row only what is needed.

        Args:
            measurement: one of `measurements`; None for all of them.

        Yields:
            Each unit, with the measurements' columns by strength.

        Raises:
            ShardDamagedError: a shard cannot be read.
            StorageError: a shard vanished since the selection was made.
        """
        measurements = self.measurements if measurement is None else (measurement,)
        wanted = [name for name, column in COLUMNS.items() if column.measurement in measurements]
        reader = RowReader(ResultsFolder(self.root), self.cache_bytes)
        try:
            evaluation = 0
            for unit in self.units:
                values: dict[float, dict[str, NDArray[Any]]] = {}
                for strength in unit.strengths:
                    first, stop = self.offsets[evaluation : evaluation + 2].tolist()
                    values[strength] = self._read(reader, first, stop, wanted)
                    evaluation += 1
                yield unit, values
        finally:
            reader.close()

    def _read(self, reader: RowReader, first: int, stop: int, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
        # Parts are merged by the counts of their confusion matrices; a whole needs nothing but what is asked for.
        columns: Collection[str] = wanted if stop - first == 1 else {*wanted, *columns_of(())}
        rows = [
            reader.row(self.shards[self.shard[row]], int(self.position[row]), columns) for row in range(first, stop)
        ]
        merged = rows[0] if len(rows) == 1 else merge_values(rows)
        return {name: merged[name] for name in wanted}


def select(
    root: Path, units: Sequence[Unit], inventory: Inventory, measurements: Collection[str], cache_bytes: int
) -> Selection:
    """Choose the rows of units (see `shards.ShardStore.select`)."""
    numbers: dict[str, int] = {}
    offsets, shard, position = [0], [], []
    for unit in units:
        columns = columns_needed(unit, measurements)
        for strength in unit.strengths:
            for item in inventory.slices(unit, strength, columns):
                name, place = inventory.place(item.row)
                shard.append(numbers.setdefault(name, len(numbers)))
                position.append(place)
            offsets.append(len(shard))
    starts, shards, places = (np.array(column, dtype=np.int32) for column in (offsets, shard, position))
    chosen = tuple(units), tuple(measurements), tuple(numbers)
    return Selection(root, *chosen, starts, shards, places, cache_bytes)
