"""A cache of the shards' contents. A scan reads, and a resume hashes, only shards that are not in the cache.

The shards are the source of truth, so the index can be deleted at any time. It consists of a few files in the results
folder. Each is self-contained and ends with its own hash; damaged, partial and foreign files are ignored. An entry is
valid only for a shard of the same name, size and mark (see `shards.backends.Entry`). Processes add files and never
change one. Whoever adds a file also merges smaller ones into it, so a file is rewritten only when the index has
doubled.

An entry also records whether the shard's bytes were hashed and matched its name. If a file was changed within seconds
before it was hashed, a further change may leave its modification time unchanged, so it does not count as verified.
"""

import hashlib
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from robust201.core.errors import StorageError
from robust201.core.files import atomic_write, open_file
from robust201.shards.arrow_arrays import empty_table
from robust201.shards.backends import Entry
from robust201.shards.catalogue import SCHEMA, Catalogue, count_rows, join, matching, verified_names, without

_MAGIC = b"robust201 index 1\n"
_DIGEST_BYTES = 32
MAX_INDEX_BYTES = 4 << 30
"""Maximum size of an index file that is read: millions of rows take a few hundred megabytes."""

MIN_ROWS = 1000
"""Minimum number of rows that are worth an index file; fewer are read again."""


@dataclass(frozen=True)
class _Segment:
    path: Path
    known: Catalogue
    is_mostly_stale: bool


class Index:
    """The index of one results folder, whose own folder need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segments: list[_Segment] = []

    def load(self, entries: Sequence[Entry], must_be_verified: Collection[str] = ()) -> Catalogue:
        """Return the known contents of the shards in a listing, each once, in any order.

        Names in `must_be_verified` are known only if their bytes were verified.
        """
        if not entries:  # then the next `add` replaces all files
            paths = self._folder.glob("*.index")
            self._segments = [_Segment(path, empty_table(SCHEMA), is_mostly_stale=True) for path in paths]
            return empty_table(SCHEMA)
        self._segments = []
        taken: set[str] = set()
        stored_by_path = {path: _read(path) for path in sorted(self._folder.glob("*.index"))}
        # If one file has an unverified entry of a shard and another has a verified one, the verified one is used.
        verified = set(must_be_verified).union(*(verified_names(stored, entries) for stored in stored_by_path.values()))
        for path, stored in stored_by_path.items():
            known = matching(stored, entries, verified, taken)
            self._segments.append(_Segment(path, known, 2 * len(known) <= len(stored)))
        return join(segment.known for segment in self._segments)

    def add(self, new: Catalogue) -> None:
        """Store the contents of shards that `load` did not return, unless they are few or the folder is read-only."""
        n_rows = count_rows(new)
        if n_rows < MIN_ROWS:
            return
        absorbed, parts = [], [new]
        for segment in sorted(self._segments, key=lambda segment: count_rows(segment.known)):
            size = count_rows(segment.known)
            if segment.is_mostly_stale or size <= n_rows:
                absorbed.append(segment.path)
                parts.append(segment.known)
                n_rows += size
        # The shards are the source of truth: if the index cannot be written, only time is lost.
        with suppress(StorageError):
            path = _write(self._folder, join(parts))
            for old in absorbed:
                if old != path:
                    with suppress(OSError):
                        old.unlink()

    def forget(self, shards: Collection[str]) -> None:
        """Drop the entries of damaged shards, so that the next resume hashes them."""
        for path in sorted(self._folder.glob("*.index")) if shards else ():
            stored = _read(path)
            remaining = without(stored, shards)
            if len(remaining) < len(stored):
                # Dropping these entries is more important than keeping the others: if writing fails, delete the file.
                with suppress(StorageError):
                    _write(self._folder, remaining)
                with suppress(OSError):
                    path.unlink()


def _write(folder: Path, catalogue: Catalogue) -> Path:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(catalogue)  # chunk by chunk: joining the chunks would double the memory
    body = sink.getvalue()
    digest = hashlib.sha256(_MAGIC)
    digest.update(body)
    path = folder / f"{digest.hexdigest()[:16]}.index"
    with atomic_write(path) as stream:
        stream.write(_MAGIC)
        stream.write(body)
        stream.write(digest.digest())
    return path


def _read(path: Path) -> Catalogue:
    """Read an index file; return an empty catalogue if it is incomplete, foreign or deleted."""
    try:
        with open_file(path, MAX_INDEX_BYTES) as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:  # before reading a large foreign file
                return empty_table(SCHEMA)
            stream.seek(0)
            content = stream.read(os.fstat(stream.fileno()).st_size)
    except OSError:
        return empty_table(SCHEMA)  # another process has merged it
    body = memoryview(content)[:-_DIGEST_BYTES]
    if hashlib.sha256(body).digest() != content[-_DIGEST_BYTES:]:
        return empty_table(SCHEMA)
    with pa.ipc.open_stream(pa.BufferReader(pa.py_buffer(body)[len(_MAGIC) :])) as reader:
        table = reader.read_all()
    return table if table.schema.equals(SCHEMA) else empty_table(SCHEMA)
