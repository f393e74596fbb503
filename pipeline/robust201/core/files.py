"""Files on disk: atomic writes (a file is complete or absent), hashes, JSON, and file locks."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from robust201.core.errors import InputError, StorageError, StorageFullError

if TYPE_CHECKING:
    import pandas as pd

_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_SHORT_WRITE_MESSAGE = re.compile(r"\d+ requested and \d+ written")
"""Message of `numpy.save` if the disk is full; its error has no errno."""


def format_bytes(count: float) -> str:
    """Format a number of bytes, such as ``1.23 GB`` or (below 1 GB) ``12.3 MB``."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file: 64 lower-case hex digits."""
    return digest_of(path, hashlib.sha256)


def digest_of(path: Path, hasher: "Callable[[], hashlib._Hash]") -> str:
    """Return the hash of a file in lower-case hex digits; `hasher` makes the hash object."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, hasher).hexdigest()


def load_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        OSError: the file cannot be opened (FileNotFoundError: it does not exist).
        ValueError: the file is not JSON, or is a folder.
    """
    try:
        return json.loads(path.read_bytes())
    except IsADirectoryError as error:
        raise ValueError("a folder instead of a file") from error


def parse_unique_json(text: str | bytes) -> Any:
    """Parse JSON, and reject objects with duplicate names; `json.loads` would silently keep the last one.

    Raises:
        ValueError: the text is not valid JSON, or has a duplicate name.
    """
    return json.loads(text, object_pairs_hook=_make_unique_dict)


def _make_unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique_items: dict[str, Any] = {}
    for name, value in pairs:
        if name in unique_items:
            raise ValueError(f"the name {name!r} occurs twice in one object")
        unique_items[name] = value
    return unique_items


def fsync_folder(folder: Path) -> None:
    """Make the entries of a folder durable, so that a rename in it survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its parents if they do not exist.

    Raises:
        InputError: a file has this name, or the folder cannot be created.
        StorageFullError: no space is left on the disk.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in _DISK_FULL_ERRNOS:
            raise _disk_full_error(path, error) from error
        reason = "a file with this name exists" if path.is_file() else error.strerror
        raise InputError(
            f"Creating a folder failed for {path}: {reason}. Choose another path, or correct the permissions."
        ) from error


def visible_entries(folder: Path) -> list[str]:
    """Return the sorted names of the files and folders in a folder, except hidden ones; empty if it does not exist."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".") if folder.is_dir() else []


def check_output_file(path: Path) -> None:
    """Check that a file can be written to a user's path, before its content is computed.

    Raises:
        InputError: the path is a folder, or no file can be created there.
        StorageFullError: the disk is full.
    """
    if path.is_dir():
        raise InputError(f"Writing failed for {path}: expected the path of a file, got a folder. Choose another path.")
    folder = next((folder for folder in path.parents if folder.exists()), path.parent)
    try:
        with tempfile.TemporaryFile(dir=folder):  # permissions do not reveal a read-only device
            pass
    except OSError as error:
        if _is_disk_full(error):
            raise _disk_full_error(path, error) from error
        raise InputError(
            f"Writing failed for {path}: no file can be created in {folder} ({error.strerror or error}). "
            "Correct the permissions of the folder, or choose another path."
        ) from error


def _disk_full_error(path: Path, error: OSError) -> StorageFullError:
    return StorageFullError(
        f"Writing failed for {path}: the disk is full ({error.strerror or error}). "
        "Free some space and run the same command again; finished work is not lost."
    )


def _is_disk_full(error: OSError) -> bool:
    return error.errno in _DISK_FULL_ERRNOS or (
        error.errno is None and _SHORT_WRITE_MESSAGE.search(str(error)) is not None
    )


def _write_error(path: Path | str, error: OSError) -> StorageError:
    if _is_disk_full(error):
        return _disk_full_error(Path(path), error)
    return StorageError(
        f"Writing failed for {path}: {error.strerror or error}. "
        "Check the path and its permissions, and run the same command again."
    )


