"""Files on disk: regular files, read without waiting; atomic writes, after which a file is whole or absent; locks."""

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
"""What `numpy.save` says of a full device, in an error without an errno."""


def show_bytes(count: float) -> str:
    """Render a number of bytes as ``1.23 GB``, below 1 GB as ``12.3 MB``."""
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class IrregularFileError(OSError, ValueError):
    """A path leads to something other than a regular file, or to a file above its size limit; `str` is the reason.

    Also a ValueError, since readers treat both like wrong content.
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
    """Name the kind of file that has a mode (`st_mode`), such as ``a named pipe``."""
    return _KINDS.get(stat.S_IFMT(mode), "a device")


def open_file(path: Path, max_bytes: int | None, mode: str = "rb", *, buffering: int = -1) -> BinaryIO:
    """Open a regular file of at most `max_bytes`; the only way to open a file that this process did not make itself.

    A plain `open` of a named pipe waits for its other end, in a thread beyond the reach of any signal, and reading a
    device may never end. `max_bytes` is None where a file may have any size: it is then read in pieces.

    Raises:
        OSError: the file cannot be opened (FileNotFoundError: there is none; IsADirectoryError: it is a folder).
        IrregularFileError: it is a pipe, a socket or a device, or too large.
    """

    def open_regular(_path: str, flags: int) -> int:
        try:
            descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
        except BlockingIOError:  # an NFS client holds a delegation on this regular file, which the server recalls
            descriptor = os.open(path, flags | os.O_NOCTTY, 0o666)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a socket, or a pipe to be written to that nobody reads
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
    """Raise what `open_file` raises: for a library that opens a path itself."""
    open_file(path, max_bytes).close()


def read_file(path: Path, max_bytes: int) -> bytes:
    """Read a whole file of at most so many bytes (raises as `open_file`)."""
    with open_file(path, max_bytes) as stream:
        # A read of so many bytes reserves memory for all of them at once, so the limit itself is never asked for.
        return stream.read(os.fstat(stream.fileno()).st_size)


def read_text(path: Path, max_bytes: int) -> str:
    """Read a whole UTF-8 file of at most so many bytes (raises as `open_file`; UnicodeDecodeError: no UTF-8)."""
    return read_file(path, max_bytes).decode()


def sha256_of(path: Path, max_bytes: int | None = None) -> str:
    """Hash a file's bytes: 64 lower-case hex digits of SHA-256 (raises as `open_file`)."""
    return digest_of(path, hashlib.sha256, max_bytes)


def digest_of(path: Path, hasher: "Callable[[], hashlib._Hash]", max_bytes: int | None = None) -> str:
    """Hash a file's bytes with a new `hasher`: lower-case hex digits (raises as `open_file`)."""
    with open_file(path, max_bytes) as stream:
        return hashlib.file_digest(cast(BufferedReader, stream), hasher).hexdigest()


MAX_JSON_BYTES = 1 << 30
"""Largest JSON file of our own: the hashes of every network's weights take some megabytes."""

MAX_STATE_BYTES = 1 << 20
"""Largest file with the state of a process or of a folder: lease, heartbeat, progress, format."""

MAX_LISTED_BYTES = 16 << 30
"""Largest file of an exported dataset, which is read in pieces."""


def load_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file of our own.

    Raises:
        OSError: the file cannot be opened (FileNotFoundError: there is none).
        ValueError: it is not JSON or not a regular file, or too large.
    """
    try:
        return json.loads(read_text(path, max_bytes))
    except IsADirectoryError as error:
        raise _irregular(path, "a folder") from error
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error


def fsync_folder(folder: Path) -> None:
    """Make the entries of a folder durable, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, unless it is there.

    Raises:
        InputError: a file has its name, or it cannot be made there.
        StorageFullError: no space is left on the device.
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
    """Whether a value of a JSON file is a plausible amount: a number, not negative and not absurdly large."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_AMOUNT


def visible_entries(folder: Path) -> list[str]:
    """Names in a folder, sorted, without those that begin with a dot; none where there is no folder."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name[0] != ".") if folder.is_dir() else []


def check_output_file(path: Path) -> None:
    """Check that a file may be written under a name that a user gave, before anything is computed for it.

    Raises:
        InputError: the name is that of a folder, of something else that is no file, or lies below a file, or files
            cannot be made there.
        StorageFullError: the device is full.
    """
    above = next((folder for folder in path.parents if folder.exists()), path.parent)
    if path.is_dir():
        got = "a folder"
    elif path.exists() and not path.is_file():
        got = "something that is neither a file nor a folder"
    elif not above.is_dir():
        got = f"a name below {above}, which is no folder"
    else:
        _check_writable(above, path)
        return
    raise InputError(f"Writing failed for {path}: expected the name of a file, got {got}. Choose another name.")


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
        f"Writing failed for {path}: expected free space on the device, got none ({error.strerror or error}). "
        "Free some space and run the same command again; finished work is kept."
    )


