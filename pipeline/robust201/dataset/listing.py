"""The listing of a dataset's files, which makes it possible to detect missing, truncated and changed files.

`SHA256SUMS` contains the SHA-256 of every file of an export. Folders without it, such as the published dataset, cannot
be checked.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from robust201.core.errors import ResultsError, RobustWarning
from robust201.core.files import sha256_of

CHECKSUM_FILE = "SHA256SUMS"
"""Listing for ``sha256sum -c``.

The folder of an export is replaced as a whole, when all its files and this listing are complete.
"""

REEXPORT = "Export the dataset again."

_LINE_PATTERN = re.compile(r"([0-9a-f]{64})  ([^\r]+)")
_MAX_MESSAGES = 10


class MissingFilesWarning(RobustWarning):
    """Files that a dataset's listings name are missing, so results are incomplete."""


@dataclass(frozen=True)
class Listing:
    """Content of SHA256SUMS.

    Attributes:
        digests: SHA-256 by file name, relative to the folder.
        invalid_line_messages: error messages about invalid lines.
    """

    digests: Mapping[str, str]
    invalid_line_messages: tuple[str, ...] = ()

    @property
    def has_no_valid_line(self) -> bool:
        """Whether the file has lines but no valid line."""
        return bool(self.invalid_line_messages) and not self.digests


def parse_checksums(text: str, path: Path) -> Listing:
    """Parse the content of a listing; `path` occurs in error messages only. Empty lines are ignored."""
    digests: dict[str, str] = {}
    error_messages: list[str] = []
    for line_number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        match = _LINE_PATTERN.fullmatch(line)
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
            error_messages.append(
                f"Verifying failed for {path}, line {line_number}: expected 64 hexadecimal digits, two spaces and the "
                f"name of a file below the folder, each name once, got {problem}. {REEXPORT}"
            )
    if len(error_messages) > _MAX_MESSAGES:
        summary = f"{len(error_messages) - _MAX_MESSAGES} more lines are invalid"
        error_messages[_MAX_MESSAGES:] = [f"Verifying failed for {path}: {summary}. {REEXPORT}"]
    return Listing(digests, tuple(error_messages))


def _is_normalised_path(name: str) -> bool:
    """Return whether a name is a normalised relative path to a file below a folder."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name and name != "."


def read_checksums(folder: Path) -> Mapping[str, str]:
    """Return the SHA-256 of a folder's listed files by name, or an empty mapping if there is no valid listing."""
    path = folder / CHECKSUM_FILE
    if not path.is_file():
        return {}
    try:
        return parse_checksums(path.read_text(encoding="utf-8"), path).digests
    except ValueError:
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


def read_listing(folder: Path) -> Listing:
    """Read the listing of an export's folder.

    Raises:
        ResultsError: there is no listing, or it is not a regular file.
    """
    path = folder / CHECKSUM_FILE
    if path.is_symlink() or not path.is_file():
        raise ResultsError(
            f"Verifying failed for {folder}: expected a complete export with the file {CHECKSUM_FILE}, got "
            f"{_describe_path(path)}. {REEXPORT}"
        )
    try:
        return parse_checksums(path.read_text(encoding="utf-8"), path)
    except UnicodeDecodeError as error:
        message = f"Verifying failed for {path}: the file is not a listing ({error}). {REEXPORT}"
        return Listing({}, (message,))


def listing_text(digests: Mapping[str, str]) -> str:
    """Return the content of a listing; names are relative to the folder."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def check_listing(folder: Path, listing: Listing) -> Iterator[str]:
    """Compare the files of an export with its listing, and yield a message for each difference."""
    yield from listing.invalid_line_messages
    for name, digest in listing.digests.items():
        path = folder / name
        try:
            if not path.is_file():
                yield f"Verifying failed for {path}: expected a file, got {_describe_path(path)}. {REEXPORT}"
            elif sha256_of(path) != digest:
                yield f"Verifying failed for {path}: its SHA-256 differs from {CHECKSUM_FILE}. {REEXPORT}"
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            yield f"Verifying failed for {path}: the file cannot be read ({error}). {REEXPORT}"
    for path in _iter_entries(folder):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            if name not in listing.digests or path.is_file():
                message = f"an export contains only files and folders, but this is {_describe_path(path)}"
                yield f"Verifying failed for {path}: {message}. Remove it, and export again if it was listed."
        elif path.is_file() and name not in {*listing.digests, CHECKSUM_FILE}:
            message = f"{CHECKSUM_FILE} does not list this file"
            yield f"Verifying failed for {path}: {message}. Remove it, or export to a new folder."


def _iter_entries(root: Path) -> Iterator[Path]:
    """Yield the files and folders below a folder, without following symbolic links.

    Names that begin with a dot, such as folders of version control, are not part of the dataset and are skipped.
    """
    for parent, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name[0] != ".")
        yield from (Path(parent, name) for name in subfolders)
        yield from (Path(parent, name) for name in sorted(files) if name[0] != ".")


def _describe_path(path: Path) -> str:
    """Return a description of what is there instead of a file: none, a folder, or a symbolic link with its target."""
    if path.is_symlink():
        return f"a symbolic link to {str(path.readlink())!r}"
    return "a folder" if path.is_dir() else "none"
