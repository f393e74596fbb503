"""What was read of the last few files, kept as long as each stays the same, in bounded memory."""

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from robust201.core.files import MAX_LISTED_BYTES, sha256_of

KEPT_BYTES = 1 << 28
"""Bound on the text of all that is kept (256 MiB, two to five times as much as Python objects). What is larger alone
is kept alone, until something else is read."""


class FileState(NamedTuple):
    """What tells a file from another that took its place: size in bytes, time of change in ns, and inode."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, file: Path) -> "FileState":
        status: os.stat_result = file.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


def hash_once(file: Path) -> str:
    """Compute the SHA-256 of a file, once as long as it stays the same."""
    return _hash(file, FileState.of(file))


@lru_cache(maxsize=256)
def _hash(file: Path, _state: FileState) -> str:
    return sha256_of(file, MAX_LISTED_BYTES)


class KeptRows:
    """The rows of the files read last; threads may share it."""

    def __init__(self) -> None:
        self._held: dict[tuple[Path, str, str | None], tuple[FileState, Mapping[str, Any], int]] = {}

    def get(
        self, file: Path, measure: str, read: Callable[[], Mapping[str, Any]], weights: str | None = None
    ) -> Mapping[str, Any]:
        """Give a measurement's values by id, read anew if that was never done or the file was replaced."""
        state, place = FileState.of(file), (file, measure, weights)
        held = self._held.get(place)
        if held is not None and held[0] == state:
            return held[1]
        rows = read()
        n_bytes = len(rows) * len(repr(next(iter(rows.values()), None)))
        # Another dict takes the place of the old one, whole: a lock might be held while a process forks.
        others = {name: kept for name, kept in self._held.items() if name != place}
        while others and n_bytes + sum(kept[2] for kept in others.values()) > KEPT_BYTES:
            others.pop(next(iter(others)))
        self._held = {**others, place: (state, rows, n_bytes)}
        return rows
