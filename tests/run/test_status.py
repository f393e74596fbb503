"""Status and verification of results."""

import json
import os
import time

import numpy as np
import pytest

from robust201.core.records import EvaluationResult, Part
from robust201.dataset.rows import read_shard
from robust201.dataset.verify import verify
from robust201.run import worker
from robust201.run.events import Events
from robust201.run.processes import SILENT_SECONDS
from robust201.run.status import read_status
from robust201.store.folder import ResultsFolder
from robust201.store.names import content_hash, shard_name
from robust201.store.shards import encode
from robust201.sweep.filters import Filters
from tests.support.runs import KilledError, read_state, run_inline

KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}, "brightness": {"severities": [1, 5]}}


@pytest.fixture
def config(make_sweep):
    return make_sweep(keys=KEYS, images={"count": 20, "seed": 0}, execution={"device": "cpu", "gmacs_per_second": 1e-5})


def test_status_of_a_finished_sweep(config):
    run_inline(config)
    status = read_status(config.results)
    assert (status.n_done, status.n_planned) == (10, 10)
    assert (status.costs, status.in_progress, status.failures, status.silent, status.seconds_left) == (
        [],
        [],
        [],
        [],
        None,
    )
    assert (status.running, status.complete) == (False, True)


def test_status_of_a_partial_run_estimates_from_measured_speeds(config):
    run_inline(config, Filters(architectures=(0,)))
    status = read_status(config.results)
    assert (status.n_done, status.n_planned) == (5, 10)
    assert [(cost.key, cost.is_measured) for cost in status.costs] == [(key, True) for key in KEYS]
    assert all(cost.hours > 0 for cost in status.costs)


def make_old(path, seconds):
    """Make a file as old as if its last line had been written some time ago."""
    os.utime(path, (time.time() - seconds,) * 2)


@pytest.mark.parametrize("role", ["driver", "share"])
def test_running_and_silent_workers(config, role):
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
    driver.close()  # and its workers with it
    assert read_status(config.results).silent == []
    for events in (busy, idle):
        events.close()


def test_clock_of_a_worker_does_not_matter(config):
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


def test_processes_of_a_killed_run_are_forgotten_when_the_next_run_begins(config):
    run_inline(config, Filters(keys=("clean",)))
    driver = Events(config.results, "driver")
    make_old(driver.path, SILENT_SECONDS + 100)
    for path in (config.results / "events").glob("*.jsonl"):
        make_old(path, SILENT_SECONDS + 100)
    assert read_status(config.results).silent == [driver.path.stem]
    run_inline(config)
    assert read_status(config.results).silent == []


def test_failures_are_listed_until_their_part_is_stored(config, monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError("no such luck")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "evaluate_part", fail)
        run_inline(config, Filters(keys=("fgsm",)))
    run_inline(config, Filters(keys=("clean",)))
    (events,) = [path for path in (config.results / "events").glob("worker-*") if '"failed"' in path.read_text()]
    events.write_text(json.dumps({"time": 0, "event": "ended"}) + "\n")  # the tail of a long file has no failures
    failures = read_status(config.results).failures
    assert {failure.failure for failure in failures} == {"RuntimeError: no such luck"}
    assert len(failures) == read_state(config.results).keys[1].n_missing_parts
    run_inline(config)
    assert read_status(config.results).failures == []


def find_shards(config):
    folder = ResultsFolder.open(config.results)
    return folder, [shard_name("digits", name) for name in folder.list()["digits"]]


def rewrite(folder, name, change, pixels=None):
    """Store a shard with changed rows, as another file of the same part."""
    shard = read_shard(folder, name)
    part = Part(shard.unit, shard.unit.strengths, shard.start, shard.stop)
    results = [
        EvaluationResult(part, strength, change(dict(values)), 1.0, {}) for strength, values in shard.rows.items()
    ]
    content = encode(results, pixels=shard.pixels if pixels is None else pixels)
    folder.write(name._replace(hash=content_hash(content)), content)


def test_sound_results_have_no_findings(config):
    run_inline(config)
    n_files = []
    assert list(verify(config.results, lambda n_done, _n_files: n_files.append(n_done))) == []
    assert n_files[-1] == len(find_shards(config)[1])


def test_missing_parts_are_found(config):
    with pytest.raises(KilledError):
        run_inline(config, killed_after=3)
    findings = list(verify(config.results))
    assert {finding.kind for finding in findings} == {"missing"}


def test_damaged_and_invalid_files_are_moved_aside_and_computed_again(config):
    run_inline(config)
    folder, names = find_shards(config)
    (folder.storage.root / names[0].path).write_bytes(b"damage")
    rewrite(folder, names[1], lambda values: values | {"accuracy": np.array(0.123)})
    findings = list(verify(config.results))
    assert [finding.kind for finding in findings] == ["damaged", "damaged", "missing"]
    assert findings[0].subject == names[0].path
    assert run_inline(config).n_parts == 1
    assert list(verify(config.results)) == []


def test_damaged_records_are_found_and_written_again(config):
    run_inline(config)
    folder, names = find_shards(config)
    path = folder.root / "protocols" / f"{names[0].columns}.json"
    path.write_text("[]")
    findings = list(verify(config.results))
    assert {finding.kind for finding in findings} == {"record", "missing"}
    assert findings[0].subject == f"protocols/{path.name}"
    assert len(find_shards(config)[1]) == len(names)
    assert run_inline(config).n_parts == 0
    assert list(verify(config.results)) == []


def test_shard_with_the_images_of_another_slice_is_moved_aside(config):
    run_inline(config)
    folder, names = find_shards(config)
    content = folder.read(names[0])
    folder.write(names[0]._replace(slice=names[0].slice + 1), content)
    assert {finding.kind for finding in verify(config.results)} == {"damaged"}


def test_differing_duplicates_and_pixels_are_found(config):
    run_inline(config)
    folder, names = find_shards(config)
    corrupted = next(name for name in names if read_shard(folder, name).pixels)
    rewrite(folder, corrupted, lambda values: values, pixels="other")
    assert {finding.kind for finding in verify(config.results)} == {"pixels"}
    clean, other = (
        next(name for name in names if _is_first_slice_of(read_shard(folder, name), architecture))
        for architecture in (0, 21)
    )
    rewrite(folder, clean, lambda values: values)  # an equal duplicate is harmless
    assert {finding.kind for finding in verify(config.results)} == {"pixels"}
    rewrite(folder, clean, lambda _values: read_shard(folder, other).rows[0.0])
    assert {finding.kind for finding in verify(config.results)} == {"duplicate", "pixels"}


def _is_first_slice_of(shard, architecture):
    return (shard.unit.key, shard.unit.architecture, shard.start) == ("clean", architecture, 0)
