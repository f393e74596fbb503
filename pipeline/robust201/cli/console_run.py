"""Output of `robust201 run`: what is missing and why, progress, and how a run ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from robust201.cli.console import err, format_count, format_duration, format_rate, say, say_each

if TYPE_CHECKING:  # these modules are slow to import
    from robust201.run.work import Tally
    from robust201.sweep.explain import Cause

_LOG_SECONDS = 10.0
"""Minimum number of seconds between progress lines in a log file while parts finish."""

_QUIET_SECONDS = 60.0
"""Number of seconds without a finished part after which progress lines state how long nothing has finished."""

_UNKNOWN_TIME_LEFT = "time left not known yet"


def show_start(n_planned: int, n_done: int, noun: str, causes: Sequence[Cause] = ()) -> None:
    """Print, before a run, how many evaluations (or epochs) are finished and missing, and why they are missing."""
    from robust201.sweep.explain import NEW

    say(f"Planned {format_count(n_planned, noun)}: {n_done:,} done, {n_planned - n_done:,} missing.")
    shown = [cause for cause in causes if n_done or cause.reason != NEW]  # in the first run, all parts are new
    say_each([str(cause) for cause in shown], hint="robust201 plan --explain lists all")


class RunDisplay:
    """Progress of a run: a live display on a terminal, and occasional lines elsewhere."""

    def __init__(self, activity: str = "Evaluating", plural_noun: str = "evaluations") -> None:
        self._plural_noun = plural_noun
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=err,
            disable=not err.is_terminal,
        )
        self._task = self._live.add_task(activity, total=None, note=self._plural_noun, start=True)
        self._start_time = self._last_line_time = self._last_part_time = time.monotonic()
        self._n_parts = self._n_done = self._n_failures = self._n_lost = 0
        self._shown_failures: set[str] = set()

    def showing(self) -> AbstractContextManager[object]:
        """Show the live display during a block."""
        return self._live

    def update(self, tally: Tally, seconds_left: float | None) -> None:
        """Show progress; print a line for each new kind of failure and for lost workers."""
        now = time.monotonic()
        self._show_faults(tally)
        has_news = (tally.n_parts, tally.n_done) != (self._n_parts, self._n_done)
        self._last_part_time = now if has_news else self._last_part_time
        self._n_parts, self._n_done = tally.n_parts, tally.n_done
        note = f"{self._plural_noun}; {self._describe_speed(tally, seconds_left, now)}"
        self._live.update(self._task, completed=tally.n_done, total=tally.n_planned, note=note)
        if self._live.disable and now - self._last_line_time >= (_LOG_SECONDS if has_news else _QUIET_SECONDS):
            self._last_line_time = now
            say(f"{tally.n_done:,}/{tally.n_planned:,} {note}")

    def _show_faults(self, tally: Tally) -> None:
        for outcome in tally.failures[self._n_failures :]:
            if outcome.failure not in self._shown_failures:
                self._shown_failures.add(outcome.failure)
                say(f"failed: {outcome.label}: {outcome.failure}")
        self._n_failures = len(tally.failures)
        n_lost = tally.n_died + tally.n_preempted
        if n_lost > self._n_lost:
            say(f"{format_count(n_lost - self._n_lost, 'worker')} lost; their work is repeated.")
        self._n_lost = n_lost

    def _describe_speed(self, tally: Tally, seconds_left: float | None, now: float) -> str:
        n_new = tally.n_done - tally.n_done_before
        rate = n_new / (now - self._start_time) if n_new and now > self._start_time else None
        text = format_rate(rate, seconds_left, self._plural_noun) or _UNKNOWN_TIME_LEFT
        idle = now - self._last_part_time
        return text if idle < _QUIET_SECONDS else f"{text}; nothing finished for {format_duration(idle)}"


def show_tally(tally: Tally, noun: str, completion: str, failures_hint: str = "") -> int:
    """Print how a run ended, and return the exit code: 0 if the run is complete without failures, else 3.

    `noun` is the singular of what the run counts, such as ``evaluation``. If the code is 0, `completion` is printed; if
    there are failures, `failures_hint` is printed.
    """
    n_new = tally.n_done - tally.n_done_before
    say(
        f"Computed {format_count(n_new, noun)} in {format_duration(tally.seconds)} of worker time: {tally.n_done:,} of "
        f"{tally.n_planned:,} done, {format_count(len(tally.failures), 'failure')}; "
        f"{format_count(tally.n_died, 'worker')} died, {tally.n_preempted:,} preempted."
    )
    # Every part of a network with a damaged checkpoint fails with the same message.
    for message, count in Counter(outcome.failure for outcome in tally.failures).most_common(10):
        say(f"failed {format_count(count, 'time')}: {message}")
    if tally.failures and failures_hint:
        say(failures_hint)
    if tally.is_complete and not tally.failures:
        say(completion)
        return 0
    if tally.n_abandoned:
        say(f"Abandoned {format_count(tally.n_abandoned, 'part')} that did not end in time.")
    say("Stopped on request." if tally.is_drained else "Incomplete.")
    say("Finished work is kept; run the same command again to resume.")
    return 3
