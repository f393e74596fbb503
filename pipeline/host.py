"""Which host, boot and process this is: what a process id needs beside it to mean anything."""

import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class HostId:
    """Where process ids mean the same.

    Attributes:
        host: name of the host, for messages.
        machine: what tells apart hosts of one name (``/etc/machine-id``), or ``""``.
        boot_id: Linux's ``/proc/sys/kernel/random/boot_id``, or ``""`` where there is none.
        pid_namespace: the container's namespace of process ids, or ``""``.
    """

    host: str
    machine: str
    boot_id: str
    pid_namespace: str

    @classmethod
    def of_this_process(cls) -> "HostId":
        """Identify the host that this process runs on."""
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
    """Read when a process of this host started.

    Args:
        pid: its id.

    Returns:
        Clock ticks since boot (field 22 of ``/proc/<pid>/stat``, see proc(5)); None if it is gone or a zombie.
    """
    text = _read_line(_PROC / str(pid) / "stat")
    # The second field is the command in parentheses and may hold spaces and parentheses itself.
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in {"Z", "X"}:
        return None
    return int(fields[19])
