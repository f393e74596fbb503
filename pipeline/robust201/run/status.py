"""The status of a sweep, from the listing of its results and the last events of its processes."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from robust201.core.files import server_time
from robust201.run.events import EVENTS_FOLDER, TOUCH_SECONDS, read_events
from robust201.store.folder import ResultsFolder
from robust201.sweep.costs import KeyCost, Speeds, key_costs
from robust201.sweep.facts import load_plan
from robust201.sweep.parts import SweepState, compare
from robust201.sweep.plan import Plan, make_plan

SILENT_SECONDS = 4 * TOUCH_SECONDS
"""Time after which a process that has not touched its events counts as silent: dead, stopped, or cut off."""


class RunningPart(NamedTuple):
    """A part that a worker is computing; `seconds` is its age by the clock of the worker's host."""

    part: str
    worker: str
    seconds: float


class Failure(NamedTuple):
    """A part that failed and is still missing, with the first line of its last error."""

    part: str
    failure: str


@dataclass(frozen=True)
class Status:
    """The status of a sweep.

    Attributes:
        n_planned: number of evaluations in the plan.
        n_done: number of evaluations all of whose slices are stored.
        costs: estimated hours of the missing parts by key.
        running: parts in progress.
        failures: failed parts that are missing.
        silent: names of processes that have neither ended nor touched their events for `SILENT_SECONDS`.
        n_workers: number of workers that are computing.
        seconds_left: estimated time until the sweep is complete; None if no worker is computing.
    """

    name: str
    n_planned: int
    n_done: int
    costs: Sequence[KeyCost]
    running: Sequence[RunningPart]
    failures: Sequence[Failure]
    silent: Sequence[str]
    n_workers: int
    seconds_left: float | None


class Process(NamedTuple):
    """A process that has written events."""

    name: str
    events: list[dict[str, Any]]
    silent_seconds: float

    @property
    def has_ended(self) -> bool:
        return not self.events or self.events[-1]["event"] == "ended"

    @property
    def is_active(self) -> bool:
        return not self.has_ended and self.silent_seconds < SILENT_SECONDS

    @property
    def is_silent(self) -> bool:
        return not self.has_ended and not self.is_active


def read_status(results: Path) -> Status:
    """Read the status of the sweep in a results folder.

    Raises:
        InputError: the path is not a results folder, or has no plan.
    """
    folder, (config, facts) = ResultsFolder.open(results), load_plan(results)
    plan = make_plan(config, facts, folder.slices)
    return describe_status(plan, compare(plan, folder.list(), folder.read_tuple), results)


def describe_status(plan: Plan, state: SweepState, results: Path) -> Status:
    """Return the status of a compared plan."""
    processes = read_processes(results)
    running = [part for process in processes if process.is_active and (part := find_running(process)) is not None]
    events = [event for process in processes for event in process.events]
    speeds = Speeds(events)
    costs = key_costs(state, speeds, plan.config.execution.assumed_gmacs())
    seconds = 3600 * sum(cost.hours for cost in costs)
    return Status(
        name=plan.config.name,
        n_planned=plan.n_evaluations,
        n_done=state.n_done,
        costs=costs,
        running=running,
        failures=_find_failures(state, events),
        silent=[process.name for process in processes if process.is_silent],
        n_workers=len(running),
        seconds_left=seconds / len(running) if running else None,
    )


def read_processes(results: Path) -> list[Process]:
    """Read the events of all processes; workers that a driver has left behind have ended with it."""
    now, processes = server_time(results), []
    for path in sorted((results / EVENTS_FOLDER).glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError):
            processes.append(Process(path.stem, read_events(path), now - path.stat().st_mtime))
    drivers = [process for process in processes if process.name.startswith("driver") and process.has_ended]
    last_end = max((process.events[-1]["time"] for process in drivers if process.events), default=0.0)
    return [
        process._replace(events=[*process.events, {"event": "ended", "time": last_end}])
        if process.events and process.events[-1]["time"] < last_end and not process.name.startswith("driver")
        else process
        for process in processes
    ]


def find_running(process: Process) -> RunningPart | None:
    """Return the part that a process is computing, if any."""
    last = process.events[-1]
    if last["event"] not in {"part_started", "micro_batch_halved", "epoch"}:
        return None
    start = next((event for event in reversed(process.events) if event["event"] == "part_started"), last)
    return RunningPart(str(start.get("part", "")), process.name, max(0.0, time.time() - start["time"]))


def _find_failures(state: SweepState, events: Sequence[dict[str, Any]]) -> list[Failure]:
    last_failures = {}
    for event in sorted(events, key=lambda event: event["time"]):
        if event["event"] == "failed" and "unit" in event:
            last_failures[event["unit"], event["slice"]] = Failure(event["part"], event["failure"])
    return [failure for part, failure in last_failures.items() if state.is_missing(*part)]
