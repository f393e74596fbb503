"""Folder of an export: the new export is written to a folder beside the target, which it then replaces.

An export is replaced as a whole, so readers never see files of two exports. A folder cannot be replaced in one step, so
the earlier export is renamed first. If the process dies between the steps, the next export completes or reverts the
replacement.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robust201.core.errors import InputError, ResultsError, StorageError
from robust201.core.files import LOCK_FILE, fsync_folder, load_json, sha256_of, sole_writer
from robust201.core.records import canonical_json
from robust201.dataset.layout import RESULTS_FOLDER_FILE, SWEEP_FILE
from robust201.dataset.listing import CHECKSUM_FILE, listing_text, open_hashed, read_listing


@contextmanager
def open_folder(path: Path, sweep_record: Mapping[str, Any]) -> Iterator["ExportFolder"]:
    """Prepare a folder for an export, and lock it against other exports on this machine until the block ends.

    Args:
        path: the folder.
        sweep_record: description of the sweep, with ``name`` and ``protocols`` as in sweep.json.

    Raises:
        InputError: `path` is a file, the working directory or a folder above it, or the folder has an export of another
            sweep, or files that no export wrote.
        StorageError: another export is writing to the folder, or the folder is not writable.
    """
    _check_path(path)
    target = path.resolve()
    staging = target.with_name(f".{target.name}.new")
    try:
        with sole_writer(staging, "Exporting"):
            try:
                _complete_replacement(target)
                _reject_other_content(path, sweep_record)
                if target.exists():
                    target.rename(_path_of_earlier(target)).rename(target)  # fails early for a mount point
                _clear(staging)
                folder = ExportFolder(staging)
                yield folder
                folder.write(CHECKSUM_FILE, listing_text(folder.written))
                _reject_other_content(path, sweep_record)
                _replace(target, staging)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
    except OSError as error:
        raise StorageError(
            f"Exporting failed for {path}: {error.strerror or error} for {error.filename}. Correct the permissions, or "
            "choose another folder, and run the same command again."
        ) from error


def _check_path(path: Path) -> None:
    target = path.resolve()
    if target.exists() and not target.is_dir():
        raise InputError(f"Exporting failed for {path}: expected a folder, got a file. Choose another folder.")
    if Path.cwd().is_relative_to(target):
        raise InputError(
            f"Exporting failed for {path}: the working directory lies in this folder, which will be replaced. Change "
            "to another directory."
        )


def reject_results_folder(path: Path) -> None:
    """Raise InputError if a folder is, or lies inside, a results folder."""
    for folder in (path, *path.resolve().parents):
        if (folder / RESULTS_FOLDER_FILE).exists():
            raise InputError(
                f"Exporting failed for {path}: the folder is, or lies inside, the results folder {folder}. Choose "
                "another folder."
            )


def _reject_other_content(path: Path, sweep_record: Mapping[str, Any]) -> None:
    """Check that a folder is absent, empty, or has an unchanged export of the same sweep and nothing else.

    The same sweep has the same name and, if both have protocols, a common one; strengths or architectures may differ.

    Raises:
        InputError: the folder has other content.
    """
    target, earlier = path.resolve(), _identify_export(path)
    listed = read_listing(path) if earlier else {}
    for parent, folders, names in os.walk(target):
        rejected_folders = folders if earlier is None else [name for name in folders if Path(parent, name).is_symlink()]
        for file in (Path(parent, name) for name in (*names, *rejected_folders)):
            name = file.relative_to(target).as_posix()
            is_unchanged = file.is_file() and name in listed and listed[name] == sha256_of(file)
            if not is_unchanged and not (listed and name == CHECKSUM_FILE):
                raise InputError(
                    f"Exporting failed for {path}: the folder contains files that no export wrote, such as {name}, "
                    "which would be replaced. Move them, or choose a new folder."
                )
    name, protocols = _identify(sweep_record)
    if earlier is None or (earlier[0] == name and not (earlier[1] and protocols and earlier[1].isdisjoint(protocols))):
        return
    raise InputError(
        f"Exporting failed for {path}: expected a new folder or an earlier export of the sweep {name!r}, got an "
        f"export of {repr(earlier[0]) if earlier[0] != name else 'the same name with other protocols'}. Choose another "
        "folder, or delete this one first."
    )


def _identify(sweep_record: Mapping[str, Any]) -> tuple[str, set[str]]:
    """Return the name and the protocols of a sweep."""
    return str(sweep_record["name"]), set(map(canonical_json, sweep_record["protocols"]))


def _identify_export(folder: Path) -> tuple[str, set[str]] | None:
    """Return the name and the protocols of an export's sweep; None if the folder has no export of this package."""
    try:
        return _identify(load_json(folder / SWEEP_FILE)["sweep"]) if SWEEP_FILE in read_listing(folder) else None
    except (OSError, ResultsError, ValueError, KeyError, TypeError, AttributeError):
        return None


class ExportFolder:
    """The folder of a running export (see `open_folder`).

    Attributes:
        staging: the folder to which files are written.
        written: SHA-256 of the complete files, by name.
    """

    def __init__(self, staging: Path) -> None:
        self.staging = staging
        self.written: dict[str, str] = {}

    def write(self, name: str, content: str | bytes) -> None:
        with open_hashed(self.staging / name) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        self.written[name] = file.sha256


def _replace(target: Path, staging: Path) -> None:
    (staging / LOCK_FILE).unlink()
    try:
        if target.exists():
            target.rename(_path_of_earlier(target))
        staging.rename(target)
    finally:
        _complete_replacement(target)
    fsync_folder(target.parent)


def _path_of_earlier(target: Path) -> Path:
    """Return the path of the earlier export while it is being replaced."""
    return target.with_name(f".{target.name}.old")


def _complete_replacement(target: Path) -> None:
    """Complete an interrupted replacement if the new export is already at `target`; otherwise revert it."""
    earlier = _path_of_earlier(target)
    if earlier.exists():
        if _identify_export(target):
            shutil.rmtree(earlier)
        else:
            earlier.rename(target)  # fails if the user has put files there in the meantime


def _clear(staging: Path) -> None:
    """Remove files that a killed export left in the staging folder."""
    for path in staging.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()
