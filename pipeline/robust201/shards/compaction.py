"""Many small shards into few large ones, while a run goes on.

A compacted shard names its inputs in its footer, and from the moment it appears readers ignore those. So no step in
between is ever visible: before the rename the inputs count, after it the compacted shard does. Inputs are deleted by a
later compaction, after a grace period for readers that still have them in hand, and only once the compacted shard's
bytes have been read back and match its name.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ShardDamagedError
from robust201.core.records import is_imported
from robust201.shards.backends import Entry, LocalPlace, map_ahead
from robust201.shards.facts import read_footer
from robust201.shards.folder import ResultsFolder, is_compacted
from robust201.shards.index import Index
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import MEASUREMENT_TYPES, Footer, Table, gather, write_tables
from robust201.shards.reading import RowReader
from robust201.shards.scan import scan

_FIRST_RATIO = 0.8
"""Bytes of an output for each byte of small inputs, before one was seen: footers go, and values compress a little
better. Any true ratio between 0.54 and 1.06 gives an output within the bounds."""

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
        target_bytes: size that compacted shards aim at, on disk: from two to four thirds of it. What is left over makes
            a smaller one, which a later pass merges with what has come since.
        row_group_bytes: bound on their row groups, in memory and before compression; a larger row makes its own.
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
        self._place = folder.place
        self._entries: dict[str, Entry] = {}
        self._target_bytes = target_bytes
        self._row_group_bytes = row_group_bytes
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._damaged: set[str] = set()
        self._least_bytes = 2 * target_bytes // 3
        self._ratio = _FIRST_RATIO

    def run(self) -> CompactReport:
        """Delete what earlier passes merged, then merge what is small.

        Raises:
            StorageFullError: no space is left; nothing is lost and nothing half-written.
        """
        deleted = self._delete_inputs()
        removed = self._place.remove_temporaries(self._clock)
        inventory = scan(self._folder, verify="none", on_damage="report")
        self._entries = {entry.name: entry for entry in self._place.entries()}
        self._damaged.update(inventory.damaged)
        inputs = outputs = rows = 0
        for group in self._groups(inventory):
            n_inputs, n_rows = self._merge(inventory, group)
            inputs, outputs, rows = inputs + n_inputs, outputs + (n_inputs > 0), rows + n_rows
        Index(self._folder.index).forget(self._damaged)
        return CompactReport(inputs, outputs, rows, deleted, removed, tuple(sorted(self._damaged)))

    def _is_old(self, modified: float, seconds: float) -> bool:
        return self._clock() - modified >= seconds

    def _delete_inputs(self) -> int:
        deleted = 0
        entries = self._place.entries()
        present = {entry.name for entry in entries}
        for entry in entries:
            if not is_compacted(entry.name):
                continue
            try:
                inputs = present.intersection(read_footer(self._place, entry).inputs)
                if not inputs or not self._is_old(entry.modified, self._grace_seconds):
                    continue
                self._folder.verify_hash(entry.name)
            except ShardDamagedError:
                self._damaged.add(entry.name)
                continue
            except FileNotFoundError:
                continue  # another compaction was faster
            self._place.delete(sorted(inputs))
            present -= inputs
            deleted += len(inputs)
        return deleted

    def _candidates(self, inventory: Inventory) -> list[_Candidate]:
        numbers, first = np.unique(inventory.row_column("shard"), return_index=True)
        found = []
        for number, row in zip(numbers.tolist(), first.tolist(), strict=True):
            shard = inventory.shards[number]
            unit = inventory.units[inventory.row_column("unit")[row]]
            if shard not in self._entries:
                continue  # another compaction was faster
            if is_imported(unit.protocol):
                continue  # one shard a key already, which a later import of that key deletes as a whole
            n_bytes = self._entries[shard].n_bytes
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
            yield from self._groups_of_form(candidates)

    def _groups_of_form(self, candidates: list[_Candidate]) -> Iterator[list[_Candidate]]:
        small = [item for item in candidates if is_compacted(item.shard) and item.n_bytes < self._least_bytes]
        small = sorted(small, key=lambda item: item.n_bytes)[:MAX_COMPACTED_INPUTS]
        self._ratio = _FIRST_RATIO  # footers weigh more in one dataset than in another
        group: list[_Candidate] = []
        total = 0.0
        for item in [*small, *(item for item in candidates if not is_compacted(item.shard))]:
            expected = self._expected_bytes(item)
            bound = self._target_bytes if total >= self._least_bytes else 2 * self._least_bytes
            if group and total + expected > bound:
                yield group
                group, total = [], 0.0
                expected = self._expected_bytes(item)  # the group that was just merged has shown more
            group.append(item)
            total += expected
        yield group

    def _expected_bytes(self, item: _Candidate) -> float:
        """What an input adds to its output: a compacted one what it is, a small one less by what was seen so far."""
        return item.n_bytes * (1.0 if is_compacted(item.shard) else self._ratio)

    def _merge(self, inventory: Inventory, group: list[_Candidate]) -> tuple[int, int]:
        contents = self._verified_contents(group)
        intact = [item for item in group if item.shard in contents]
        if len(intact) < 2:
            return 0, 0
        inputs = {item.shard for item in intact}
        for shard in filter(is_compacted, tuple(inputs)):
            # What an input replaces may still lie there, and must stay hidden.
            inputs.update(self._entries.keys() & set(read_footer(self._place, self._entries[shard]).inputs))
        columns = tuple(name for name in MEASUREMENT_TYPES if name in intact[0].columns)
        rows = _sorted_rows(inventory, [item.number for item in intact])
        reader = RowReader(self._folder, contents={name: held for name, held in contents.items() if held is not None})
        dataset = intact[0].shard.partition("/")[0]
        footer = Footer("compacted", columns, tuple(sorted(inputs)))
        with self._folder.publishing_compacted(dataset) as stream:
            n_rows = write_tables(stream, read_row_groups(reader, inventory, rows, self._row_group_bytes), footer)
            n_bytes = stream.tell()
        reader.close()
        n_small = sum(item.n_bytes for item in intact if not is_compacted(item.shard))
        n_compacted = sum(item.n_bytes for item in intact) - n_small
        if n_small > n_compacted:
            self._ratio = min(1.0, max(0.1, (n_bytes - n_compacted) / n_small))
        return len(intact), n_rows

    def _verified_contents(self, group: list[_Candidate]) -> dict[str, bytes | None]:
        """Hash inputs, a few at once; damaged and vanished ones are left out.

        Small ones of an object store are kept in memory: reading one again would be another round trip.
        """

        def verify(shard: str) -> bytes | ShardDamagedError | FileNotFoundError | None:
            try:
                if not is_compacted(shard) and not isinstance(self._place, LocalPlace):
                    return self._folder.read_verified(shard)
                self._folder.verify_hash(shard)
            except (ShardDamagedError, FileNotFoundError) as error:
                return error
            return None

        contents: dict[str, bytes | None] = {}
        shards = [item.shard for item in group]
        for shard, found in zip(shards, map_ahead(verify, shards, self._place.threads), strict=True):
            if isinstance(found, ShardDamagedError):
                self._damaged.add(shard)
            elif not isinstance(found, FileNotFoundError):  # else another compaction was faster
                contents[shard] = found
        return contents


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
            table = reader.row_group(shard, group)
            piece = _Piece(table, reader.bytes_per_row(shard, group, table))
        if pending and n_bytes + piece.bytes_per_row > row_group_bytes:
            yield _gather(pending)
            pending, n_rows, n_bytes = {}, 0, 0.0
            piece = _Piece(piece.table, piece.bytes_per_row)
        pending[shard, group] = piece
        piece.positions.append(position_in_group)
        piece.places.append(n_rows)
        n_rows += 1
        n_bytes += piece.bytes_per_row
    if pending:
        yield _gather(pending)


class _Piece:
    def __init__(self, table: Table, bytes_per_row: float) -> None:
        self.table = table
        self.bytes_per_row = bytes_per_row
        self.positions: list[int] = []
        self.places: list[int] = []


def _gather(pending: dict[tuple[str, int], _Piece]) -> Table:
    return gather([(p.table, np.array(p.positions), np.array(p.places)) for p in pending.values()])
