"""What files a dataset should have, by its listings, so that missing or cut files are reported.

`SHA256SUMS` lists every file of an export; `parquet_files.json` says which rows and footer each Parquet file has. It
is next to the folder `parquet`, as other readers take every file in that folder for Parquet. Folders without listings,
such as the published dataset, say nothing.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

from robust201.core.errors import ResultsError, RobustWarning
from robust201.core.files import MAX_LISTED_BYTES, load_json, open_file
from robust201.core.parquet_footer import parse_row_groups, read_footer_bytes
from robust201.reader.checksum_listing import MAX_LISTING_BYTES

PARQUET_FILES = "parquet_files.json"
"""Listing of the Parquet files in the dataset's folder, with names relative to the folder ``parquet``."""

_FORMAT = 1


class MissingFilesWarning(RobustWarning):
    """A dataset lacks files that its listing names, so that answers leave them out."""


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
    """Say which listed files are gone."""
    absent = sorted(names)
    are = "file is" if len(absent) == 1 else "files are"
    return (
        f"{len(absent):,} listed {are} not in {path}, such as {absent[0]}: deleted, or not downloaded; answers lack "
        "what only they have"
    )
