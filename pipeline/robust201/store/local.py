"""Storage of shards in a local or shared folder. `store.object_store.ObjectStore` has the same methods.

Paths are relative and have three components: dataset, folder and name. Files never change, and appear completely or not
at all. Methods that read raise FileNotFoundError if there is no such file, and StorageError if it cannot be read.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from robust201.core.errors import StorageError
from robust201.core.files import (
    NewFile,
    atomic_write,
    fsync_folder,
    new_file,
    reporting_write_errors,
    server_time,
    visible_entries,
)


class LocalFolder:
    """Files below a folder. `set_aside` moves files to `damaged`, a folder on the same file system.

    `on_step` is called at each step of writing a file (`core.files.WRITE_STEPS`), for crash tests.
    """

    n_readers = 4  # number of parallel reads, since each waits for the network if the folder is shared

    def __init__(self, root: Path, damaged: Path, on_step: Callable[[str], None]) -> None:
        self.root, self._damaged, self._on_step = root, damaged, on_step

    def label(self, path: str) -> str:
        """Return the location of a file, for messages."""
        return str(self.root / path)

    def folders(self) -> Iterator[tuple[str, str, list[str]]]:
        """Yield (dataset, folder, names of the files in it) for every folder of every dataset."""
        for dataset in visible_entries(self.root):
            for folder in list_names(self.root / dataset) if self.root / dataset != self._damaged else ():
                yield dataset, folder, list_names(self.root / dataset / folder)

    def names(self, dataset: str, folder: str) -> list[str]:
        """Return the names in a folder; empty if there is no such folder."""
        return list_names(self.root / dataset / folder)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes [start, stop) of a file, or fewer if it is shorter.

        Raises:
            ValueError: the path is a folder.
        """
        try:
            with open(f"{self.root}/{path}", "rb") as stream:  # noqa: PTH123 - faster than a Path
                stream.seek(start)
                return stream.read(-1 if stop is None else stop - start)
        except FileNotFoundError:
            raise
        except IsADirectoryError as error:
            raise ValueError("a folder instead of a file") from error
        except OSError as error:
            raise reading_error(self.root / path, error) from error

    def write(self, path: str, content: bytes) -> None:
        """Write a file durably: after the method returns, it survives a crash.

        Raises:
            StorageFullError: the disk is full.
            StorageError: the folder cannot be written.
        """
        with atomic_write(self.root / path, on_step=self._on_step) as stream:
            stream.write(content)

    def new_file(self, dataset: str, folder: str) -> AbstractContextManager[NewFile]:
        """Open a new file. The block must set its name; the file appears when the block ends without an error."""
        return new_file(self.root / dataset / folder, on_step=self._on_step)

    def set_aside(self, path: str) -> str:
        """Move a file to `damaged`, unless it no longer exists, and return its new location."""
        source, target = self.root / path, self._damaged / path
        with reporting_write_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process has moved it
                source.replace(target)
                fsync_folder(source.parent)
        return str(target)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, ignoring files that do not exist."""
        for path in paths:
            with reporting_write_errors(self.root / path):
                (self.root / path).unlink(missing_ok=True)

    def age(self, path: str) -> float:
        """Return the age of a file in seconds, by the clock of the file server."""
        return server_time(self.root) - (self.root / path).stat().st_mtime


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, unsorted; empty if there is no such folder. May raise StorageError."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - avoids a Path for each of half a million files
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise reading_error(folder, error) from error


def reading_error(path: Path, error: OSError) -> StorageError:
    """Return the error for a file that cannot be read at the moment."""
    return StorageError(
        f"Reading failed for {path}: {error.strerror}. Check its permissions and the file server, and run the same "
        "command again."
    )
