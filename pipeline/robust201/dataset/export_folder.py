"""Folder of an export: the new export is written to a folder beside the target, which it then replaces.

An export is replaced as a whole, so readers never see files of two exports. One folder cannot take another's place in
one step, so the earlier folder is renamed, and if the process dies, the next export completes or reverts the
replacement.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from robust201.core.errors import InputError, StorageError
from robust201.core.files import (
    LOCK_FILE,
    fsync_folder,
    load_json,
    sha256_of,
    sole_writer,
)
from robust201.core.records import canonical_json
from robust201.dataset.layout import RESULTS_FOLDER_FILE, SWEEP_FILE
from robust201.dataset.listing import CHECKSUM_FILE, listing_text, read_checksums
from robust201.dataset.written_file import WrittenFile, open_hashed


@contextmanager
def open_folder(path: Path, sweep_record: Mapping[str, Any]) -> Iterator["ExportFolder"]:
    """Prepare a folder for an export, and lock it against other exports on this machine until the block ends.

    Args:
        path: the folder.
        sweep_record: description of the sweep, with ``name`` and ``protocols`` as in sweep.json.

    Raises:
        InputError: `path` is a file or the working directory, or the folder has an export of another sweep, or files
            that no export wrote.
        StorageError: another export is writing to the folder, or the folder is not writable.
    """
    _check_path(path)
    target = path.resolve()
    staging = target.with_name(f".{target.name}.new")
    with _reporting_moves(path), sole_writer(staging, "Exporting"):
        try:
            _complete_replacement(target)
            _reject_users_files(path, target)
            _reject_different_sweep(path, sweep_record)
            if target.exists():
                target.rename(_earlier(target)).rename(target)  # a mount point cannot be moved, nor replaced later
            _empty(staging)
            folder = ExportFolder(staging)
            yield folder
            folder.write(CHECKSUM_FILE, listing_text({name: file.sha256 for name, file in folder.written.items()}))
            _reject_users_files(path, target)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        _replace(target, staging)


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


@contextmanager
def _reporting_moves(path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(
            f"Exporting failed for {path}: {error.strerror or error} for {error.filename}. Correct the permissions, or "
            "choose another folder, and run the same command again."
        ) from error


def _reject_users_files(path: Path, target: Path) -> None:
    """Raise InputError if a folder has files that no export wrote, or files of an export that were changed."""
    listed = _read_export(target)
    files = (Path(parent, name) for parent, _, names in os.walk(target) for name in names) if listed else ()
    names = {file.relative_to(target).as_posix(): file for file in files}
    own = [
        name
        for name, file in names.items()
        if name != CHECKSUM_FILE and not (name in listed and file.is_file() and listed[name] == sha256_of(file))
    ]
    if own := own if listed or not target.exists() else sorted(entry.name for entry in target.iterdir()):
        raise InputError(
            f"Exporting failed for {path}: the folder contains files that no export wrote, such as {own[0]}, which "
            "would be replaced. Move them, or choose a new folder."
        )


def _read_export(folder: Path) -> Mapping[str, str]:
    """Return the SHA-256 of an export's files by name; empty if the folder contains no export of this package."""
    listed = read_checksums(folder)
    try:
        return listed if SWEEP_FILE in listed and load_json(folder / SWEEP_FILE)["sweep"]["name"] else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _reject_different_sweep(path: Path, sweep_record: Mapping[str, Any]) -> None:
    """Raise InputError if the folder has an export of a sweep with another name, or without a common protocol."""
    # The same sweep with more strengths or architectures may replace its earlier export.
    try:
        earlier_record = load_json(path / SWEEP_FILE)["sweep"]
        names = [str(sweep["name"]) for sweep in (earlier_record, sweep_record)]
        protocols = [set(map(canonical_json, sweep["protocols"])) for sweep in (earlier_record, sweep_record)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # there is no earlier export
    if names[0] == names[1] and not (all(protocols) and protocols[0].isdisjoint(protocols[1])):
        return
    raise InputError(
        f"Exporting failed for {path}: expected a new folder or an earlier export of the sweep {names[1]!r}, got an "
        f"export of {repr(names[0]) if names[0] != names[1] else 'the same name with other protocols'}. Choose another "
        "folder, or delete this one first."
    )


class ExportFolder:
    """The folder of a running export (see `open_folder`).

    Attributes:
        staging: the folder to which files are written.
        written: the complete files, by name.
    """

    def __init__(self, staging: Path) -> None:
        self.staging = staging
        self.written: dict[str, WrittenFile] = {}

    def record(self, *files: WrittenFile) -> None:
        self.written |= {file.name: file for file in files}

    def write(self, name: str, content: str | bytes) -> None:
        with open_hashed(self.staging / name) as (stream, hashing):
            stream.write(content.encode() if isinstance(content, str) else content)
        self.record(hashing.written(name))


def _replace(target: Path, staging: Path) -> None:
    (staging / LOCK_FILE).unlink()
    try:
        if target.exists():
            target.rename(_earlier(target))
        staging.rename(target)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    finally:
        _complete_replacement(target)
    fsync_folder(target.parent)


def _earlier(target: Path) -> Path:
    """Return the path of the earlier export while it is being replaced."""
    return target.with_name(f".{target.name}.old")


def _complete_replacement(target: Path) -> None:
    """Complete a replacement after the new export has taken its place; revert it if it has not."""
    earlier = _earlier(target)
    if earlier.exists():
        if _read_export(target):
            shutil.rmtree(earlier)
        else:
            earlier.rename(target)  # fails if the user has put files there meanwhile


def _empty(staging: Path) -> None:
    """Remove what a killed export left in the staging folder."""
    for path in staging.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()