def _is_full(error: OSError) -> bool:
    return error.errno in _FULL or (error.errno is None and _SHORT_WRITE.search(str(error)) is not None)


def _failed_to_write(place: Path | str, error: OSError) -> StorageError:
    if _is_full(error):
        return _full(Path(place), error)
    return StorageError(
        f"Writing failed for {place}: expected to read and write there, got {error.strerror or error}. "
        "Check the path and its permissions, and run the same command again."
    )


LEFTOVER_SECONDS = 24 * 3600.0
"""Age from which a temporary file counts as left behind by a process that was killed: no write takes that long."""


def remove_leftovers(root: Path, *, clock: Callable[[], float] = time.time) -> int:
    """Delete what processes that were killed left below a folder: temporary files and claims to a lease; count them.

    Should a clock that jumped make a file in the making look old, its writer fails with a `StorageError` and nothing is
    lost. `clock` returns seconds since the epoch, to compare with the times of files.
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
"""Moments of an atomic write, in order, at which `on_step` is called: crash tests kill the process at each of them."""


def _go_on(_step: str) -> None:
    """Do nothing at a step of an atomic write."""


@dataclass
class NewFile:
    """A file in the making (see `new_file`).

    Attributes:
        stream: where the bytes go.
        name: the final name; it may be set late, for files that are named by their content.
    """

    stream: BinaryIO
    name: str


@contextmanager
def new_file(folder: Path, name: str = "", *, on_step: Callable[[str], None] = _go_on) -> Iterator[NewFile]:
    """Open a file for writing that appears under its name only when the block ends without an error.

    The bytes go to a temporary file in the same folder (hidden, ending in ``.tmp``), which is flushed to the disk,
    renamed, and the folder flushed: readers see the old file or the new one, never a part. Missing folders are made, an
    existing file is replaced. Where the name is left empty, the block sets `NewFile.name`. `on_step` is called with
    each of `WRITE_STEPS`.

    Raises:
        StorageFullError: no space is left on the device; the temporary file is removed.
        StorageError: the folder cannot be written to; likewise.
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
        # The block may have failed on another file, one that it copies from.
        is_own = _is_full(error) or error.filename in {None, str(temporary)}
        raise _failed_to_write(folder / name if is_own else error.filename, error) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_write(path: Path, *, on_step: Callable[[str], None] = _go_on) -> Iterator[BinaryIO]:
    """Open a file for writing under a name that is known beforehand (see `new_file`)."""
    with new_file(path.parent, path.name, on_step=on_step) as new:
        yield new.stream


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically (see `atomic_write`)."""
    with atomic_write(path) as stream:
        stream.write(text.encode())


LOCK_FILE = ".lock"

_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
"""What the system says of a file system that has no locks."""


@contextmanager
def sole_writer(folder: Path, doing: str) -> Iterator[None]:
    """Keep other processes of this machine from filling the same folder, made if absent, for the length of a block.

    The lock is that of `fcntl.flock` on a file in the folder: it dies with its process, and the file goes with the
    block. On a file system without such locks nobody is kept out. `doing` is for the error, such as ``"Exporting"``.

    Raises:
        StorageError: another process is at it, or the folder cannot be written to.
        StorageFullError: no space is left on the device.
        InputError: the folder cannot be made.
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
                    f"{doing} failed for {folder}: expected to be the only one that writes there, got another process "
                    "that does. Wait until it ends, or choose another folder."
                ) from error
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            # Whoever held the lock may have removed the file after it was opened here: then this is a lock on nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                    break
        stack.callback(path.unlink, missing_ok=True)
        yield


BUNDLED_FOLDERS = ("jobs", "benchmark_data")
"""What ships with robust201 beside its code; in a checkout, other folders lie beside the package too."""


def bundled(name: str) -> Path:
    """Find a file such as ``jobs/demo.yaml`` that ships with robust201, in a checkout and in an installed wheel."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise InputError(
            f"Looking up a bundled file failed for {name}: expected a name below the package, such as jobs/demo.yaml, "
            "got a path that leads out of it. Write the path without bundled:"
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
    """Shorten a path to ``bundled:`` and the name by which `bundled` finds it, any other path to its last name."""
    for root in _bundled_roots():
        for folder in BUNDLED_FOLDERS:
            if path.is_relative_to(root / folder):
                return f"bundled:{path.relative_to(root).as_posix()}"
    return path.name


def _bundled_roots() -> tuple[Path, ...]:
    """Return the folders that bundled files lie in: of a wheel, of a job's archive, of a checkout."""
    package = Path(__file__).resolve().parent.parent
    return package / "_bundled", package.parent, package.parent.parent
