"""The display and the end of `robust201 status --watch`, and the output of `robust201 status --log`."""

import io
import json
import time
from dataclasses import replace

import pytest
from rich.console import Console

from robust201.cli import monitoring
from robust201.cli.console_status import Display, describe_sweep
from robust201.core.errors import InputError
from robust201.run.processes import RunningPart
from robust201.run.status import Failure, KeyProgress, Status
from robust201.sweep.costs import KeyCost

RUNNING = Status(
    name="tiny",
    n_planned=1010,
    n_done=1009,
    keys=(KeyProgress("cifar10", "clean", 10, 10), KeyProgress("cifar10", "pgd", 999, 1000)),
    costs=(KeyCost("cifar10", "pgd", 2.0),),
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


def test_display_without_a_terminal_writes_one_line_per_reading():
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


def test_display_on_a_terminal_leaves_a_table():
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


def test_watch_ends_on_ctrl_c_inactivity_and_completion(robust201, write_sweep, tmp_path, monkeypatch):
    results, sweep = tmp_path / "results", write_sweep(keys={"clean": {}})
    assert robust201("run", sweep, "--architectures", "0").code == 0

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    interrupted_result = robust201("status", results, "--watch")
    assert (interrupted_result.code, interrupted_result.err, len(interrupted_result.out.splitlines())) == (3, "", 1)
    monkeypatch.setattr(monitoring, "_MAX_IDLE_SECONDS", 0.0)
    timeout_result = robust201("status", results, "--watch")
    assert (timeout_result.code, "No worker has been active" in timeout_result.err) == (3, True)
    assert robust201("run", sweep).code == 0
    assert robust201("status", results, "--watch").code == 0
    assert "--watch excludes" in robust201("status", results, "--watch", "--json").error_line(exit_code=2)


def test_active_run_restarts_the_waiting_time(monkeypatch):
    now, inactive_times = [100.0], list[float]()
    readings = iter([STOPPED] * 5 + [RUNNING] + [STOPPED] * 200)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    display = Display(describe_sweep, Console(file=io.StringIO()))
    monkeypatch.setattr(display, "update", lambda _status, inactive_seconds: inactive_times.append(inactive_seconds))
    assert monitoring._watch(lambda: next(readings), display) == 3
    assert (inactive_times[4:7], inactive_times[-1]) == ([40.0, 0.0, 10.0], monitoring._MAX_IDLE_SECONDS)


def test_watch_survives_three_failed_readings_after_the_first(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    display = Display(describe_sweep, Console(file=io.StringIO()))
    missing, unreadable = InputError("no results"), OSError("stale file handle")

    def watch(*readings: Status | Exception) -> int:
        iterator = iter(readings)

        def read() -> Status:
            reading = next(iterator)
            if isinstance(reading, Exception):
                raise reading
            return reading

        return monitoring._watch(read, display)

    assert watch(RUNNING, missing, unreadable, missing, RUNNING, *[unreadable] * 3, FINISHED) == 0
    with pytest.raises(InputError):
        watch(missing, FINISHED)
    with pytest.raises(InputError):
        watch(RUNNING, *[missing] * 4, FINISHED)


def test_log_of_a_folder_without_results_is_an_error(robust201, tmp_path):
    assert str(tmp_path) in robust201("status", tmp_path, "--log", "21/digits/clean").error_line(exit_code=2)


def test_log_shows_the_events_of_one_network_and_key(robust201, write_sweep, tmp_path):
    sweep = write_sweep(keys={"clean": {}, "fgsm": {"epsilons": ["8/255"]}})
    assert robust201("run", sweep).code == 0
    events = [
        json.loads(line) for line in robust201("status", sweep, "--log", "#21/digits/fgsm", "--json").out.splitlines()
    ]
    assert {(event["part"], event["key"]) for event in events} == {("#21 digits fgsm", "fgsm")}
    assert [event["event"] for event in events] == ["part_started", "done"]
    id_result = robust201("status", tmp_path / "results", "--log", events[0]["unit"][:12])
    assert (id_result.code, id_result.out.count("#21 digits fgsm")) == (0, 2)
