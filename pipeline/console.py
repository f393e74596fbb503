"""What the command line shows: progress on terminals and in log files, tables, one line an error."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from pipeline.executors.base import BundleLost, Event
from pipeline.records import UnitFailure
from pipeline.sweep import Outlook
from pipeline.sweep import Progress as SweepProgress

_LOG_SECONDS = 10.0

out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)


def say(line: str) -> None:
    """Tell of a step, on stderr so that stdout stays clean for scripts."""
    err.print(line, markup=False, highlight=False)


def show_duration(seconds: float | None) -> str:
    """Render seconds as ``1:02:03``, or ``-`` where nothing is known."""
    return "-" if seconds is None else str(timedelta(seconds=round(seconds)))


def show_outlook(outlook: Outlook) -> None:
    """Say what is done, what is missing and what cannot be used, before a run begins."""
    total = outlook.plan.n_evaluations
    say(
        f"Planned {total} evaluations in {len(outlook.plan.units)} units: {outlook.done} done, "
        f"{total - outlook.done} missing."
    )
    for shard in outlook.damaged:
        say(f"Damaged shard set aside, its evaluations are computed again: {shard}")
    for line in outlook.stale:
        say(line)


class RunDisplay:
    """Done and total units, rate and time left: a live line on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("units  {task.fields[rate]}  {task.fields[left]} left"),
            console=err,
            disable=not err.is_terminal,
        )
        self._task: TaskID | None = None
        self._last_log = time.monotonic()

    @contextmanager
    def showing(self) -> Iterator["RunDisplay"]:
        """Keep the live line up for the length of a block."""
        with self._live:
            yield self

    def update(self, progress: SweepProgress, event: Event) -> None:
        """Show an event; failures and deaths get a line of their own."""
        if isinstance(event, UnitFailure):
            self._live.console.print(f"failed: {event.part.label}: {event.message}", markup=False, highlight=False)
        elif isinstance(event, BundleLost) and event.started:
            self._live.console.print(f"worker lost: {event.reason}; retrying", markup=False, highlight=False)
        rate, left = f"{progress.units_per_second:.2f}/s", show_duration(progress.seconds_left)
        if not self._live.disable:
            if self._task is None:
                self._task = self._live.add_task("Evaluating", total=progress.total_units, rate=rate, left=left)
            self._live.update(self._task, completed=progress.done_units, rate=rate, left=left)
        elif time.monotonic() - self._last_log >= _LOG_SECONDS:
            self._last_log = time.monotonic()
            say(f"{progress.done_units}/{progress.total_units} units, {rate}, {left} left")


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column is text and the others are numbers."""
    table = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # A table that does not fit a log file's assumed 80 columns would be cut; there is room in a file.
    console = out if out.is_terminal else Console(file=sys.stdout, width=200)
    console.print(table)
