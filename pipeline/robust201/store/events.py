"""Events of running processes: one JSON Lines file per process in ``events/``, for `status` and for logs.

    events/<role>-<host>-<pid>-<run>-<token>.jsonl      all events
    events/failures/<the same name>.jsonl               only failures; always read in full

`run` is the token of the driver that started the process. Events do not affect results. A line that cannot be written
is dropped, with one exception: the failure of an unstable network must be written, since this line marks all results of
the network as missing (see `dataset.unstable_networks`). Unless it is a share, a run of a sweep first deletes event
files older than a day, but no file of failures. A thread of each process writes a line every `ALIVE_SECONDS`. The age
of the last line is the file's age by the file server's clock, so it does not depend on the clocks of hosts.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from robust201.core.files import reporting_write_errors, write_text

ALIVE_SECONDS = 30.0
TAIL_BYTES = 1 << 18

EVENTS_FOLDER = "events"
FAILURES_FOLDER = "failures"
ALIVE = "alive"
UNSTABLE = "unstable"
"""Field that marks failures of networks whose outputs depend on chance, earlier passes or other images."""

Event = dict[str, Any]


class Events:
    """Writes the events of this process; a context manager, which records the end of the process.

    Args:
        results: results folder.
        role: ``driver``, ``share`` (a driver of ``run --share``) or ``worker``.
        run: token of the driver that started this process; empty in a driver, which makes its own token.
    """

    def __init__(self, results: Path, role: str, run: str = "") -> None:
        self.run = run or secrets.token_hex(4)
        name = f"{role}-{socket.gethostname()}-{os.getpid()}-{self.run}-{secrets.token_hex(3)}.jsonl"
        self.path = results / EVENTS_FOLDER / name
        self._failures = self.path.parent / FAILURES_FOLDER / name
        self._stopped = threading.Event()
        self.write("started", role=role)
        threading.Thread(target=self._write_regularly, daemon=True).start()

    def write(self, event: str, **fields: Any) -> None:
        """Append an event with this host's time (seconds since the epoch).

        Raises:
            StorageError: the failure of an unstable network cannot be written.
        """
        line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}) + "\n"
        with contextlib.suppress(OSError):
            _append(self.path, line)
        if event == "failed":
            is_required = fields.get(UNSTABLE, False)
            with reporting_write_errors(self._failures) if is_required else contextlib.suppress(OSError):
                _append(self._failures, line)

    def _write_regularly(self) -> None:
        while not self._stopped.wait(ALIVE_SECONDS):
            self.write(ALIVE)

    def close(self) -> None:
        """Record the end of the process, once."""
        if not self._stopped.is_set():
            self._stopped.set()
            self.write("ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line)


def event_files(results: Path) -> list[Path]:
    """Return the files of all processes."""
    return sorted((results / EVENTS_FOLDER).glob("*.jsonl"))


def host_and_pid(path: Path) -> tuple[str, int]:
    """Return the host and the id of the process that writes a file of events."""
    host, pid = path.stem.partition("-")[2].rsplit("-", 3)[:2]
    return host, int(pid)


def read_events(path: Path, max_bytes: int | None = TAIL_BYTES) -> list[Event]:
    """Return the events in the last `max_bytes` of a file (None: all), without incomplete and damaged lines."""
    events = []
    with contextlib.suppress(OSError), path.open("rb") as stream:
        if max_bytes is not None:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - max_bytes))
        for line in stream.read().decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("time"), int | float) and "event" in event:
                    events.append(event)
    return events


def read_recent_events(results: Path) -> Iterator[Event]:
    """Yield the events at the end of each process's file (see `read_events`)."""
    for path in event_files(results):
        yield from read_events(path)


def read_failures(results: Path) -> list[Event]:
    """Return all failures, sorted by their hosts' clocks."""
    paths = sorted((results / EVENTS_FOLDER / FAILURES_FOLDER).glob("*.jsonl"))
    failures = [event for path in paths for event in read_events(path, None)]
    return sorted(failures, key=lambda event: float(event["time"]))


def copy_failures(source: Path, target: Path) -> None:
    """Copy each file of failures to another results folder unless its copy there is as long; these files only grow."""
    for path in (source / EVENTS_FOLDER / FAILURES_FOLDER).glob("*.jsonl"):
        copy = target / EVENTS_FOLDER / FAILURES_FOLDER / path.name
        if not copy.exists() or copy.stat().st_size < path.stat().st_size:
            write_text(copy, path.read_text(encoding="utf-8"))
