"""`SHA256SUMS`, the listing of an export's files in the form of GNU ``sha256sum``: what its lines say."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from robust201.core.files import read_text

CHECKSUM_FILE = "SHA256SUMS"
"""Listing that ``sha256sum -c`` reads.

An export moves it to its final path last. So a folder's first export is complete if the listing is there; while an
export replaces another, it lists the old one's files.
"""

_LINE = re.compile(r"([0-9a-f]{64})  ([^\r]+)")
MAX_LISTING_BYTES = 64 << 20


@dataclass(frozen=True)
class ChecksumLines:
    """SHA-256 by name of a file below the folder, and the other lines: number from 1, and what stands there."""

    digests: Mapping[str, str]
    wrong: tuple[tuple[int, str], ...]


def parse_checksums(text: str) -> ChecksumLines:
    """Read the lines of a listing; empty lines are passed over."""
    digests: dict[str, str] = {}
    wrong: list[tuple[int, str]] = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            if line:
                wrong.append((number, repr(line if len(line) <= 100 else f"{line[:100]}…")))
        elif not is_below(match[2]):
            wrong.append((number, f"{match[2]!r}, which is no path below the folder"))
        elif match[2] in digests:
            wrong.append((number, f"{match[2]!r} a second time"))
        else:
            digests[match[2]] = match[1]
    return ChecksumLines(digests, tuple(wrong))


def read_checksums(folder: Path) -> Mapping[str, str]:
    """SHA-256 by name of what a folder lists; empty where it has no listing, or something else under its name."""
    path = folder / CHECKSUM_FILE
    if not path.is_file():
        return {}
    try:
        return parse_checksums(read_text(path, MAX_LISTING_BYTES)).digests
    except ValueError:
        return {}


def is_below(name: str) -> bool:
    """Whether a name is that of a file below the folder that it is relative to, spelled in the one usual way."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and name != "."
