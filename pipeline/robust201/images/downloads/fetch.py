"""Download an entry of the registry to the data folder and verify it; error messages explain the manual download."""

import errno
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

from robust201.core.errors import DatasetError
from robust201.core.files import fsync_folder, reporting_write_errors
from robust201.images.downloads import registry
from robust201.images.downloads.registry import Download

_HTTP_TIMEOUT_SECONDS = 20
_HTTP_RETRIES = 2


def fetch(name: str, folder: Path, *, progress: Any = None) -> Path:
    """Fetch an entry of the registry, such as ``"CIFAR-10-C"``, into the data folder, and return the entry's folder.

    Existing files are verified and not replaced. An archive that the user placed in `folder` is used without
    network access, and stays there; a downloaded archive is removed after unpacking.

    `progress` is a progress bar for pooch, with `total` (in bytes), `update`, `reset` and `close`, or None.

    Raises:
        ConfigError: the registry has no such entry.
        DatasetError: there is no network connection, a file differs from the published file, or files must be fetched
            manually; the message contains the file, its checksum and its destination.
        StorageError: the folder is not writable, or no space is left on the disk.
    """
    entry = registry.find_download(name)
    target = folder / entry.folder
    if entry.kind == "manual" or target.exists():
        _verify_folder(target, entry)
        return target
    user_file = folder / entry.file
    if user_file.exists():
        entry.checksum.check_file(user_file)
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
        checksum.check_file(target / name)


def _download(entry: Download, scratch: Path, folder: Path, progress: Any) -> Path:
    """Download an entry's archive over HTTP to a temporary folder, verify its checksum, and return its path."""
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
        return Path(cache.fetch(entry.file, downloader=downloader))
    except (requests.exceptions.RequestException, ValueError) as error:
        is_request_error = isinstance(error, requests.exceptions.RequestException)
        got = f"an error ({error})" if is_request_error else "a file with another hash"
        raise DatasetError(
            f"Fetching failed for {entry.url}: expected the file {entry.file} ({checksum}), got {got}. Run the same "
            f"command again later, or first put this file into {folder} yourself."
        ) from error


def _unpack(archive: Path, scratch: Path, entry: Download) -> Path:
    """Unpack a verified archive, verify its members, and return their folder."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DatasetError(
            f"Unpacking failed for {archive}: the archive is damaged or incomplete ({error}). Remove it and fetch it "
            "again."
        ) from error
    _verify_folder(scratch / entry.folder, entry)
    return scratch / entry.folder
