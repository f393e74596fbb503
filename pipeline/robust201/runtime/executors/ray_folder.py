"""Temporary folder of a run's local Ray.

It is private and locked by the run. If the run is killed, a later run removes it.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "r201-"
_LOCK_NAME = "lock"
_MAX_SOCKET_PATH_BYTES = 107
"""Maximum length of the path of a Unix socket on Linux."""

_EXAMPLE_SOCKET_PATH = "/r201-12345678/r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""Longest path that a Ray socket can have, relative to the parent folder, with example numbers."""


def make_ray_folder() -> tuple[Path, int]:
    """Create a private folder whose path is short enough for Ray's sockets.

    A folder created by Ray would be writable by all users, so another user could replace a socket.

    Returns:
        The folder, and a descriptor of its lock. The folder counts as used while any process has the descriptor open.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_parent_folder()))
    # The file is locked before it gets its name, because `find_unused_folders` recognises folders by the lock's name.
    temporary_lock = folder / f".{_LOCK_NAME}"
    descriptor = os.open(temporary_lock, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    with suppress(OSError):  # on a file system without locks, only the run itself removes the folder
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        temporary_lock.rename(folder / _LOCK_NAME)
    return folder, descriptor


def find_unused_folders() -> list[Path]:
    """Return the folders that this user's killed runs left behind and that no process uses."""
    folders = []
    for folder in sorted(_parent_folder().glob(f"{_PREFIX}*")):
        with _locked_if_unused(folder) as is_unused:
            if is_unused:
                folders.append(folder)
    return folders


def remove_unused_folders() -> None:
    """Remove the folders that `find_unused_folders` returns, ignoring errors."""
    for folder in find_unused_folders():
        with _locked_if_unused(folder) as is_unused:
            if is_unused:
                shutil.rmtree(folder, ignore_errors=True)


def _parent_folder() -> Path:
    preferred_folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    is_short = len(os.fsencode(preferred_folder)) + len(_EXAMPLE_SOCKET_PATH) <= _MAX_SOCKET_PATH_BYTES
    return preferred_folder if is_short else Path("/tmp")  # noqa: S108 - contains only new folders with mode 0700


@contextmanager
def _locked_if_unused(folder: Path) -> Iterator[bool]:
    """Yield whether a folder is this user's private folder of an ended run; if so, lock it within the context."""
    try:
        status = folder.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        descriptor = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_NOFOLLOW) if is_private else None
    except OSError:  # it belongs to another user, has no lock, or has been removed
        descriptor = None
    if descriptor is None:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
