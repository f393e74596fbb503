"""The listing `SHA256SUMS` of an export: reading and checking it."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from robust201.core.errors import ResultsError
from robust201.core.files import (
    sha256_of,
)
from robust201.dataset.listings import CHECKSUM_FILE, REEXPORT, Listing, parse_checksums


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
