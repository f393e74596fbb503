"""Atomic writing of an export folder, replacing an earlier export.

A new export is written to a staging folder inside the export's folder. When all its files are complete, they are moved
to their final paths.
"""

import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robust201.core.errors import InputError, StorageError
from robust201.core.files import fsync_folder, load_json, make_folder, sole_writer, visible_entries, write_text
from robust201.core.records import canonical_json
from robust201.export.listing import listing_text
from robust201.export.written_file import WrittenFile, open_hashed_file
from robust201.reader.listings import CHECKSUM_FILE, read_checksums
from robust201.reader.result_files import RESULTS_FOLDER_FILE, SWEEP_FILE, is_dataset

STAGING_FOLDER = ".export.tmp"
"""Name of the staging folder, which is inside the export's folder.

When the staging folder contains SHA256SUMS, all its files are complete, and they are moved to their final paths. If the
process is killed before that, the earlier export stays. If it is killed later, the next export moves the remaining
files.
"""


@contextmanager
def open_folder(
    path: Path, planned_names: Collection[str], sweep_record: Mapping[str, Any]
) -> Iterator["ExportFolder"]:
    """Prepare a folder for an export, and lock it against other exports on this machine until the block ends.

    Args:
        path: the folder.
        planned_names: names of the files that the export will write, relative to the folder.
        sweep_record: description of the sweep, with ``name`` and ``protocols`` as in sweep.json.

    Raises:
        InputError: `path` is a file or lies in a results folder, or the folder contains an export of another sweep, or
            files that no export listed.
        StorageError: another export is writing to the folder, or the folder is not writable.
    """
    candidates = (path, *path.resolve().parents)
    results_folder = next((folder for folder in candidates if (folder / RESULTS_FOLDER_FILE).exists()), None)
    if results_folder is not None:
        raise InputError(
            f"Exporting failed for {path}: the folder is, or lies inside, the results folder {results_folder}. "
            "Choose another folder."
        )
    with sole_writer(path, "Exporting"):
        if _is_committed(path / STAGING_FOLDER):
            _move_staged_files(path)
        _reject_different_sweep(path, sweep_record)
        _reject_unlisted_files(path, planned_names)
        _remove_staging(path / STAGING_FOLDER)
        try:
            yield ExportFolder(path)
        finally:
            if not _is_committed(path / STAGING_FOLDER):
                _remove_staging(path / STAGING_FOLDER)


def reject_unfinished_export(path: Path) -> None:
    """Raise an error if an export to this folder is incomplete, or was killed while its files were being moved.

    An incomplete export is not an error if the folder contains an earlier export, which is then still intact.

    Raises:
        InputError: the folder contains an unfinished export.
    """
    staging = path / STAGING_FOLDER
    if _is_committed(staging) or (staging.is_dir() and not is_dataset(path)):
        raise InputError(
            f"Reading an export failed for {path}: the export was killed or is still running. "
            "Wait until it ends, or run the same command `robust201 export` again."
        )


def _is_committed(staging: Path) -> bool:
    """Return whether a staging folder contains a listing, which means that all its files are complete."""
    return not staging.is_symlink() and bool(read_checksums(staging))


def _remove_staging(staging: Path) -> None:
    if staging.is_dir() and not staging.is_symlink():
        shutil.rmtree(staging)
    else:
        staging.unlink(missing_ok=True)


