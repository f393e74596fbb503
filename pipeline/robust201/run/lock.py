"""The lock of a results folder, which keeps a second driver from computing the same parts.

A second driver of a sweep would only waste time, so the lock is simple: a file that its holder renews. The file's age
is measured with the file server's clock, so the clocks of hosts may differ.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from robust201.core.errors import LockHeldError
from robust201.core.files import load_json, server_time

LOCK_FILE = "lock.json"
RENEW_SECONDS = 10.0
STALE_SECONDS = 90.0


@contextmanager
def hold_lock(results: Path) -> Iterator[None]:
    """Hold the lock of a results folder during a block.

    Raises:
        LockHeldError: another driver holds it.
    """
    path, token = results / LOCK_FILE, secrets.token_hex(8)
    content = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "time": int(time.time()), "token": token})
    _remove_stale(path)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(content)
    except FileExistsError as error:
        raise _held_error(path) from error
    released = threading.Event()
    threading.Thread(target=_renew, args=(path, token, released), daemon=True).start()
    try:
        yield
    finally:
        released.set()
        if _read(path).get("token") == token:
            path.unlink(missing_ok=True)


def _renew(path: Path, token: str, released: threading.Event) -> None:
    """Renew the lock, unless another process took it while this process was suspended."""
    while not released.wait(RENEW_SECONDS):
        with contextlib.suppress(OSError):
            if _read(path).get("token") == token:
                os.utime(path)


def _read(path: Path) -> dict[str, object]:
    try:
        holder = load_json(path)
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _remove_stale(path: Path) -> None:
    """Remove the lock of a holder that was killed, or has not renewed it for `STALE_SECONDS`."""
    with contextlib.suppress(FileNotFoundError):
        holder, modified = _read(path), path.stat().st_mtime
        if was_killed(holder.get("host"), holder.get("pid")) or server_time(path.parent) - modified > STALE_SECONDS:
            path.unlink()


def was_killed(host: object, pid: object) -> bool:
    """Return whether a process ran on this machine and is gone; False for processes on other machines."""
    if host != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _held_error(path: Path) -> LockHeldError:
    holder = _read(path)
    return LockHeldError(
        f"Starting a run failed for {path.parent}: process {holder.get('pid')} on {holder.get('host')} is working "
        f"there. Wait for it, or stop it; its lock expires at most {STALE_SECONDS:g} s after it ends."
    )
