"""Status of a sweep: progress, active and silent processes, and failures."""

import json
import os
import socket
import subprocess
import time

import pytest

from robust201.core.errors import StorageError
from robust201.run import worker
from robust201.run.processes import SILENT_SECONDS, Process
from robust201.run.status import read_status
from robust201.store.events import Events
from robust201.sweep.filters import Filters
from tests.support.runs import read_state, run_inline

KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}, "brightness": {"severities": [1, 5]}}


@pytest.fixture
def config(make_sweep):
    return make_sweep(keys=KEYS, images={"count": 20, "seed": 0}, execution={"device": "cpu", "gmacs_per_second": 1e-5})


def test_status_of_a_partial_run_estimates_from_measured_speeds(config):
    run_inline(config, Filters(architectures=(0,)))
    status = read_status(config.results)
    assert (status.n_done, status.n_planned) == (5, 10)
    assert [cost.key for cost in status.costs] == [*KEYS]
    assert all(cost.hours > 0 for cost in status.costs)


def make_old(path, seconds):
    """Set a file's modification time to `seconds` ago."""
    os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.parametrize("role", ["driver", "share"])
def test_status_lists_running_and_silent_workers(config, role):
    run_inline(config, Filters(keys=("clean",)))
    for path in (config.results / "events").glob("*.jsonl"):
        make_old(path, 3600)
    driver = Events(config.results, role)
    busy, idle = (Events(config.results, "worker", driver.run) for _ in range(2))
    busy.write("part_started", part="#0 digits fgsm")
    busy.write("alive")
    (part,) = (status := read_status(config.results)).in_progress
    assert (part.part, part.worker) == ("#0 digits fgsm", busy.path.stem)
    assert 0 <= part.seconds < 60
    assert (status.running, status.n_runs, status.n_shares) == (True, 1, int(role == "share"))
    assert status.seconds_left > 0
    make_old(busy.path, SILENT_SECONDS + 60)
    status = read_status(config.results)
    assert (status.in_progress, status.silent, status.seconds_left) == ([], [busy.path.stem], None)
    driver.close()  # its workers count as ended, too
    assert read_status(config.results).silent == []
    for events in (busy, idle):
        events.close()


def test_run_that_was_killed_on_this_machine_is_not_running(config):
    """A run that was killed on another machine counts as running until it has been silent for a while."""
    run_inline(config, Filters(keys=("clean",)))
    with subprocess.Popen(["true"]) as killed_process:
        pass
    for host, n_runs in ((socket.gethostname(), 0), ("elsewhere-2", 1)):
        path = config.results / "events" / f"driver-{host}-{killed_process.pid}-{n_runs}123abcd-01234f.jsonl"
        path.write_text(json.dumps({"time": 0, "event": "started"}) + "\n")
        status = read_status(config.results)
        assert (status.running, status.n_runs, status.silent) == (n_runs > 0, n_runs, [])


def test_wrong_clock_of_a_worker_does_not_change_the_seconds_of_its_part(config):
    run_inline(config, Filters(keys=("clean",)))
    events = Events(config.results, "worker")
    with events.path.open("a") as stream:
        for seconds, event in ((10_000, "part_started"), (10_250, "alive")):
            stream.write(json.dumps({"time": seconds, "event": event, "part": "#0"}) + "\n")
        stream.write("{torn")
    make_old(events.path, 20)
    (part,) = read_status(config.results).in_progress
    assert part.seconds == pytest.approx(270, abs=5)
    events.close()


def test_processes_of_a_killed_run_are_not_listed_after_the_next_run_begins(config):
    run_inline(config, Filters(keys=("clean",)))
    driver = Events(config.results, "driver")
    make_old(driver.path, SILENT_SECONDS + 100)
    for path in (config.results / "events").glob("*.jsonl"):
        make_old(path, SILENT_SECONDS + 100)
    assert read_status(config.results).silent == [driver.path.stem]
    run_inline(config)
    assert read_status(config.results).silent == []


def test_failures_are_listed_until_their_part_is_stored(config, monkeypatch):
    def fail_on_fgsm(context, task, *arguments, **options):
        if task.key == "fgsm":
            raise RuntimeError("no such luck")
        yield from evaluate_part(context, task, *arguments, **options)

    evaluate_part = worker.evaluate_part
    with monkeypatch.context() as patch:
        patch.setattr(worker, "evaluate_part", fail_on_fgsm)
        run_inline(config, Filters(keys=("fgsm", "brightness")))
    assert [key.n_missing_parts > 0 for key in read_state(config.results).keys] == [True, True, False]
    run_inline(config, Filters(keys=("clean",)))
    (events,) = [path for path in (config.results / "events").glob("worker-*") if '"failed"' in path.read_text()]
    events.write_text(json.dumps({"time": 0, "event": "ended"}) + "\n")  # as if only the end of a long file was read
    failures = read_status(config.results).failures
    assert {failure.failure for failure in failures} == {"RuntimeError: no such luck"}
    assert len(failures) == read_state(config.results).keys[1].n_missing_parts
    run_inline(config)
    assert read_status(config.results).failures == []


def test_failure_that_cannot_be_written_is_an_error_only_for_unstable_networks(tmp_path):
    with Events(tmp_path, "worker") as events:
        (tmp_path / "events/failures").touch()  # not a folder
        events.write("failed", failure="any other")
        with pytest.raises(StorageError, match="failures"):
            events.write("failed", unstable=True, failure="unstable")


def test_age_of_an_event_adds_the_time_since_the_last_event():
    events = [{"time": 5.0}, {"time": 9.0}]
    assert Process("worker-host-1-run-token", events, seconds=2.0).age(events[0]) == 6.0
