"""Caches of file contents in bounded memory. An entry is discarded when its file changes."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

MAX_CACHE_BYTES = 1 << 28
"""Maximum size of the cached values, measured as text (256 MiB). As Python objects, they need two to five times as much
memory. An entry that exceeds the maximum is cached alone until another file is read.
"""

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")


class FileState(NamedTuple):
    """Size in bytes, modification time in ns and inode of a file, which together detect a change or replacement."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, file: Path) -> "FileState":
        status: os.stat_result = file.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def cached_while_unchanged(read_file: Callable[[Path, *_Arguments], _Result]) -> Callable[[Path, *_Arguments], _Result]:
    """Cache the last 256 results of a function whose arguments are a file and further hashable values.

    After a change of the file, the function is called again.
    """

    @lru_cache(maxsize=256)
    def read_for_state(_state: FileState, file: Path, *arguments: *_Arguments) -> _Result:
        return read_file(file, *arguments)

    @wraps(read_file)
    def read_cached(file: Path, *arguments: *_Arguments) -> _Result:
        return read_for_state(FileState.of(file), file, *arguments)

    return read_cached


class RowCache:
    """Thread-safe cache of recently read measurements, each with its values by architecture."""

    def __init__(self) -> None:
        self._entries: dict[tuple[Path, str, str | None], tuple[FileState, Mapping[str, Any], int]] = {}

    def get(
        self, file: Path, measurement: str, read: Callable[[], Mapping[str, Any]], weights: str | None = None
    ) -> Mapping[str, Any]:
        """Return a measurement's values by id; call `read` if they are not cached or the file has changed."""
        state, cache_key = FileState.of(file), (file, measurement, weights)
        cached = self._entries.get(cache_key)
        if cached is not None and cached[0] == state:
            return cached[1]
        values_by_id = read()
        n_bytes = len(values_by_id) * len(repr(next(iter(values_by_id.values()), None)))
        # The dict is replaced instead of being changed under a lock, because a process may fork while another thread
        # holds the lock.
        other_entries = {other_key: cached for other_key, cached in self._entries.items() if other_key != cache_key}
        while other_entries and n_bytes + sum(cached[2] for cached in other_entries.values()) > MAX_CACHE_BYTES:
            other_entries.pop(next(iter(other_entries)))
        self._entries = {**other_entries, cache_key: (state, values_by_id, n_bytes)}
        return values_by_id
