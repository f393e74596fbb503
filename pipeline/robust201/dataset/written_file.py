"""Whole files of an export, hashed as they are written; of results, what JSON and Parquet have in common."""

import gzip
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, cast, get_args

from robust201.core.errors import ConfigError, EvaluationError, StorageError, closest
from robust201.core.files import atomic_write, sha256_of
from robust201.core.records import Unit
from robust201.shards.backends import HashingStream
from robust201.tasks.columns import Values

Compression = Literal["gz", "zst"]

GZIP_LEVEL = 6


@dataclass(frozen=True)
class WrittenFile:
    """A whole file of an export, named relative to the folder.

    `recipe` is a digest of everything that its bytes follow from, ``""`` for a file that is written anew each time.
    """

    name: str
    sha256: str
    n_bytes: int
    recipe: str = ""

    def is_at(self, path: Path) -> bool:
        """Whether the file lies there, byte for byte."""
        return path.is_file() and path.stat().st_size == self.n_bytes and sha256_of(path) == self.sha256


def parse_choice(what: str, text: str, known: Sequence[str]) -> Any:
    """Check one of some words that a user wrote; ConfigError if it is none of them."""
    if text in known:
        return text
    raise ConfigError(f"Reading a {what} failed: expected {' or '.join(known)}, got {text!r}.{closest(text, known)}")


def parse_compression(text: str | None) -> Compression | None:
    """Check a compression that a user wrote; ConfigError if it is neither ``gz`` nor ``zst``."""
    compression: Compression | None = None if text is None else parse_choice("compression", text, get_args(Compression))
    return compression


@contextmanager
def compressing(stream: BinaryIO, compression: Compression | None) -> Iterator[BinaryIO]:
    """Compress what is written, on its way to a stream; equal text gives equal bytes, without a file name or a time."""
    if compression is None:
        yield stream
    elif compression == "gz":
        with gzip.GzipFile(filename="", mode="wb", compresslevel=GZIP_LEVEL, fileobj=stream, mtime=0) as packed:
            yield packed  # type: ignore[misc]
    else:
        from robust201.core.zstandard import zstd_stream

        with zstd_stream(stream) as packed:
            yield packed


def compression_of(path: Path) -> Compression | None:
    """Return a file's compression by its name."""
    return next((known for known in get_args(Compression) if path.suffix == f".{known}"), None)


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

    @property
    def digest(self) -> str:
        """Name of what is read, by content."""

    def iter_values(self, measurement: str | None) -> Iterator[tuple[Unit, Mapping[float, Values]]]:
        """Columns by strength, unit by unit: those of a measurement, or of all."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ResultFile(ABC):
    """A file of results to write; it can be pickled, since a process of its own may write it.

    `name` is relative to the export's folder, `key` spelled as in the file; `earlier` is what an interrupted export
    noted.
    """

    folder: Path
    name: str
    dataset: str
    key: str
    units: Sequence[Unit]
    rows: RowSource
    compression: Compression | None = None
    earlier: WrittenFile | None = None

    @property
    def recipe(self) -> str:
        """Digest of everything that the file's content follows from."""
        return hashlib.sha256(json.dumps([*self._ingredients(), self.rows.digest]).encode()).hexdigest()

    @abstractmethod
    def _ingredients(self) -> list[Any]:
        """What the content follows from besides the rows, as JSON values."""

    @abstractmethod
    def _write_content(self, stream: BinaryIO, on_row: Callable[[], None]) -> None:
        """Write the content, and call `on_row` after each unit."""

    def write(self, on_row: Callable[[], None]) -> tuple[WrittenFile, bool]:
        """Write the file, or keep the one that an interrupted export made by the same recipe; say whether it was kept.

        `on_row` is called after each unit, of a kept file too; what it raises ends the file, of which nothing stays.
        Raises StorageError where the rows are not those that were asked for, or hold a number that the file cannot.
        """
        path, recipe = self.folder / self.name, self.recipe
        if self.earlier is not None and self.earlier.recipe == recipe and self.earlier.is_at(path):
            for _ in self.units:
                on_row()
            return self.earlier, True
        with hashed_file(path, self.compression) as (stream, hashed):
            self._write_content(stream, on_row)
        return WrittenFile(self.name, hashed.digest.hexdigest(), hashed.n_bytes, recipe), False

    def read_units(self, measurement: str | None) -> Iterator[tuple[Unit, Mapping[float, Values]]]:
        """Read the units' columns by strength, of a measurement or of all, and hold them to what was asked for."""
        expected = iter(self.units)
        for unit, values in self.rows.iter_values(measurement):
            wanted = next(expected, None)
            if wanted is None or unit.id != wanted.id or any(strength not in values for strength in unit.strengths):
                described = (
                    "no further network" if wanted is None else f"{wanted.label} at strengths {list(wanted.strengths)}"
                )
                raise StorageError(
                    f"Exporting failed for {unit.label}: expected {described}, got {unit.label} at strengths "
                    f"{sorted(values)}. Run `robust201 verify` on the results folder."
                )
            yield unit, values
        if (left := next(expected, None)) is not None:
            raise StorageError(
                f"Exporting failed for {left.label}: expected its values from the store, got none. "
                "Run `robust201 verify` on the results folder."
            )
