"""Records of finished snapshots on their way from workers to the manifest of a store."""

from pathlib import Path

from robust201.core.errors import CheckpointError
from robust201.core.files import MAX_STATE_BYTES, IrregularFileError, atomic_write, read_file, sha256_of
from robust201.weights.manifest import CheckpointRecord, parse_line
from robust201.weights.store import CheckpointStore


class FinishedSnapshots:
    """Folder through which workers pass the records of finished snapshots to the driver, one file per snapshot.

    The driver is the process that distributes the training runs. No two workers write the same file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, record: CheckpointRecord) -> None:
        """Write a record, or raise `StorageFullError` if no space is left."""
        with atomic_write(self._path(name)) as stream:
            stream.write(record.to_line())

    def read(self, name: str) -> CheckpointRecord | None:
        """Return a record, or None if it is absent or damaged."""
        path = self._path(name)
        try:
            return parse_line(read_file(path, MAX_STATE_BYTES), str(path))
        except (FileNotFoundError, IrregularFileError, CheckpointError):
            return None

    def move_to_manifest(self, name: str, store: CheckpointStore) -> CheckpointRecord | None:
        """Move a record durably to the manifest of a store, and return it, or None if it cannot be read."""
        record = self.read(name)
        if record is not None:
            store.add_to_manifest(record)
            store.flush()
            self._path(name).unlink()
        return record

    def recover(self, store: CheckpointStore) -> int:
        """Move the records that a killed driver left in this folder to the manifest, and return their number.

        Records whose weights file is missing or damaged are deleted.
        """
        n_moved = 0
        for path in sorted(self._folder.glob("*.json")):
            record = self.read(path.stem)
            if record is not None and _is_intact(store.root / record.file, record.sha256):
                self.move_to_manifest(path.stem, store)
                n_moved += 1
            else:
                path.unlink()
        return n_moved

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _is_intact(path: Path, sha256: str) -> bool:
    try:
        return sha256_of(path) == sha256
    except OSError:
        return False
