"""`robust201 status --watch`: what it displays, and when it ends."""

import io
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from robust201.cli import monitoring
from robust201.cli.console_status import Display, describe_sweep
from robust201.core.errors import InputError
from robust201.run.processes import RunningPart
from robust201.run.status import Failure, KeyProgress, Status
from robust201.run.watch import watch
from robust201.sweep.costs import KeyCost
from tests.conftest import RunCommand, WriteSweep

RUNNING = Status(
    name="tiny",
    n_planned=1010,
    n_done=1009,
    keys=(KeyProgress("cifar10", "clean", 10, 10), KeyProgress("cifar10", "pgd", 999, 1000)),
    costs=(KeyCost("cifar10", "pgd", 2.0, True),),
    in_progress=(RunningPart("#1 cifar10 pgd", "worker-node7-12-ab-cd", 3.0),),
    failures=(Failure("#2 cifar10 pgd", "no such luck", "cd" * 16),),
    silent=("worker-node8-12-ab-cd",),
    n_runs=2,
    n_shares=1,
    per_second=2.5,
    seconds_left=3600.0,
)
STOPPED = replace(RUNNING, in_progress=(), n_runs=0, n_shares=0, seconds_left=None)
FINISHED = replace(STOPPED, n_planned=1009, costs=(), failures=())


class Clock:
    """A clock that advances only when `sleep` is called."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("statuses", "patience", "ending", "seconds"),
    [
        ([RUNNING, RUNNING, FINISHED], 60, "complete", 20),
        ([FINISHED], 0, "complete", 0),
        ([STOPPED] * 8, 60, "abandoned", 60),
        ([STOPPED] * 5 + [RUNNING] + [STOPPED] * 8, 60, "abandoned", 120),  # an active run restarts the waiting time
        ([RUNNING] * 50 + [FINISHED], 0, "complete", 500),
    ],
)
def test_watch_ends_on_completion_or_after_inactivity(
    statuses: list[Status], patience: float, ending: str, seconds: float
) -> None:
    clock, readings = Clock(), iter(statuses)
    inactive_times: list[float] = []
    actual_ending = watch(
        lambda: next(readings),
        lambda _status, inactive_seconds: inactive_times.append(inactive_seconds),
        every=10,
        patience=patience,
        clock=clock,
        sleep=clock.sleep,
    )
    assert (actual_ending, clock.now - 100) == (ending, seconds)
    assert max(inactive_times) <= patience


def test_display_without_a_terminal_writes_one_line_per_reading() -> None:
    output = io.StringIO()
    display = Display(describe_sweep, Console(file=output, width=400), clock=lambda: 0.0)
    with display.showing():
        display.update(RUNNING, 0.0)
        display.update(STOPPED, 30.0)
    first_line, second_line = output.getvalue().splitlines()
    assert first_line == (
        "1970-01-01T00:00:00Z 1,009/1,010 evaluations (99.9%); running: a run and 1 run with --share, 1 worker "
        "computing; 1 process silent; 2.50 evaluations/s, about 1:00:00 left; 2.0 worker-hours left; 1 failure"
    )
    assert "not running" in second_line


def test_display_on_a_terminal_leaves_a_table() -> None:
    terminal = Console(file=io.StringIO(), width=100, height=40, force_terminal=True, record=True)
    display = Display(describe_sweep, terminal)
    with display.showing():
        display.update(RUNNING, 0.0)
        display.update(STOPPED, 30.0)
    output = terminal.export_text()
    assert "999/1,000  99.9%" in output
    assert "10/10   100%" in output
    assert "1,009/1,010  99.9%" in output
    assert "failed: #2 cifar10 pgd: no such luck" in output
    assert "no active worker for 0:00:30" in output
    assert not display.is_complete


def test_watch_ends_without_message_on_ctrl_c(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, sweep = tmp_path / "results", write_sweep(keys={"clean": {}})
    assert robust201("run", sweep, "--architectures", "0").code == 0

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    interrupted = robust201("status", results, "--watch")
    assert (interrupted.code, interrupted.err, len(interrupted.out.splitlines())) == (3, "", 1)
    monkeypatch.setattr(monitoring, "_PATIENCE_SECONDS", 0.0)
    abandoned = robust201("status", results, "--watch")
    assert abandoned.code == 3
    assert "No worker has been active for 0 minutes." in abandoned.err
    assert robust201("run", sweep).code == 0
    assert robust201("status", results, "--watch").code == 0
    assert "mutually exclusive" in robust201("status", results, "--watch", "--json").error_line(2)


def test_watch_retries_failed_readings() -> None:
    clock, failure = Clock(), InputError("expected a results folder, got none")
    readings = iter([RUNNING, failure, OSError("stale"), failure, RUNNING, failure, failure, failure, FINISHED])

    def read() -> Status:
        if isinstance(reading := next(readings), Exception):
            raise reading
        return reading

    shown_statuses: list[Status] = []
    record = lambda status, _inactive: shown_statuses.append(status)  # noqa: E731 - shorter than a function
    assert watch(read, record, every=10, patience=0, clock=clock, sleep=clock.sleep) == "complete"
    assert (shown_statuses, clock.now) == ([RUNNING, RUNNING, FINISHED], 180.0)
    readings = iter([RUNNING, *[failure] * 4, FINISHED])
    with pytest.raises(InputError, match="got none"):
        watch(read, record, every=10, patience=0, clock=clock, sleep=clock.sleep)
    assert next(readings) == FINISHED
