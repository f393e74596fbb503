"""`robust201 status --watch`: what it displays, and when it ends."""

import io
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from robust201.cli import console_status, monitoring
from robust201.cli.console_status import format_status_line, make_sweep_display
from robust201.core.errors import InputError
from robust201.monitoring.status import Cost, KeyStatus, StatusReader, SweepStatus
from robust201.monitoring.watch import watch
from robust201.planning.filters import Filters
from robust201.planning.plan import Plan
from robust201.planning.plan_file import load_plan
from robust201.runtime.executors import make_executor
from robust201.runtime.preview import Coverage, count_coverage
from robust201.runtime.sweep import run_sweep
from robust201.shards import Inventory, ShardStore
from robust201.tasks import PAPER_KEYS
from tests.conftest import MakeSweep, RunCommand, WriteSweep

RUNNING = SweepStatus(
    name="tiny",
    keys=(KeyStatus("cifar10", "clean", 10, 10), KeyStatus("cifar10", "pgd", 999, 1000)),
    failures=(
        {"kind": "killed", "label": "#1 cifar10 pgd", "message": "its worker died each time", "unit": "ab" * 16},
        {"kind": "application", "label": "#2 cifar10 pgd", "message": "no such luck", "unit": "cd" * 16},
    ),
    damaged=(),
    stale=0,
    driver="node7, process 12, since 2026-11-21T08:00:00+00:00",
    shares=("1-of-2",),
    state="running",
    last_heartbeat=3.0,
    deaths=3,
    preemptions=5,
    evaluations_per_second=2.5,
    seconds_left=3600.0,
    worker_seconds=7200.0,
    cost=Cost(4.0, "GPU-hours"),
)
DRAINED = replace(RUNNING, driver=None, shares=(), state="drained")
FINISHED = replace(DRAINED, keys=(KeyStatus("cifar10", "clean", 10, 10),), state="finished", failures=())


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
        ([DRAINED] * 8, 60, "abandoned", 60),
        ([DRAINED] * 5 + [RUNNING] + [DRAINED] * 8, 60, "abandoned", 120),  # an active run restarts the waiting time
        ([RUNNING] * 50 + [FINISHED], 0, "complete", 500),
    ],
)
def test_watch_ends_on_completion_or_after_inactivity(
    statuses: list[SweepStatus], patience: float, ending: str, seconds: float
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
    display = make_sweep_display(Console(file=output, width=400), clock=lambda: 0.0)
    with display.showing():
        display.update(RUNNING, 0.0)
        display.update(DRAINED, 30.0)
    first_line, second_line = output.getvalue().splitlines()
    assert first_line == (
        "1970-01-01T00:00:00Z 1,009/1,010 evaluations (99.9%); 2.50 evaluations/s, "
        "about 1:00:00 left; 2.00 worker-hours of finished work (4.00 GPU-hours); "
        "2 failures (1 killed, 1 application); 3 workers died, 5 preempted; "
        "running: run on node7, process 12, since 2026-11-21T08:00:00+00:00 and 1 run with --share; "
        "last heartbeat 0:00:03 ago"
    )
    assert "not running (the last run: drained)" in second_line


@pytest.mark.parametrize(
    ("status", "rate"),
    [
        (RUNNING, "2.50 evaluations/s, about 1:00:00 left; 2.00 worker-hours of finished work (4.00 GPU-hours)"),
        (
            replace(RUNNING, seconds_left=None),
            "2.50 evaluations/s; 2.00 worker-hours of finished work (4.00 GPU-hours)",
        ),
        (
            replace(RUNNING, evaluations_per_second=None, seconds_left=None),
            "2.00 worker-hours of finished work (4.00 GPU-hours)",
        ),
        (DRAINED, "2.00 worker-hours of finished work (4.00 GPU-hours)"),
        (FINISHED, "2.00 worker-hours of finished work (4.00 GPU-hours)"),
        (replace(RUNNING, keys=FINISHED.keys), "2.00 worker-hours of finished work (4.00 GPU-hours)"),
    ],
)
def test_status_line_has_a_rate_only_for_active_unfinished_sweeps(status: SweepStatus, rate: str) -> None:
    assert f"%); {rate}; {len(status.failures)} failures" in format_status_line(status, 0.0)


def test_display_on_a_terminal_leaves_a_table() -> None:
    terminal = Console(file=io.StringIO(), width=100, height=40, force_terminal=True, record=True)
    display = make_sweep_display(terminal)
    with display.showing():
        display.update(RUNNING, 0.0)
        display.update(DRAINED, 30.0)
    output = terminal.export_text()
    assert "999/1,000  99.9%" in output
    assert "10/10   100%" in output
    assert "1,009/1,010  99.9%" in output
    assert "failed: #2 cifar10 pgd: no such luck" in output
    assert "no active worker for 0:00:30" in output
    assert not display.is_complete


def test_display_wraps_lines_longer_than_the_terminal() -> None:
    message = "no such luck " * 12 + "at the very end"
    failure = {"kind": "application", "label": "#1 cifar10 pgd", "message": message, "unit": "ab" * 16}
    terminal = Console(file=io.StringIO(), width=60, height=40, force_terminal=True, record=True)
    display = make_sweep_display(terminal)
    with display.showing():
        display.update(replace(RUNNING, failures=(failure,)), 0.0)
    output = terminal.export_text()
    assert "…" not in output
    assert " ".join(output.split()).count("no such luck at the very end") >= 1
    assert "1 run with --share" in " ".join(output.split())


def test_display_on_a_short_terminal_combines_corruptions() -> None:
    keys = tuple(KeyStatus("cifar10", key, 1, 2) for key in PAPER_KEYS)
    for height, n_lines, expected_text in ((50, 20, "frost"), (24, 6, "15 corruptions")):
        terminal = Console(file=io.StringIO(), width=100, height=height, force_terminal=True, record=True)
        display = make_sweep_display(terminal)
        with display.showing():
            display.update(replace(RUNNING, keys=keys), 0.0)
        # Each table also has a line with the total, and is shown twice: at the update and when the display ends.
        table_lines = [line for line in terminal.export_text().splitlines() if "  50.0%" in line]
        assert len(table_lines) == 2 * (n_lines + 1)
        assert any(expected_text in line for line in table_lines)


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


def test_status_reader_recounts_only_after_shards_change(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}})
    run_sweep(config, make_executor, filters=Filters(keys=("clean",)))
    plan, store = load_plan(config.results), ShardStore.open(config.results)
    counted_keys: list[str] = []
    reader = StatusReader(plan)

    def read() -> SweepStatus:
        return reader.read(store.inventory())

    def count_and_record(plan: Plan, inventory: Inventory) -> Iterator[Coverage]:
        for coverage in count_coverage(plan, inventory):
            counted_keys.append(coverage.planned_key.key)
            yield coverage

    monkeypatch.setattr("robust201.monitoring.status.count_coverage", count_and_record)
    first_status = read()
    assert (first_status.done, first_status.total, counted_keys) == (2, 6, ["clean", "fgsm"])
    assert replace(read(), last_heartbeat=None) == replace(first_status, last_heartbeat=None)
    assert len(counted_keys) == 2
    run_sweep(config, make_executor)
    assert read().complete
    next((config.results / "shards/digits").glob("*-clean-*")).unlink()
    assert read().done == 5
    assert len(counted_keys) == 6


