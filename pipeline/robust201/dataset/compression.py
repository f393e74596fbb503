"""Compressed files of results: gzip and Zstandard streams whose bytes follow from the text alone."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from robust201.core.errors import ConfigError, closest

Compression = Literal["gz", "zst"]

GZIP_LEVEL = 6


def parse_compression(text: str | None) -> Compression | None:
    """Check a compression that a user wrote.

    Raises:
        ConfigError: it is neither ``gz`` nor ``zst``.
    """
    if text is None:
        return None
    for known in get_args(Compression):
        if text == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(
        f"Reading a compression failed for {text!r}: expected gz or zst, got another."
        f"{closest(text, get_args(Compression))}"
    )


@contextmanager
def compressing(stream: BinaryIO, compression: Compression | None) -> Iterator[BinaryIO]:
    """Compress what is written, on its way to a stream.

    Args:
        stream: where the bytes go.
        compression: None passes them on as they are.

    Yields:
        A writable stream. Equal text gives equal bytes: no file name and no time is in them.
    """
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
