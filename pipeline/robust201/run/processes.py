"""Processes that work in a results folder, and the parts that they compute, read from their last events."""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from robust201.core.files import server_time
from robust201.run.lock import was_killed
from robust201.store.events import ALIVE, ALIVE_SECONDS, Event, event_files, host_and_pid, read_events

SILENT_SECONDS = 4 * ALIVE_SECONDS
"""Time after which a process that has written no event counts as silent: dead, stopped, or cut off."""

_COMPUTING_EVENTS = frozenset({"part_started", "micro_batch_halved", "epoch"})
"""Events after which a worker is computing a part."""


class RunningPart(NamedTuple):
    """A part that a worker is computing, and the seconds since the worker began it."""

    part: str
    worker: str
    seconds: float


@dataclass
class Process:
    """A process that has written events.

    Attributes:
        name: role, host, process id, run and token.
        events: its last events.
        seconds: age of the last event, by the clock of the file server.
        has_ended: whether the process or the driver that started it has ended, or was killed on this machine.
        is_replaced: whether another driver wrote events more than `SILENT_SECONDS` after the process's last event.
    """

    name: str
    events: list[Event]
    seconds: float
    has_ended: bool = False
    is_replaced: bool = False

    @property
    def role(self) -> str:
        return self.name.partition("-")[0]

    @property
    def run(self) -> str:
        return self.name.rsplit("-", 2)[1]

    @property
    def is_active(self) -> bool:
        return not self.has_ended and self.seconds < SILENT_SECONDS

    @property
    def is_silent(self) -> bool:
        return not (self.has_ended or self.is_replaced or self.is_active)

    def age(self, event: Event) -> float:
        """Return the seconds since an event. Times in events come from the host's clock; only differences are used."""
        return self.seconds + max(0.0, float(self.events[-1]["time"]) - float(event["time"]))

    def running_part(self) -> RunningPart | None:
        """Return the part that an active process is computing, if any."""
        events = [event for event in self.events if event["event"] != ALIVE]
        if not self.is_active or not events or events[-1]["event"] not in _COMPUTING_EVENTS:
            return None
        start = next((event for event in reversed(events) if event["event"] == "part_started"), events[-1])
        return RunningPart(str(start.get("part", "")), self.name, self.age(start))


def read_processes(results: Path) -> list[Process]:
    """Read the last events of all processes."""
    now, processes = server_time(results), []
    for path in event_files(results):
        with contextlib.suppress(FileNotFoundError):
            age = max(0.0, now - path.stat().st_mtime)
            if events := read_events(path):
                has_ended = events[-1]["event"] == "ended" or was_killed(*host_and_pid(path))
                processes.append(Process(path.stem, events, age, has_ended))
    ended_runs = {process.run for process in processes if process.role != "worker" and process.has_ended}
    drivers = sorted((process.seconds, process.run) for process in processes if process.role == "driver")
    for process in processes:
        process.has_ended |= process.run in ended_runs
        later_seconds = next((seconds for seconds, run in drivers if run != process.run), math.inf)
        process.is_replaced = process.seconds > later_seconds + SILENT_SECONDS
    return processes