@contextmanager
def reporting_write_errors(path: Path) -> Iterator[None]:
    """Raise StorageError, or StorageFullError if the disk is full, in place of an OSError while a file is written."""
    try:
        yield
    except OSError as error:
        raise _write_error(path, error) from error


def server_time(folder: Path) -> float:
    """Return the time of a folder's file server, or of this host if the folder is not writable."""
    probe = folder / f".{secrets.token_hex(6)}.tmp"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


LEFTOVER_SECONDS = 24 * 3600.0
"""Age at which a temporary file is considered abandoned by a killed process, since no write takes that long."""


def is_temporary(name: str) -> bool:
    """Return whether a name is that of an unfinished file or folder."""
    return name.startswith(".") and name.endswith(".tmp")


def remove_leftovers(root: Path, *, skipped: str = "") -> None:
    """Delete old temporary files and folders anywhere below `root`, except in folders named `skipped`."""
    paths = []
    for folder, folder_names, file_names in os.walk(root):
        paths += [Path(folder, name) for name in (*folder_names, *file_names) if is_temporary(name)]
        folder_names[:] = [name for name in folder_names if name != skipped and not is_temporary(name)]
    remove_old(paths)


def remove_old(paths: Iterable[Path]) -> None:
    """Delete files and folders that are older than `LEFTOVER_SECONDS` by the clock of the file server."""
    now: float | None = None
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # the path's writer has just finished
            now = server_time(path.parent) if now is None else now
            if now - path.stat().st_mtime < LEFTOVER_SECONDS:
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


WRITE_STEPS = ("opened", "written", "flushed", "renamed")
"""Steps of an atomic write, in order; `on_step` is called after each, and crash tests kill the process in that call."""


def _ignore_step(_step: str) -> None:
    """Do nothing after a step of an atomic write."""


@dataclass
class NewFile:
    """An unfinished file (see `new_file`).

    Attributes:
        stream: stream to write the content to.
        name: final name; the block sets it at the end if the name depends on the content.
    """

    stream: BinaryIO
    name: str


