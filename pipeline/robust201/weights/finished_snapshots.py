"""Snapshots that workers have stored but that are not in the manifest yet: one small file per snapshot.

A worker writes the weights' file and then its record here, both atomically. The driver, the only writer of the
manifest, enters the record there and removes it here, so nothing is lost if it is killed in between.
"""

from collections.abc import Iterator
from pathlib import Path

from robust201.core.errors import CheckpointError
from robust201.core.files import MAX_STATE_BYTES, IrregularFileError, atomic_write, read_file, sha256_of
from robust201.weights.manifest import CheckpointRecord, parse_line, record_line
from robust201.weights.store import CheckpointStore


class FinishedSnapshots:
    """The records in a folder, by name; no two workers write the same name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, record: CheckpointRecord) -> None:
        """Write a record; raises `StorageFullError` if no space is left."""
        with atomic_write(self._path(name)) as stream:
            stream.write(record_line(record))

    def read(self, name: str) -> CheckpointRecord | None:
        """Give a record; None if it is absent or damaged."""
        path = self._path(name)
        try:
            return parse_line(read_file(path, MAX_STATE_BYTES), 1, path)
        except (FileNotFoundError, IrregularFileError, CheckpointError):
            return None

    def enter(self, name: str, store: CheckpointStore) -> CheckpointRecord | None:
        """Enter a record in a store's manifest, durably, and remove it here; None if it cannot be read."""
        record = self.read(name)
        if record is not None:
            store.enter(record)
            store.flush()
            self._path(name).unlink()
        return record

    def recover(self, store: CheckpointStore) -> int:
        """Enter the records that a killed driver left and whose files are intact; remove the others. Gives a count."""
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