def _reject_different_sweep(path: Path, sweep_record: Mapping[str, Any]) -> None:
    """Raise InputError if the folder contains an export of another sweep, because the new export would replace it."""
    # Two sweeps are different if their names differ or if they have no protocol in common. The same sweep with more
    # strengths or architectures may replace its earlier export.
    try:
        earlier_record = load_json(path / SWEEP_FILE)["sweep"]
        earlier_name, new_name = (f"the sweep {sweep['name']!r}" for sweep in (earlier_record, sweep_record))
        protocols = [set(map(canonical_json, sweep["protocols"])) for sweep in (earlier_record, sweep_record)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # there is no earlier sweep.json, or it is damaged and will be replaced
    if earlier_name != new_name:
        earlier_description = f"an export of {earlier_name}"
    elif all(protocols) and protocols[0].isdisjoint(protocols[1]):
        earlier_description = "an export with the same name but different protocols"
    else:
        return
    raise InputError(
        f"Exporting failed for {path}: the folder contains {earlier_description}, whose files would be removed. "
        f"Choose a new folder or an earlier export of {new_name}, or delete this folder first."
    )


def _reject_unlisted_files(path: Path, planned_names: Collection[str]) -> None:
    """Raise InputError if a planned file would replace a file that no export listed.

    If the folder has no listing, all its visible files count as unlisted.
    """
    listed_digests = read_checksums(path)
    listed_names = {*listed_digests, CHECKSUM_FILE} if listed_digests else set()
    unlisted_names = sorted(name for name in {*planned_names, CHECKSUM_FILE} if _is_occupied(path, name, listed_names))
    if not listed_digests:
        unlisted_names += [name for name in visible_entries(path) if name not in unlisted_names]
    if unlisted_names:
        raise InputError(
            f"Exporting failed for {path}: the folder contains {len(unlisted_names)} files that no export listed, such "
            f"as {unlisted_names[0]}. Choose a new folder or an earlier export."
        )


def _is_occupied(path: Path, name: str, listed_names: Collection[str]) -> bool:
    """Return whether a file cannot be written without replacing something that no export wrote."""
    target = path / name
    ancestors = (path / folder for folder in Path(name).parents)
    return (target.exists() and (name not in listed_names or target.is_dir())) or any(
        os.path.lexists(folder) and not folder.is_dir() for folder in ancestors
    )


class ExportFolder:
    """The folder of a running export (see `open_folder`).

    Attributes:
        path: the folder.
        staging: the folder inside `path` to which the export's files are written first.
        written: the complete files, by name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.staging = path / STAGING_FOLDER
        self.written: dict[str, WrittenFile] = {}

    def record(self, file: WrittenFile) -> None:
        self.written[file.name] = file

    def write(self, name: str, content: str | bytes) -> None:
        with open_hashed_file(self.staging / name) as (stream, hashing_stream):
            stream.write(content.encode() if isinstance(content, str) else content)
        self.record(WrittenFile(name, hashing_stream.digest.hexdigest(), hashing_stream.n_bytes))

    def close(self) -> tuple[str, ...]:
        """Move the files to their final paths, and return the sorted names of removed files of the earlier export."""
        listing = listing_text({name: file.sha256 for name, file in self.written.items()})
        write_text(self.staging / CHECKSUM_FILE, listing)
        return _move_staged_files(self.path)


def _move_staged_files(path: Path) -> tuple[str, ...]:
    """Move the files of a complete staging folder to their final paths, and remove other files of the earlier export.

    If a call is killed, the next call completes the remaining steps. The earlier listing is replaced last, because it
    contains the names of the files to remove.

    Returns:
        The sorted names of the removed files.
    """
    staging = path / STAGING_FOLDER
    stale_names = sorted(
        name for name in {*read_checksums(path)} - {*read_checksums(staging)} if (path / name).is_file()
    )
    try:
        for name in read_checksums(staging):
            if (staging / name).is_file():
                make_folder((path / name).parent)
                (staging / name).replace(path / name)
        for name in stale_names:
            (path / name).unlink()
            for folder in Path(name).parents[:-1]:
                if not any((path / folder).iterdir()):
                    (path / folder).rmdir()
        for folder in {(path / name).parent for name in read_checksums(staging)}:
            fsync_folder(folder)
        (staging / CHECKSUM_FILE).replace(path / CHECKSUM_FILE)
        fsync_folder(path)
        shutil.rmtree(staging)
    except OSError as error:
        raise StorageError(
            f"Exporting failed for {path}: moving files from {STAGING_FOLDER} failed with "
            f"{error.strerror or error} for {error.filename}. Remove this path, or correct the permissions, and run "
            "the same command again."
        ) from error
    return tuple(stale_names)
