"""Storage backends of shards: a folder of a POSIX file system, or a URL of an object store (`shards.object_store`).

A backend knows names and bytes, nothing of what is in a shard. Its shards are named by their content and never change,
so publishing one twice is harmless; a backend only has to see to it that a shard appears whole or not at all.

Where a shard is read, FileNotFoundError says that there is none, ShardDamagedError that the disk has lost it, and
StorageError that it cannot be read now, whatever its bytes are. Where one is written, StorageError (StorageFullError
for want of space) says that it cannot be, and nothing of it is visible.
"""

import errno
import hashlib
import io
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from robust201.core.errors import ShardDamagedError, StorageError
from robust201.core.files import (
    IrregularFileError,
    NewFile,
    atomic_write,
    fsync_folder,
    new_file,
    open_file,
    remove_leftovers,
    sha256_of,
    show_bytes,
)

SHARD_NAME = re.compile(
    r"(?:(?P<stem>(?:(?P<index>\d{6})-|(?P<name>[A-Za-z][\w.-]*)@).+)|compact)-(?P<sha>[0-9a-f]{16})\.parquet"
)
"""What the last component of a shard's name looks like."""

SHA_DIGITS = 16


def sha_of_name(shard: str) -> str:
    """First hex digits of the SHA-256 that a shard's name gives it."""
    return shard.removesuffix(".parquet")[-SHA_DIGITS:]


def is_compacted(shard: str) -> bool:
    """Whether a shard is a compacted one, by its name."""
    return shard.rpartition("/")[2].startswith("compact-")


MAX_SHARD_BYTES = 1 << 30
"""Largest shard that is read whole: one that is not compacted, of a few megabytes as a rule."""

SETTLING_SECONDS = 5.0
"""Age from which a file's time of change distinguishes all later changes from the last one: file systems count in ticks
of up to two seconds (FAT), and within a tick a second change leaves no trace."""


_In = TypeVar("_In")
_Out = TypeVar("_Out")


def unreadable(label: str, error: OSError) -> StorageError:
    """Make the error of a shard that cannot be read now, for want of rights, of open files, of a server's answer."""
    fix = "Check its permissions and the file server"
    if isinstance(error, IsADirectoryError | IrregularFileError):
        fix = "Move it away: result files are files"
    return StorageError(
        f"Reading failed for result file {label}: expected to read it, got {error.strerror or error}. {fix}, and run "
        "the same command again; finished work is kept."
    )


def damaged(label: str, expected: str, got: object, doing: str = "Reading") -> ShardDamagedError:
    """Make the error of a shard whose bytes are not those that were written."""
    return ShardDamagedError(
        f"{doing} failed for result file {label}: expected {expected}, got {got}. Run the sweep again: it sets the "
        "file aside and recomputes its evaluations."
    )


def oversized(label: str) -> ShardDamagedError:
    """Make the error of a shard above `MAX_SHARD_BYTES`."""
    return damaged(label, f"at most {show_bytes(MAX_SHARD_BYTES)}", "more")


@dataclass(frozen=True, slots=True)
class Entry:
    """A shard as a listing shows it.

    `mark` changes when the bytes do (time of the last change, or an object's ETag), and is ``""`` where the backend has
    none; `modified` is in seconds since the epoch, infinity where the backend does not say.
    """

    name: str
    n_bytes: int
    mark: str
    modified: float


