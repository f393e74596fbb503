"""From a results folder to its inventory: which shards count, and which are damaged."""

from collections.abc import Collection, Sequence
from typing import Literal

from robust201.core.errors import ShardDamagedError, StorageError
from robust201.core.freed_memory import give_back_freed_memory
from robust201.shards.backends import Entry, map_ahead
from robust201.shards.facts import parse_footer, read_footer, read_rows
from robust201.shards.folder import ResultsFolder, is_compacted, network_of
from robust201.shards.identity import Rows
from robust201.shards.index import Index
from robust201.shards.inventory import Inventory
from robust201.shards.parquet import Footer
from robust201.shards.table import Catalogue, CatalogueBuilder, contents_of, inputs_of, join, names_of

OnDamage = Literal["raise", "set_aside", "report"]
Verify = Literal["none", "unverified", "all"]
"""Which shards are hashed: none; those that were not hashed before at their present size and mark; or all of them."""

_SCAN_ATTEMPTS = 5


def scan(
    folder: ResultsFolder, *, verify: Verify, on_damage: OnDamage, networks: Collection[tuple[str, int]] | None = None
) -> Inventory:
    """Read the identity of every row in a results folder.

    Shards that an intact compacted shard replaces are left out. A shard that vanishes meanwhile was replaced by a
    compaction, so the scan begins again.

    Args:
        folder: the results folder.
        verify: which shards to hash and compare with their names. ``"all"`` trusts nothing and finds any damaged byte;
            ``"unverified"`` trusts the index where size and mark are those at which it saw a shard verified.
        on_damage: what to do with a damaged shard: raise, set it aside, or only report it.
        networks: (dataset, architecture) pairs; with ``"unverified"``, only uncompacted shards of these are hashed.

    Returns:
        What is there.

    Raises:
        ShardDamagedError: a shard is damaged, and `on_damage` is ``"raise"``.
        FormatVersionError: another format version wrote a shard.
        StorageError: shards keep vanishing.
    """
    scanner = _Scanner(folder, verify, on_damage, networks)
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
        f"Reading the inventory failed for {folder.root}: expected shards to stay, got one that vanished in each of "
        f"{_SCAN_ATTEMPTS} scans ({vanished}). Make sure that nothing deletes files there, and try again."
    )


class _Scanner:
    def __init__(
        self,
        folder: ResultsFolder,
        verify: Verify,
        on_damage: OnDamage,
        networks: Collection[tuple[str, int]] | None,
    ) -> None:
        self._folder = folder
        self._verify = verify
        self._on_damage = on_damage
        self._networks = networks
        self._damage: dict[str, str] = {}
        self._to_hash: frozenset[str] = frozenset()
        self._settled: set[str] = set()

    def scan(self) -> Inventory:
        entries = [entry for entry in self._folder.place.entries() if entry.name not in self._damage]
        index = Index(self._folder.index)
        self._to_hash = frozenset(entry.name for entry in entries if self._is_to_be_verified(entry.name))
        # Whoever verifies all reads every byte anyway, and trusts nothing else.
        known = index.load(entries if self._verify != "all" else (), self._to_hash)
        names = set(names_of(known))
        unread = [entry for entry in entries if entry.name not in names]
        # Asked before anything is hashed: what changes from now on will show.
        to_hash = [entry for entry in unread if entry.name in self._to_hash]
        self._settled = self._folder.place.settled(to_hash) if to_hash else set()
        # Compacted shards first: only an intact one may hide the shards that it replaces.
        compacted = self._read_all([entry for entry in unread if is_compacted(entry.name)])
        replaced = inputs_of(known) | inputs_of(compacted)
        rest = self._read_all(
            [entry for entry in unread if not is_compacted(entry.name) and entry.name not in replaced]
        )
        new = join([compacted, rest])
        index.add(new)
        if self._verify == "all":
            index.forget(self._damage)
        contents = contents_of(join([known, new]), hidden=replaced)
        superseded = [entry.name for entry in entries if entry.name in replaced]
        return Inventory(
            contents,
            damage=self._damage,
            superseded=superseded,
            protocols=self._folder.protocols,
            hashed=self._verify == "all",
        )

    def _is_to_be_verified(self, shard: str) -> bool:
        if self._verify != "unverified" or self._networks is None:
            return self._verify != "none"
        return network_of(shard) in self._networks

    def _read_all(self, entries: Sequence[Entry]) -> Catalogue:
        builder = CatalogueBuilder()
        threads = min(self._folder.place.threads, len(entries))
        for entry, found in zip(entries, map_ahead(self._read, entries, threads), strict=True):
            if isinstance(found, ShardDamagedError):
                self._record(entry.name, found)
            else:
                builder.add(entry, *found, verified=entry.name in self._settled)
        return builder.build()

    def _read(self, entry: Entry) -> tuple[Footer, Rows] | ShardDamagedError:
        place, shard = self._folder.place, entry.name
        try:
            if shard in self._to_hash and not is_compacted(shard):
                footer = parse_footer(self._folder.read_verified(shard), place.label(shard))
            else:
                if shard in self._to_hash:
                    self._folder.verify_hash(shard)
                footer = read_footer(place, entry)
            return footer, read_rows(place, shard, footer)
        except ShardDamagedError as error:
            return error

    def _record(self, shard: str, error: ShardDamagedError) -> None:
        if self._on_damage == "raise":
            Index(self._folder.index).forget([shard])
            raise error
        self._damage[shard] = str(error)
        if self._on_damage == "set_aside":
            self._folder.place.set_aside(shard)
