"""What was read of the last few files, kept as long as each stays the same, in bounded memory."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from robust201.core.files import MAX_LISTED_BYTES, sha256_of

KEPT_BYTES = 1 << 28
"""Bound on the text of all that is kept (256 MiB, two to five times as much as Python objects). What is larger alone
is kept alone, until something else is read."""

_More = TypeVarTuple("_More")
_Read = TypeVar("_Read")


class FileState(NamedTuple):
    """What tells a file from another that took its place: size in bytes, time of change in ns, and inode."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, file: Path) -> "FileState":
        status: os.stat_result = file.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def kept_while_unchanged(read: Callable[[Path, *_More], _Read]) -> Callable[[Path, *_More], _Read]:
    """Let a function of a file (and further hashable arguments) read each of the last 256 files once per state."""

    @lru_cache(maxsize=256)
    def read_state(_state: FileState, file: Path, *more: *_More) -> _Read:
        return read(file, *more)

    @wraps(read)
    def read_once(file: Path, *more: *_More) -> _Read:
        return read_state(FileState.of(file), file, *more)

    return read_once


@kept_while_unchanged
def hash_once(file: Path) -> str:
    """Compute the SHA-256 of a file, once as long as it stays the same."""
    return sha256_of(file, MAX_LISTED_BYTES)


class KeptRows:
    """The rows of the files read last; threads may share it."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Path, str, str | None], tuple[FileState, Mapping[str, Any], int]] = {}

    def get(
        self, file: Path, measure: str, read: Callable[[], Mapping[str, Any]], weights: str | None = None
    ) -> Mapping[str, Any]:
        """Return a measurement's values by id, read anew if that was never done or the file was replaced."""
        state, name = FileState.of(file), (file, measure, weights)
        kept = self._rows.get(name)
        if kept is not None and kept[0] == state:
            return kept[1]
        rows = read()
        n_bytes = len(rows) * len(repr(next(iter(rows.values()), None)))
        # Another dict takes the place of the old one, whole: a lock might be held while a process forks.
        others = {other: kept for other, kept in self._rows.items() if other != name}
        while others and n_bytes + sum(kept[2] for kept in others.values()) > KEPT_BYTES:
            others.pop(next(iter(others)))
        self._rows = {**others, name: (state, rows, n_bytes)}
        return rows
