"""Caches of file contents in bounded memory, invalidated when a file changes."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from robust201.core.files import MAX_LISTED_BYTES, sha256_of

MAX_CACHE_BYTES = 1 << 28
"""Maximum size of the cached text (256 MiB; two to five times as much as Python objects). A larger entry is cached
alone until another file is read."""

_More = TypeVarTuple("_More")
_Read = TypeVar("_Read")


class FileState(NamedTuple):
    """Size in bytes, modification time in ns and inode, by which a change or replacement of a file is detected."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, file: Path) -> "FileState":
        status: os.stat_result = file.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def cached_while_unchanged(read: Callable[[Path, *_More], _Read]) -> Callable[[Path, *_More], _Read]:
    """Cache what a function of a file, and further hashable arguments, returns for the last 256 unchanged files."""

    @lru_cache(maxsize=256)
    def read_state(_state: FileState, file: Path, *more: *_More) -> _Read:
        return read(file, *more)

    @wraps(read)
    def read_once(file: Path, *more: *_More) -> _Read:
        return read_state(FileState.of(file), file, *more)

    return read_once


@cached_while_unchanged
def hash_once(file: Path) -> str:
    """Return the SHA-256 of a file, which is cached while the file is unchanged."""
    return sha256_of(file, MAX_LISTED_BYTES)


class RowCache:
    """Thread-safe cache of the rows of recently read files."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Path, str, str | None], tuple[FileState, Mapping[str, Any], int]] = {}

    def get(
        self, file: Path, measure: str, read: Callable[[], Mapping[str, Any]], weights: str | None = None
    ) -> Mapping[str, Any]:
        """Return a measurement's values by id, and read them if they are not cached or the file has changed."""
        state, name = FileState.of(file), (file, measure, weights)
        entry = self._rows.get(name)
        if entry is not None and entry[0] == state:
            return entry[1]
        rows = read()
        n_bytes = len(rows) * len(repr(next(iter(rows.values()), None)))
        # The dict is replaced instead of being changed under a lock, since a process may fork while a lock is held.
        others = {other: entry for other, entry in self._rows.items() if other != name}
        while others and n_bytes + sum(entry[2] for entry in others.values()) > MAX_CACHE_BYTES:
            others.pop(next(iter(others)))
        self._rows = {**others, name: (state, rows, n_bytes)}
        return rows
