"""From a results folder to its inventory: which shards count, and which are damaged."""

from typing import Literal

from pipeline.errors import ShardDamagedError, StorageError
from pipeline.shards.folder import ResultsFolder, is_compacted
from pipeline.shards.identity import Rows
from pipeline.shards.inventory import Inventory, InventoryBuilder
from pipeline.shards.parquet import Footer, read_footer, read_rows

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
        names = self._folder.list_shards()
        # Compacted shards first: only an intact one may hide the shards that it replaces.
        compacted = {name: self._read(name) for name in names if is_compacted(name)}
        replaced = {name for content in compacted.values() if content is not None for name in content[0].inputs}
        builder = InventoryBuilder()
        for name in names:
            if name not in replaced:
                content = compacted[name] if name in compacted else self._read(name)
                if content is not None:
                    builder.add(name, content[0].columns, content[1])
        superseded = [name for name in names if name in replaced]
        return Inventory(builder, damage=self._damage, superseded=superseded, protocols=self._folder.protocols)

    def _read(self, shard: str) -> tuple[Footer, Rows] | None:
        path = self._folder.path(shard)
        try:
            if self._verify:
                self._folder.verify_hash(shard)
            footer = read_footer(path)
            return footer, read_rows(path, footer)
        except ShardDamagedError as error:
            if self._on_damage == "raise":
                raise
            self._damage[shard] = str(error)
            if self._on_damage == "set_aside":
                self._folder.set_aside(shard)
            return None
