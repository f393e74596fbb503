"""Compaction of many small shards into a few large ones, which is possible during a run.

The footer of a compacted shard contains the names of its inputs. Once the compacted shard has its final name, readers
ignore these inputs, so they never see an intermediate state. Readers may still use the inputs, so only a later
compaction deletes them, after a grace period. It first verifies that the bytes of the compacted shard match its name.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ShardDamagedError
from robust201.core.records import ArchitectureId
from robust201.shards.backends import LocalBackend, ShardEntry, is_compacted, map_ahead
from robust201.shards.folder import ResultsFolder
from robust201.shards.index import Index
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import ROW_GROUP_BYTES, Footer, write_tables
from robust201.shards.row_identity import read_footer
from robust201.shards.row_reader import RowReader, read_rows_in_order
from robust201.shards.scan import scan
from robust201.tasks.columns import stored_order

TARGET_BYTES = 192 << 20
GRACE_SECONDS = 24 * 3600.0
"""Time before replaced shards are deleted, in seconds. No command that may still read them takes this long."""

_OUTPUT_RATIO = 0.8
"""Expected output bytes per byte of small inputs. The ratio is below 1 because footers are removed, and values compress
slightly better. Sizes of outputs stay within the limits of `Compaction` for any actual ratio between 0.54 and 1.06."""

MAX_COMPACTED_INPUTS = 8
"""Maximum number of compacted shards that are merged at once. Each needs memory for a row group."""


@dataclass(frozen=True)
class CompactReport:
    """The result of a compaction.

    `inputs`, `outputs` and `rows` are the numbers of merged shards, new shards and their rows. `deleted` is the number
    of deleted shards, which earlier compactions merged. `removed_temporaries` is the number of removed temporary files
    of killed writers. `damaged` are the names of damaged shards, which are not changed.
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

    `sort_key` consists of the task's key, whether the architecture's id is text, this id, and the first image of the
    shard's first row. `shard_number` is the shard's index in the inventory.
    """

    sort_key: tuple[str, bool, ArchitectureId, int]
    shard: str
    columns: frozenset[str]
    n_bytes: int
    shard_number: int


@dataclass
class Compaction:
    """One compaction of a results folder; other processes may commit results at the same time.

    Compacted shards have between two thirds and four thirds of `target_bytes` on disk. The last one may be smaller, and
    a later compaction merges it with new shards. `row_group_bytes` is the maximum size of a row group in memory, before
    compression. The inputs of a compacted shard are deleted when the compacted shard is older than `grace_seconds` by
    `clock`.
    """

    folder: ResultsFolder
    target_bytes: int = TARGET_BYTES
    row_group_bytes: int = ROW_GROUP_BYTES
    grace_seconds: float = GRACE_SECONDS
    clock: Callable[[], float] = time.time
    _entries: dict[str, ShardEntry] = field(default_factory=dict, init=False)
    _damaged_shards: set[str] = field(default_factory=set, init=False)

    def run(self) -> CompactReport:
        """Delete the inputs of earlier compactions, then merge small shards; no data is lost if the disk is full."""
        n_deleted = self._delete_inputs()
        n_removed = self.folder.backend.remove_temporaries(self.clock)
        inventory = scan(self.folder, verify="none", on_damage="report")
        self._entries = {entry.name: entry for entry in self.folder.backend.entries()}
        self._damaged_shards.update(inventory.damaged)
        input_and_row_counts = [self._merge(inventory, group) for group in self._iter_groups(inventory)]
        Index(self.folder.index).forget(self._damaged_shards)
        return CompactReport(
            inputs=sum(n_inputs for n_inputs, _ in input_and_row_counts),
            outputs=sum(n_inputs > 0 for n_inputs, _ in input_and_row_counts),
            rows=sum(n_rows for _, n_rows in input_and_row_counts),
            deleted=n_deleted,
            removed_temporaries=n_removed,
            damaged=tuple(sorted(self._damaged_shards)),
        )

    def _delete_inputs(self) -> int:
        """Delete the inputs of intact compacted shards whose grace period has passed; return their number."""
        n_deleted = 0
        entries = self.folder.backend.entries()
        present_names = {entry.name for entry in entries}
        for entry in entries:
            if not is_compacted(entry.name):
                continue
            try:
                inputs = present_names.intersection(read_footer(self.folder.backend, entry).inputs)
                if not inputs or self.clock() - entry.modified < self.grace_seconds:
                    continue
                self.folder.verify_hash(entry.name)
            except ShardDamagedError:
                self._damaged_shards.add(entry.name)
                continue
            except FileNotFoundError:
                continue  # another compaction deleted it
            self.folder.backend.delete(sorted(inputs))
            present_names -= inputs
            n_deleted += len(inputs)
        return n_deleted

    def _list_candidates(self, inventory: Inventory) -> list[_Candidate]:
        shard_numbers, first_rows = np.unique(inventory.row_column("shard"), return_index=True)
        candidates = []
        for shard_number, row in zip(shard_numbers.tolist(), first_rows.tolist(), strict=True):
            shard = inventory.shards[shard_number]
            unit = inventory.units[inventory.row_column("unit")[row]]
            if shard not in self._entries:
                continue  # another compaction deleted it
            candidates.append(
                _Candidate(
                    sort_key=(unit.key, *_make_sort_key(unit.architecture), int(inventory.row_column("start")[row])),
                    shard=shard,
                    columns=inventory.shard_columns(shard_number),
                    n_bytes=self._entries[shard].n_bytes,
                    shard_number=shard_number,
                )
            )
        return sorted(candidates, key=lambda candidate: (candidate.sort_key, candidate.shard))

    def _iter_groups(self, inventory: Inventory) -> Iterator[list[_Candidate]]:
        """Yield groups of inputs; each group becomes one compacted shard of about the target size.

        All rows of an input are written to the same compacted shard, so compacted shards do not depend on each other.
        """
        candidates_by_layout: dict[tuple[str, bool, tuple[str, ...]], list[_Candidate]] = {}
        for candidate in self._list_candidates(inventory):
            dataset = candidate.shard.partition("/")[0]
            has_text_ids = candidate.sort_key[1]
            layout = (dataset, has_text_ids, tuple(sorted(candidate.columns)))
            candidates_by_layout.setdefault(layout, []).append(candidate)
        for candidates in candidates_by_layout.values():
            yield from self._iter_groups_of_layout(candidates)

    def _iter_groups_of_layout(self, candidates: list[_Candidate]) -> Iterator[list[_Candidate]]:
        """Yield groups of shards with the same dataset, type of architecture ids and columns.

        Small compacted shards come first, followed by the uncompacted shards in the order of the candidates.
        """
        min_bytes = 2 * self.target_bytes // 3
        small_compacted = [
            candidate for candidate in candidates if is_compacted(candidate.shard) and candidate.n_bytes < min_bytes
        ]
        small_compacted = sorted(small_compacted, key=lambda candidate: candidate.n_bytes)[:MAX_COMPACTED_INPUTS]
        group: list[_Candidate] = []
        total_bytes = 0.0
        for candidate in [
            *small_compacted,
            *(candidate for candidate in candidates if not is_compacted(candidate.shard)),
        ]:
            expected_bytes = candidate.n_bytes * (1.0 if is_compacted(candidate.shard) else _OUTPUT_RATIO)
            max_bytes = self.target_bytes if total_bytes >= min_bytes else 2 * min_bytes
            if group and total_bytes + expected_bytes > max_bytes:
                yield group
                group, total_bytes = [], 0.0
            group.append(candidate)
            total_bytes += expected_bytes
        yield group

    def _merge(self, inventory: Inventory, group: list[_Candidate]) -> tuple[int, int]:
        """Merge a group's intact shards, if there are at least two; return the numbers of merged shards and rows."""
        contents = self._read_verified_contents(group)
        intact_candidates = [candidate for candidate in group if candidate.shard in contents]
        if len(intact_candidates) < 2:
            return 0, 0
        inputs = {candidate.shard for candidate in intact_candidates}
        for shard in filter(is_compacted, tuple(inputs)):
            # The shards that a compacted input replaced may still exist, and must be replaced by the new shard.
            inputs.update(self._entries.keys() & set(read_footer(self.folder.backend, self._entries[shard]).inputs))
        columns = stored_order(intact_candidates[0].columns)
        rows = _sort_rows(inventory, [candidate.shard_number for candidate in intact_candidates])
        contents_in_memory = {name: content for name, content in contents.items() if content is not None}
        reader = RowReader(self.folder, contents=contents_in_memory)
        dataset = intact_candidates[0].shard.partition("/")[0]
        footer = Footer("compacted", columns, tuple(sorted(inputs)))
        with self.folder.open_compacted_shard(dataset) as stream:
            n_rows = write_tables(stream, read_rows_in_order(reader, inventory, rows, self.row_group_bytes), footer)
        reader.close()
        return len(intact_candidates), n_rows

    def _read_verified_contents(self, group: list[_Candidate]) -> dict[str, bytes | None]:
        """Hash the inputs, several at once, and return their contents by name, without damaged and deleted inputs.

        The content is None except for small shards in an object store. These are kept in memory, because reading one
        again takes another round trip.
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
        shards = [candidate.shard for candidate in group]
        for shard, content in zip(shards, map_ahead(verify, shards, self.folder.backend.threads), strict=True):
            if isinstance(content, ShardDamagedError):
                self._damaged_shards.add(shard)
            elif not isinstance(content, FileNotFoundError):  # otherwise another compaction deleted it
                contents[shard] = content
        return contents


def _make_sort_key(architecture: ArchitectureId) -> tuple[bool, ArchitectureId]:
    """Return a sort key for an architecture's id: integers come first, then text.

    A shard has ids of only one type, because its column has one type.
    """
    return isinstance(architecture, str), architecture


def _sort_rows(inventory: Inventory, shard_numbers: list[int]) -> NDArray[np.int64]:
    """Return the rows of some shards in the order in which an export reads them."""
    rows = np.concatenate([inventory.rows_of_shard(shard_number) for shard_number in shard_numbers])
    units = [inventory.units[unit_number] for unit_number in inventory.row_column("unit")[rows].tolist()]
    unit_keys = [(unit.key, *_make_sort_key(unit.architecture)) for unit in units]
    rank_of_key = {unit_key: index for index, unit_key in enumerate(sorted(set(unit_keys)))}
    columns_within_unit = [inventory.row_column(name)[rows] for name in ("shard", "start", "strength")]
    return rows[np.lexsort([*columns_within_unit, np.array([rank_of_key[unit_key] for unit_key in unit_keys])])]
