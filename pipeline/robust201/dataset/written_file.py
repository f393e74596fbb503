"""Whole files of an export: hashed as they are written, compressed so that their bytes follow from the text alone."""

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args

from robust201.core.errors import ConfigError, closest
from robust201.core.files import atomic_write, sha256_of
from robust201.shards.backends import HashingStream

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
    raise ConfigError(
        f"Reading a {what} failed for {text!r}: expected {' or '.join(known)}, got another.{closest(text, known)}"
    )


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
    """Tell a file's compression by its name."""
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
