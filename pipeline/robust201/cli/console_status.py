"""Output of `robust201 status`: the status of a sweep or training runs, and events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.live import Live
from rich.text import Text

from robust201.analysis.tables import text_table
from robust201.cli import console

if TYPE_CHECKING:
    from robust201.run.status import Status
    from robust201.run.training_status import RunningTraining, TrainingStatus

_MAX_SHOWN_PARTS = 5
_ALL_KEYS = "all"
_SEPARATE_FIELDS = ("time", "event", "process", "unit", "part", "dataset", "key", "traceback", "macs")
"""Fields of an event that are not printed as ``name=value``."""


class Description(NamedTuple):
    """A status as text: a line, and details that `status --watch` shows only on a terminal."""

    line: str
    details: list[str]


def describe_sweep(status: Status) -> Description:
    """Describe a sweep's progress, its active runs and workers, rate, remaining time and failures."""
    done = f"{status.n_done:,}/{status.n_planned:,} evaluations ({_percent(status.n_done, status.n_planned)})"
    details = [
        *_tabulate(status).splitlines(),
        *_describe_parts(status),
        *(f"silent: {name}" for name in status.silent),
    ]
    failures = [f"failed: {failure.part}: {failure.failure}" for failure in status.failures]
    details += console.first_lines(failures, hint="--json lists all")
    if failures:
        details.append(f"log of the first failure: robust201 status RESULTS --log {status.failures[0].unit[:12]}")
    return Description("; ".join([done, *_describe_work(status)]), details)


def _percent(done: int, total: int) -> str:
    """Render a percentage; it is rounded to 100 only if nothing is missing."""
    return "100%" if done == total else f"{min(99.9, 100 * done / max(total, 1)):.1f}%"


def _describe_work(status: Status) -> list[str]:
    """Describe the active runs and workers, and the rate, the remaining time and the number of failures."""
    runs = []
    if status.n_runs > status.n_shares:
        runs.append("a run")
    if status.n_shares:
        runs.append(f"{console.format_count(status.n_shares, 'run')} with --share")
    workers = console.format_count(len(status.in_progress), "worker")
    phrases = [f"running: {' and '.join(runs)}, {workers} computing" if runs else "not running"]
    if status.silent:
        phrases.append(f"{len(status.silent):,} process{'es' if len(status.silent) > 1 else ''} silent")
    if not status.complete:
        rate = console.format_rate(status.per_second, status.seconds_left) if status.in_progress else ""
        phrases += [rate] if rate else []
        phrases.append(f"{console.format_hours(sum(cost.hours for cost in status.costs))} worker-hours left")
    return [*phrases, console.format_count(len(status.failures), "failure")]


def _describe_parts(status: Status) -> list[str]:
    """Describe the parts that have been running longest."""
    parts = sorted(status.in_progress, key=lambda part: -part.seconds)
    lines = [
        f"{part.part}, for {console.format_duration(part.seconds)}, on {part.worker}"
        for part in parts[:_MAX_SHOWN_PARTS]
    ]
    rest = len(parts) - _MAX_SHOWN_PARTS
    return lines + ([f"and {console.format_count(rest, 'part')} more in progress"] if rest > 0 else [])


def _tabulate(status: Status) -> str:
    """Return a table of progress with one row per key and one column per dataset; all corruptions share a row."""
    from robust201.tasks import CORRUPTIONS

    keys = list(dict.fromkeys(key.key for key in status.keys))
    corruptions = [key for key in keys if key in CORRUPTIONS]
    row_by_key = {key: key for key in keys}
    if len(corruptions) > 1:
        row_by_key |= dict.fromkeys(corruptions, f"{len(corruptions)} corruptions")
    datasets = list(dict.fromkeys(key.dataset for key in status.keys))
    done: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for key in status.keys:
        for row in (row_by_key[key.key], _ALL_KEYS):
            done[key.dataset, row] += key.n_done
            total[key.dataset, row] += key.n_planned

    def format_cell(index: tuple[str, str]) -> str:
        return f"{done[index]:,}/{total[index]:,}  {_percent(done[index], total[index]):>5}" if index in total else ""

    rows = [
        [row, *(format_cell((dataset, row)) for dataset in datasets)]
        for row in dict.fromkeys([*row_by_key.values(), _ALL_KEYS])
    ]
    return text_table([f"Sweep {status.name}", *datasets], rows, n_left=1)


