"""Zstandard streams, by Arrow's codec: the standard library has none before Python 3.14."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa


class _KeptOpen:
    """A write-only stream whose `close` leaves the file to whoever opened it."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        return self._stream.write(data)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Leave the stream open."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


@contextmanager
def zstd_stream(stream: BinaryIO) -> Iterator[Any]:
    """Compress what is written, on its way to a stream, which stays open.

    Yields:
        A writable stream; equal bytes written in equal pieces give equal bytes.
    """
    with pa.CompressedOutputStream(pa.PythonFile(_KeptOpen(stream), mode="w"), "zstd") as packed:
        yield packed
