"""The status of a sweep, from the listing of its results and the last events of its processes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from robust201.run.processes import Process, RunningPart, read_processes
from robust201.store.events import Event, read_failures
from robust201.sweep.costs import KeyCost, Speeds, key_costs
from robust201.sweep.parts import SweepState, compare
from robust201.sweep.plan import Plan, open_results


class Failure(NamedTuple):
    """A part that failed and is still missing, with its last error in one line."""

    part: str
    failure: str
    unit: str = ""


class KeyProgress(NamedTuple):
    """Numbers of finished and planned evaluations of a key."""

    dataset: str
    key: str
    n_done: int
    n_planned: int


@dataclass(frozen=True)
class Status:
    """The status of a sweep.

    Attributes:
        n_planned: number of evaluations in the plan.
        n_done: number of evaluations all of whose slices are stored.
        keys: `n_done` and `n_planned` of each key.
        costs: estimated hours of the missing parts by key.
        in_progress: parts that workers are computing.
        failures: failed parts that are missing.
        silent: names of processes that are dead or cut off (see `run.processes.Process`).
        n_runs: number of active drivers; `n_shares` of them compute a share.
        per_second: evaluations per second of the active workers; None if it is not known.
        seconds_left: estimated time until the sweep is complete; None if no worker is computing.
    """

    name: str
    n_planned: int
    n_done: int
    keys: Sequence[KeyProgress]
    costs: Sequence[KeyCost]
    in_progress: Sequence[RunningPart]
    failures: Sequence[Failure]
    silent: Sequence[str]
    n_runs: int
    n_shares: int
    per_second: float | None
    seconds_left: float | None

    @property
    def running(self) -> bool:
        """Whether any process is working."""
        return bool(self.in_progress) or self.n_runs > 0

    @property
    def complete(self) -> bool:
        """Whether no evaluation is missing."""
        return self.n_done == self.n_planned

    def to_payload(self) -> dict[str, Any]:
        """Return the status as a JSON value."""
        lists = {name: [item._asdict() for item in getattr(self, name)] for name in _NAMED_TUPLE_FIELDS}
        return asdict(self) | {"running": self.running, "complete": self.complete} | lists


_NAMED_TUPLE_FIELDS = ("keys", "costs", "in_progress", "failures")


def read_status(results: Path) -> Status:
    """Read the status of the sweep in a results folder.

    Raises:
        InputError: the path is not a results folder, or has no plan.
    """
    plan, folder = open_results(results)
    return describe_status(plan, compare(plan, folder.list(), folder.read_tuple), results)


def describe_status(plan: Plan, state: SweepState, results: Path) -> Status:
    """Return the status of a sweep, given the stored evaluations of its plan."""
    processes = read_processes(results)
    active = [process for process in processes if process.is_active]
    in_progress = [part for process in active if (part := process.running_part()) is not None]
    speeds = Speeds(event for process in processes for event in process.events)
    costs = key_costs(state, speeds, plan.config.execution.assumed_gmacs())
    seconds = 3600 * sum(cost.hours for cost in costs)
    return Status(
        name=plan.config.name,
        n_planned=plan.n_evaluations,
        n_done=state.n_done,
        keys=[KeyProgress(key.key.dataset, key.key.key, key.n_done, key.key.n_evaluations) for key in state.keys],
        costs=costs,
        in_progress=in_progress,
        failures=_find_failures(state, results),
        silent=[process.name for process in processes if process.is_silent],
        n_runs=sum(process.role != "worker" for process in active),
        n_shares=sum(process.role == "share" for process in active),
        per_second=sum(map(_rate_of, active)) or None,
        seconds_left=seconds / len(in_progress) if in_progress else None,
    )


def _rate_of(process: Process) -> float:
    """Return the evaluations per second of a worker; a part counts as its fraction of an evaluation."""
    done = [event for event in process.events if event["event"] == "done" and "macs" in event]
    seconds = sum(event["seconds"] for event in done)
    return sum(len(event["strengths"]) / event["slices"] for event in done) / seconds if seconds else 0.0


def _find_failures(state: SweepState, results: Path) -> list[Failure]:
    last_events: dict[tuple[str, int], Event] = {}
    for event in read_failures(results):
        if "unit" in event:
            last_events[event["unit"], event["slice"]] = event
    return [
        Failure(event["part"], event["failure"], event["unit"])
        for part, event in last_events.items()
        if state.is_missing(*part)
    ]
