"""Events of running processes: one JSON Lines file per process in ``events/``, for `status` and for logs.

Events never affect results: a line that cannot be written is dropped. A thread touches the file regularly, so that its
modification time, by the clock of the file server, tells whether the process is alive.
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

from robust201.core.files import open_file

TOUCH_SECONDS = 30.0
TAIL_BYTES = 1 << 18

EVENTS_FOLDER = "events"


class Events:
    """Writes the events of this process; a context manager, which records the end of the process."""

    def __init__(self, results: Path, role: str) -> None:
        self.path = (
            results / EVENTS_FOLDER / f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}.jsonl"
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._touch_regularly, daemon=True)
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self.write("started", role=role)
        self._thread.start()

    def write(self, event: str, **fields: Any) -> None:
        """Append an event with the time (seconds since the epoch, of this host)."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}) + "\n"
        with contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as stream:
            stream.write(line)

    def _touch_regularly(self) -> None:
        while not self._stopped.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def close(self) -> None:
        """Record the end of the process, once."""
        if not self._stopped.is_set():
            self._stopped.set()
            self.write("ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the complete events of a file, or the last of a long one; damaged lines are left out."""
    events = []
    with contextlib.suppress(OSError), open_file(path, None) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL_BYTES))
        for line in stream.read().decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("time"), int | float) and "event" in event:
                    events.append(event)
    return events


def read_all_events(results: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of all processes."""
    for path in sorted((results / EVENTS_FOLDER).glob("*.jsonl")):
        yield from read_events(path)