def describe_training_runs(status: TrainingStatus) -> Description:
    """Describe training runs: progress, runs in progress and failures."""
    time_left = "" if status.seconds_left is None else f", about {console.format_duration(status.seconds_left)} left"
    phrases = [
        f"{status.n_done:,} of {console.format_count(status.n_planned, 'epoch')}{time_left}",
        f"{status.n_trainings_done:,} of {console.format_count(status.n_trainings, 'training run')} complete",
        console.format_count(len(status.in_progress), "active worker"),
    ]
    lines = [_describe_training(training) for training in status.in_progress]
    lines += [f"failed: {failure.part}: {failure.failure}" for failure in status.failures]
    lines += [f"silent: {name}" for name in status.silent]
    return Description("; ".join(phrases), [*console.first_lines(lines)])


def _describe_training(training: RunningTraining) -> str:
    text = f"{training.part}: epoch {training.epoch:,} of {training.n_epochs:,} done"
    if training.loss is not None and training.accuracy is not None:
        text += f", loss {training.loss:.4f}, training accuracy {training.accuracy:.4f}"
    return f"{text}, running for {console.format_duration(training.seconds)}"


class Display:
    """Live status: all lines on a terminal, or one line per update elsewhere."""

    def __init__(
        self,
        describe: Callable[[Any], Description],
        console_: Console | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._describe, self._clock = describe, clock
        self._console = console_ or console.out
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self.is_complete = False

    def showing(self) -> AbstractContextManager[object]:
        """Show the live lines during a block, if the output is a terminal."""
        return self._live if self._console.is_terminal else nullcontext()

    def update(self, status: Any, quiet_seconds: float) -> None:
        self.is_complete = status.complete
        line, details = self._describe(status)
        if not self._console.is_terminal:
            self._console.print(f"{_format_timestamp(self._clock())} {line}", markup=False, highlight=False)
            return
        if quiet_seconds and not status.complete:
            details = [f"no active worker for {console.format_duration(quiet_seconds)}", *details]
        self._live.update(Text("\n".join([line, *details]), overflow="fold"), refresh=True)


def _format_timestamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def show_event(event: Mapping[str, Any]) -> None:
    """Print an event (see `store.events`), with its traceback below."""
    unit = _strength_unit(event)
    fields = [
        f"{name}={_format_value(value, unit if name == 'strengths' else '')}"
        for name, value in event.items()
        if name not in _SEPARATE_FIELDS
    ]
    texts = [_format_timestamp(event["time"]), str(event["process"]), str(event["event"]), str(event["part"]), *fields]
    console.out.print("  ".join(texts))
    for line in str(event.get("traceback", "")).splitlines():
        console.out.print(f"    {line}")


def _strength_unit(event: Mapping[str, Any]) -> str:
    """Return the unit of the strengths of an event's key."""
    from robust201.tasks import TASKS
    from robust201.tasks.strengths import unit_of

    task = TASKS.get(str(event.get("key", "")))
    return "" if task is None else unit_of(task.constraint, task.kind)


def _format_value(value: Any, unit: str) -> str:
    """Render a field; in a list, floats have up to six significant digits and the unit, such as ``8/255``."""
    if not isinstance(value, list):
        return str(value)
    suffix = unit if unit.startswith("/") else ""
    return ",".join(f"{item:g}{suffix}" if isinstance(item, float) else str(item) for item in value)
