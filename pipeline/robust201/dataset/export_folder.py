"""Folder of an export: the new export is written to a folder beside the target, which it then replaces.

An export is replaced as a whole, so readers never see files of two exports. Files that no export listed, such as
``.git`` or ``.gitattributes``, belong to the user. They are moved from the earlier to the new folder. That is the
simplest way that neither loses them nor leaves a half-replaced export: one folder cannot take another's place in one
step, so the earlier folder is renamed, and if the process dies, the next export completes or reverts the replacement.
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
    visible_entries,
    write_text,
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
        InputError: `path` is a file or the working directory, or the folder has an export of another sweep, an export
            with files that were changed, or files but no export.
        StorageError: another export is writing to the folder, or the folder is not writable.
    """
    _check_path(path)
    target = path.resolve()
    staging = target.with_name(f".{target.name}.new")
    with _reporting_moves(path), sole_writer(staging, "Exporting"):
        folder = ExportFolder(path, target, staging)
        try:
            _complete_replacement(target)
            _reject_users_files(path, target)
            _reject_different_sweep(path, sweep_record)
            if target.exists():
                target.rename(_earlier(target)).rename(target)  # a mount point cannot be moved, nor replaced later
            _empty(staging)
            yield folder
        finally:
            if not folder.is_closed:
                shutil.rmtree(staging, ignore_errors=True)


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
    """Raise InputError if a folder has files but no export, or if the user changed files of the export."""
    listed = _read_export(target)
    if not listed and (entries := visible_entries(target)):
        raise _unlisted_error(path, entries[0])
    for name, digest in listed.items():
        file = target / name
        if os.path.lexists(file) and not (file.is_file() and sha256_of(file) == digest):
            raise InputError(
                f"Exporting failed for {path}: {name} was changed after its export, and would be replaced. Move or "
                "delete it, or choose a new folder."
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


def _unlisted_error(path: Path, name: str) -> InputError:
    return InputError(
        f"Exporting failed for {path}: the folder contains files that no export listed, such as {name}. Choose a new "
        "folder or an earlier export."
    )


class ExportFolder:
    """The folder of a running export (see `open_folder`).

    Attributes:
        staging: the folder to which files are written.
        written: the complete files, by name.
        is_closed: whether the folder has taken its place.
    """

    def __init__(self, path: Path, target: Path, staging: Path) -> None:
        self._path, self._target = path, target
        self.staging = staging
        self.written: dict[str, WrittenFile] = {}
        self.is_closed = False

    def record(self, file: WrittenFile) -> None:
        self.written[file.name] = file

    def write(self, name: str, content: str | bytes) -> None:
        with open_hashed(self.staging / name) as (stream, hashing):
            stream.write(content.encode() if isinstance(content, str) else content)
        self.record(hashing.written(name))

    def close(self) -> tuple[str, ...]:
        """Replace the earlier export, and return the sorted names of its files that the new export lacks.

        Raises:
            InputError: the user has added a file with the name of a file of the new export, or changed a listed file.
        """
        _reject_users_files(self._path, self._target)
        for name in _own_files(self._target):
            if os.path.lexists(self.staging / name):
                raise _unlisted_error(self._path, name)
        write_text(
            self.staging / CHECKSUM_FILE, listing_text({name: file.sha256 for name, file in self.written.items()})
        )
        removed = sorted({*read_checksums(self._target)} - {*self.written})
        (self.staging / LOCK_FILE).unlink()
        if self._target.exists():
            self._target.rename(_earlier(self._target))
        try:
            self.staging.rename(self._target)
        except OSError:
            _complete_replacement(self._target)
            raise
        self.is_closed = True
        fsync_folder(self._target.parent)
        _complete_replacement(self._target)
        return tuple(removed)


def _earlier(target: Path) -> Path:
    """Return the path of the earlier export while it is being replaced."""
    return target.with_name(f".{target.name}.old")


def _complete_replacement(target: Path) -> None:
    """Complete a replacement after the new export has taken its place; revert it if it has not."""
    earlier = _earlier(target)
    if not earlier.exists():
        return
    if not _read_export(target):
        earlier.rename(target)  # fails if the user has put files there meanwhile
        return
    for name in _own_files(earlier):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (earlier / name).replace(target / name)
    shutil.rmtree(earlier)


def _own_files(folder: Path) -> list[str]:
    """Return the user's files and folders in an export: those that its listing does not contain."""
    listed = {CHECKSUM_FILE, *read_checksums(folder)}
    listed |= {str(parent) for name in listed for parent in Path(name).parents}
    own: list[str] = []
    for path, folders, files in os.walk(folder):
        names = {name: Path(path, name).relative_to(folder).as_posix() for name in [*folders, *files]}
        own += [name for name in names.values() if name not in listed]
        folders[:] = [name for name in folders if names[name] in listed]
    return own


def _empty(staging: Path) -> None:
    """Remove what a killed export left in the staging folder."""
    for path in staging.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()
