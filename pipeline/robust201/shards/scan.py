"""Scan of a results folder into an inventory, which determines the valid and the damaged shards."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from robust201.core.errors import ShardDamagedError, StorageError
from robust201.core.memory import collect_as_usual, give_back_freed_memory
from robust201.core.records import ArchitectureId
from robust201.shards.backends import Entry, is_compacted, map_ahead
from robust201.shards.catalogue import (
    Catalogue,
    ScannedShard,
    join,
    make_catalogue,
    make_contents,
    replaced_names,
    shard_names,
)
from robust201.shards.folder import ResultsFolder, network_of
from robust201.shards.index import Index
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import Footer
from robust201.shards.row_identity import ShardRows, parse_footer, read_footer, read_shard_rows

OnDamage = Literal["raise", "set_aside", "report"]
Verify = Literal["none", "unverified", "all"]
"""Shards to hash: none, those that were not hashed with their current size and mark, or all."""

_SCAN_ATTEMPTS = 5
_BATCH_ROWS = 1 << 17  # rows that are collected before they are copied into a catalogue


def scan(
    folder: ResultsFolder,
    *,
    verify: Verify,
    on_damage: OnDamage,
    networks: Collection[tuple[str, ArchitectureId]] | None = None,
) -> Inventory:
    """Read the identity of every row in a results folder.

    Shards that an intact compacted shard replaces are left out. If a shard disappears during the scan, a compaction has
    replaced it, so the scan starts again.

    `verify` selects the shards whose hash is compared with their name. An export hashes all shards, and a resume those
    that are unverified; with ``"none"``, only damage that prevents reading is noticed. With ``"unverified"`` and
    `networks`, (dataset, architecture) pairs, only uncompacted shards of these networks are hashed. Damaged shards
    raise an error, are moved to ``damaged/``, or are reported and not changed, according to `on_damage`.

    Raises ShardDamagedError if requested, FormatVersionError, and StorageError if shards keep disappearing.
    """
    collect_as_usual()  # footers from pyarrow are reference cycles of 300 kB for each compacted shard
    scanner = _Scanner(folder=folder, verify=verify, on_damage=on_damage, networks=networks)
    vanished: FileNotFoundError | None = None
    for _ in range(_SCAN_ATTEMPTS):
        try:
            inventory = scanner.scan()
        except FileNotFoundError as error:
            vanished = error
        else:
            give_back_freed_memory()  # a scan takes twice as much memory as its inventory
            return inventory
    raise StorageError(
        f"Reading the inventory failed for {folder.root}: a result file disappeared in each of {_SCAN_ATTEMPTS} scans "
        f"({vanished}). Stop whatever deletes files there, and try again."
    )


@dataclass
class _Scanner:
    folder: ResultsFolder
    verify: Verify
    on_damage: OnDamage
    networks: Collection[tuple[str, ArchitectureId]] | None
    damage: dict[str, str] = field(default_factory=dict)
    to_hash: frozenset[str] = frozenset()
    settled: set[str] = field(default_factory=set)

    def scan(self) -> Inventory:
        entries = [entry for entry in self.folder.backend.entries() if entry.name not in self.damage]
        index = Index(self.folder.index)
        self.to_hash = frozenset(entry.name for entry in entries if self._is_to_be_verified(entry.name))
        # With "all", every byte is read anyway, so the index is not used.
        known = index.load(entries if self.verify != "all" else (), self.to_hash)
        names = set(shard_names(known))
        unread = [entry for entry in entries if entry.name not in names]
        # Determined before anything is hashed, so that later changes are visible in the marks.
        to_hash = [entry for entry in unread if entry.name in self.to_hash]
        self.settled = self.folder.backend.settled(to_hash) if to_hash else set()
        # Compacted shards first: only intact ones hide the shards that they replace.
        compacted = self._read_all([entry for entry in unread if is_compacted(entry.name)])
        listed = [entry.name for entry in entries]
        replaced = replaced_names(known, listed) | replaced_names(compacted, listed)
        rest = self._read_all(
            [entry for entry in unread if not is_compacted(entry.name) and entry.name not in replaced]
        )
        new = join([compacted, rest])
        index.add(new)
        if self.verify == "all":
            index.forget(self.damage)
        tables = [known, new]
        del index, known, new, compacted, rest  # each may have a hundred megabytes, and so may the inventory
        give_back_freed_memory()
        contents = make_contents(tables, hidden=replaced)
        give_back_freed_memory()
        superseded = [entry.name for entry in entries if entry.name in replaced]
        return Inventory(
            contents,
            damage=self.damage,
            superseded=superseded,
            protocols=self.folder.protocols,
            hashed=self.verify == "all",
        )

    def _is_to_be_verified(self, shard: str) -> bool:
        if self.verify != "unverified" or self.networks is None:
            return self.verify != "none"
        return network_of(shard) in self.networks

    def _read_all(self, entries: Sequence[Entry]) -> Catalogue:
        catalogues: list[Catalogue] = []
        scanned: list[ScannedShard] = []
        n_rows = 0
        threads = min(self.folder.backend.threads, len(entries))
        for entry, result in zip(entries, map_ahead(self._read, entries, threads), strict=True):
            if isinstance(result, ShardDamagedError):
                self._record(entry.name, result)
            else:
                scanned.append(ScannedShard(entry, *result, verified=entry.name in self.settled))
                n_rows += len(result[1].unit)
            if n_rows >= _BATCH_ROWS:
                catalogues.append(make_catalogue(scanned))
                scanned, n_rows = [], 0
                give_back_freed_memory()
        return join([*catalogues, make_catalogue(scanned)])

    def _read(self, entry: Entry) -> tuple[Footer, ShardRows] | ShardDamagedError:
        backend, shard = self.folder.backend, entry.name
        try:
            if shard in self.to_hash and not is_compacted(shard):
                footer = parse_footer(self.folder.read_verified(shard), backend.label(shard))
            else:
                footer = read_footer(backend, entry)  # first, to avoid hashing a large file without a footer
                if shard in self.to_hash:
                    self.folder.verify_hash(shard)
            return footer, read_shard_rows(backend, shard, footer)
        except ShardDamagedError as error:
            return error

    def _record(self, shard: str, error: ShardDamagedError) -> None:
        if self.on_damage == "raise":
            Index(self.folder.index).forget([shard])
            raise error
        self.damage[shard] = str(error)
        if self.on_damage == "set_aside":
            self.folder.backend.set_aside(shard)
