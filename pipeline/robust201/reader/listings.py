"""Listings of a dataset's files, by which missing, truncated and changed files are detected.

`SHA256SUMS` lists the SHA-256 of every file of an export. `parquet_files.json` lists rows and footer of each Parquet
file; it is outside the folder `parquet`, because other readers treat every file in that folder as Parquet. Folders
without listings, such as the published dataset, cannot be checked.
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
"""Listing for ``sha256sum -c``. An export moves it to its final path last. A first export is therefore complete if the
listing exists; while an export replaces an earlier one, the listing is still that of the earlier export."""

PARQUET_FILES = "parquet_files.json"
"""Listing of the Parquet files, with names relative to the folder ``parquet``."""

MAX_LISTING_BYTES = 64 << 20
REEXPORT = "Export it again."

_LINE = re.compile(r"([0-9a-f]{64})  ([^\r]+)")
_MAX_MESSAGES = 10
_FORMAT = 1


class MissingFilesWarning(RobustWarning):
    """A dataset lacks listed files, so that results are incomplete."""


@dataclass(frozen=True)
class Listing:
    """SHA-256 by file name relative to the folder, and messages about invalid lines."""

    digests: Mapping[str, str]
    wrong: tuple[str, ...] = ()

    @property
    def is_other_content(self) -> bool:
        """Whether the file has lines, but none of them is valid."""
        return bool(self.wrong) and not self.digests


def parse_checksums(text: str, path: Path) -> Listing:
    """Parse the content of a listing; `path` is for messages. Empty lines are ignored."""
    digests: dict[str, str] = {}
    wrong: list[str] = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = _LINE.fullmatch(line)
        problem = None
        if match is None:
            problem = repr(line if len(line) <= 100 else f"{line[:100]}…") if line else None
        elif not _is_normalised_path(match[2]):
            problem = f"{match[2]!r}, which is not a path below the folder"
        elif match[2] in digests:
            problem = f"{match[2]!r} a second time"
        else:
            digests[match[2]] = match[1]
        if problem is not None:
            wrong.append(
                f"Verifying failed for {path}, line {number}: expected 64 hexadecimal digits, two spaces and the name "
                f"of a file below the folder, each name once, got {problem}. {REEXPORT}"
            )
    if len(wrong) > _MAX_MESSAGES:
        more = f"{len(wrong) - _MAX_MESSAGES} more lines are invalid"
        wrong[_MAX_MESSAGES:] = [f"Verifying failed for {path}: {more}. {REEXPORT}"]
    return Listing(digests, tuple(wrong))


def _is_normalised_path(name: str) -> bool:
    """Return whether a name is a normalised relative path to a file below a folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and name != "."


def read_checksums(folder: Path) -> Mapping[str, str]:
    """Return the SHA-256 of a folder's listed files by name; empty if there is no valid listing."""
    path = folder / CHECKSUM_FILE
    if not path.is_file():
        return {}
    try:
        return parse_checksums(read_text(path, MAX_LISTING_BYTES), path).digests
    except ValueError:
        return {}


class ListedFile(NamedTuple):
    """Number of rows of a Parquet file, and SHA-256 of its footer, since its pages have checksums."""

    rows: int
    footer: str

    @classmethod
    def of(cls, path: Path) -> Self:
        with open_file(path, MAX_LISTED_BYTES) as stream:
            footer = read_footer_bytes(stream)
        return cls(sum(group.n_rows for group in parse_row_groups(footer)), hashlib.sha256(footer).hexdigest())


def parquet_files_text(files: Mapping[str, ListedFile]) -> str:
    """Return the content of the listing of Parquet files."""
    listed = {name: file._asdict() for name, file in sorted(files.items())}
    return json.dumps({"format": _FORMAT, "files": listed}, indent=1) + "\n"


def read_parquet_files(folder: Path) -> dict[str, ListedFile]:
    """Read the listing of Parquet files of a dataset's folder; empty if there is none.

    Raises:
        ResultsError: the listing is damaged.
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
    """Return dataset and key of a Parquet file from its listed name; None for other files."""
    parts = [part.partition("=") for part in PurePosixPath(name).parts[-3:]]
    if len(parts) != 3 or (parts[0][0], parts[1][0]) != ("dataset", "key"):
        return None
    return parts[0][2], parts[1][2]


def describe_absent(path: Path, names: Iterable[str]) -> str:
    """Return a warning about listed files that are missing."""
    absent = sorted(names)
    are = "file is" if len(absent) == 1 else "files are"
    return (
        f"{len(absent):,} listed {are} not in {path}, such as {absent[0]}: deleted, or not downloaded; their results "
        "are missing"
    )
