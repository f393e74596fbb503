"""Identity of a process: its id is unique only together with the host, the boot and the process's start time."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")

MAX_THREADS = 1024
"""Maximum number of threads of one operation; with tens of thousands, torch crashes the process."""

_DEAD_STATES = frozenset("ZX")
"""Letters of the states zombie and dead (third field of ``/proc/<pid>/stat``, see proc(5))."""


@dataclass(frozen=True, slots=True)
class HostId:
    """The scope within which a process id identifies a process.

    Attributes:
        host: name of the host, for messages.
        machine: ``/etc/machine-id``, which distinguishes hosts with the same name, or ``""``.
        boot_id: Linux's ``/proc/sys/kernel/random/boot_id``, or ``""``.
        pid_namespace: process id namespace of the container, or ``""``.
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
    """Return the start time of a process of this host; None if the process is gone, hidden or a zombie.

    The time is in clock ticks since boot (field 22 of ``/proc/<pid>/stat``, see proc(5)).
    """
    fields = _read_stat(pid)
    return None if fields is None or fields[0] in _DEAD_STATES else int(fields[19])


def has_ended(pid: int, start: int | None) -> bool | None:
    """Return whether a process of this host has ended; None if that cannot be determined.

    `start` (see `process_start`; None if unknown) distinguishes the process from a later one with the same id. The
    result is None if a process with this id exists but is hidden (proc(5), ``hidepid``), if it exists and there is no
    ``/proc``, or if it is alive and `start` is unknown.
    """
    fields = _read_stat(pid)
    if fields is not None:
        if fields[0] in _DEAD_STATES:
            return True
        return None if start is None else int(fields[19]) != start
    try:
        os.kill(pid, 0)  # only checks that the process exists
    except ProcessLookupError:
        return True
    except PermissionError:
        return None  # the process belongs to another user
    return None


def _read_stat(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/<pid>/stat`` from the third (the state) on.

    The result is None if the process is gone or hidden.
    """
    stat_line = _read_line(_PROC / str(pid) / "stat")
    # The second field, the command in parentheses, may contain spaces and parentheses itself.
    fields = stat_line.rpartition(")")[2].split()
    return fields if len(fields) >= 20 else None
