"""Scan of a results folder, which returns its inventory (the list of all its evaluations) and finds damaged shards."""

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
    find_replaced_names,
    list_shard_names,
    make_catalogue,
    make_contents,
)
from robust201.shards.folder import ResultsFolder, network_of
from robust201.shards.index import Index
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import Footer
from robust201.shards.row_identity import ShardRows, parse_footer, read_footer, read_shard_rows

OnDamage = Literal["raise", "set_aside", "report"]
Verify = Literal["none", "unverified", "all"]
"""Which shards to hash: none, those that were not hashed with their current size and change marker, or all."""

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
        verify: shards whose bytes are compared with the hash in their name. An export hashes all shards, and a run
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
    """One scan and its repetitions; the first four attributes are the parameters of the function `scan`.

    `damage` maps the name of each damaged shard to its error message.
    """

    folder: ResultsFolder
    verify: Verify
    on_damage: OnDamage
    networks: Collection[tuple[str, ArchitectureId]] | None
    damage: dict[str, str] = field(default_factory=dict)
    names_to_hash: frozenset[str] = frozenset()

    def scan(self) -> Inventory:
        entries = [entry for entry in self.folder.backend.entries() if entry.name not in self.damage]
        index = Index(self.folder.index)
        self.names_to_hash = frozenset(entry.name for entry in entries if self._should_hash(entry.name))
        # With "all", every byte must be read, so the index is not used.
        indexed_catalogue = index.load(entries if self.verify != "all" else (), self.names_to_hash)
        indexed_names = set(list_shard_names(indexed_catalogue))
        entries_to_read = [entry for entry in entries if entry.name not in indexed_names]
        # Compacted shards are read first, because only an intact compacted shard replaces its inputs.
        compacted_catalogue = self._read_shards([entry for entry in entries_to_read if is_compacted(entry.name)])
        all_names = [entry.name for entry in entries]
        replaced_names = find_replaced_names(indexed_catalogue, all_names) | find_replaced_names(
            compacted_catalogue, all_names
        )
        uncompacted_catalogue = self._read_shards(
            [entry for entry in entries_to_read if not is_compacted(entry.name) and entry.name not in replaced_names]
        )
        new_catalogue = concat_catalogues([compacted_catalogue, uncompacted_catalogue])
        index.add(new_catalogue)
        if self.verify == "all":
            index.forget(self.damage)
        catalogues = [indexed_catalogue, new_catalogue]
        # Each of these objects, and the inventory, may take 100 MB.
        del index, indexed_catalogue, new_catalogue, compacted_catalogue, uncompacted_catalogue
        give_back_freed_memory()
        contents = make_contents(catalogues, replaced=replaced_names)
        give_back_freed_memory()
        return Inventory(
            contents,
            damage=self.damage,
            protocols=self.folder.protocols,
            is_hashed=self.verify == "all",
        )

    def _should_hash(self, shard: str) -> bool:
        if self.verify != "unverified" or self.networks is None:
            return self.verify != "none"
        return network_of(shard) in self.networks

    def _read_shards(self, entries: Sequence[ShardEntry]) -> Catalogue:
        """Return a catalogue of the intact shards, and handle damaged shards as `on_damage` requires."""
        catalogues: list[Catalogue] = []
        batch: list[ScannedShard] = []
        n_rows = 0
        threads = min(self.folder.backend.threads, len(entries))
        for entry, content in zip(entries, map_ahead(self._read_shard, entries, threads), strict=True):
            if isinstance(content, ShardDamagedError):
                self._handle_damage(entry.name, content)
            else:
                verified = entry.name in self.names_to_hash and bool(entry.change_marker)
                batch.append(ScannedShard(entry, *content, verified=verified))
                n_rows += len(content[1].unit)
            if n_rows >= _BATCH_ROWS:
                catalogues.append(make_catalogue(batch))
                batch, n_rows = [], 0
                give_back_freed_memory()
        return concat_catalogues([*catalogues, make_catalogue(batch)])

    def _read_shard(self, entry: ShardEntry) -> tuple[Footer, ShardRows] | ShardDamagedError:
        backend, shard = self.folder.backend, entry.name
        try:
            if shard in self.names_to_hash and not is_compacted(shard):
                footer = parse_footer(self.folder.read_verified(shard), backend.label(shard))
            else:
                footer = read_footer(backend, entry)  # before hashing, because a large file may have no footer
                if shard in self.names_to_hash:
                    self.folder.verify_hash(shard)
            return footer, read_shard_rows(backend, shard, footer)
        except ShardDamagedError as error:
            return error

    def _handle_damage(self, shard: str, error: ShardDamagedError) -> None:
        if self.on_damage == "raise":
            Index(self.folder.index).forget([shard])
            raise error
        self.damage[shard] = str(error)
        if self.on_damage == "set_aside":
            self.folder.backend.set_aside(shard)
