"""Output of `robust201 status`: the status of a sweep or training runs, and events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from robust201.cli import console

if TYPE_CHECKING:
    from robust201.run.status import Status
    from robust201.run.training_status import RunningTraining, TrainingStatus

_Status = TypeVar("_Status", bound="Status | TrainingStatus")

_MAX_SHOWN_FAILURES = 3
_MAX_SHOWN_PARTS = 5
_ALL_KEYS = "all"
_FRAME_LINES = 7
"""Lines of the live table that are not rows of keys, including the cursor's line."""
_SEPARATE_FIELDS = ("time", "event", "process", "unit", "part", "dataset", "key", "traceback", "macs")
"""Fields of an event that are not printed as ``name=value``."""


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
        phrases.append(f"{console.format_count(len(status.silent), 'process')} silent".replace("processs", "processes"))
    if not status.complete:
        rate = console.format_rate(status.per_second, status.seconds_left) if status.in_progress else ""
        phrases += [rate] if rate else []
        phrases.append(f"{console.format_hours(sum(cost.hours for cost in status.costs))} worker-hours left")
    return ["; ".join(phrases), console.format_count(len(status.failures), "failure")]


def _describe_parts(status: Status) -> list[str]:
    """Describe the parts that have been running longest."""
    parts = sorted(status.in_progress, key=lambda part: -part.seconds)
    lines = [
        f"{part.part}, for {console.format_duration(part.seconds)}, on {part.worker}"
        for part in parts[:_MAX_SHOWN_PARTS]
    ]
    rest = len(parts) - _MAX_SHOWN_PARTS
    return lines + ([f"and {console.format_count(rest, 'part')} more in progress"] if rest > 0 else [])


def show_status(status: Status) -> None:
    """Print a sweep's progress by dataset and key, its workers, rate, remaining time and failures."""
    rows = [
        (f"{key.dataset} {key.key}", f"{key.n_done:,}", f"{key.n_planned:,}", _percent(key.n_done, key.n_planned))
        for key in status.keys
    ]
    all_done = f"{status.n_done:,}", f"{status.n_planned:,}", _percent(status.n_done, status.n_planned)
    console.show_table(f"Sweep {status.name}", ("", "done", "of", ""), [*rows, ("all", *all_done)])
    failures = [f"failed: {failure.part}: {failure.failure}" for failure in status.failures]
    silent = [f"silent: {name}" for name in status.silent]
    work, count = _describe_work(status)
    for lines in ([work], _describe_parts(status), silent, [count], failures):
        for line in console.first_lines(lines, hint="--json lists all"):
            console.out.print(line, markup=False, highlight=False)
    if failures:
        console.out.print(
            f"log of the first failure: robust201 status RESULTS --log {status.failures[0].unit[:12]}", markup=False
        )


def build_live_table(status: Status, *, max_keys: int) -> Table:
    """Build a table of progress with one row per key and one column per dataset.

    If there are more than `max_keys` keys, all corruptions share one row.
    """
    from robust201.tasks import CORRUPTIONS

    keys = list(dict.fromkeys(key.key for key in status.keys))
    row_by_key = {key: key for key in keys}
    corruptions = [key for key in keys if key in CORRUPTIONS]
    if len(keys) > max_keys:
        row_by_key |= dict.fromkeys(corruptions, console.format_count(len(corruptions), "corruption"))
    datasets = list(dict.fromkeys(key.dataset for key in status.keys))
    done: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for key in status.keys:
        for row in (row_by_key[key.key], _ALL_KEYS):
            done[key.dataset, row] += key.n_done
            total[key.dataset, row] += key.n_planned

    def format_cell(dataset: str, row: str) -> str:
        index = dataset, row
        return f"{done[index]:,}/{total[index]:,}  {_percent(done[index], total[index]):>5}" if index in total else ""

    table = Table(title=f"Sweep {status.name}", title_justify="left", show_footer=True)
    table.add_column("", _ALL_KEYS, no_wrap=True)
    for dataset in datasets:
        table.add_column(dataset, format_cell(dataset, _ALL_KEYS), justify="right", no_wrap=True)
    for row in dict.fromkeys(row_by_key.values()):
        table.add_row(row, *(format_cell(dataset, row) for dataset in datasets))
    return table


def format_status_line(status: Status, now: float) -> str:
    """Render a sweep's status as one line, for log files and pipes."""
    done = f"{status.n_done:,}/{status.n_planned:,} evaluations ({_percent(status.n_done, status.n_planned)})"
    return f"{_format_timestamp(now)} {'; '.join([done, *_describe_work(status)])}"


