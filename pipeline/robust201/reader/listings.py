"""Listings of a dataset's files: SHA-256 of each, and what the Parquet files hold; missing files are reported by them.

`SHA256SUMS` lists every file of an export. `parquet_files.json` lists rows and footer of each Parquet file; it lies
beside the folder `parquet`, as other readers take every file in that folder for Parquet. Folders without listings, such
as the published dataset, say nothing.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

from robust201.core.errors import ResultsError, RobustWarning
from robust201.core.files import MAX_LISTED_BYTES, load_json, open_file, read_text
from robust201.core.parquet_footer import parse_row_groups, read_footer_bytes

CHECKSUM_FILE = "SHA256SUMS"
"""Listing that ``sha256sum -c`` reads. An export moves it to its final path last: a folder's first export is complete
if the listing is there; while an export replaces another, it lists the old one's files."""

PARQUET_FILES = "parquet_files.json"
"""Listing of the Parquet files in the dataset's folder, with names relative to the folder ``parquet``."""

MAX_LISTING_BYTES = 64 << 20
AGAIN = "Export it again."

_LINE = re.compile(r"([0-9a-f]{64})  ([^\r]+)")
_SHOWN = 10
_FORMAT = 1


class MissingFilesWarning(RobustWarning):
    """A dataset lacks files that its listing names, so that answers leave them out."""


@dataclass(frozen=True)
class Listing:
    """SHA-256 by name of a file below the folder, and messages about lines of another form."""

    digests: Mapping[str, str]
    wrong: tuple[str, ...] = ()

    @property
    def is_other_content(self) -> bool:
        """Whether the file has lines, and none of them lists anything."""
        return bool(self.wrong) and not self.digests


def parse_checksums(text: str, path: Path) -> Listing:
    """Parse a listing, the text of `path`; empty lines are passed over."""
    digests: dict[str, str] = {}
    wrong: list[str] = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = _LINE.fullmatch(line)
        got = None
        if match is None:
            got = repr(line if len(line) <= 100 else f"{line[:100]}…") if line else None
        elif not _is_below(match[2]):
            got = f"{match[2]!r}, which is no path below the folder"
        elif match[2] in digests:
            got = f"{match[2]!r} a second time"
        else:
            digests[match[2]] = match[1]
        if got is not None:
            wrong.append(
                f"Verifying failed for {path}, line {number}: expected 64 hexadecimal digits, two spaces and the name "
                f"of a file below the folder, each name once, got {got}. {AGAIN}"
            )
    if len(wrong) > _SHOWN:
        more = f"expected lines of this form, got {len(wrong) - _SHOWN} more of another"
        wrong[_SHOWN:] = [f"Verifying failed for {path}: {more}. {AGAIN}"]
    return Listing(digests, tuple(wrong))


def _is_below(name: str) -> bool:
    """Whether a name is that of a file below the folder that it is relative to, spelled in the one usual way."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and name != "."


def read_checksums(folder: Path) -> Mapping[str, str]:
    """SHA-256 by name of what a folder lists; empty where it has no listing, or something else under its name."""
    path = folder / CHECKSUM_FILE
    if not path.is_file():
        return {}
    try:
        return parse_checksums(read_text(path, MAX_LISTING_BYTES), path).digests
    except ValueError:
        return {}


class ListedFile(NamedTuple):
    """What is listed of a Parquet file: its rows, and the SHA-256 of its footer, as its pages have checksums."""

    rows: int
    footer: str

    @classmethod
    def of(cls, path: Path) -> Self:
        with open_file(path, MAX_LISTED_BYTES) as stream:
            footer = read_footer_bytes(stream)
        return cls(sum(group.n_rows for group in parse_row_groups(footer)), hashlib.sha256(footer).hexdigest())


def parquet_files_text(files: Mapping[str, ListedFile]) -> str:
    """Text of the listing of Parquet files, by name relative to their folder."""
    listed = {name: file._asdict() for name, file in sorted(files.items())}
    return json.dumps({"format": _FORMAT, "files": listed}, indent=1) + "\n"


def read_parquet_files(folder: Path) -> dict[str, ListedFile]:
    """Read what the folder of a dataset lists of its Parquet files, by name; empty where it lists nothing.

    Raises ResultsError where the listing is damaged.
    """
    path = folder / PARQUET_FILES
    if not os.path.lexists(path):
        return {}
    try:
        return _parse_files(load_json(path, MAX_LISTING_BYTES))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsError(
            f"Opening a dataset failed for {path}: expected a listing of Parquet files and their rows, got something "
            f"else ({error!r}). Export or download the dataset again."
        ) from error


def _parse_files(payload: Any) -> dict[str, ListedFile]:
    if payload["format"] != _FORMAT:
        raise ValueError(f"format {payload['format']!r}")
    files = {name: ListedFile(**file) for name, file in payload["files"].items()}
    if any((type(rows), type(footer)) != (int, str) for rows, footer in files.values()):
        raise TypeError("values of other types")
    return files


def key_of_parquet(name: str) -> tuple[str, str] | None:
    """Dataset and key of a Parquet file, by its name as listed; None for another file."""
    parts = [part.partition("=") for part in PurePosixPath(name).parts[-3:]]
    if len(parts) != 3 or (parts[0][0], parts[1][0]) != ("dataset", "key"):
        return None
    return parts[0][2], parts[1][2]


def describe_absent(path: Path, names: Iterable[str]) -> str:
    """Describe which listed files are gone."""
    absent = sorted(names)
    are = "file is" if len(absent) == 1 else "files are"
    return (
        f"{len(absent):,} listed {are} not in {path}, such as {absent[0]}: deleted, or not downloaded; answers lack "
        "what only they have"
    )
