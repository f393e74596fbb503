"""Status of active runs and of the parts that their workers compute."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robust201.cli.console_status import format_status_line
from robust201.core.host import HostId
from robust201.core.records import Unit
from robust201.monitoring.status import StatusReader, SweepStatus
from robust201.planning.plan import Plan
from robust201.planning.plan_file import load_plan
from robust201.runtime.executors import make_executor
from robust201.runtime.heartbeat import HEARTBEATS_FOLDER
from robust201.runtime.lease import LEASE_NAME, Holder
from robust201.runtime.progress import PROGRESS_FILE, RunProgress, read_progress
from robust201.runtime.sweep import run_sweep
from robust201.shards import ShardStore
from robust201.sweep.filters import Filters
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