def _format_timestamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Display(Generic[_Status]):
    """Live status: a table on a terminal, or one line per update elsewhere."""

    def __init__(
        self,
        render: Callable[[Console, _Status, float], RenderableType],
        format_line: Callable[[_Status, float], str],
        console_: Console | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._render, self._format_line = render, format_line
        self._console = console_ or console.out
        self._clock = clock
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self.is_complete = False

    def showing(self) -> AbstractContextManager[object]:
        """Show the live table during a block, if the output is a terminal."""
        return self._live if self._console.is_terminal else nullcontext()

    def update(self, status: _Status, quiet_seconds: float) -> None:
        self.is_complete = status.complete
        if self._console.is_terminal:
            self._live.update(self._render(self._console, status, quiet_seconds), refresh=True)
        else:
            self._console.print(self._format_line(status, self._clock()), markup=False, highlight=False)


def _render_sweep(terminal: Console, status: Status, quiet_seconds: float) -> RenderableType:
    failures = [f"failed: {failure.part}: {failure.failure}" for failure in status.failures[-_MAX_SHOWN_FAILURES:]]
    lines = [*_describe_work(status), *_describe_parts(status), *failures]
    texts = _to_folded_texts([*lines, *_describe_inactivity(status, quiet_seconds)])
    n_lines = sum(len(text.wrap(terminal, terminal.width)) for text in texts)
    return Group(build_live_table(status, max_keys=terminal.size.height - n_lines - _FRAME_LINES), *texts)


def _describe_inactivity(status: Status | TrainingStatus, quiet_seconds: float) -> list[str]:
    is_quiet = quiet_seconds and not status.complete
    return [f"no active worker for {console.format_duration(quiet_seconds)}"] if is_quiet else []


def _to_folded_texts(lines: Sequence[str]) -> list[Text]:
    return [Text(line, overflow="fold") for line in lines]


def make_sweep_display(console_: Console | None = None, clock: Callable[[], float] = time.time) -> Display[Status]:
    """Return a live display of a sweep's status."""
    return Display(_render_sweep, format_status_line, console_, clock)


def describe_trainings(status: TrainingStatus) -> list[str]:
    """Return lines about training runs: progress, runs in progress and failures."""
    time_left = "" if status.seconds_left is None else f", about {console.format_duration(status.seconds_left)} left"
    phrases = [
        f"{status.n_done:,} of {console.format_count(status.n_planned, 'epoch')}{time_left}",
        f"{status.n_trainings_done:,} of {console.format_count(status.n_trainings, 'training run')} complete",
        console.format_count(len(status.in_progress), "active worker"),
    ]
    lines = [_describe_training(training) for training in status.in_progress]
    lines += [f"failed: {failure.part}: {failure.failure}" for failure in status.failures]
    lines += [f"silent: {name}" for name in status.silent]
    return ["; ".join(phrases), *console.first_lines(lines)]


def _describe_training(training: RunningTraining) -> str:
    text = f"{training.part}: epoch {training.epoch:,} of {training.n_epochs:,} done"
    if training.loss is not None and training.accuracy is not None:
        text += f", loss {training.loss:.4f}, training accuracy {training.accuracy:.4f}"
    return f"{text}, running for {console.format_duration(training.seconds)}"


def _render_trainings(_terminal: Console, status: TrainingStatus, quiet_seconds: float) -> RenderableType:
    return Group(*_to_folded_texts([*describe_trainings(status), *_describe_inactivity(status, quiet_seconds)]))


def _format_training_status_line(status: TrainingStatus, now: float) -> str:
    return f"{_format_timestamp(now)} {'; '.join(describe_trainings(status))}"


def make_trainings_display() -> Display[TrainingStatus]:
    """Return a live display of the status of training runs."""
    return Display(_render_trainings, _format_training_status_line)


def show_event(event: Mapping[str, Any]) -> None:
    """Print an event (see `store.events`), with its traceback below."""
    unit = _unit_of(event)
    fields = [
        f"{name}={_format_value(value, unit if name == 'strengths' else '')}"
        for name, value in event.items()
        if name not in _SEPARATE_FIELDS
    ]
    words = [_format_timestamp(event["time"]), str(event["process"]), str(event["event"]), str(event["part"]), *fields]
    style = "red" if event["event"] in {"failed", "worker_lost"} else ""
    console.out.print("  ".join(words), style=style, markup=False, highlight=False)
    for line in str(event.get("traceback", "")).splitlines():
        console.out.print(f"    {line}", markup=False, highlight=False)


def _unit_of(event: Mapping[str, Any]) -> str:
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
