"""Whole files of an export, hashed as they are written; of results, what JSON and Parquet have in common."""

import gzip
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast

from robust201.core.errors import ConfigError, EvaluationError, StorageError, closest
from robust201.core.files import atomic_write
from robust201.core.records import Unit
from robust201.shards import RowBatch
from robust201.shards.backends import HashingStream

Compression = Literal["gz", "zst"]

GZIP_LEVEL = 6


@dataclass(frozen=True)
class WrittenFile:
    """A whole file of an export, named relative to the folder."""

    name: str
    sha256: str
    n_bytes: int


def parse_choice(what: str, text: str, known: Sequence[str]) -> Any:
    """Check one of some words that a user wrote; ConfigError if it is none of them."""
    if text in known:
        return text
    raise ConfigError(f"Reading a {what} failed: expected {' or '.join(known)}, got {text!r}.{closest(text, known)}")


@contextmanager
def compressing(stream: BinaryIO, compression: Compression | None) -> Iterator[BinaryIO]:
    """Compress what is written, on its way to a stream; equal text gives equal bytes, without a file name or a time."""
    if compression is None:
        yield stream
    elif compression == "gz":
        with gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=stream, mtime=0) as packed:
            yield packed  # type: ignore[misc]
    else:
        import pyarrow as pa  # the standard library has no Zstandard before Python 3.14

        with pa.CompressedOutputStream(pa.PythonFile(stream, mode="w"), "zstd") as packed:
            yield packed


@contextmanager
def hashed_file(path: Path, compression: Compression | None = None) -> Iterator[tuple[BinaryIO, HashingStream]]:
    """Write a file that appears whole, under its name, when the block ends without an error.

    Yields the stream to write to, and what counts and hashes the file's bytes, complete after the block.
    """
    with atomic_write(path) as stream:
        hashed = HashingStream(stream)
        with compressing(cast(BinaryIO, hashed), compression) as text:
            yield text, hashed


class ExportStoppedError(EvaluationError):
    """Another file of the export failed, or it was interrupted."""


class RowSource(Protocol):
    """Where rows come from: `shards.RowSelection`, or the JSON files that are converted."""

    def iter_batches(self, measurement: str | None) -> Iterator[RowBatch]:
        """Columns of some units at a time: those of a measurement, or of all."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ResultFile(ABC):
    """A file of results to write; it can be pickled, since a process of its own may write it.

    `name` is relative to the folder, `key` spelled as in the file.
    """

    folder: Path
    name: str
    dataset: str
    key: str
    units: Sequence[Unit]
    rows: RowSource
    compression: Compression | None = None

    @abstractmethod
    def _write_content(self, stream: BinaryIO, on_rows: Callable[[int], None]) -> None:
        """Write the content, and call `on_rows` after some units with their number."""

    def write(self, on_rows: Callable[[int], None] = lambda _units: None) -> WrittenFile:
        """Write the file.

        `on_rows` is called after some units, with their number; what it raises ends the file, of which nothing stays.
        Raises StorageError where the rows are not those that were asked for, or hold a number that the file cannot.
        """
        with hashed_file(self.folder / self.name, self.compression) as (stream, hashed):
            self._write_content(stream, on_rows)
        return WrittenFile(self.name, hashed.digest.hexdigest(), hashed.n_bytes)

    def read_batches(self, measurement: str | None) -> Iterator[RowBatch]:
        """Read the columns of the units, of a measurement or of all, and compare them with what was asked for."""
        done = 0
        for batch in self.rows.iter_batches(measurement):
            for unit, expected in zip_longest(batch.units, self.units[done : done + len(batch.units)]):
                if expected is None or unit.id != expected.id:
                    described = "no further network" if expected is None else expected.label
                    raise _other_rows(unit, described, unit.label)
            if any(len(column) != batch.n_evaluations for column in batch.columns.values()):
                n_found = len(next(iter(batch.columns.values())))
                raise _other_rows(batch.units[0], f"{batch.n_evaluations} evaluations", f"{n_found}")
            done += len(batch.units)
            yield batch
        if done < len(self.units):
            raise _other_rows(self.units[done], "its values from the store", "none")


def _other_rows(unit: Unit, expected: str, got: str) -> StorageError:
    return StorageError(
        f"Exporting failed for {unit.label}: expected {expected}, got {got}. "
        "Run `robust201 verify` on the results folder."
    )
