"""Scan of a results folder, which returns its inventory and finds damaged shards."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from robust201.core.errors import ShardDamagedError, StorageError
from robust201.core.memory import give_back_freed_memory, restore_gc_thresholds
from robust201.core.records import ArchitectureId
from robust201.shards.backends import ShardEntry, is_compacted, map_ahead
from robust201.shards.catalogue import (
    Catalogue,
    ScannedShard,
    concat_catalogues,
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
"""Shards to hash: none, only shards that were not hashed with their current size and change marker, or all."""

_SCAN_ATTEMPTS = 5
_BATCH_ROWS = 1 << 17
"""Number of rows that are collected before they are copied into a catalogue."""


def scan(
    folder: ResultsFolder,
    *,
    verify: Verify,
    on_damage: OnDamage,
    networks: Collection[tuple[str, ArchitectureId]] | None = None,
) -> Inventory:
    """Read the identity of every row in a results folder.

    Shards that an intact compacted shard replaces are omitted. If a shard disappears during the scan, a compaction has
    probably deleted it, so the scan starts again.

    Args:
        folder: the results folder.
        verify: shards whose bytes are compared with the hash in their name. An export hashes all shards, and a resume
            hashes unverified shards. With ``"none"``, the scan finds only damage that prevents reading.
        on_damage: whether a damaged shard raises an error, is moved to ``damaged/``, or is reported and not changed.
        networks: (dataset, architecture) pairs. With ``verify="unverified"``, only uncompacted shards of these networks
            are hashed.

    Raises:
        ShardDamagedError: a shard is damaged, and `on_damage` is ``"raise"``.
        FormatVersionError: another version of robust201 wrote a shard.
        StorageError: shards keep disappearing, or cannot be read.
    """
    restore_gc_thresholds()  # pyarrow's footers contain reference cycles of 300 kB for each compacted shard
    scanner = _Scanner(folder=folder, verify=verify, on_damage=on_damage, networks=networks)
    last_error: FileNotFoundError | None = None
    for _ in range(_SCAN_ATTEMPTS):
        try:
            inventory = scanner.scan()
        except FileNotFoundError as error:
            last_error = error
        else:
            give_back_freed_memory()  # a scan takes twice as much memory as its inventory
            return inventory
    raise StorageError(
        f"Reading the inventory failed for {folder.root}: a result file disappeared in each of {_SCAN_ATTEMPTS} scans "
        f"({last_error}). Stop the process that deletes files there, and try again."
    )


@dataclass
class _Scanner:
    folder: ResultsFolder
    verify: Verify
    on_damage: OnDamage
    networks: Collection[tuple[str, ArchitectureId]] | None
    damage: dict[str, str] = field(default_factory=dict)
    to_hash: frozenset[str] = frozenset()
    settled_names: set[str] = field(default_factory=set)

    def scan(self) -> Inventory:
        entries = [entry for entry in self.folder.backend.entries() if entry.name not in self.damage]
        index = Index(self.folder.index)
        self.to_hash = frozenset(entry.name for entry in entries if self._is_to_be_verified(entry.name))
        # With "all", every byte must be read, so the index is not used.
        indexed = index.load(entries if self.verify != "all" else (), self.to_hash)
        indexed_names = set(shard_names(indexed))
        unread = [entry for entry in entries if entry.name not in indexed_names]
        # Call find_settled before hashing, so that a change during hashing also changes the change marker.
        to_hash = [entry for entry in unread if entry.name in self.to_hash]
        self.settled_names = self.folder.backend.find_settled(to_hash) if to_hash else set()
        # Compacted shards are read first, because only an intact one hides the shards that it replaces.
        compacted = self._read_all([entry for entry in unread if is_compacted(entry.name)])
        all_names = [entry.name for entry in entries]
        replaced = replaced_names(indexed, all_names) | replaced_names(compacted, all_names)
        uncompacted = self._read_all(
            [entry for entry in unread if not is_compacted(entry.name) and entry.name not in replaced]
        )
        new_catalogue = concat_catalogues([compacted, uncompacted])
        index.add(new_catalogue)
        if self.verify == "all":
            index.forget(self.damage)
        catalogues = [indexed, new_catalogue]
        del (
            index,
            indexed,
            new_catalogue,
            compacted,
            uncompacted,
        )  # each may have a hundred megabytes, as may the inventory
        give_back_freed_memory()
        contents = make_contents(catalogues, hidden=replaced)
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

    def _read_all(self, entries: Sequence[ShardEntry]) -> Catalogue:
        catalogues: list[Catalogue] = []
        batch: list[ScannedShard] = []
        n_rows = 0
        threads = min(self.folder.backend.threads, len(entries))
        for entry, content in zip(entries, map_ahead(self._read, entries, threads), strict=True):
            if isinstance(content, ShardDamagedError):
                self._record(entry.name, content)
            else:
                batch.append(ScannedShard(entry, *content, verified=entry.name in self.settled_names))
                n_rows += len(content[1].unit)
            if n_rows >= _BATCH_ROWS:
                catalogues.append(make_catalogue(batch))
                batch, n_rows = [], 0
                give_back_freed_memory()
        return concat_catalogues([*catalogues, make_catalogue(batch)])

    def _read(self, entry: ShardEntry) -> tuple[Footer, ShardRows] | ShardDamagedError:
        backend, shard = self.folder.backend, entry.name
        try:
            if shard in self.to_hash and not is_compacted(shard):
                footer = parse_footer(self.folder.read_verified(shard), backend.label(shard))
            else:
                footer = read_footer(backend, entry)  # before hashing, because a large file may have no footer
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
