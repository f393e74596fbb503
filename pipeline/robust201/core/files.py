"""Files on disk: non-blocking reads of regular files, atomic writes (a file is complete or absent), and locks."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from robust201.core.errors import InputError, StorageError, StorageFullError

_MAX_AMOUNT = 1e30

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
"""Message of `numpy.save` if the disk is full; its error has no errno."""


def show_bytes(count: float) -> str:
    """Render a number of bytes as ``1.23 GB``, below 1 GB as ``12.3 MB``."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class IrregularFileError(OSError, ValueError):
    """A path is not a regular file, or the file exceeds its size limit; `str` is the reason.

    Also a ValueError, since readers treat both cases like invalid content.
    """

    def __str__(self) -> str:
        return str(self.strerror)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def describe_kind(mode: int) -> str:
    """Return the kind of file of a mode (`st_mode`), such as ``a named pipe``."""
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def open_file(path: Path, max_bytes: int | None, mode: str = "rb", *, buffering: int = -1) -> BinaryIO:
    """Open a regular file of at most `max_bytes`; use it for every file that this process did not write itself.

    A plain `open` of a named pipe blocks until its other end is opened, and signals cannot interrupt that in a thread;
    reading a device may never end. `max_bytes` is None if a file may have any size, because it is read in pieces.

    Raises:
        OSError: the file cannot be opened (FileNotFoundError: it does not exist; IsADirectoryError: it is a folder).
        IrregularFileError: it is a pipe, a socket or a device, or too large.
    """

    def open_regular(_path: str, flags: int) -> int:
        try:
            descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
        except (
            BlockingIOError
        ):  # another NFS client has a delegation on this regular file, and the server is recalling it
            descriptor = os.open(path, flags | os.O_NOCTTY, 0o666)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket, or a pipe opened for writing that has no reader
                raise _irregular(path, describe_kind(path.stat().st_mode)) from error
            raise
        try:
            _check_regular(path, os.fstat(descriptor), max_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    return cast(BinaryIO, open(path, mode, buffering, opener=open_regular))


def _check_regular(path: Path, status: os.stat_result, max_bytes: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "a folder instead of a regular file", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise _irregular(path, describe_kind(status.st_mode))
    if max_bytes is not None and status.st_size > max_bytes:
        reason = f"{show_bytes(status.st_size)}, more than {show_bytes(max_bytes)}"
        raise IrregularFileError(errno.EFBIG, reason, str(path))


def _irregular(path: Path, kind: str) -> IrregularFileError:
    return IrregularFileError(errno.ENXIO, f"{kind} instead of a regular file", str(path))


def check_file(path: Path, max_bytes: int | None = None) -> None:
    """Raise the errors of `open_file`, for a path that a library opens itself."""
    open_file(path, max_bytes).close()


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a whole file of at most `max_bytes` (raises as `open_file`)."""
    with open_file(path, max_bytes) as stream:
        # A read reserves memory for all requested bytes at once, so request the size of the file and not the limit.
        return stream.read(os.fstat(stream.fileno()).st_size)


def read_text(path: Path, max_bytes: int) -> str:
    """Read a UTF-8 file of at most `max_bytes` (raises as `open_file`; UnicodeDecodeError: not valid UTF-8)."""
    return read_file(path, max_bytes).decode()


def sha256_of(path: Path, max_bytes: int | None = None) -> str:
    """Return the SHA-256 of a file: 64 lower-case hex digits (raises as `open_file`)."""
    return digest_of(path, hashlib.sha256, max_bytes)


def digest_of(path: Path, hasher: "Callable[[], hashlib._Hash]", max_bytes: int | None = None) -> str:
    """Return the digest of a file by a new `hasher`: lower-case hex digits (raises as `open_file`)."""
    with open_file(path, max_bytes) as stream:
        return hashlib.file_digest(cast(BufferedReader, stream), hasher).hexdigest()


MAX_JSON_BYTES = 1 << 30
"""Maximum size of a JSON file of robust201: the hashes of all networks' weights take some megabytes."""

MAX_STATE_BYTES = 1 << 20
"""Maximum size of a state file of a process or folder: lease, heartbeat, progress, format."""

MAX_LISTED_BYTES = 16 << 30
"""Maximum size of a file of an exported dataset, which is read in pieces."""


def load_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file of robust201.

    Raises:
        OSError: the file cannot be opened (FileNotFoundError: it does not exist).
        ValueError: it is not JSON, not a regular file, or too large.
    """
    try:
        return json.loads(read_text(path, max_bytes))
    except IsADirectoryError as error:
        raise _irregular(path, "a folder") from error
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error


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
        if error.errno in _FULL:
            raise _full(path, error) from error
        got = "a file" if path.is_file() else error.strerror
        raise InputError(
            f"Making a folder failed for {path}: expected a folder, got {got}. Choose another path, or correct the "
            "permissions."
        ) from error


def is_amount(value: object) -> bool:
    """Return whether a value of a JSON file is a plausible amount: a number from 0 to below 1e30."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_AMOUNT


def visible_entries(folder: Path) -> list[str]:
    """Return the sorted names in a folder that do not begin with a dot; none if the folder does not exist."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".") if folder.is_dir() else []


def check_output_file(path: Path) -> None:
    """Check that a file can be written at a user's path, before anything is computed for it.

    Raises:
        InputError: the path is a folder or another kind of file, lies below a file, or no file can be created there.
        StorageFullError: the disk is full.
    """
    ancestor = next((folder for folder in path.parents if folder.exists()), path.parent)
    if path.is_dir():
        got = "a folder"
    elif path.exists() and not path.is_file():
        got = "something that is neither a file nor a folder"
    elif not ancestor.is_dir():
        got = f"a path below {ancestor}, which is not a folder"
    else:
        _check_writable(ancestor, path)
        return
    raise InputError(f"Writing failed for {path}: expected the path of a file, got {got}. Choose another path.")


def _check_writable(folder: Path, path: Path) -> None:
    """Make a temporary file in the folder: permissions alone do not tell, such as on a read-only device."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if _is_full(error):
            raise _full(path, error) from error
        raise InputError(
            f"Writing failed for {path}: expected a folder to make files in, got {error.strerror or error} for "
            f"{folder}. Correct its permissions, or choose another name."
        ) from error


def _full(path: Path, error: OSError) -> StorageFullError:
    return StorageFullError(
        f"Writing failed for {path}: expected free space on the disk, got none ({error.strerror or error}). "
        "Free some space and run the same command again; finished work is not lost."
    )


def _is_full(error: OSError) -> bool:
    return error.errno in _FULL or (error.errno is None and _SHORT_WRITE.search(str(error)) is not None)


def _failed_to_write(path: Path | str, error: OSError) -> StorageError:
    if _is_full(error):
        return _full(Path(path), error)
    return StorageError(
        f"Writing failed for {path}: expected read and write access, got {error.strerror or error}. "
        "Check the path and its permissions, and run the same command again."
    )


LEFTOVER_SECONDS = 24 * 3600.0
"""Age from which a temporary file is considered abandoned by a killed process: no write takes that long."""


def remove_leftovers(root: Path, *, clock: Callable[[], float] = time.time) -> int:
    """Delete temporary files and lease claims that killed processes left below a folder, and return their number.

    If a clock jump makes an unfinished file look old, its writer fails with a `StorageError` and nothing is lost.
    `clock` returns seconds since the epoch, which are compared with the modification times of files.
    """
    removed = 0
    for folder, _, names in os.walk(root):
        for name in names:
            if name.startswith(".") and name.endswith((".tmp", ".successor")):
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):  # its writer has just finished
                    if clock() - path.stat().st_mtime >= LEFTOVER_SECONDS:
                        path.unlink()
                        removed += 1
    return removed


WRITE_STEPS = ("opened", "written", "flushed", "renamed")
"""Steps of an atomic write, in order; `on_step` is called after each, where crash tests kill the process."""


def _ignore_step(_step: str) -> None:
    """Do nothing after a step of an atomic write."""


@dataclass
class NewFile:
    """An unfinished file (see `new_file`).

    Attributes:
        stream: destination of the bytes.
        name: final name; it may be set at the end, for files that are named by their content.
    """

    stream: BinaryIO
    name: str


@contextmanager
def new_file(folder: Path, name: str = "", *, on_step: Callable[[str], None] = _ignore_step) -> Iterator[NewFile]:
    """Open a file for writing that appears under its name only when the block ends without an error.

    The bytes are written to a hidden temporary file in the same folder (ending in ``.tmp``), which is flushed to disk
    and renamed; then the folder is flushed. Readers see the old file or the complete new one. Missing folders are
    created, and an existing file is replaced. If `name` is empty, the block sets `NewFile.name`. `on_step` is called
    with each of `WRITE_STEPS`.

    Raises:
        StorageFullError: no space is left on the disk; the temporary file is removed.
        StorageError: the folder is not writable; the temporary file is removed.
    """
    temporary = folder / f".{name}.{secrets.token_hex(6)}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            on_step("opened")
            new = NewFile(stream, name)
            yield new
            stream.flush()
            on_step("written")
            os.fsync(stream.fileno())
        on_step("flushed")
        temporary.replace(folder / new.name)
        on_step("renamed")
        fsync_folder(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        # The error may concern another file, such as one that the block copies from.
        concerns_this_file = _is_full(error) or error.filename in {None, str(temporary)}
        raise _failed_to_write(folder / name if concerns_this_file else error.filename, error) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_write(path: Path, *, on_step: Callable[[str], None] = _ignore_step) -> Iterator[BinaryIO]:
    """Open a file for writing whose name is known in advance (see `new_file`)."""
    with new_file(path.parent, path.name, on_step=on_step) as new:
        yield new.stream


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically (see `atomic_write`)."""
    with atomic_write(path) as stream:
        stream.write(text.encode())


LOCK_FILE = ".lock"

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without locks."""


@contextmanager
def sole_writer(folder: Path, doing: str) -> Iterator[None]:
    """Keep other processes of this machine from writing into a folder during a block; create the folder if missing.

    The lock is `fcntl.flock` on a file in the folder. It ends with its process; the file is removed after the block.
    On a file system without such locks, nothing is locked. `doing` begins the message, such as ``"Exporting"``.

    Raises:
        StorageError: another process has the lock, or the folder is not writable.
        StorageFullError: no space is left on the disk.
        InputError: the folder cannot be created.
    """
    make_folder(folder)
    path = folder / LOCK_FILE
    with contextlib.ExitStack() as stack:
        while True:
            try:
                lock = stack.enter_context(open_file(path, None, "wb"))
            except OSError as error:
                raise _failed_to_write(path, error) from error
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StorageError(
                    f"{doing} failed for {folder}: another process is writing there. "
                    "Wait until it ends, or choose another folder."
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            # The previous owner may have removed the file after it was opened here; then the lock is on a deleted file.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                    break
        stack.callback(path.unlink, missing_ok=True)
        yield


BUNDLED_FOLDERS = ("jobs", "benchmark_data")
"""Folders that ship with robust201 beside its code; a checkout has other folders there, too."""


def bundled(name: str) -> Path:
    """Return the path of a file that ships with robust201, such as ``jobs/demo.yaml``, in a checkout or a wheel."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(
            f"Looking up a bundled file failed for {name}: expected a name below the package, such as jobs/demo.yaml, "
            "got a path outside it. Write the path without bundled:"
        )
    for root in _bundled_roots():
        candidate = root / name
        if candidate.exists():
            return candidate
    raise InputError(
        f"Looking up a bundled file failed for {name}: expected it next to the package, got none. "
        "Install robust201 again."
    )


def portable_name(path: Path) -> str:
    """Shorten a bundled path to ``bundled:`` and its name (see `bundled`), and any other path to its last component."""
    for root in _bundled_roots():
        for folder in BUNDLED_FOLDERS:
            if path.is_relative_to(root / folder):
                return f"bundled:{path.relative_to(root).as_posix()}"
    return path.name


def _bundled_roots() -> tuple[Path, ...]:
    """Return the roots of bundled files: in a wheel, in a job's archive, and in a checkout."""
    package = Path(__file__).resolve().parent.parent
    return package / "_bundled", package.parent, package.parent.parent
