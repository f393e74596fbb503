"""Output of `robust201 status`: the status of a sweep or training plan, and log lines."""

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
from robust201.monitoring.watch import WatchedStatus

if TYPE_CHECKING:
    from robust201.monitoring.status import SweepStatus
    from robust201.run.training_status import RunningTraining, TrainingStatus

_Status = TypeVar("_Status", bound=WatchedStatus)

_MAX_SHOWN_FAILURES = 3
_ALL_KEYS = "all"
_FRAME_LINES = 7
"""Lines of the live table that are not rows of keys, including the cursor's line."""
_SILENT = "the last run stopped sending heartbeats: it died, or its machine is unreachable"
_ENDINGS = {
    "died": "the last run died: its process is gone; finished work is kept",
    **dict.fromkeys(("running", "draining"), _SILENT),
}
"""Explanations for a run that is no longer active, by its last recorded state."""
_LEVEL_STYLES = {"warning": "yellow", "error": "red", "critical": "red"}
_SEPARATE_FIELDS = ("time", "level", "worker", "host", "pid", "event", "message", "unit", "label", "traceback")
"""Fields of a log line that are not printed as ``name=value``."""


def _percent(done: int, total: int) -> str:
    """Render a percentage; it is rounded to 100 only if nothing is missing."""
    return "100%" if done == total else f"{min(99.9, 100 * done / max(total, 1)):.1f}%"


def _describe_failures(status: SweepStatus) -> str:
    """Describe the failures by kind, and the numbers of workers that died or were preempted."""
    counts_by_kind = ", ".join(f"{count} {kind}" for kind, count in status.failures_by_kind.items())
    failures = f"{console.format_count(len(status.failures), 'failure')}" + (
        f" ({counts_by_kind})" if counts_by_kind else ""
    )
    return f"{failures}; {console.format_count(status.deaths, 'worker')} died, {status.preemptions:,} preempted"


def _describe_workers(status: SweepStatus) -> str:
    """Describe the active runs, or how the last run ended, and the workers that are busy or silent."""
    runs = [f"run on {status.driver}"] if status.driver else []
    if status.shares:
        runs.append(f"{console.format_count(len(status.shares), 'run')} with --share")
    ending = "" if status.state is None else f" ({_ENDINGS.get(status.state, f'the last run: {status.state}')})"
    activity = "draining" if status.driver and status.state == "draining" else "running"
    phrases = [f"{activity}: {' and '.join(runs)}" if runs else f"not running{ending}"]
    if status.last_heartbeat is not None:
        phrases.append(f"last heartbeat {console.format_duration(status.last_heartbeat)} ago")
    for durations, condition in (
        (status.part_seconds if runs else (), "busy"),
        (status.silent_seconds, "silent"),
    ):
        if durations:
            longest = console.format_duration(max(durations))
            phrases.append(f"{console.format_count(len(durations), 'worker')} {condition}, the longest for {longest}")
    return "; ".join(phrases)


def _describe_rate_and_cost(status: SweepStatus) -> str:
    is_in_progress = status.running and not status.complete
    rate = console.format_rate(status.evaluations_per_second, status.seconds_left) if is_in_progress else ""
    cost = f"{status.worker_seconds / 3600:,.2f} worker-hours of finished work"
    if status.cost.unit != "worker-hours":
        cost += f" ({status.cost.hours:,.2f} {status.cost.unit})"
    return f"{rate}; {cost}" if rate else cost


def show_status(status: SweepStatus) -> None:
    """Print a sweep's progress by dataset and key, its workers, rate, remaining time, cost and failures."""
    out = console.out
    rows = [
        (
            f"{progress.dataset} {progress.key}",
            f"{progress.done:,}",
            f"{progress.total:,}",
            _percent(progress.done, progress.total),
        )
        for progress in status.keys
    ]
    rows.append(("all", f"{status.done:,}", f"{status.total:,}", _percent(status.done, status.total)))
    console.show_table(f"Sweep {status.name}", ("", "done", "of", ""), rows)
    for line in (_describe_workers(status), _describe_rate_and_cost(status), _describe_failures(status)):
        out.print(line, markup=False, highlight=False)
    if status.stale:
        stale_evaluations = console.format_count(status.stale, "evaluation")
        were, are = ("was", "is") if status.stale == 1 else ("were", "are")
        out.print(
            f"{stale_evaluations} in the folder {were} computed with different settings or for another sweep, "
            f"and {are} not used",
            highlight=False,
        )
    damaged_lines = [f"damaged: {shard}" for shard in status.damaged]
    failure_lines = [
        f"failed ({failure['kind']}): {failure['label']}: {failure['message']}" for failure in status.failures
    ]
    for lines in (damaged_lines, failure_lines):
        for line in console.first_lines(lines, hint="--json lists all"):
            out.print(line, markup=False)
    if status.failures:
        out.print(
            f"log of the first failure: robust201 status RESULTS --log {status.failures[0]['unit'][:12]}", markup=False
        )


