"""What is in progress, how rate and time left age until it is finished, and how a run tells of its end."""

import io
import json
import os
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from robust201.cli import console
from robust201.cli.console_status import status_line
from robust201.core.host import HostId
from robust201.monitoring.status import StatusReader, SweepStatus
from robust201.monitoring.underway import estimate_pace, find_underway
from robust201.planning.plan import Plan
from robust201.planning.plan_file import load_plan
from robust201.runtime.executors import make_executor
from robust201.runtime.lease import LEASE_NAME, Holder
from robust201.runtime.progress import PROGRESS_FILE, RATE_SECONDS, Progress, read_progress
from robust201.runtime.sweep import Filters, run_sweep
from robust201.runtime.work_log import LOGS_FOLDER
from robust201.shards import ShardStore
from tests.conftest import MakeSweep
from tests.runtime.test_watch import HALF

NOW = 1_900_000_000.0
RUN = {"measured": NOW, "measured_seconds": 100.0, "macs_per_second": 10.0, "evaluations_per_second": 0.5}


def test_time_left_goes_down_by_the_clock_while_parts_are_underway() -> None:
    lefts = [
        estimate_pace([RUN], NOW + age, work_left=1000.0, work_underway=600.0).seconds_left for age in (0.0, 30.0, 60.0)
    ]
    assert lefts == [100.0, 70.0, 40.0]


def test_past_the_time_at_which_parts_should_be_done_the_rate_falls_and_the_time_left_grows() -> None:
    late, later = (estimate_pace([RUN], NOW + age, work_left=1000.0, work_underway=600.0) for age in (100.0, 300.0))
    assert late.seconds_left == pytest.approx(400 / (10 * (100 + 60) / 200))
    assert later.seconds_left is not None
    assert later.seconds_left > late.seconds_left
    assert (late.evaluations_per_second, later.evaluations_per_second) == (0.25, 0.125)


@given(
    ages=st.lists(st.floats(0, 1e5), min_size=1, max_size=4),
    work=st.floats(0, 1e7),
    share=st.floats(0, 1),
)
def test_an_estimate_is_never_negative_nor_faster_than_what_was_measured(
    ages: list[float], work: float, share: float
) -> None:
    runs = [RUN | {"measured": NOW - age} for age in ages]
    pace = estimate_pace(runs, NOW, work_left=work, work_underway=share * work)
    assert pace.seconds_left is not None
    assert pace.seconds_left >= 0
    assert pace.seconds_left >= (work - sum(10 * age for age in ages)) / (10 * len(ages)) - 1e-6 * work
    assert pace.evaluations_per_second is not None
    assert 0 < pace.evaluations_per_second <= 0.5 * len(ages) + 1e-9


def test_before_anything_is_known_nothing_is_estimated() -> None:
    pace = estimate_pace([{"measured": NOW}], NOW + 5, work_left=10.0, work_underway=0.0)
    assert (pace.evaluations_per_second, pace.seconds_left) == (None, None)


@pytest.fixture
def half_done(make_sweep: MakeSweep) -> Plan:
    """A sweep of which the clean accuracies are there and FGSM's are not."""
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons_255": [1, 8]}})
    run_sweep(config, make_executor, filters=Filters(keys=("clean",)))
    return load_plan(config.results)


