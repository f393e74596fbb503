"""Which host, boot and process this is: what a process id needs beside it to mean anything."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")

MAX_THREADS = 1024
"""The most threads of one operation that we allow: with tens of thousands, torch ends the process by a signal."""

_DEAD_STATES = frozenset("ZX")
"""Zombie and dead (third field of ``/proc/<pid>/stat``, see proc(5))."""


@dataclass(frozen=True, slots=True)
class HostId:
    """Where process ids mean the same.

    Attributes:
        host: name of the host, for messages.
        machine: what distinguishes hosts of one name (``/etc/machine-id``), or ``""``.
        boot_id: Linux's ``/proc/sys/kernel/random/boot_id``, or ``""`` where there is none.
        pid_namespace: the container's namespace of process ids, or ``""``.
    """

    host: str
    machine: str
    boot_id: str
    pid_namespace: str

    @classmethod
    def of_this_process(cls) -> "HostId":
        return cls(
            socket.gethostname(),
            _read_line(Path("/etc/machine-id")),
            _read_line(_PROC / "sys/kernel/random/boot_id"),
            _read_link(_PROC / "self/ns/pid"),
        )


def _read_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _read_link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def process_start(pid: int) -> int | None:
    """Read when a process of this host started; None if it is gone, hidden or a zombie.

    In clock ticks since boot (field 22 of ``/proc/<pid>/stat``, see proc(5)).
    """
    fields = _read_stat(pid)
    return None if fields is None or fields[0] in _DEAD_STATES else int(fields[19])


def has_ended(pid: int, start: int | None) -> bool | None:
    """Judge whether a process of this host has ended; None if that cannot be seen from here.

    Its `start` (see `process_start`) distinguishes it from a later one of the same id; None if unknown. It is not seen
    where the process of this id is hidden (proc(5), ``hidepid``), there is no ``/proc``, or `start` is unknown.
    """
    fields = _read_stat(pid)
    if fields is not None:
        if fields[0] in _DEAD_STATES:
            return True
        return None if start is None else int(fields[19]) != start
    try:
        os.kill(pid, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except PermissionError:
        return None  # another user's
    return None


def _read_stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` from the third, the state, on; None if it is gone or hidden."""
    text = _read_line(_PROC / str(pid) / "stat")
    # The second field is the command in parentheses and may hold spaces and parentheses itself.
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) >= 20 else None
