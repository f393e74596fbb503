"""Files of an export, written atomically and hashed."""

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from robust201.core.files import atomic_write


@dataclass(frozen=True)
class WrittenFile:
    """A complete file of an export, whose name is relative to the export's folder."""

    name: str
    sha256: str
    n_bytes: int


class HashingStream(io.RawIOBase):
    """A write-only binary stream that counts and hashes its bytes; closing it does not close the underlying stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._n_bytes = 0

    def write(self, data: Any, /) -> int:
        self._digest.update(data)
        self._n_bytes += len(data)
        return self._stream.write(data)

    def tell(self) -> int:
        return self._n_bytes

    def writable(self) -> bool:
        return True

    def written(self, name: str) -> WrittenFile:
        """Return the file that the bytes so far make."""
        return WrittenFile(name, self._digest.hexdigest(), self._n_bytes)


@contextmanager
def open_hashed(path: Path) -> Iterator[tuple[BinaryIO, HashingStream]]:
    """Open a file that appears under its name when the block ends without an error; yield its stream in two types."""
    with atomic_write(path) as stream:
        hashing = HashingStream(stream)
        yield cast(BinaryIO, hashing), hashing
