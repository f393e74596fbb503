"""Zstandard streams, by Arrow's codec: the standard library has none before Python 3.14."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa


@contextmanager
def zstd_stream(stream: BinaryIO) -> Iterator[Any]:
    """Compress what is written, on its way to a stream, which is closed at the end.

    Yields:
        A writable stream; equal bytes written in equal pieces give equal bytes.
    """
    with pa.CompressedOutputStream(pa.PythonFile(stream, mode="w"), "zstd") as packed:
        yield packed
