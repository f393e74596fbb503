"""What files a dataset should have, by its listings, so that a file that is gone or cut is told of.

`SHA256SUMS` lists every file of an export; `parquet/_files.json` lies beside the Parquet files, which may be copied
without the rest, and says how many rows each has. Folders without listings, such as the published dataset, say nothing.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from robust201.core.errors import ResultsError
from robust201.core.files import read_bounded

PARQUET_FILES = "_files.json"
"""Listing in the folder of the Parquet files; readers of Hive's layout pass over names with an underscore."""

_FORMAT = 1
_MAX_BYTES = 64 << 20


class MissingFilesWarning(UserWarning):
    """A dataset lacks files that its listing names, so that answers leave them out."""


def parquet_files_text(rows: Mapping[str, int]) -> str:
    """Text of the listing of Parquet files: rows by name relative to their folder."""
    return json.dumps({"format": _FORMAT, "rows": dict(sorted(rows.items()))}, indent=1) + "\n"


def read_parquet_files(folder: Path) -> dict[str, int]:
    """Read how many rows the Parquet files of a folder should have, by name; empty where nothing is listed.

    Raises ResultsError where the listing is damaged.
    """
    path = folder / PARQUET_FILES
    if not os.path.lexists(path):
        return {}
    try:
        payload: Any = json.loads(read_bounded(path, _MAX_BYTES)) if path.is_file() else None
    except (ValueError, RecursionError):
        payload = None
    rows = payload.get("rows") if isinstance(payload, dict) and payload.get("format") == _FORMAT else None
    if not isinstance(rows, dict) or any(type(count) is not int or count < 0 for count in rows.values()):
        raise ResultsError(
            f"Opening a dataset failed for {path}: expected a listing of Parquet files and their rows, got something "
            "else. Export or download the dataset again."
        )
    return rows


def names_in_listing(path: Path) -> tuple[str, ...]:
    """Names that a listing like ``SHA256SUMS`` has; none where there is no such file, or another one."""
    if not path.is_file():
        return ()
    try:
        text = read_bounded(path, _MAX_BYTES)
    except ValueError:
        return ()
    return tuple(name for _, _, name in (line.partition("  ") for line in text.splitlines()) if name)


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
