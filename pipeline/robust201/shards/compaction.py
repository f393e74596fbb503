"""Compaction of many small shards into few large ones, possible while a run continues.

A compacted shard names its inputs in its footer. As soon as it appears, readers ignore its inputs. So no intermediate
state is ever visible: before the rename the inputs count, and after it the compacted shard. A later compaction deletes
the inputs, after a grace period for readers that still use them, and only after re-reading the compacted shard and
verifying that its bytes match its name.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ShardDamagedError
from robust201.core.records import ArchitectureId
from robust201.shards.backends import Entry, LocalBackend, is_compacted, map_ahead
from robust201.shards.folder import ResultsFolder
from robust201.shards.index import Index
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import ROW_GROUP_BYTES, Footer, write_tables
from robust201.shards.row_identity import read_footer
from robust201.shards.row_reader import RowReader, read_row_groups
from robust201.shards.scan import scan
from robust201.tasks.columns import stored_order

TARGET_BYTES = 192 << 20
GRACE_SECONDS = 24 * 3600.0
"""Time for which replaced shards are kept: longer than any export or status that may still read them."""

_RATIO = 0.8
"""Expected output bytes per byte of small inputs: footers are removed, and values compress slightly better. Outputs
stay within the bounds for any actual ratio between 0.54 and 1.06."""

MAX_COMPACTED_INPUTS = 8
"""Maximum number of compacted shards merged at once, since each keeps a row group in memory."""


@dataclass(frozen=True)
class CompactReport:
    """The result of a compaction: numbers of shards, rows and files, and names of damaged shards, left unchanged.

    `deleted` counts shards merged by earlier compactions, `removed_temporaries` files that killed writers left.
    """

    inputs: int
    outputs: int
    rows: int
    deleted: int
    removed_temporaries: int
    damaged: tuple[str, ...]


@dataclass(frozen=True)
class _Candidate:
    """A shard that may be merged.

    `order` consists of key, kind of id, architecture and first image of its first row; `number` is its position in the
    inventory.
    """

    order: tuple[str, bool, ArchitectureId, int]
    shard: str
    columns: frozenset[str]
    n_bytes: int
    number: int


@dataclass
class Compaction:
    """One pass over a results folder; safe while other processes commit.

    Compacted shards have two to four thirds of `target_bytes` on disk. The last one may be smaller; a later pass merges
    it with new shards. `row_group_bytes` is the maximum size of a row group in memory, before compression. Inputs of a
    compacted shard are deleted when its age exceeds `grace_seconds`, measured by `clock`.
    """

    folder: ResultsFolder
    target_bytes: int = TARGET_BYTES
    row_group_bytes: int = ROW_GROUP_BYTES
    grace_seconds: float = GRACE_SECONDS
    clock: Callable[[], float] = time.time
    _entries: dict[str, Entry] = field(default_factory=dict, init=False)
    _damaged: set[str] = field(default_factory=set, init=False)

    def run(self) -> CompactReport:
        """Delete the inputs of earlier passes, then merge small shards; if the disk is full, no data is lost."""
        deleted = self._delete_inputs()
        removed = self.folder.backend.remove_temporaries(self.clock)
        inventory = scan(self.folder, verify="none", on_damage="report")
        self._entries = {entry.name: entry for entry in self.folder.backend.entries()}
        self._damaged.update(inventory.damaged)
        merged = [self._merge(inventory, group) for group in self._groups(inventory)]
        Index(self.folder.index).forget(self._damaged)
        return CompactReport(
            inputs=sum(n_inputs for n_inputs, _ in merged),
            outputs=sum(n_inputs > 0 for n_inputs, _ in merged),
            rows=sum(n_rows for _, n_rows in merged),
            deleted=deleted,
            removed_temporaries=removed,
            damaged=tuple(sorted(self._damaged)),
        )

    def _delete_inputs(self) -> int:
        deleted = 0
        entries = self.folder.backend.entries()
        present = {entry.name for entry in entries}
        for entry in entries:
            if not is_compacted(entry.name):
                continue
            try:
                inputs = present.intersection(read_footer(self.folder.backend, entry).inputs)
                if not inputs or self.clock() - entry.modified < self.grace_seconds:
                    continue
                self.folder.verify_hash(entry.name)
            except ShardDamagedError:
                self._damaged.add(entry.name)
                continue
            except FileNotFoundError:
                continue  # another compaction deleted it
            self.folder.backend.delete(sorted(inputs))
            present -= inputs
            deleted += len(inputs)
        return deleted

    def _candidates(self, inventory: Inventory) -> list[_Candidate]:
        numbers, first = np.unique(inventory.row_column("shard"), return_index=True)
        candidates = []
        for number, row in zip(numbers.tolist(), first.tolist(), strict=True):
            shard = inventory.shards[number]
            unit = inventory.units[inventory.row_column("unit")[row]]
            if shard not in self._entries:
                continue  # another compaction deleted it
            candidates.append(
                _Candidate(
                    order=(unit.key, *_rank(unit.architecture), int(inventory.row_column("start")[row])),
                    shard=shard,
                    columns=inventory.shard_columns(number),
                    n_bytes=self._entries[shard].n_bytes,
                    number=number,
                )
            )
        return sorted(candidates, key=lambda candidate: (candidate.order, candidate.shard))

    def _groups(self, inventory: Inventory) -> Iterator[list[_Candidate]]:
        """Yield groups of inputs, each of which becomes one compacted shard of about the target size.

        All rows of an input go into the same output, so no output depends on another.
        """
        by_layout: dict[tuple[str, bool, tuple[str, ...]], list[_Candidate]] = {}
        for candidate in self._candidates(inventory):
            dataset = candidate.shard.partition("/")[0]
            layout = (dataset, candidate.order[1], tuple(sorted(candidate.columns)))
            by_layout.setdefault(layout, []).append(candidate)
        for candidates in by_layout.values():
            yield from self._groups_of_layout(candidates)

    def _groups_of_layout(self, candidates: list[_Candidate]) -> Iterator[list[_Candidate]]:
        min_bytes = 2 * self.target_bytes // 3
        small = [item for item in candidates if is_compacted(item.shard) and item.n_bytes < min_bytes]
        small = sorted(small, key=lambda item: item.n_bytes)[:MAX_COMPACTED_INPUTS]
        group: list[_Candidate] = []
        total = 0.0
        for item in [*small, *(item for item in candidates if not is_compacted(item.shard))]:
            expected = item.n_bytes * (1.0 if is_compacted(item.shard) else _RATIO)
            bound = self.target_bytes if total >= min_bytes else 2 * min_bytes
            if group and total + expected > bound:
                yield group
                group, total = [], 0.0
            group.append(item)
            total += expected
        yield group

    def _merge(self, inventory: Inventory, group: list[_Candidate]) -> tuple[int, int]:
        contents = self._verified_contents(group)
        intact = [item for item in group if item.shard in contents]
        if len(intact) < 2:
            return 0, 0
        inputs = {item.shard for item in intact}
        for shard in filter(is_compacted, tuple(inputs)):
            # Shards that an input replaces may still exist, and must stay hidden.
            inputs.update(self._entries.keys() & set(read_footer(self.folder.backend, self._entries[shard]).inputs))
        columns = stored_order(intact[0].columns)
        rows = _sorted_rows(inventory, [item.number for item in intact])
        loaded = {name: content for name, content in contents.items() if content is not None}
        reader = RowReader(self.folder, contents=loaded)
        dataset = intact[0].shard.partition("/")[0]
        footer = Footer("compacted", columns, tuple(sorted(inputs)))
        with self.folder.open_compacted_shard(dataset) as stream:
            n_rows = write_tables(stream, read_row_groups(reader, inventory, rows, self.row_group_bytes), footer)
        reader.close()
        return len(intact), n_rows

    def _verified_contents(self, group: list[_Candidate]) -> dict[str, bytes | None]:
        """Hash inputs, several at once, leaving damaged and deleted ones out.

        Contents of small shards in an object store are kept in memory, because reading one again takes another round
        trip.
        """

        def verify(shard: str) -> bytes | ShardDamagedError | FileNotFoundError | None:
            try:
                if not is_compacted(shard) and not isinstance(self.folder.backend, LocalBackend):
                    return self.folder.read_verified(shard)
                self.folder.verify_hash(shard)
            except (ShardDamagedError, FileNotFoundError) as error:
                return error
            return None

        contents: dict[str, bytes | None] = {}
        shards = [item.shard for item in group]
        for shard, result in zip(shards, map_ahead(verify, shards, self.folder.backend.threads), strict=True):
            if isinstance(result, ShardDamagedError):
                self._damaged.add(shard)
            elif not isinstance(result, FileNotFoundError):  # otherwise another compaction deleted it
                contents[shard] = result
        return contents


def _rank(architecture: ArchitectureId) -> tuple[bool, ArchitectureId]:
    """Return a sort key for ids, integers first. The two kinds have different column types, and never share a shard."""
    return isinstance(architecture, str), architecture


def _sorted_rows(inventory: Inventory, shard_numbers: list[int]) -> NDArray[np.int64]:
    """Return the rows of some shards, in the order in which an export reads them."""
    rows = np.concatenate([inventory.rows_of_shard(number) for number in shard_numbers])
    units = [inventory.units[number] for number in inventory.row_column("unit")[rows].tolist()]
    names = [(unit.key, *_rank(unit.architecture)) for unit in units]
    rank = {name: number for number, name in enumerate(sorted(set(names)))}
    numbers = [inventory.row_column(name)[rows] for name in ("shard", "start", "strength")]
    return rows[np.lexsort([*numbers, np.array([rank[name] for name in names])])]
