"""The listing `SHA256SUMS` of an export compared with its files, and kept true where files are added."""

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
from robust201.reader.listings import AGAIN, CHECKSUM_FILE, MAX_LISTING_BYTES, Listing, parse_checksums
from robust201.reader.result_files import META_FILE, SWEEP_FILE


def read_listing(out: Path) -> Listing:
    """Read the listing of an export's folder; ResultsError if there is none, or what has its name is no file."""
    path = out / CHECKSUM_FILE
    if path.is_symlink() or not path.is_file():
        raise ResultsError(
            f"Verifying failed for {out}: expected a whole export with the file {CHECKSUM_FILE}, got "
            f"{_describe(path)}. {AGAIN}"
        )
    try:
        return parse_checksums(read_text(path, MAX_LISTING_BYTES), path)
    except (UnicodeDecodeError, IrregularFileError) as error:
        message = f"Verifying failed for {path}: expected a listing, got other content ({error}). {AGAIN}"
        return Listing({}, (message,))


def listing_text(digests: Mapping[str, str]) -> str:
    """Text of a listing of files, by name below the folder."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def add_to_listing(out: Path, names: Iterable[str]) -> None:
    """List files that were written into a folder after its export, if it lists any and does not list these."""
    listed = _whole_listing(out)
    added = {name: sha256_of(out / name) for name in names if name not in listed} if listed else {}
    if added:
        _rewrite(out, {**listed, **added})


def remove_from_listing(out: Path, names: Collection[str]) -> None:
    """List files no longer that are about to be written anew, so that a kill leaves no digest of what was there."""
    listed = _whole_listing(out)
    kept = {name: digest for name, digest in listed.items() if name not in names}
    if kept != listed:
        _rewrite(out, kept)


def _whole_listing(out: Path) -> Mapping[str, str]:
    """What a folder lists; empty where that is nothing, or no whole export, as `verify` reports."""
    path = out / CHECKSUM_FILE
    if path.is_symlink() or not path.is_file() or (listing := read_listing(out)).wrong:
        return {}
    return listing.digests


def _rewrite(out: Path, digests: Mapping[str, str]) -> None:
    path = out / CHECKSUM_FILE
    state = path.stat()
    write_text(path, listing_text(digests))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # readers see by it which files changed since


def explain_changes(out: Path, digests: Mapping[Path, str]) -> Iterator[str]:
    """Describe how JSON files that were read, given with their SHA-256, differ from those that an export listed.

    Yields nothing for a folder with neither a listing nor `sweep.json`, such as the published dataset.
    """
    path = out / CHECKSUM_FILE
    if not os.path.lexists(path):
        if (out / SWEEP_FILE).is_file():
            yield f"{out} has no {CHECKSUM_FILE}, which an export writes last: it may not be whole"
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
    other = [name for name, digest in sorted(read.items()) if listed.get(name) != digest]
    if other:
        yield (
            f"{len(other):,} of {len(read):,} files read from {out} are not those of its {CHECKSUM_FILE}, such as "
            f"{other[0]}: they were changed after the export, or come from elsewhere"
        )
    gone = [name for name in listed if _is_json_results(name) and not (out / name).is_file()]
    if gone:
        yield f"{len(gone):,} JSON files that {path} lists are not there, such as {gone[0]}"


def _is_json_results(name: str) -> bool:
    """Whether a listed file holds results as JSON, or says how to read them."""
    path = PurePosixPath(name)
    return name in (META_FILE, SWEEP_FILE) or (len(path.parts) == 2 and ".json" in path.suffixes)


def check_listing(out: Path, listing: Listing) -> Iterator[str]:
    """Compare the files below an export's folder with its listing; yield a message for each that is wrong.

    Only files are opened, so nothing waits for the far end of a pipe.
    """
    yield from listing.wrong
    for name, digest in listing.digests.items():
        path = out / name
        try:
            if not path.is_file():
                yield f"Verifying failed for {path}: expected a file, got {_describe(path)}. {AGAIN}"
            elif sha256_of(path, MAX_LISTED_BYTES) != digest:
                yield f"Verifying failed for {path}: expected the SHA-256 of {CHECKSUM_FILE}, got another. {AGAIN}"
        except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
            yield f"Verifying failed for {path}: expected a file that can be read, got {error}. {AGAIN}"
    for path in _entries(out):
        name = path.relative_to(out).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            if name not in listing.digests or path.is_file():
                message = f"expected files and folders, as export writes them, got {_describe(path)}"
                yield f"Verifying failed for {path}: {message}. Remove it, and export again if it was listed."
        elif stat.S_ISREG(mode) and name not in {*listing.digests, CHECKSUM_FILE}:
            message = f"expected no file that {CHECKSUM_FILE} does not list, got one"
            yield f"Verifying failed for {path}: {message}. Remove it, or export into a new folder."


def _entries(out: Path) -> Iterator[Path]:
    """Go through what lies below a folder, links not followed.

    What begins with a dot is no part of the dataset: indexes of readers, the folders of version control.
    """
    for folder, folders, files in os.walk(out):
        folders[:] = sorted(name for name in folders if name[0] != ".")
        yield from (Path(folder, name) for name in folders)
        yield from (Path(folder, name) for name in sorted(files) if name[0] != ".")


def _describe(path: Path) -> str:
    """Describe what has a name: none, a folder, a link and where it leads, or what else is no file."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "none"
    return f"a symbolic link to {str(path.readlink())!r}" if stat.S_ISLNK(mode) else describe_kind(mode)
