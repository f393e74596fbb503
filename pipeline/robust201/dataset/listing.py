"""Files of an export, written atomically and hashed, and their listing.

`SHA256SUMS` contains the SHA-256 of every other file of an export, so that missing, truncated and changed files are
found. Folders without it, such as the published dataset, cannot be checked in this way.
"""

import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from robust201.core.errors import ResultsError
from robust201.core.files import atomic_write, sha256_of

CHECKSUM_FILE = "SHA256SUMS"
"""Listing for ``sha256sum -c``.

The folder of an export is replaced as a whole, when all its files and this listing are complete.
"""

REEXPORT = "Export the dataset again."

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
"""A line: a digest, and a path below the folder."""


def read_listing(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of an export's files by name, relative to the folder.

    Raises:
        ResultsError: there is no listing, or it has an invalid line, or a name twice.
    """
    path = folder / CHECKSUM_FILE
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(
            f"Verifying failed for {folder}: expected a complete export, but {CHECKSUM_FILE} cannot be read ({error}). "
            f"{REEXPORT}"
        ) from error
    digests: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in digests:
            raise ResultsError(
                f"Verifying failed for {path}, line {number}: expected 64 hexadecimal digits, two spaces and the name "
                f"of a file below the folder, each name once, got {line[:100]!r}. {REEXPORT}"
            )
        digests[match[2]] = match[1]
    return digests


def listing_text(digests: Mapping[str, str]) -> str:
    """Return the content of a listing; names are relative to the folder."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def check_listing(folder: Path, digests: Mapping[str, str]) -> Iterator[str]:
    """Compare the files of an export with its listing, and yield a message for each difference."""
    for name, digest in digests.items():
        path = folder / name
        try:
            if sha256_of(path) != digest:
                yield f"Verifying failed for {path}: its SHA-256 differs from {CHECKSUM_FILE}. {REEXPORT}"
        except OSError as error:
            yield f"Verifying failed for {path}: expected a file that can be read, got {error}. {REEXPORT}"


class HashedFile(io.RawIOBase):
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

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes so far."""
        return self._digest.hexdigest()


@contextmanager
def open_hashed(path: Path) -> Iterator[HashedFile]:
    """Open a file that appears under its name when the block ends without an error."""
    with atomic_write(path) as stream:
        yield HashedFile(stream)
