"""The temporary folder of a run's Ray: for this user only, locked by the run, removed by a later one after a kill."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "r201-"
_LOCK = "lock"
_SOCKET_PATH_BYTES = 107
_SOCKET_PATH_IN_FOLDER = "/r201-12345678/r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"


def make_ray_folder() -> tuple[Path, int]:
    """Make a folder with a path short enough for Ray's sockets in it.

    Ray makes its own folder open to everybody, so that another user could take a socket's place.

    Returns:
        The folder, and a descriptor: as long as any process has it open, the folder is in use.
    """
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_place()))
    # Locked before it has the name by which `find_unused_folders` knows the folder.
    unnamed = folder / f".{_LOCK}"
    descriptor = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    with suppress(OSError):  # a file system without locks: then nothing but the run itself removes the folder
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        unnamed.rename(folder / _LOCK)
    return folder, descriptor


def find_unused_folders() -> list[Path]:
    """List this user's folders of runs that were killed together with all of their processes."""
    found = []
    for folder in sorted(_place().glob(f"{_PREFIX}*")):
        with _unused(folder) as is_unused:
            if is_unused:
                found.append(folder)
    return found


def remove_unused_folders() -> None:
    """Remove what `find_unused_folders` lists; what cannot be removed stays."""
    for folder in find_unused_folders():
        with _unused(folder) as is_unused:
            if is_unused:
                shutil.rmtree(folder, ignore_errors=True)


def _place() -> Path:
    wanted = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    is_short = len(os.fsencode(wanted)) + len(_SOCKET_PATH_IN_FOLDER) <= _SOCKET_PATH_BYTES
    return wanted if is_short else Path("/tmp")  # noqa: S108 - only folders of mode 0700 and a new name are made in it


@contextmanager
def _unused(folder: Path) -> Iterator[bool]:
    """Say whether a folder is of a run, this user's, private, and used by no process; it stays so within the block."""
    try:
        found = folder.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW) if is_own else None
    except OSError:  # another user's, another kind, or gone meanwhile
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
