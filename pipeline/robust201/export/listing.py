"""The listing `SHA256SUMS` of an export: reading, checking and updating it."""

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from robust201.core.errors import ResultsError
from robust201.core.files import (
    MAX_LISTED_BYTES,
    IrregularFileError,
    describe_kind,
    read_text,
    sha256_of,
    write_text,
)
from robust201.reader.listings import CHECKSUM_FILE, MAX_LISTING_BYTES, REEXPORT, Listing, parse_checksums
from robust201.reader.result_files import META_FILE, SWEEP_FILE


def read_listing(out: Path) -> Listing:
    """Read the listing of an export's folder.

    Raises:
        ResultsError: there is no listing, or it is not a regular file.
    """
    path = out / CHECKSUM_FILE
    if path.is_symlink() or not path.is_file():
        raise ResultsError(
            f"Verifying failed for {out}: expected a complete export with the file {CHECKSUM_FILE}, got "
            f"{_describe(path)}. {REEXPORT}"
        )
    try:
        return parse_checksums(read_text(path, MAX_LISTING_BYTES), path)
    except (UnicodeDecodeError, IrregularFileError) as error:
        message = f"Verifying failed for {path}: expected a listing, got other content ({error}). {REEXPORT}"
        return Listing({}, (message,))


def listing_text(digests: Mapping[str, str]) -> str:
    """Return the content of a listing; names are relative to the folder."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def add_to_listing(out: Path, names: Iterable[str]) -> None:
    """Add files to the listing of a folder that has one; listed files stay as they are."""
    listed = _read_valid_listing(out)
    added = {name: sha256_of(out / name) for name in names if name not in listed} if listed else {}
    if added:
        _rewrite(out, {**listed, **added})


def remove_from_listing(out: Path, names: Collection[str]) -> None:
    """Remove files from the listing before they are rewritten, so that a kill leaves no outdated digest."""
    listed = _read_valid_listing(out)
    remaining = {name: digest for name, digest in listed.items() if name not in names}
    if remaining != listed:
        _rewrite(out, remaining)


def _read_valid_listing(out: Path) -> Mapping[str, str]:
    """Return the digests of a folder's listing; empty if it has none or an invalid one, which `verify` reports."""
    path = out / CHECKSUM_FILE
    if path.is_symlink() or not path.is_file() or (listing := read_listing(out)).wrong:
        return {}
    return listing.digests


def _rewrite(out: Path, digests: Mapping[str, str]) -> None:
    path = out / CHECKSUM_FILE
    state = path.stat()
    write_text(path, listing_text(digests))
    # Readers rehash files that are newer than the listing.
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def explain_changes(out: Path, digests: Mapping[Path, str]) -> Iterator[str]:
    """Yield messages about JSON files that were changed or deleted after the export.

    There are none for a folder with neither a listing nor `sweep.json`, such as the published dataset.

    Args:
        out: the folder.
        digests: SHA-256 of the files that were read.
    """
    path = out / CHECKSUM_FILE
    if not os.path.lexists(path):
        if (out / SWEEP_FILE).is_file():
            yield f"{out} has no {CHECKSUM_FILE}, which an export writes last: it may be incomplete"
        return
    try:
        listing = read_listing(out)
    except (OSError, ResultsError):
        listing = Listing({}, ("no listing",))
    if listing.is_other_content:
        yield f"{path} is not a checksum listing: whether the files of {out} are those of the export is unknown"
        return
    listed = listing.digests
    side_files = {
        file: sha256_of(file, MAX_LISTED_BYTES) for name in (META_FILE, SWEEP_FILE) if (file := out / name).is_file()
    }
    read = {file.relative_to(out).as_posix(): digest for file, digest in {**digests, **side_files}.items()}
    changed = [name for name, digest in sorted(read.items()) if listed.get(name) != digest]
    if changed:
        yield (
            f"{len(changed):,} of {len(read):,} files read from {out} do not match its {CHECKSUM_FILE}, such as "
            f"{changed[0]}: they were changed after the export, or are from another dataset"
        )
    missing = [name for name in listed if _is_json_results(name) and not (out / name).is_file()]
    if missing:
        yield f"{len(missing):,} JSON files that {path} lists are missing, such as {missing[0]}"


def _is_json_results(name: str) -> bool:
    """Return whether a listed file contains results as JSON, or is needed to read them."""
    path = PurePosixPath(name)
    return name in (META_FILE, SWEEP_FILE) or (len(path.parts) == 2 and ".json" in path.suffixes)


def check_listing(out: Path, listing: Listing) -> Iterator[str]:
    """Compare the files of an export with its listing, and yield a message for each problem.

    Only regular files are opened, since opening a named pipe would block.
    """
    yield from listing.wrong
    for name, digest in listing.digests.items():
        path = out / name
        try:
            if not path.is_file():
                yield f"Verifying failed for {path}: expected a file, got {_describe(path)}. {REEXPORT}"
            elif sha256_of(path, MAX_LISTED_BYTES) != digest:
                yield f"Verifying failed for {path}: its SHA-256 differs from {CHECKSUM_FILE}. {REEXPORT}"
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            yield f"Verifying failed for {path}: the file cannot be read ({error}). {REEXPORT}"
    for path in _entries(out):
        name = path.relative_to(out).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            if name not in listing.digests or path.is_file():
                message = f"expected files and folders, as export writes them, got {_describe(path)}"
                yield f"Verifying failed for {path}: {message}. Remove it, and export again if it was listed."
        elif stat.S_ISREG(mode) and name not in {*listing.digests, CHECKSUM_FILE}:
            message = f"{CHECKSUM_FILE} does not list this file"
            yield f"Verifying failed for {path}: {message}. Remove it, or export to a new folder."


def _entries(out: Path) -> Iterator[Path]:
    """Yield the files and folders below a folder, without following symbolic links.

    Names that begin with a dot, such as folders of version control, are not part of the dataset and are skipped.
    """
    for folder, folders, files in os.walk(out):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        yield from (Path(folder, name) for name in folders)
        yield from (Path(folder, name) for name in sorted(files) if name[0] != ".")


def _describe(path: Path) -> str:
    """Describe what a path refers to: "none", the kind of file, or a symbolic link with its target."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "none"
    return f"a symbolic link to {str(path.readlink())!r}" if stat.S_ISLNK(mode) else describe_kind(mode)
