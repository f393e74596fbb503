"""Status of active runs and of the parts that their workers compute."""

import io
import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from robust201.cli import console
from robust201.cli.console_status import format_status_line
from robust201.core.host import HostId
from robust201.core.records import Unit
from robust201.monitoring.status import StatusReader, SweepStatus, read_status
from robust201.planning.filters import Filters
from robust201.planning.plan import Plan
from robust201.planning.plan_file import load_plan
from robust201.runtime.executors import make_executor
from robust201.runtime.heartbeat import HEARTBEATS_FOLDER
from robust201.runtime.lease import LEASE_NAME, Holder
from robust201.runtime.progress import MIN_RATE_SECONDS, PROGRESS_FILE, RunProgress, read_progress
from robust201.runtime.sweep import run_sweep
from robust201.shards import ShardStore
from tests.conftest import MakeSweep
from tests.monitoring.test_watch import RUNNING

NOW = 1_900_000_000.0
RUN_PROGRESS = {"measured_seconds": 100.0, "macs_per_second": 10.0, "evaluations_per_second": 0.5}


@pytest.fixture
def half_finished_plan(make_sweep: MakeSweep) -> Plan:
    """Plan of a sweep with finished clean accuracies and missing FGSM accuracies."""
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}})
    run_sweep(config, make_executor, filters=Filters(keys=("clean",)))
    return load_plan(config.results)


def write_heartbeat(
    results: Path, file_name: str, unit: Unit, *, file_time: float, seconds: float = 0.0, images: tuple[int, int]
) -> None:
    """Write a worker's heartbeat with a given time of the file server."""
    payload = {"share": None, "unit": unit.id, "strengths": unit.strengths, "images": images, "seconds": seconds}
    path = results / HEARTBEATS_FOLDER / f"{file_name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(payload))
    os.utime(path, (file_time, file_time))


def write_driver(results: Path, progress_fields: dict[str, Any]) -> None:
    """Write the lease and progress file of a driver that was active at `NOW`."""
    (results / PROGRESS_FILE).write_text(json.dumps(RUN_PROGRESS | {"state": "running"} | progress_fields))
    (results / LEASE_NAME).write_bytes(Holder.new(HostId("there", "n", "c", "q"), 5.0).to_bytes())
    for name in (PROGRESS_FILE, LEASE_NAME):
        os.utime(results / name, (NOW, NOW))


def read_status_at(plan: Plan, now: float) -> SweepStatus:
    return StatusReader(plan, clock=lambda: now).read(ShardStore.open(plan.config.results).inventory())


def test_times_in_status_change_while_no_part_finishes(half_finished_plan: Plan) -> None:
    results = half_finished_plan.config.results
    write_driver(results, {"macs_per_second": 1e6})
    units = [unit for unit in half_finished_plan.units if unit.key == "fgsm"]
    for index, unit in enumerate(units):
        write_heartbeat(results, f"worker{index}", unit, file_time=NOW - index, seconds=5.0, images=(0, unit.n_images))
    statuses = [read_status_at(half_finished_plan, NOW + age) for age in (2.0, 12.0)]
    assert [status.part_seconds for status in statuses] == [(8.0, 7.0), (18.0, 17.0)]
    times_left = [status.seconds_left for status in statuses]
    assert None not in times_left
    assert times_left[0] != times_left[1]
    assert "2 workers busy, the longest for 0:00:18" in format_status_line(statuses[1], NOW)
    assert statuses[1].to_payload()["parts_in_flight"] == 2


def test_status_reports_silent_workers_until_their_parts_are_taken_over(half_finished_plan: Plan) -> None:
    results = half_finished_plan.config.results
    write_driver(results, {})
    finished_unit = next(unit for unit in half_finished_plan.units if unit.key == "clean")
    first_unit, second_unit = (unit for unit in half_finished_plan.units if unit.key == "fgsm")
    write_heartbeat(results, "a", finished_unit, file_time=NOW, images=(0, finished_unit.n_images))
    write_heartbeat(results, "b", first_unit, file_time=NOW - 60, images=(0, first_unit.n_images))
    write_heartbeat(results, "c", second_unit, file_time=NOW, images=(0, second_unit.n_images))
    unit_of_another_plan = replace(first_unit, id="0" * 32)
    write_heartbeat(results, "d", unit_of_another_plan, file_time=NOW, images=(0, 1))
    (results / HEARTBEATS_FOLDER / "e.json").write_text('["not a heartbeat"]')
    status = read_status_at(half_finished_plan, NOW + 1)
    assert (status.part_seconds, status.silent_seconds) == ((1.0,), (61.0,))
    assert "1 worker busy, the longest for 0:00:01; 1 worker silent, the longest for 0:01:01" in format_status_line(
        status, NOW
    )
    write_heartbeat(results, "f", first_unit, file_time=NOW, images=(0, first_unit.n_images))
    status = read_status_at(half_finished_plan, NOW + 1)
    assert (status.part_seconds, status.silent_seconds) == ((1.0, 1.0), ())
    assert read_status_at(half_finished_plan, NOW + 31).silent_seconds == (31.0, 31.0)


