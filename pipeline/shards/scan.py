"""From a results folder to its inventory: which shards count, and which are damaged."""

from collections.abc import Sequence
from typing import Literal

from pipeline.errors import ShardDamagedError, StorageError
from pipeline.shards.catalogue import Catalogue, CatalogueBuilder, contents_of, inputs_of, join, names_of
from pipeline.shards.facts import parse_footer, read_footer, read_rows
from pipeline.shards.folder import ResultsFolder, is_compacted
from pipeline.shards.identity import Rows
from pipeline.shards.index import Index
from pipeline.shards.inventory import Inventory
from pipeline.shards.parquet import Footer
from pipeline.shards.places import Entry, map_ahead

OnDamage = Literal["raise", "set_aside", "report"]

_SCAN_ATTEMPTS = 5


def scan(folder: ResultsFolder, *, verify: bool, on_damage: OnDamage) -> Inventory:
    """Read the identity of every row in a results folder.

    Shards that an intact compacted shard replaces are left out. A shard that vanishes meanwhile was replaced by a
    compaction, so the scan begins again.

    Args:
        folder: the results folder.
        verify: hash every shard and compare with its name, so that any damaged byte is found.
        on_damage: what to do with a damaged shard: raise, set it aside, or only report it.

    Returns:
        What is there.

    Raises:
        ShardDamagedError: a shard is damaged, and `on_damage` is ``"raise"``.
        FormatVersionError: another format version wrote a shard.
        StorageError: shards keep vanishing.
    """
    scanner = _Scanner(folder, verify, on_damage)
    vanished: FileNotFoundError | None = None
    for _ in range(_SCAN_ATTEMPTS):
        try:
            return scanner.scan()
        except FileNotFoundError as error:
            vanished = error
    raise StorageError(
        f"Reading the inventory failed for {folder.root}: expected shards to stay, got one that vanished in each of "
        f"{_SCAN_ATTEMPTS} scans ({vanished}). Make sure that nothing deletes files there, and try again."
    )


class _Scanner:
    def __init__(self, folder: ResultsFolder, verify: bool, on_damage: OnDamage) -> None:
        self._folder = folder
        self._verify = verify
        self._on_damage = on_damage
        self._damage: dict[str, str] = {}

    def scan(self) -> Inventory:
        entries = [entry for entry in self._folder.place.entries() if entry.name not in self._damage]
        index = Index(self._folder.index)
        # Whoever verifies reads every byte anyway, and trusts nothing else.
        known = index.load(entries if not self._verify else ())
        unknown = set(names_of(known))
        unread = [entry for entry in entries if entry.name not in unknown]
        # Compacted shards first: only an intact one may hide the shards that it replaces.
        compacted = self._read_all([entry for entry in unread if is_compacted(entry.name)])
        replaced = inputs_of(known) | inputs_of(compacted)
        rest = self._read_all(
            [entry for entry in unread if not is_compacted(entry.name) and entry.name not in replaced]
        )
        new = join([compacted, rest])
        index.add(new)
        contents = contents_of(join([known, new]), hidden=replaced)
        superseded = [entry.name for entry in entries if entry.name in replaced]
        return Inventory(contents, damage=self._damage, superseded=superseded, protocols=self._folder.protocols)

    def _read_all(self, entries: Sequence[Entry]) -> Catalogue:
        builder = CatalogueBuilder()
        threads = min(self._folder.place.threads, len(entries))
        for entry, found in zip(entries, map_ahead(self._read, entries, threads), strict=True):
            if isinstance(found, ShardDamagedError):
                self._record(entry.name, found)
            else:
                builder.add(entry, *found)
        return builder.build()

    def _read(self, entry: Entry) -> tuple[Footer, Rows] | ShardDamagedError:
        place, shard = self._folder.place, entry.name
        try:
            if self._verify and not is_compacted(shard):
                footer = parse_footer(self._folder.read_verified(shard), place.label(shard))
            else:
                if self._verify:
                    self._folder.verify_hash(shard)
                footer = read_footer(place, entry)
            return footer, read_rows(place, shard, footer)
        except ShardDamagedError as error:
            return error

    def _record(self, shard: str, error: ShardDamagedError) -> None:
        if self._on_damage == "raise":
            raise error
        self._damage[shard] = str(error)
        if self._on_damage == "set_aside":
            self._folder.place.set_aside(shard)
