"""From a results folder to its inventory: which shards count, and which are damaged."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from robust201.core.errors import ShardDamagedError, StorageError
from robust201.core.memory import collect_as_usual, give_back_freed_memory
from robust201.core.records import ArchitectureId
from robust201.shards.backends import Entry, is_compacted, map_ahead
from robust201.shards.catalogue import Catalogue, ScannedShard, contents_of, inputs_of, join, make_catalogue, names_of
from robust201.shards.folder import ResultsFolder, network_of
from robust201.shards.index import Index
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import Footer
from robust201.shards.row_identity import ShardRows, parse_footer, read_footer, read_shard_rows

OnDamage = Literal["raise", "set_aside", "report"]
Verify = Literal["none", "unverified", "all"]
"""Which shards are hashed: none; those that were not hashed before at their present size and mark; or all of them."""

_SCAN_ATTEMPTS = 5
_ROWS_TOGETHER = 1 << 17  # rows whose arrays lie beside the catalogue that they are copied into


def scan(
    folder: ResultsFolder,
    *,
    verify: Verify,
    on_damage: OnDamage,
    networks: Collection[tuple[str, ArchitectureId]] | None = None,
) -> Inventory:
    """Read the identity of every row in a results folder.

    Shards that an intact compacted shard replaces are left out. A shard that vanishes meanwhile was replaced by a
    compaction, so the scan begins again.

    `verify` chooses the shards to hash and compare with their names: an export hashes all and trusts nothing, a resume
    those that are unverified; with ``"none"`` only damage that hinders reading is noticed. With ``"unverified"`` and
    `networks`, (dataset, architecture) pairs, only uncompacted shards of these are hashed. Damaged shards raise, are
    set aside into ``damaged/``, or are left and reported.

    Raises ShardDamagedError, if asked to, FormatVersionError, and StorageError if shards keep vanishing.
    """
    collect_as_usual()  # footers that pyarrow drops are garbage in circles: 300 kB for each compacted shard
    scanner = _Scanner(folder=folder, verify=verify, on_damage=on_damage, networks=networks)
    vanished: FileNotFoundError | None = None
    for _ in range(_SCAN_ATTEMPTS):
        try:
            inventory = scanner.scan()
        except FileNotFoundError as error:
            vanished = error
        else:
            give_back_freed_memory()  # a scan takes twice what the inventory keeps
            return inventory
    raise StorageError(
        f"Reading the inventory failed for {folder.root}: expected result files to stay, got one that vanished in each "
        f"of {_SCAN_ATTEMPTS} scans ({vanished}). Make sure that nothing deletes files there, and try again."
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
        # Whoever verifies all reads every byte anyway, and trusts nothing else.
        known = index.load(entries if self.verify != "all" else (), self.to_hash)
        names = set(names_of(known))
        unread = [entry for entry in entries if entry.name not in names]
        # Asked before anything is hashed: what changes from now on will show.
        to_hash = [entry for entry in unread if entry.name in self.to_hash]
        self.settled = self.folder.backend.settled(to_hash) if to_hash else set()
        # Compacted shards first: only an intact one may hide the shards that it replaces.
        compacted = self._read_all([entry for entry in unread if is_compacted(entry.name)])
        listed = [entry.name for entry in entries]
        replaced = inputs_of(known, listed) | inputs_of(compacted, listed)
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
        contents = contents_of(tables, hidden=replaced)
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
        for entry, found in zip(entries, map_ahead(self._read, entries, threads), strict=True):
            if isinstance(found, ShardDamagedError):
                self._record(entry.name, found)
            else:
                scanned.append(ScannedShard(entry, *found, verified=entry.name in self.settled))
                n_rows += len(found[1].unit)
            if n_rows >= _ROWS_TOGETHER:
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
                footer = read_footer(backend, entry)  # first: a large file without one need not be hashed
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