class LocalBackend:
    """Shards in a folder, local or shared: a temporary file, flushed, renamed, and the folder flushed.

    Args:
        root: holds a folder a dataset.
        damaged: where shards are set aside; on the same file system.
        on_step: called at each step of writing (`core.files.WRITE_STEPS`), for crash tests.
    """

    # Reads that make it faster at once: a shared folder answers each open over the network; a local one loses nothing.
    threads = 4

    def __init__(self, root: Path, damaged: Path, on_step: Callable[[str], None]) -> None:
        self.root = root
        self.damaged = damaged
        self._on_step = on_step

    def path(self, shard: str) -> Path:
        return self.root / shard

    def label(self, shard: str) -> str:
        return str(self.path(shard))

    def entries(self) -> list[Entry]:
        """List all shards as they are now, sorted by name; what else lies there is left out."""
        if not self.root.is_dir():
            return []
        entries = []
        for folder in sorted(self.root.iterdir()):
            if folder.is_dir():
                with os.scandir(folder) as found:
                    shards = sorted((item for item in found if SHARD_NAME.fullmatch(item.name)), key=attrgetter("name"))
                for item in shards:
                    try:
                        state = item.stat()
                    except FileNotFoundError:
                        continue  # a compaction deleted it, or it was set aside, since the folder was listed
                    name, mark = f"{folder.name}/{item.name}", str(state.st_mtime_ns)
                    entries.append(Entry(name, state.st_size, mark, state.st_mtime))
        return entries

    def settled(self, entries: Iterable[Entry]) -> set[str]:
        """Find the shards of a new listing whose mark is certain to change whenever their bytes do from now on.

        These are the ones last changed some seconds ago, by the clock that stamps them.
        """
        try:
            with tempfile.TemporaryFile(dir=self.root) as probe:  # a file server has a clock of its own
                now = os.fstat(probe.fileno()).st_mtime
        except OSError:
            return set()
        return {entry.name for entry in entries if entry.modified <= now - SETTLING_SECONDS}

    def read(self, shard: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read bytes [start, stop) of a shard, or as many of them as there are; of a whole one, `MAX_SHARD_BYTES`.

        Raises ShardDamagedError if a shard that is to be read whole has more.
        """

        def read() -> bytes:
            with open_file(self.path(shard), None) as stream:
                n_bytes = os.fstat(stream.fileno()).st_size
                if stop is None and n_bytes - start > MAX_SHARD_BYTES:
                    raise oversized(self.label(shard))
                stream.seek(start)
                return stream.read(max(0, (n_bytes if stop is None else min(stop, n_bytes)) - start))

        return self._try_reading(shard, read)

    def source(self, shard: str) -> Path:
        """Path of a shard, which Parquet readers open best themselves; whoever hands it to them has read its footer."""
        return self.path(shard)

    def sha256(self, shard: str) -> str:
        """Hash a shard's bytes: 64 hex digits."""
        return self._try_reading(shard, lambda: sha256_of(self.path(shard)))

    def _try_reading(self, shard: str, read: Callable[[], _Out], attempts: int = 2) -> _Out:
        """Read, once more after an input/output error: of all errors only that one may mean lost bytes."""
        try:
            return read()
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno != errno.EIO:
                raise unreadable(self.label(shard), error) from error
            if attempts == 1:
                raise damaged(self.label(shard), "its bytes", f"{error.strerror}, twice") from error
        return self._try_reading(shard, read, attempts - 1)

    def publish(self, shard: str, content: bytes) -> None:
        """Publish a shard, whole and durably; one of that name may be there already."""
        with atomic_write(self.path(shard), on_step=self._on_step) as stream:
            stream.write(content)

    def writing(self, dataset: str) -> AbstractContextManager[NewFile]:
        """Open a shard for writing whose name is set in the block; it appears when that ends without an error."""
        return new_file(self.root / dataset, on_step=self._on_step)

    def set_aside(self, shard: str) -> str:
        """Move a shard out of the way, into ``damaged/``, and say where it lies now."""
        source, target = self.path(shard), self.damaged / shard
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        fsync_folder(target.parent)
        fsync_folder(source.parent)
        return str(target)

    def delete(self, shards: Iterable[str]) -> None:
        """Delete shards; those that are gone already do no harm."""
        paths = [self.path(shard) for shard in shards]
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            fsync_folder(folder)

    def remove_temporaries(self, clock: Callable[[], float]) -> int:
        """Remove what killed writers left behind (see `core.files.remove_leftovers`), and count it."""
        return remove_leftovers(self.root, clock=clock)


class HashingStream(io.RawIOBase):
    """A write-only binary stream that counts and hashes what goes through it; closing it leaves the one below open."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.n_bytes = 0

    def write(self, data: Any, /) -> int:
        self.digest.update(data)
        self.n_bytes += len(data)
        return self._stream.write(data)

    def tell(self) -> int:
        return self.n_bytes

    def writable(self) -> bool:
        return True


def map_ahead(function: Callable[[_In], _Out], items: Iterable[_In], threads: int) -> Iterator[_Out]:
    """Apply a function that waits for a disk or a network to items, a few at once, in other threads.

    Up to four times as many results as there are threads wait to be taken. They come in the order of the items; an
    exception is raised where its result would have been.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    remaining = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        pending = [pool.submit(function, item) for item in islice(remaining, 4 * threads)]
        try:
            while pending:
                result = pending.pop(0).result()
                pending += [pool.submit(function, item) for item in islice(remaining, 1)]
                yield result
        finally:
            for future in pending:
                future.cancel()