@contextmanager
def new_file(folder: Path, name: str = "", *, on_step: Callable[[str], None] = _ignore_step) -> Iterator[NewFile]:
    """Open a new file for writing; it appears under its name only when the block ends without an error.

    The bytes are written to a hidden temporary file in the same folder (ending in ``.tmp``), which is flushed to disk
    and renamed; then the folder is flushed. Readers see either the old file or the complete new one. Missing folders
    are created, and an existing file is replaced. If `name` is empty, the block must set `NewFile.name`. `on_step` is
    called with each of `WRITE_STEPS`.

    Raises:
        StorageFullError: no space is left on the disk; the temporary file is removed.
        StorageError: the block or writing raised another OSError; the temporary file is removed.
    """
    temporary_path = folder / f".{name}.{secrets.token_hex(6)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_path.open("wb") as stream:
            on_step("opened")
            file = NewFile(stream, name)
            yield file
            stream.flush()
            on_step("written")
            os.fsync(stream.fileno())
        on_step("flushed")
        temporary_path.replace(folder / file.name)
        on_step("renamed")
        fsync_folder(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary_path.unlink(missing_ok=True)
        # The error may concern another file, such as one that the block copies from.
        concerns_this_file = _is_disk_full(error) or error.filename in {None, str(temporary_path)}
        raise _write_error(folder / name if concerns_this_file else error.filename, error) from error
    except BaseException:
        temporary_path.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_write(path: Path, *, on_step: Callable[[str], None] = _ignore_step) -> Iterator[BinaryIO]:
    """Open a new file with a known name for writing (see `new_file`).

    Raises:
        InputError: the path is a device or a pipe, which a file would replace.
    """
    with reporting_write_errors(path):
        is_special = path.exists() and not (path.is_file() or path.is_dir())
    if is_special:
        raise InputError(f"Writing failed for {path}: expected a file, got a device or a pipe. Choose another path.")
    with new_file(path.parent, path.name, on_step=on_step) as file:
        yield file.stream


def create_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically, unless it exists; of several processes, the first one wins.

    On a file system without hard links, the last one wins.
    """
    temporary_path = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    write_text(temporary_path, text)
    with reporting_write_errors(path), contextlib.suppress(FileExistsError):
        try:
            os.link(temporary_path, path)
        except OSError as error:
            if error.errno not in _NO_LINK_ERRNOS:
                raise
            temporary_path.replace(path)
        finally:
            temporary_path.unlink(missing_ok=True)


_NO_LINK_ERRNOS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
"""Error numbers of `os.link` on a file system without hard links."""


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically (see `atomic_write`)."""
    with atomic_write(path) as stream:
        stream.write(text.encode())


def write_csv(path: Path, frame: "pd.DataFrame", *, index: bool = False) -> None:
    """Write a table as a CSV file atomically."""
    write_text(path, frame.to_csv(index=index))


LOCK_FILE = ".lock"

_NO_LOCK_ERRNOS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Error numbers of `fcntl.flock` on a file system without locks."""


@contextmanager
def sole_writer(folder: Path, operation: str, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder against other writers on this machine during a block; create the folder if it does not exist.

    The lock is `fcntl.flock` on a file in the folder. The operating system releases it when the process ends. The file
    is removed after the block. On a file system without such locks, nothing is locked. The error message begins with
    `operation`, such as ``"Exporting"``. If `wait`, wait until no other process has the lock.

    Raises:
        StorageError: another process has the lock and `wait` is False, or the folder is not writable.
        StorageFullError: no space is left on the disk.
        InputError: the folder cannot be created.
    """
    make_folder(folder)
    path = folder / LOCK_FILE
    with contextlib.ExitStack() as stack:
        while True:
            with reporting_write_errors(path):
                lock = stack.enter_context(path.open("wb"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise StorageError(
                    f"{operation} failed for {folder}: another process is writing there. "
                    "Wait until it ends, or choose another folder."
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCK_ERRNOS:
                    raise
            # The previous owner may have removed the file after this process opened it; the lock is then useless.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                    break
        stack.callback(path.unlink, missing_ok=True)
        yield


BUNDLED_FOLDERS = ("jobs", "benchmark_data")
"""Folders of bundled files. A checkout also contains folders whose files are not bundled."""


def bundled(name: str) -> Path:
    """Return the path of a file that ships with robust201, such as ``jobs/demo.yaml``, in a checkout or a wheel."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(
            f"Looking up a bundled file failed for {name}: the path after 'bundled:' must be relative, such as "
            "jobs/demo.yaml. For a file that does not ship with robust201, remove 'bundled:' from the path."
        )
    for root in _bundled_roots():
        candidate = root / name
        if candidate.exists():
            return candidate
    raise InputError(
        f"Looking up a bundled file failed for {name}: robust201 contains no such file. "
        "Correct the name, or install robust201 again."
    )


def resolve_bundled(path: str | Path) -> Path:
    """Return a path; the prefix ``bundled:`` refers to a file or folder that ships with robust201."""
    name = str(path)
    return bundled(name.removeprefix("bundled:")) if name.startswith("bundled:") else Path(path)


def portable_name(path: Path) -> str:
    """Shorten a bundled path to ``bundled:`` and its name (see `bundled`), and any other path to its last component."""
    for root in _bundled_roots():
        for folder in BUNDLED_FOLDERS:
            if path.is_relative_to(root / folder):
                return f"bundled:{path.relative_to(root).as_posix()}"
    return path.name


def _bundled_roots() -> tuple[Path, ...]:
    """Return the folders that may contain bundled files: in a wheel, in a job's archive, and in a checkout."""
    package = Path(__file__).resolve().parent.parent
    return package / "_bundled", package.parent, package.parent.parent