def test_status_reports_the_driver_and_the_cost(make_sweep: MakeSweep) -> None:
    config = make_sweep(keys={"clean": {}})
    run_sweep(config, make_executor)
    plan, inventory = load_plan(config.results), ShardStore.open(config.results).inventory()
    progress = json.loads((config.results / "progress.json").read_text())
    assert progress["gpus_per_worker"] == 0
    changed_progress = progress | {"gpus_per_worker": 0.5, "deaths": 2, "preemptions": 3, "state": "running"}
    (config.results / "progress.json").write_text(json.dumps(changed_progress))
    (config.results / "lease.json").write_text("a lease of another version")
    for file_name in ("progress.json", "lease.json"):
        os.utime(config.results / file_name, (1000.0, 1000.0))
    status = StatusReader(plan, clock=lambda: 1010.0).read(inventory)
    assert status.cost == Cost(inventory.seconds / 7200, "GPU-hours")
    assert (status.running, status.driver, status.last_heartbeat) == (True, "unknown", 10.0)
    assert (status.deaths, status.preemptions) == (2, 3)
    assert not StatusReader(plan, clock=lambda: 1031.0).read(inventory).running


def test_percent_is_100_only_for_complete_sweeps() -> None:
    assert console_status._percent(99_999, 100_000) == "99.9%"
    assert console_status._percent(100_000, 100_000) == "100%"


def test_watch_retries_failed_readings() -> None:
    clock, failure = Clock(), InputError("expected a results folder, got none")
    readings = iter([RUNNING, failure, OSError("stale"), failure, RUNNING, failure, failure, failure, FINISHED])

    def read() -> SweepStatus:
        if isinstance(reading := next(readings), Exception):
            raise reading
        return reading

    shown_statuses: list[SweepStatus] = []
    record = lambda status, _inactive: shown_statuses.append(status)  # noqa: E731 - shorter than a function
    assert watch(read, record, every=10, patience=0, clock=clock, sleep=clock.sleep) == "complete"
    assert (shown_statuses, clock.now) == ([RUNNING, RUNNING, FINISHED], 180.0)
    readings = iter([RUNNING, *[failure] * 4, FINISHED])
    with pytest.raises(InputError, match="got none"):
        watch(read, record, every=10, patience=0, clock=clock, sleep=clock.sleep)
    assert next(readings) == FINISHED


def test_watch_ends_if_the_folder_is_deleted(
    robust201: RunCommand, write_sweep: WriteSweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results"
    assert robust201("run", write_sweep(keys={"clean": {}}), "--architectures", "0").code == 0

    def delete(_seconds: float) -> None:
        shutil.rmtree(results, ignore_errors=True)

    monkeypatch.setattr(time, "sleep", delete)
    result = robust201("status", results, "--watch")
    assert (result.code, len(result.out.splitlines()), len(result.err.splitlines())) == (2, 1, 1)
    assert result.err.startswith(f"error: Opening results failed for {results}: expected a results folder")
    assert not results.exists()
    assert "expected a results folder" in robust201("status", results).error_line(2)
