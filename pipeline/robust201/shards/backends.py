"""Storage backends of shards: a folder of a POSIX file system, or a URL of an object store (`shards.object_store`).

A backend handles names and bytes, and does not interpret shards. Shards are named by their content and never change, so
publishing one twice is harmless. A backend only has to ensure that a shard appears completely or not at all.

Reading raises FileNotFoundError if there is no such shard, ShardDamagedError if the disk has lost its bytes, and
StorageError if it cannot be read at the moment. Writing raises StorageError (StorageFullError if the disk is full) if a
shard cannot be written; then no part of it is visible.
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
"""Pattern of the last component of a shard's name."""

SHA_DIGITS = 16


def sha_of_name(shard: str) -> str:
    """Return the first hex digits of the SHA-256, from a shard's name."""
    return shard.removesuffix(".parquet")[-SHA_DIGITS:]


def is_compacted(shard: str) -> bool:
    """Return whether a shard is compacted, from its name."""
    return shard.rpartition("/")[2].startswith("compact-")


MAX_SHARD_BYTES = 1 << 30
"""Maximum size of a shard that is read whole. Shards that are not compacted usually have a few megabytes."""

SETTLING_SECONDS = 5.0
"""Age of a file after which any further change also changes its modification time. File systems count in ticks of up to
two seconds (FAT), and a second change within a tick is invisible."""


_In = TypeVar("_In")
_Out = TypeVar("_Out")


def unreadable(label: str, error: OSError) -> StorageError:
    """Return the error of a shard that cannot be read now, because of permissions, open files or a server."""
    fix = "Check its permissions and the file server"
    if isinstance(error, IsADirectoryError | IrregularFileError):
        fix = "Move it away: a result file belongs there"
    return StorageError(
        f"Reading failed for result file {label}: expected to read it, got {error.strerror or error}. {fix}, and run "
        "the same command again; finished work is kept."
    )


def damaged(label: str, expected: str, got: object, doing: str = "Reading") -> ShardDamagedError:
    """Return the error of a shard whose bytes differ from those that were written."""
    return ShardDamagedError(
        f"{doing} failed for result file {label}: expected {expected}, got {got}. Run the sweep again: it sets the "
        "file aside and recomputes its evaluations."
    )


def oversized(label: str) -> ShardDamagedError:
    """Return the error of a shard above `MAX_SHARD_BYTES`."""
    return damaged(label, f"at most {show_bytes(MAX_SHARD_BYTES)}", "more")


@dataclass(frozen=True, slots=True)
class Entry:
    """A shard in a listing.

    `mark` changes whenever the bytes change (modification time, or an object's ETag); it is ``""`` if the backend has
    none. `modified` is in seconds since the epoch, or infinity if the backend does not report it.
    """

    name: str
    n_bytes: int
    mark: str
    modified: float


class LocalBackend:
    """Shards in a local or shared folder. Writing flushes a temporary file, renames it, and flushes the folder.

    Args:
        root: folder with one subfolder per dataset.
        damaged: folder for shards that are set aside, on the same file system.
        on_step: called at each step of writing (`core.files.WRITE_STEPS`), for crash tests.
    """

    # Number of parallel reads: a shared folder answers each open over the network; a local one is not slower.
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
        """Return all shards as they are now, sorted by name, ignoring other files."""
        if not self.root.is_dir():
            return []
        entries = []
        for folder in sorted(self.root.iterdir()):
            if folder.is_dir():
                with os.scandir(folder) as items:
                    shards = sorted((item for item in items if SHARD_NAME.fullmatch(item.name)), key=attrgetter("name"))
                for item in shards:
                    try:
                        state = item.stat()
                    except FileNotFoundError:
                        continue  # deleted by a compaction, or set aside, after the folder was listed
                    name, mark = f"{folder.name}/{item.name}", str(state.st_mtime_ns)
                    entries.append(Entry(name, state.st_size, mark, state.st_mtime))
        return entries

    def settled(self, entries: Iterable[Entry]) -> set[str]:
        """Return the shards of a new listing whose mark is certain to change if their bytes change from now on.

        These were last changed some seconds ago, according to the file system's clock.
        """
        try:
            with tempfile.TemporaryFile(dir=self.root) as probe:  # a file server has its own clock
                now = os.fstat(probe.fileno()).st_mtime
        except OSError:
            return set()
        return {entry.name for entry in entries if entry.modified <= now - SETTLING_SECONDS}

    def read(self, shard: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read bytes [start, stop) of a shard, or fewer if it ends before; without `stop`, up to its end.

        Raises ShardDamagedError if a read up to the end exceeds `MAX_SHARD_BYTES`.
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
        """Return the path of a shard, for Parquet readers. Callers must have read its footer."""
        return self.path(shard)

    def sha256(self, shard: str) -> str:
        """Return the hash of a shard's bytes as 64 hex digits."""
        return self._try_reading(shard, lambda: sha256_of(self.path(shard)))

    def _try_reading(self, shard: str, read: Callable[[], _Out], attempts: int = 2) -> _Out:
        """Read, and retry once after an input/output error, the only error that may mean lost bytes."""
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
        """Publish a shard completely and durably; a shard of the same name may exist."""
        with atomic_write(self.path(shard), on_step=self._on_step) as stream:
            stream.write(content)

    def writing(self, dataset: str) -> AbstractContextManager[NewFile]:
        """Open a new shard, whose name is set in the block; it appears when the block ends without an error."""
        return new_file(self.root / dataset, on_step=self._on_step)

    def set_aside(self, shard: str) -> str:
        """Move a shard into ``damaged/``, and return its new location."""
        source, target = self.path(shard), self.damaged / shard
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        fsync_folder(target.parent)
        fsync_folder(source.parent)
        return str(target)

    def delete(self, shards: Iterable[str]) -> None:
        """Delete shards; shards that do not exist are ignored."""
        paths = [self.path(shard) for shard in shards]
        for path in paths:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in paths}:
            fsync_folder(folder)

    def remove_temporaries(self, clock: Callable[[], float]) -> int:
        """Remove files that killed writers left (see `core.files.remove_leftovers`), and return their number."""
        return remove_leftovers(self.root, clock=clock)


class HashingStream(io.RawIOBase):
    """A write-only binary stream that counts and hashes its bytes; closing it does not close the underlying stream."""

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
    """Apply a function that waits for a disk or a network to several items at once, in threads.

    Up to four results per thread are computed ahead. Results have the order of the items; an exception is raised in
    place of its result.
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