def build_live_table(status: SweepStatus, *, max_keys: int) -> Table:
    """Build a table of progress with one row per key and one column per dataset.

    If there are more than `max_keys` keys, all corruptions share one row.
    """
    from robust201.reader.result_files import kind_of

    keys = list(dict.fromkeys(progress.key for progress in status.keys))
    row_by_key = {key: key for key in keys}
    corruptions = [key for key in keys if kind_of(key) == "corruption"]
    if len(keys) > max_keys:
        row_by_key |= dict.fromkeys(corruptions, console.format_count(len(corruptions), "corruption"))
    datasets = list(dict.fromkeys(progress.dataset for progress in status.keys))
    done: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for progress in status.keys:
        for row in (row_by_key[progress.key], _ALL_KEYS):
            done[progress.dataset, row] += progress.done
            total[progress.dataset, row] += progress.total

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


def format_status_line(status: SweepStatus, now: float) -> str:
    """Render a sweep's status as one line, for log files and pipes."""
    done = f"{status.done:,}/{status.total:,} evaluations ({_percent(status.done, status.total)})"
    phrases = (done, _describe_rate_and_cost(status), _describe_failures(status), _describe_workers(status))
    return f"{_format_timestamp(now)} {'; '.join(phrases)}"


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


def _render_sweep(terminal: Console, status: SweepStatus, quiet_seconds: float) -> RenderableType:
    lines = [_describe_workers(status), _describe_rate_and_cost(status), _describe_failures(status)]
    lines += [f"failed: {failure['label']}: {failure['message']}" for failure in status.failures[-_MAX_SHOWN_FAILURES:]]
    if status.damaged:
        lines.append(console.format_count(len(status.damaged), "damaged result file"))
    texts = _to_folded_texts([*lines, *_describe_inactivity(status, quiet_seconds)])
    n_lines = sum(len(text.wrap(terminal, terminal.width)) for text in texts)
    return Group(build_live_table(status, max_keys=terminal.size.height - n_lines - _FRAME_LINES), *texts)


def _describe_inactivity(status: WatchedStatus, quiet_seconds: float) -> list[str]:
    is_quiet = quiet_seconds and not status.complete
    return [f"no active worker for {console.format_duration(quiet_seconds)}"] if is_quiet else []


def _to_folded_texts(lines: Sequence[str]) -> list[Text]:
    return [Text(line, overflow="fold") for line in lines]


def make_sweep_display(console_: Console | None = None, clock: Callable[[], float] = time.time) -> Display[SweepStatus]:
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


def show_log_line(line: Mapping[str, Any], label: str = "") -> None:
    """Print a log line (see `runtime.work_log`), with its traceback below.

    `label` is the display name of the network and key, which distinguishes lines about several networks or keys.
    """
    other_fields = "  ".join(
        f"{name}={_format_value(value)}" for name, value in line.items() if name not in _SEPARATE_FIELDS
    )
    process = f"{line.get('host', '-')}:{line.get('pid', '-')}"
    phrases = [str(line["time"]), process, str(line["event"]), label, str(line["message"]), other_fields]
    style = _LEVEL_STYLES.get(str(line["level"]), "")
    console.out.print("  ".join(phrase for phrase in phrases if phrase), style=style, markup=False, highlight=False)
    for traceback_line in str(line.get("traceback", "")).splitlines():
        console.out.print(f"    {traceback_line}", markup=False, highlight=False)


def _format_value(value: Any) -> str:
    """Render a field of a log line; in a list, floats have up to six significant digits."""
    if not isinstance(value, list):
        return str(value)
    return ",".join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)
