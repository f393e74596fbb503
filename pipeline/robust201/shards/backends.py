"""Storage backends of shards: a folder of a POSIX file system, or a URL of an object store (`shards.object_store`).

A backend handles names and bytes, and does not interpret shards. A shard's name contains the hash of its content, and
shards never change, so publishing a shard twice is harmless. A backend only has to ensure that a shard appears
completely or not at all.

Reading raises FileNotFoundError if the shard does not exist, ShardDamagedError if the disk can no longer read its
bytes, and StorageError if the shard cannot be read at the moment. Writing raises StorageError (StorageFullError if the
disk is full) if the shard cannot be written. No part of the shard is visible in that case.
"""

import errno
import hashlib
import io
import os
import re
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
    format_bytes,
    fsync_folder,
    new_file,
    open_file,
    remove_leftovers,
    sha256_of,
)

SHARD_NAME = re.compile(
    r"(?:(?P<stem>(?:(?P<index>\d{6})-|(?P<name>[A-Za-z][\w.-]*)@).+)|compact)-(?P<sha>[0-9a-f]{16})\.parquet"
)
"""Pattern of the last component of a shard's name."""

SHA_DIGITS = 16


def sha_of_name(shard: str) -> str:
    """Return the first `SHA_DIGITS` hex digits of a shard's SHA-256, which its name contains."""
    return shard.removesuffix(".parquet")[-SHA_DIGITS:]


def is_compacted(shard: str) -> bool:
    """Return whether a shard is compacted, according to its name."""
    return shard.rpartition("/")[2].startswith("compact-")


MAX_SHARD_BYTES = 1 << 30
"""Maximum size of a shard that is read into memory in one piece. Uncompacted shards are usually a few megabytes."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def unreadable_error(label: str, error: OSError) -> StorageError:
    """Return an error for a shard that cannot be read at the moment.

    Common causes are missing permissions, too many open files, and a file server that does not respond.
    """
    fix = "Check its permissions and the file server"
    if isinstance(error, IsADirectoryError | IrregularFileError):
        fix = "Move it elsewhere, because a result file belongs at this path"
    return StorageError(
        f"Reading failed for result file {label}: {error.strerror or error}. {fix}, and run the same command again; "
        "finished work is kept."
    )


def damage_error(label: str, expected: str, got: object, action: str = "Reading") -> ShardDamagedError:
    """Return an error for a shard whose bytes have changed since they were written."""
    return ShardDamagedError(
        f"{action} failed for result file {label}: expected {expected}, got {got}. Run the sweep again: it sets the "
        "file aside and recomputes its evaluations."
    )


def size_error(label: str) -> ShardDamagedError:
    """Return an error for a shard with more than `MAX_SHARD_BYTES`."""
    return damage_error(label, f"at most {format_bytes(MAX_SHARD_BYTES)}", "more")


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A shard in a listing of a backend.

    `change_marker` is a value that changes whenever the bytes change (the modification time, or an object's ETag), or
    ``""`` if the backend has no such value. `modified` is the modification time in seconds since the epoch, or infinity
    if the backend does not report it.
    """

    name: str
    n_bytes: int
    change_marker: str
    modified: float


class LocalBackend:
    """Shards in a local or shared folder. Writing flushes a temporary file, renames it, and flushes the folder.

    Args:
        root: folder with one subfolder per dataset.
        damaged: folder for shards that are set aside, on the same file system.
        on_step: called at each step of writing (`core.files.WRITE_STEPS`), for crash tests.
    """

    # Number of parallel reads. In a shared folder, each open waits for the network; a local folder is not slower.
    threads = 4

    def __init__(self, root: Path, damaged: Path, on_step: Callable[[str], None]) -> None:
        self.root = root
        self.damaged = damaged
        self._on_step = on_step

    def path(self, shard: str) -> Path:
        return self.root / shard

    def label(self, shard: str) -> str:
        """Return the location of a shard, for messages."""
        return str(self.path(shard))

    def entries(self) -> list[ShardEntry]:
        """Return all existing shards, sorted by name; other files are ignored."""
        if not self.root.is_dir():
            return []
        entries = []
        for folder in sorted(self.root.iterdir()):
            if folder.is_dir():
                with os.scandir(folder) as files:
                    shards = sorted((file for file in files if SHARD_NAME.fullmatch(file.name)), key=attrgetter("name"))
                for shard in shards:
                    try:
                        status = shard.stat()
                    except FileNotFoundError:
                        continue  # deleted by a compaction, or set aside, after the folder was listed
                    name, change_marker = f"{folder.name}/{shard.name}", str(status.st_mtime_ns)
                    entries.append(ShardEntry(name, status.st_size, change_marker, status.st_mtime))
        return entries

    def read(self, shard: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes [start, stop) of a shard, or fewer if the shard is shorter; without `stop`, up to its end.

        Raises ShardDamagedError if a read without `stop` exceeds `MAX_SHARD_BYTES`.
        """

        def read_range() -> bytes:
            with open_file(self.path(shard), None) as stream:
                n_bytes = os.fstat(stream.fileno()).st_size
                if stop is None and n_bytes - start > MAX_SHARD_BYTES:
                    raise size_error(self.label(shard))
                stream.seek(start)
                return stream.read(max(0, (n_bytes if stop is None else min(stop, n_bytes)) - start))

        return self._try_reading(shard, read_range)

    def source(self, shard: str) -> Path:
        """Return the path of a shard, for Parquet readers.

        The caller must already have read the shard's footer, so that a missing or damaged shard has raised an error.
        """
        return self.path(shard)

    def sha256(self, shard: str) -> str:
        """Return the SHA-256 of a shard's bytes as 64 hex digits."""
        return self._try_reading(shard, lambda: sha256_of(self.path(shard)))

    def _try_reading(self, shard: str, read: Callable[[], _Result], attempts: int = 2) -> _Result:
        """Return the result of `read`, retrying once after EIO, the only error that may mean lost bytes."""
        try:
            return read()
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno != errno.EIO:
                raise unreadable_error(self.label(shard), error) from error
            if attempts == 1:
                raise damage_error(self.label(shard), "readable bytes", f"{error.strerror} in two attempts") from error
        return self._try_reading(shard, read, attempts - 1)

    def publish(self, shard: str, content: bytes) -> None:
        """Write a shard so that it appears completely and survives a crash; a shard of the same name may exist."""
        with atomic_write(self.path(shard), on_step=self._on_step) as stream:
            stream.write(content)

    def open_new_shard(self, dataset: str) -> AbstractContextManager[NewFile]:
        """Return a context manager that opens a new shard for writing.

        The caller sets the shard's name in the block. The shard appears when the block ends without an error.
        """
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
        """Remove temporary files of killed writers (see `core.files.remove_leftovers`), and return their number."""
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


def map_ahead(function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int) -> Iterator[_Result]:
    """Yield the results of a function for several items, computed in parallel by threads.

    The function should spend its time waiting for a disk or a network. Up to four results per thread are computed in
    advance. Results have the order of the items. An exception of the function is raised where its result would be.
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
