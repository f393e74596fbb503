"""Snapshots that workers have stored and the manifest does not name yet: a small file each.

A worker writes the weights' file, then the record of it here, whole or not at all; the driver, the only one who writes
the manifest, enters the record there and removes it here. So a driver that is killed in between loses nothing.
"""

from collections.abc import Iterator
from pathlib import Path

from robust201.core.errors import CheckpointError
from robust201.core.files import atomic_write, sha256_of
from robust201.weights.manifest import CheckpointRecord, parse_line, record_line
from robust201.weights.store import CheckpointStore


class FinishedSnapshots:
    """The records in a folder, by name; no two workers write one of a name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, record: CheckpointRecord) -> None:
        """Keep a record; a `StorageFullError` says that no space is left."""
        with atomic_write(self._path(name)) as stream:
            stream.write(record_line(record))

    def read(self, name: str) -> CheckpointRecord | None:
        """Give a record; None where there is none, or where it is damaged."""
        path = self._path(name)
        try:
            return parse_line(path.read_bytes(), 1, path)
        except (FileNotFoundError, CheckpointError):
            return None

    def enter(self, name: str, store: CheckpointStore) -> CheckpointRecord | None:
        """Enter a record in a store's manifest, durably, and remove it here; None where it cannot be read."""
        record = self.read(name)
        if record is not None:
            store.enter(record)
            store.flush()
            self._path(name).unlink()
        return record

    def recover(self, store: CheckpointStore) -> int:
        """Enter what a killed driver left, as far as the weights' files are whole; count it. Others are removed."""
        count = 0
        for name in self._names():
            record = self.read(name)
            if record is not None and _is_whole(store.root / record.file, record.sha256):
                self.enter(name, store)
                count += 1
            else:
                self._path(name).unlink()
        return count

    def _names(self) -> Iterator[str]:
        return (path.name.removesuffix(".json") for path in sorted(self._folder.glob("*.json")))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _is_whole(path: Path, sha256: str) -> bool:
    try:
        return sha256_of(path) == sha256
    except OSError:
        return False
