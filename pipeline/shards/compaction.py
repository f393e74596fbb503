"""Many small shards into few large ones, while a run goes on.

A compacted shard names its inputs in its footer, and from the moment it appears readers ignore those. So no step in
between is ever visible: before the rename the inputs count, after it the compacted shard does. Inputs are deleted by a
later compaction, after a grace period for readers that still have them in hand, and only once the compacted shard's
bytes have been read back and match its name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ShardDamagedError
from pipeline.files import fsync_folder
from pipeline.shards.folder import ResultsFolder, is_compacted
from pipeline.shards.inventory import Inventory
from pipeline.shards.parquet import MEASUREMENT_TYPES, Footer, Table, gather, read_footer, write_tables
from pipeline.shards.reading import RowReader
from pipeline.shards.scan import scan

TEMPORARY_SECONDS = 24 * 3600.0
"""Age from which a temporary file counts as left behind: no write takes that long."""

MAX_COMPACTED_INPUTS = 8
"""Compacted shards merged at once: each keeps a row group in memory."""


@dataclass(frozen=True)
class CompactReport:
    """What a compaction did.

    Attributes:
        inputs: shards merged.
        outputs: compacted shards written.
        rows: rows in them.
        deleted: shards deleted that earlier compactions had merged.
        removed_temporaries: files deleted that killed writers had left behind.
        damaged: names of damaged shards that were met and left as they are.
    """

    inputs: int
    outputs: int
    rows: int
    deleted: int
    removed_temporaries: int
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class _Candidate:
    """A live shard that may be merged; ordered by where its first row belongs."""

    place: tuple[str, int, int, str]
    columns: frozenset[str]
    n_bytes: int
    number: int

    @property
    def shard(self) -> str:
        return self.place[-1]


class Compaction:
    """One pass over a results folder.

    Args:
        folder: the results folder.
        target_bytes: size that compacted shards aim at, on disk.
        row_group_bytes: size of their row groups, in memory.
        grace_seconds: age of a compacted shard from which its inputs are deleted.
        clock: wall clock in seconds since the epoch, to compare with the times of files.
    """

    def __init__(
        self,
        folder: ResultsFolder,
        *,
        target_bytes: int,
        row_group_bytes: int,
        grace_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._target_bytes = target_bytes
        self._row_group_bytes = row_group_bytes
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._damaged: set[str] = set()

    def run(self) -> CompactReport:
        """Delete what earlier passes merged, then merge what is small.

        Raises:
            StorageFullError: no space is left; nothing is lost and nothing half-written.
        """
        deleted = self._delete_inputs()
        removed = self._remove_temporaries()
        inventory = scan(self._folder, verify=False, on_damage="report")
        self._damaged.update(inventory.damaged)
        inputs = outputs = rows = 0
        for group in self._groups(inventory):
            n_inputs, n_rows = self._merge(inventory, group)
            inputs, outputs, rows = inputs + n_inputs, outputs + (n_inputs > 0), rows + n_rows
        return CompactReport(inputs, outputs, rows, deleted, removed, tuple(sorted(self._damaged)))

    def _age(self, path: Path) -> float:
        return self._clock() - path.stat().st_mtime

    def _delete_inputs(self) -> int:
        deleted = 0
        names = self._folder.list_shards()
        present = set(names)
        for shard in filter(is_compacted, names):
            path = self._folder.path(shard)
            try:
                inputs = present.intersection(read_footer(path).inputs)
                if not inputs or self._age(path) < self._grace_seconds:
                    continue
                self._folder.verify_hash(shard)
            except ShardDamagedError:
                self._damaged.add(shard)
                continue
            except FileNotFoundError:
                continue  # another compaction was faster
            for name in inputs:
                self._folder.path(name).unlink(missing_ok=True)
            fsync_folder(path.parent)
            present -= inputs
            deleted += len(inputs)
        return deleted

    def _remove_temporaries(self) -> int:
        removed = 0
        for path in self._folder.list_temporaries():
            try:
                if self._age(path) >= TEMPORARY_SECONDS:
                    path.unlink()
                    removed += 1
            except FileNotFoundError:
                continue  # its writer has just finished
        return removed

    def _candidates(self, inventory: Inventory) -> list[_Candidate]:
        numbers, first = np.unique(inventory.row_column("shard"), return_index=True)
        found = []
        for number, row in zip(numbers.tolist(), first.tolist(), strict=True):
            shard = inventory.shards[number]
            unit = inventory.units[inventory.row_column("unit")[row]]
            try:
                n_bytes = self._folder.path(shard).stat().st_size
            except FileNotFoundError:
                continue  # another compaction was faster
            start = int(inventory.row_column("start")[row])
            place = unit.key, unit.architecture, start, shard
            found.append(_Candidate(place, inventory.shard_columns(number), n_bytes, number))
        return sorted(found, key=lambda candidate: candidate.place)

    def _groups(self, inventory: Inventory) -> Iterator[list[_Candidate]]:
        """Choose sets of inputs, each of which becomes one compacted shard of about the target size.

        A set is complete in itself: an input never spreads over two outputs, of which one could be missing.
        """
        by_form: dict[tuple[str, tuple[str, ...]], list[_Candidate]] = {}
        for candidate in self._candidates(inventory):
            dataset = candidate.shard.partition("/")[0]
            by_form.setdefault((dataset, tuple(sorted(candidate.columns))), []).append(candidate)
        for candidates in by_form.values():
            compacted = [
                item for item in candidates if is_compacted(item.shard) and item.n_bytes < self._target_bytes // 2
            ]
            compacted = sorted(compacted, key=lambda item: item.n_bytes)[:MAX_COMPACTED_INPUTS]
            group: list[_Candidate] = []
            total = 0
            for item in [*compacted, *(item for item in candidates if not is_compacted(item.shard))]:
                if group and total + item.n_bytes > self._target_bytes:
                    yield group
                    group, total = [], 0
                group.append(item)
                total += item.n_bytes
            yield group

    def _merge(self, inventory: Inventory, group: list[_Candidate]) -> tuple[int, int]:
        intact = [item for item in group if self._is_intact(item.shard)]
        if len(intact) < 2:
            return 0, 0
        inputs = {item.shard for item in intact}
        for shard in filter(is_compacted, tuple(inputs)):
            # What an input replaces may still lie there, and must stay hidden.
            inputs.update(
                name for name in read_footer(self._folder.path(shard)).inputs if self._folder.path(name).exists()
            )
        columns = tuple(name for name in MEASUREMENT_TYPES if name in intact[0].columns)
        rows = _sorted_rows(inventory, [item.number for item in intact])
        reader = RowReader(self._folder)
        dataset = intact[0].shard.partition("/")[0]
        footer = Footer("compacted", columns, tuple(sorted(inputs)))
        with self._folder.publishing_compacted(dataset) as stream:
            n_rows = write_tables(stream, read_row_groups(reader, inventory, rows, self._row_group_bytes), footer)
        reader.close()
        return len(intact), n_rows

    def _is_intact(self, shard: str) -> bool:
        try:
            self._folder.verify_hash(shard)
        except ShardDamagedError:
            self._damaged.add(shard)
            return False
        except FileNotFoundError:
            return False  # another compaction was faster
        return True


def _sorted_rows(inventory: Inventory, shard_numbers: list[int]) -> NDArray[np.int64]:
    """Rows of some shards, in the order in which an export reads them."""
    rows = np.concatenate([inventory.rows_of_shard(number) for number in shard_numbers])
    units = [inventory.units[number] for number in inventory.row_column("unit")[rows].tolist()]
    keys = sorted({unit.key for unit in units})
    rank = {key: number for number, key in enumerate(keys)}
    order = np.lexsort(
        [
            inventory.row_column("shard")[rows],
            inventory.row_column("start")[rows],
            inventory.row_column("strength")[rows],
            np.array([unit.architecture for unit in units]),
            np.array([rank[unit.key] for unit in units]),
        ]
    )
    return rows[order]


def read_row_groups(
    reader: RowReader, inventory: Inventory, rows: NDArray[np.int64], row_group_bytes: int
) -> Iterator[Table]:
    """Read rows in the given order, in tables of about the given size."""
    pending: dict[tuple[str, int], _Piece] = {}
    n_rows, n_bytes = 0, 0.0
    for row in rows.tolist():
        shard, position = inventory.place(row)
        group, position_in_group = reader.locate(shard, position)
        piece = pending.get((shard, group))
        if piece is None:
            piece = pending[shard, group] = _Piece(reader.row_group(shard, group))
        piece.positions.append(position_in_group)
        piece.places.append(n_rows)
        n_rows += 1
        n_bytes += piece.bytes_per_row
        if n_bytes >= row_group_bytes:
            yield _gather(pending)
            pending, n_rows, n_bytes = {}, 0, 0.0
    if pending:
        yield _gather(pending)


class _Piece:
    def __init__(self, table: Table) -> None:
        self.table = table
        self.positions: list[int] = []
        self.places: list[int] = []
        self.bytes_per_row = table.nbytes / len(table)


def _gather(pending: dict[tuple[str, int], _Piece]) -> Table:
    return gather([(p.table, np.array(p.positions), np.array(p.places)) for p in pending.values()])
