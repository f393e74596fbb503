"""Compressed files of results: gzip and Zstandard streams whose bytes follow from the text alone."""

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from pipeline.errors import ConfigError, ResultsError, closest

Compression = Literal["gz", "zst"]

GZIP_LEVEL = 6

_CHUNK_BYTES = 1 << 22


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
        from pipeline.shards.zstandard import zstd_stream

        with zstd_stream(stream) as packed:
            yield packed


def compression_of(path: Path) -> Compression | None:
    """Tell a file's compression by its name."""
    return next((known for known in get_args(Compression) if path.suffix == f".{known}"), None)


@contextmanager
def open_text(path: Path, compression: Compression | None) -> Iterator[BinaryIO]:
    """Open a file of results for reading, decompressed."""
    if compression == "gz":
        with gzip.open(path) as stream:
            yield stream  # type: ignore[misc]
    elif compression == "zst":
        import pyarrow as pa

        with pa.CompressedInputStream(str(path), "zstd") as stream:
            yield stream
    else:
        with path.open("rb") as stream:
            yield stream


def decompress_to(path: Path, compression: Compression, target: Path) -> None:
    """Write what a compressed file holds to another file, piece by piece.

    Raises:
        ResultsError: it is damaged.
        OSError: the target cannot be written.
    """
    with target.open("wb") as out, open_text(path, compression) as stream:
        while chunk := _read_chunk(stream, path):
            out.write(chunk)


def _read_chunk(stream: BinaryIO, path: Path) -> bytes:
    try:
        return bytes(stream.read(_CHUNK_BYTES))
    except (OSError, EOFError, zlib.error) as error:  # Arrow raises OSError for a damaged Zstandard file
        raise ResultsError(
            f"Reading failed for {path}: expected a whole {path.suffix} file, got a damaged one ({error}). "
            "Check the folder with `sha256sum -c SHA256SUMS`, and export or download the file again."
        ) from error
