"""Output of the command line: progress on terminals, tables, and one-line messages."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from os import environ
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from robust201.analysis.tables import text_table
from robust201.core.errors import shorten

_MIN_RATE_PER_SECOND = 0.01
"""Minimum rate that is shown per second; lower rates are shown per hour."""

MAX_LINES = 20
"""Maximum number of lines in a list of messages of one kind."""

# NO_COLOR also turns off bold and italics. Emoji codes would change paths such as a:b:c.
_CONSOLE_OPTIONS: dict[str, Any] = {
    "soft_wrap": True,
    "markup": False,
    "highlight": False,
    "emoji": False,
    "color_system": None if environ.get("NO_COLOR") else "auto",
}
printed_warnings: list[str] = []
"""Warnings that the command has printed."""

out = Console(**_CONSOLE_OPTIONS)
err = Console(stderr=True, **_CONSOLE_OPTIONS)


def say(line: str) -> None:
    """Print a line on stderr, so that stdout stays clean for scripts."""
    err.print(line)


def first_lines(lines: Sequence[str], *, hint: str = "") -> Iterator[str]:
    """Yield up to `MAX_LINES` lines, and then the number of further lines with a hint on where to find them."""
    yield from map(shorten, lines[:MAX_LINES])
    if len(lines) > MAX_LINES:
        yield f"and {len(lines) - MAX_LINES:,} more{f'; {hint}' if hint else ''}"


def say_each(lines: Sequence[str], *, hint: str = "") -> None:
    """Print up to `MAX_LINES` lines on stderr (see `first_lines`)."""
    for line in first_lines(lines, hint=hint):
        say(line)


def format_duration(seconds: float) -> str:
    """Render seconds as ``1:02:03``."""
    return str(timedelta(seconds=round(seconds)))


def format_count(count: float, noun: str) -> str:
    """Render a count with its noun: ``1 shard``, ``1,728 evaluations`` or ``0.5 evaluations``."""
    number = f"{count:,.1f}".removesuffix(".0")
    return f"{number} {noun}" if number == "1" else f"{number} {noun}s"


def format_rate(per_second: float | None, seconds_left: float | None, plural_noun: str = "evaluations") -> str:
    """Render the rate and the remaining time; either is omitted if it is not known."""
    phrases = []
    if per_second:
        is_slow = per_second < _MIN_RATE_PER_SECOND
        phrases = [f"{3600 * per_second:.2f} {plural_noun}/h" if is_slow else f"{per_second:.2f} {plural_noun}/s"]
    phrases += [] if seconds_left is None else [f"about {format_duration(seconds_left)} left"]
    return ", ".join(phrases)


def format_hours(hours: float) -> str:
    """Render hours with one decimal, or with two significant digits below 1."""
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is aligned left, the others right."""
    out.print(f"{title}\n{text_table(columns, rows, n_left=1)}\n")


@contextmanager
def showing_progress(label: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show progress while a block runs; yield a function to be called with (done, total)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as live:
        task = live.add_task(label, total=None)
        yield lambda done, total: live.update(task, completed=done, total=total)
