"""The listing of a dataset's files, which makes it possible to detect missing, truncated and changed files.

`SHA256SUMS` contains the SHA-256 of every file of an export. Folders without it, such as the published dataset, cannot
be checked.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from robust201.core.errors import ResultsError, RobustWarning
from robust201.core.files import sha256_of

CHECKSUM_FILE = "SHA256SUMS"
"""Listing for ``sha256sum -c``.

The folder of an export is replaced as a whole, when all its files and this listing are complete.
"""

REEXPORT = "Export the dataset again."

_LINE = re.compile(r"([0-9a-f]{64})  (?!/|\.\./)((?:(?!/\.\./)[^\r\n])+)")
"""A line: a digest, and a path below the folder."""


class MissingFilesWarning(RobustWarning):
    """Files that a dataset's listings name are missing, so results are incomplete."""


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
            f"Verifying failed for {folder}: expected a complete export with the file {CHECKSUM_FILE}, got none that "
            f"can be read ({error}). {REEXPORT}"
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


def read_checksums(folder: Path) -> Mapping[str, str]:
    """Return the SHA-256 of a folder's listed files by name, or an empty mapping if there is no valid listing."""
    try:
        return read_listing(folder)
    except ResultsError:
        return {}


def key_of_parquet(name: str) -> tuple[str, str] | None:
    """Return the dataset and key in the listed name of a Parquet file; None for other files."""
    folder_pairs = [folder_name.partition("=") for folder_name in PurePosixPath(name).parts[-3:]]
    if len(folder_pairs) != 3 or (folder_pairs[0][0], folder_pairs[1][0]) != ("dataset", "key"):
        return None
    return folder_pairs[0][2], folder_pairs[1][2]


def find_missing_results(folder: Path) -> list[str]:
    """Return the names of listed files of results that are missing, unless the folder has all files of one format."""
    listed = [name for name in read_checksums(folder) if key_of_parquet(name) or ("/" in name and ".json" in name)]
    missing = [
        [name for name in listed if name.endswith(suffix) and not (folder / name).is_file()]
        for suffix in (".parquet", ".json")
        if any(name.endswith(suffix) for name in listed)
    ]
    return min(missing, key=len, default=[])


def describe_missing_files(path: Path, names: Iterable[str]) -> str:
    """Return the text of a warning that listed files are missing."""
    missing_names = sorted(names)
    others = ", …" if len(missing_names) > 1 else ""
    verb_phrase = "file is" if len(missing_names) == 1 else "files are"
    return (
        f"{len(missing_names):,} listed {verb_phrase} not in {path} ({missing_names[0]}{others}), because of deletion "
        "or an incomplete download, so results are missing"
    )


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
            yield f"Verifying failed for {path}: expected a file, got none that can be read ({error}). {REEXPORT}"
    for name in sorted({*_iter_files(folder)} - digests.keys() - {CHECKSUM_FILE}):
        message = f"{CHECKSUM_FILE} does not list this file. Remove it, or export to a new folder."
        yield f"Verifying failed for {folder / name}: {message}"


def _iter_files(root: Path) -> Iterator[str]:
    """Yield the files below a folder, except in folders whose names begin with a dot, such as ``.git``."""
    for parent, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name[0] != "."]
        yield from (Path(parent, name).relative_to(root).as_posix() for name in files if name[0] != ".")
