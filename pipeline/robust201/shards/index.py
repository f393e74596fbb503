"""The index of a results folder: a cache of the identities of all rows, so that a scan need not read every shard.

A scan only reads shards that are not in the index, and a run only hashes shards that the index does not list as
verified.

The shards are the source of truth, so the index can be deleted at any time. It consists of a few files in the results
folder. Each file is self-contained and ends with the hash of its content. Files that are damaged, incomplete or not
written by robust201 are ignored. An entry is valid only for a shard with the same name, size and change marker (see
`shards.backends.ShardEntry`). Processes add files but never change existing ones. A process that adds a file also
merges smaller files into it, so an entry is rewritten only when the number of entries has doubled.

An entry also records whether the shard is verified, which means that its bytes were hashed and the hash matched its
name.
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
from robust201.shards.backends import ShardEntry
from robust201.shards.catalogue import (
    SCHEMA,
    Catalogue,
    concat_catalogues,
    count_rows,
    drop_shards,
    find_verified_names,
    select_unchanged,
)

_MAGIC = b"robust201 index 1\n"
_DIGEST_BYTES = 32
MAX_INDEX_BYTES = 4 << 30
"""Maximum size of an index file. Millions of rows take a few hundred megabytes."""

MIN_ROWS = 1000
"""Minimum number of rows in an index file. Reading fewer rows again is cheap."""


@dataclass(frozen=True)
class _IndexFile:
    """An index file, a catalogue of the entries that are used, and whether at least half of its entries are unused."""

    path: Path
    catalogue: Catalogue
    is_mostly_unused: bool


class Index:
    """The index of one results folder; its folder need not exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index_files: list[_IndexFile] = []

    def load(self, entries: Sequence[ShardEntry], must_be_verified: Collection[str] = ()) -> Catalogue:
        """Return a catalogue of the shards in `entries` that are in the index, without duplicates, in any order.

        Shards named in `must_be_verified` are returned only if they are verified.
        """
        if not entries:  # no entry of the index is valid, so the next `add` replaces all files
            paths = self._folder.glob("*.index")
            self._index_files = [_IndexFile(path, empty_table(SCHEMA), is_mostly_unused=True) for path in paths]
            return empty_table(SCHEMA)
        self._index_files = []
        used_names: set[str] = set()
        catalogues_by_path = {path: _read_catalogue(path) for path in sorted(self._folder.glob("*.index"))}
        # If one file has an unverified entry of a shard and another file has a verified entry, the latter is used.
        must_be_verified = set(must_be_verified).union(
            *(find_verified_names(file_catalogue, entries) for file_catalogue in catalogues_by_path.values())
        )
        for path, file_catalogue in catalogues_by_path.items():
            catalogue = select_unchanged(file_catalogue, entries, must_be_verified, used_names)
            self._index_files.append(_IndexFile(path, catalogue, 2 * len(catalogue) <= len(file_catalogue)))
        return concat_catalogues(index_file.catalogue for index_file in self._index_files)

    def add(self, new_catalogue: Catalogue) -> None:
        """Store a catalogue of shards that `load` did not return.

        Do nothing if they have fewer than `MIN_ROWS` rows, or if the folder is read-only.
        """
        n_rows = count_rows(new_catalogue)
        if n_rows < MIN_ROWS:
            return
        absorbed_paths, catalogues = [], [new_catalogue]
        for index_file in sorted(self._index_files, key=lambda index_file: count_rows(index_file.catalogue)):
            n_file_rows = count_rows(index_file.catalogue)
            if index_file.is_mostly_unused or n_file_rows <= n_rows:
                absorbed_paths.append(index_file.path)
                catalogues.append(index_file.catalogue)
                n_rows += n_file_rows
        # If the index cannot be written, only time is lost, because the shards are the source of truth.
        with suppress(StorageError):
            path = _write_catalogue(self._folder, concat_catalogues(catalogues))
            for absorbed_path in absorbed_paths:
                if absorbed_path != path:
                    with suppress(OSError):
                        absorbed_path.unlink()

    def forget(self, shards: Collection[str]) -> None:
        """Remove the entries of some shards, so that the next run reads and hashes these shards."""
        for path in sorted(self._folder.glob("*.index")) if shards else ():
            catalogue = _read_catalogue(path)
            remaining = drop_shards(catalogue, shards)
            if len(remaining) < len(catalogue):
                # If writing fails, the file is deleted: removing these entries matters more than keeping the others.
                with suppress(StorageError):
                    _write_catalogue(self._folder, remaining)
                with suppress(OSError):
                    path.unlink()


def _write_catalogue(folder: Path, catalogue: Catalogue) -> Path:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(catalogue)  # chunk by chunk: joining the chunks would double the memory
    stream_bytes = sink.getvalue()
    digest = hashlib.sha256(_MAGIC)
    digest.update(stream_bytes)
    path = folder / f"{digest.hexdigest()[:16]}.index"
    with atomic_write(path) as stream:
        stream.write(_MAGIC)
        stream.write(stream_bytes)
        stream.write(digest.digest())
    return path


def _read_catalogue(path: Path) -> Catalogue:
    """Read an index file; return an empty catalogue if it is incomplete, deleted, or not an index file."""
    try:
        with open_file(path, MAX_INDEX_BYTES) as stream:
            if stream.read(len(_MAGIC)) != _MAGIC:  # check this first, because another program's file may be large
                return empty_table(SCHEMA)
            stream.seek(0)
            content = stream.read(os.fstat(stream.fileno()).st_size)
    except OSError:
        return empty_table(SCHEMA)  # another process may have merged and deleted it
    stream_bytes = memoryview(content)[:-_DIGEST_BYTES]
    if hashlib.sha256(stream_bytes).digest() != content[-_DIGEST_BYTES:]:
        return empty_table(SCHEMA)
    with pa.ipc.open_stream(pa.BufferReader(pa.py_buffer(stream_bytes)[len(_MAGIC) :])) as reader:
        table = reader.read_all()
    return table if table.schema.equals(SCHEMA) else empty_table(SCHEMA)
