"""A cache of what is in the shards, so that a scan reads, and a resume hashes, only those that were not before.

The shards are the record; the index can be deleted at any time. It lies in the results folder as a few files, each of
which is complete in itself and ends with its own hash: a damaged, half-written or foreign one is as good as none. An
entry counts for a shard of the same name, size and mark only (see `shards.backends.Entry`). Processes add files
and never change one; whoever adds merges the small ones, so a file is rewritten once each time the index has doubled.

An entry says as well whether the shard's bytes were hashed and matched its name. A file that had been changed within
seconds before it was hashed may be changed again without a trace in its time, so it does not count as verified.
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
"""Largest file of the index that is read: millions of rows take some hundred megabytes."""

MIN_ROWS = 1000
"""Fewer rows than this are read again rather than written down."""


@dataclass(frozen=True)
class _Segment:
    path: Path
    known: Catalogue
    is_mostly_stale: bool


class Index:
    """What earlier scans of one results folder have found; the folder of its files need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segments: list[_Segment] = []

    def load(self, entries: Sequence[Entry], must_be_verified: Collection[str] = ()) -> Catalogue:
        """Find what is known of shards as a listing shows them, each once, in any order.

        Those named in `must_be_verified` count as known only if their bytes were verified.
        """
        if not entries:  # whoever asks for nothing writes anew what there is
            paths = self._folder.glob("*.index")
            self._segments = [_Segment(path, empty_table(SCHEMA), is_mostly_stale=True) for path in paths]
            return empty_table(SCHEMA)
        self._segments = []
        taken: set[str] = set()
        found = {path: _read(path) for path in sorted(self._folder.glob("*.index"))}
        # Where one file has seen a shard and another has verified it, the second says more.
        verified = set(must_be_verified).union(*(verified_names(stored, entries) for stored in found.values()))
        for path, stored in found.items():
            known = matching(stored, entries, verified, taken)
            self._segments.append(_Segment(path, known, 2 * len(known) <= len(stored)))
        return join(segment.known for segment in self._segments)

    def add(self, new: Catalogue) -> None:
        """Keep what was read of shards that `load` did not give, unless it is little or the folder is read-only."""
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
        # The shards are the record: an index that cannot be written costs time only.
        with suppress(StorageError):
            path = _write(self._folder, join(parts))
            for old in absorbed:
                if old != path:
                    with suppress(OSError):
                        old.unlink()

    def forget(self, shards: Collection[str]) -> None:
        """Drop what is known of shards that turned out damaged, so that the next resume hashes them."""
        for path in sorted(self._folder.glob("*.index")) if shards else ():
            stored = _read(path)
            kept = without(stored, shards)
            if len(kept) < len(stored):
                # To forget is worth more than to keep: where nothing can be written, the whole file goes.
                with suppress(StorageError):
                    _write(self._folder, kept)
                with suppress(OSError):
                    path.unlink()


def _write(folder: Path, catalogue: Catalogue) -> Path:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(catalogue)  # chunk by chunk: joined, they would take as much again
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
    """Read a file of the index; empty where it is not whole, not ours or gone."""
    try:
        with open_file(path, MAX_INDEX_BYTES) as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:  # compared before a large file is read whole
                return empty_table(SCHEMA)
            stream.seek(0)
            content = stream.read(os.fstat(stream.fileno()).st_size)
    except OSError:
        return empty_table(SCHEMA)  # another process has merged it into its own
    body = memoryview(content)[:-_DIGEST_BYTES]
    if hashlib.sha256(body).digest() != content[-_DIGEST_BYTES:]:
        return empty_table(SCHEMA)
    with pa.ipc.open_stream(pa.BufferReader(pa.py_buffer(body)[len(_MAGIC) :])) as reader:
        table = reader.read_all()
    return table if table.schema.equals(SCHEMA) else empty_table(SCHEMA)