def test_status_shows_a_part_while_it_is_computed(half_finished_plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    from robust201.models.classifier import Classifier

    classify = Classifier.__call__
    statuses: list[SweepStatus] = []

    def read_status_and_classify(self: Classifier, pixels: object) -> object:
        deadline = time.monotonic() + 20
        while not (statuses and statuses[-1].part_seconds) and time.monotonic() < deadline:
            statuses.append(
                read_status(half_finished_plan, ShardStore.open(half_finished_plan.config.results).inventory())
            )
        return classify(self, pixels)

    monkeypatch.setattr(Classifier, "__call__", read_status_and_classify)
    assert run_sweep(half_finished_plan.config, make_executor).complete
    assert statuses[-1].running
    assert len(statuses[-1].part_seconds) == 1
    assert not list((half_finished_plan.config.results / HEARTBEATS_FOLDER).iterdir())


def test_status_counts_results_without_heartbeats(half_finished_plan: Plan) -> None:
    shutil.rmtree(half_finished_plan.config.results / HEARTBEATS_FOLDER)
    status = read_status_at(half_finished_plan, NOW)
    assert (status.done, status.running, status.part_seconds, status.silent_seconds) == (2, False, (), ())


def test_status_of_a_read_only_folder_uses_the_clock_of_the_machine(
    half_finished_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(_folder: Path) -> float:
        raise PermissionError

    monkeypatch.setattr("robust201.runtime.heartbeat.read_file_server_time", reject)
    status = StatusReader(half_finished_plan).read(ShardStore.open(half_finished_plan.config.results).inventory())
    assert status.last_heartbeat is not None
    assert 0 <= status.last_heartbeat < 60


@pytest.mark.parametrize("is_alive", [True, False])
def test_status_reports_dead_driver_on_same_host_immediately(half_finished_plan: Plan, is_alive: bool) -> None:
    results = half_finished_plan.config.results
    write_driver(results, {})
    holder = Holder.new(HostId("here", "m", "b", "p"), 5.0)
    if not is_alive:
        holder = replace(holder, process_start=holder.process_start + 1)  # another process with the same id
    (results / LEASE_NAME).write_bytes(holder.to_bytes())
    os.utime(results / LEASE_NAME, (NOW, NOW))
    inventory = ShardStore.open(results).inventory()

    def read_status_line(host_id: HostId, now: float) -> str:
        return format_status_line(
            StatusReader(half_finished_plan, clock=lambda: now, host_id=host_id).read(inventory), now
        )

    local_line = read_status_line(HostId("here", "m", "b", "p"), NOW + 1)
    assert ("running: run on here" in local_line) == is_alive
    assert ("not running (the last run died" in local_line) == (not is_alive)
    other_host = HostId("there", "n", "c", "q")  # another machine sees only the heartbeat
    assert "running: run on here" in read_status_line(other_host, NOW + 1)
    assert "not running (the last run stopped sending heartbeats" in read_status_line(other_host, NOW + 60)


def test_progress_and_status_show_draining(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    from robust201.runtime import sweep

    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons": ["1/255"]}})
    observed: list[str] = []
    drain_messages: list[str] = []

    def interrupt(_progress: RunProgress, event: object) -> None:
        if event is not None and not observed:
            observed.append(read_progress(config.results)["state"])
            signal.raise_signal(signal.SIGTERM)
            deadline = time.monotonic() + 60
            # Another thread writes the progress, and then the message.
            while not drain_messages and time.monotonic() < deadline:
                time.sleep(0.001)
            assert drain_messages, "the drain was not announced"
            observed.append(read_progress(config.results)["state"])
            status = StatusReader(load_plan(config.results)).read(ShardStore.open(config.results).inventory())
            observed.append(format_status_line(status, 0.0))

    tally = sweep.run_sweep(
        config,
        make_executor,
        on_progress=interrupt,
        say=lambda message: drain_messages.append(message) if "a second signal stops immediately" in message else None,
    )
    assert tally.drained
    assert observed[:2] == ["running", "draining"]
    assert "draining: run on " in observed[2]
    assert read_progress(config.results)["state"] == "drained"
    # If only a share is active, the state of the last driver does not matter.
    assert replace(RUNNING, state="draining", driver=None).running
    assert "running: 1 run with --share" in format_status_line(replace(RUNNING, state="draining", driver=None), 0.0)


def test_display_shows_time_since_last_result(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=output, width=200))
    monkeypatch.setattr(console, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr("robust201.runtime.progress.time.monotonic", lambda: 1200.0)
    progress = RunProgress(20, evaluations_before=4, start_time=1000.0, last_result_time=1100.0)
    progress.evaluations_of_this_run, progress.done_macs, progress.remaining_macs = 5.0, 50.0, 100.0
    display = console.RunDisplay()
    display.update(progress, None)
    progress.remaining_macs = 10.0  # at the measured rate, the run would have finished by now
    display.update(progress, None)
    assert output.getvalue().splitlines() == [
        "9/20 evaluations; 0.05 evaluations/s, about 0:01:40 left; nothing finished for 0:01:40",
        "9/20 evaluations; 0.05 evaluations/s; nothing finished for 0:01:40",
    ]


def test_rate_is_reliable_only_after_min_rate_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robust201.runtime.progress.time.monotonic", lambda: 1500.0)
    progress = RunProgress(20, evaluations_of_this_run=5.0, done_macs=1.0, start_time=1000.0, last_result_time=1000.5)
    assert not progress.is_rate_reliable  # although the last result was long ago
    assert replace(progress, last_result_time=1000.0 + MIN_RATE_SECONDS).is_rate_reliable