def write_log(results: Path, worker: str, *events: tuple[float, dict[str, Any]]) -> None:
    """Write a log that begins with the first event."""
    stamp = datetime.fromtimestamp(NOW, UTC).strftime("%Y%m%dT%H%M%SZ")
    lines = []
    for moment, fields in events:
        told = datetime.fromtimestamp(NOW + moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines.append(json.dumps({"time": told, "worker": worker, **fields}))
    (results / LOGS_FOLDER / f"{stamp}-{worker}.jsonl").write_text("\n".join(lines) + '\n{"time": "cut o')


def begin(unit: str, strengths: list[float]) -> dict[str, Any]:
    return {"event": "part_started", "unit": unit, "strengths": strengths, "images": "0:10"}


def test_parts_that_workers_have_begun_and_not_ended_are_underway(half_done: Plan) -> None:
    results = half_done.config.results
    first, second = (unit for unit in half_done.units if unit.key == "fgsm")
    units = {unit.id: unit for unit in half_done.units}
    both = list(first.strengths)
    write_log(
        results,
        "one",
        (1, begin(second.id, both)),
        (2, {"event": "shard_written", "unit": second.id, "strengths": both}),
        (3, begin(first.id, both)),
        (8, {"event": "shard_written", "unit": first.id, "strengths": both[:1]}),
    )
    write_log(results, "two", (4, begin(second.id, both)))
    write_log(results, "three", (5, begin("of another plan", both)))
    found = {one.part.unit.id: one for one in find_underway(results, units, since=NOW)}
    assert set(found) == {first.id, second.id}
    assert (found[first.id].part.strengths, found[first.id].since) == (tuple(both[1:]), NOW + 8)
    assert found[second.id].since == NOW + 4
    write_log(results, "driver", (6, {"event": "worker_died", "unit": second.id}))
    assert {one.part.unit.id for one in find_underway(results, units, since=NOW)} == {first.id}
    assert find_underway(results, units, since=NOW + 3600) == ()


def read_at(plan: Plan, now: float) -> SweepStatus:
    return StatusReader(plan, clock=lambda: now).read(ShardStore.open(plan.config.results).inventory())


def test_a_status_ages_between_two_parts(half_done: Plan) -> None:
    results = half_done.config.results
    units = [unit for unit in half_done.units if unit.key == "fgsm"]
    running = RUN | {"state": "running", "updated": NOW, "began": NOW, "macs_per_second": 1e6}
    (results / PROGRESS_FILE).write_text(json.dumps(running))
    os.utime(results / PROGRESS_FILE, (NOW, NOW))
    for number, unit in enumerate(units):
        write_log(results, f"worker{number}", (number, begin(unit.id, list(unit.strengths))))
    states = [read_at(half_done, NOW + age) for age in (2.0, 12.0)]
    assert [state.parts_underway for state in states] == [(2.0, 1.0), (12.0, 11.0)]
    lefts = [state.seconds_left for state in states]
    assert None not in lefts
    assert lefts[0] != lefts[1]
    assert "2 parts in progress, the longest for 0:00:12" in status_line(states[1], NOW)
    assert states[1].to_payload()["parts_in_progress"] == 2


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_driver_whose_process_is_gone_has_died_at_once(half_done: Plan, is_alive: bool) -> None:
    results = half_done.config.results
    (results / PROGRESS_FILE).write_text(json.dumps(RUN | {"state": "running", "updated": NOW, "began": NOW}))
    holder = Holder.new(HostId("here", "m", "b", "p"), 5.0)
    if not is_alive:
        holder = replace(holder, process_start=holder.process_start + 1)  # another process of that id
    (results / LEASE_NAME).write_bytes(holder.to_bytes())
    os.utime(results / LEASE_NAME, (NOW, NOW))
    inventory = ShardStore.open(results).inventory()

    def line(host_id: HostId, now: float) -> str:
        return status_line(StatusReader(half_done, clock=lambda: now, host_id=host_id).read(inventory), now)

    seen = line(HostId("here", "m", "b", "p"), NOW + 1)
    assert ("running: driver on here" in seen) == is_alive
    assert ("nobody at work (the last driver died" in seen) == (not is_alive)
    elsewhere = HostId("there", "n", "c", "q")  # from where only its heartbeat can tell
    assert "running: driver on here" in line(elsewhere, NOW + 1)
    assert "nobody at work (the last driver fell silent" in line(elsewhere, NOW + 60)


def test_while_a_run_drains_its_progress_says_so(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    from robust201.runtime import sweep

    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons_255": [1]}})
    seen: list[str] = []
    told: list[str] = []

    def interrupt(_progress: Progress, event: object) -> None:
        if event is not None and not seen:
            seen.append(read_progress(config.results)["state"])
            signal.raise_signal(signal.SIGTERM)
            while not told:  # a thread tells, after it has written
                time.sleep(0.001)
            seen.append(read_progress(config.results)["state"])
            on_the_way = StatusReader(load_plan(config.results)).read(ShardStore.open(config.results).inventory())
            seen.append(status_line(on_the_way, 0.0))

    tally = sweep.run_sweep(
        config,
        make_executor,
        on_progress=interrupt,
        say=lambda line: told.append(line) if "once more" in line else None,
    )
    assert tally.drained
    assert seen[:2] == ["running", "draining"]
    assert "draining: driver on " in seen[2]
    assert read_progress(config.results)["state"] == "drained"
    assert replace(HALF, state="draining", driver=None).running
    assert "running: 1 share" in status_line(replace(HALF, state="draining", driver=None), 0.0)


def test_a_run_in_which_nothing_ends_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=told, width=200))
    monkeypatch.setattr(console, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr("robust201.runtime.progress.time.monotonic", lambda: 1200.0)
    progress = Progress(10, 20, evaluations_before=4, started=1000.0, measured=1100.0)
    progress.evaluations_of_this_run, progress.done_macs, progress.remaining_macs = 5.0, 50.0, 100.0
    display = console.RunDisplay()
    display.update(progress, None)
    progress.remaining_macs = 10.0  # by the rate so far, it would have ended by now
    display.update(progress, None)
    assert told.getvalue().splitlines() == [
        "9/20 evaluations; 0.05 evaluations/s, 0:01:40 left by estimated work; nothing finished for 0:01:40",
        "9/20 evaluations; 0.05 evaluations/s; nothing finished for 0:01:40",
    ]


def test_a_few_cheap_parts_at_the_start_give_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robust201.runtime.progress.time.monotonic", lambda: 1500.0)
    progress = Progress(10, 20, evaluations_of_this_run=5.0, done_macs=1.0, started=1000.0, measured=1000.5)
    assert not progress.is_settled  # however long the next part takes
    assert replace(progress, measured=1000.0 + RATE_SECONDS).is_settled
