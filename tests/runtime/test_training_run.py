"""Runs of trainings: completion, resumption to the same bytes, draining, and one-line errors."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from robust201.cli import console_status
from robust201.core.errors import CheckpointError, ConfigError, DatasetError, LeaseHeldError
from robust201.core.records import Receipt
from robust201.monitoring.training_status import TrainingStatus, read_training_status
from robust201.planning.training_config import TrainingConfig
from robust201.planning.training_plan import TrainingWork
from robust201.runtime import heartbeat
from robust201.runtime.executors.base import BundleLost, Event
from robust201.runtime.executors.inline import InlineExecutor
from robust201.runtime.lease import Lease
from robust201.runtime.progress import RunProgress, read_progress
from robust201.runtime.training_run import ALL_TRAININGS, TrainingSelection, preview_trainings, run_trainings
from robust201.runtime.training_worker import TrainingWorker
from robust201.training import loop
from robust201.training.state import EpochRecord
from robust201.weights.store import CheckpointStore
from tests.conftest import RunCommand
from tests.support.tiny_trainings import RECIPE, STEPS, make_trainings, training_fields, weight_files, write_images

TUNED = RECIPE | {"epochs": 1, "start": {"recipe": "plain", "dataset": "bright"}, "snapshots": {}}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the weights of both recipes from an uninterrupted run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert run_trainings(both_recipes(folder)).complete
    return weight_files(folder / "store")


def both_recipes(folder: Path, **changes: Any) -> TrainingConfig:
    return make_trainings(folder, recipes={"tuned": TUNED, "plain": RECIPE}, **changes)


def records(config: TrainingConfig) -> dict[tuple[str, int | None], Any]:
    return {(record.recipe, record.steps_done): record for record in CheckpointStore(config.store).records()}


def test_run_trainings_stores_snapshots_once(tmp_path: Path) -> None:
    config = make_trainings(tmp_path)
    seen = []
    tally = run_trainings(config, on_preview=seen.append)
    assert tally.complete
    assert (tally.evaluations, tally.computed, tally.failures) == (3, 3, [])
    assert (seen[0].n_evaluations, seen[0].n_done) == (3, 0)
    stored = records(config)
    assert sorted(stored) == [("plain", step) for step in STEPS]
    assert [(stored["plain", step].epochs, stored["plain", step].steps) for step in STEPS] == [
        (0, 2),
        (1, None),
        (2, None),
    ]
    assert all(0 <= record.recorded_accuracy <= 1 for record in stored.values())
    assert len({record.sha256 for record in stored.values()}) == 3
    for record in stored.values():
        CheckpointStore(config.store).load(record)
    assert list((config.results / "states").iterdir()) == list((config.results / "finished").iterdir()) == []
    assert not (config.results / "lease.json").exists()
    progress = read_progress(config.results)
    assert (progress["state"], progress["done_evaluations"], progress["total_evaluations"]) == ("finished", 3, 3)
    rerun = run_trainings(config)
    assert (rerun.complete, rerun.evaluations) == (True, 0)
    assert preview_trainings(config).n_done == 3


def test_damaged_weights_are_retrained_to_same_bytes(tmp_path: Path) -> None:
    config = make_trainings(tmp_path)
    run_trainings(config)
    before = weight_files(config.store)
    stored = records(config)
    (config.store / stored["plain", 2].file).unlink()
    path = config.store / stored["plain", 6].file
    path.write_bytes(path.read_bytes()[:-1])
    flipped = config.store / stored["plain", 3].file
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    flipped.write_bytes(content)
    assert preview_trainings(config).n_done == 0
    assert run_trainings(config).evaluations == 3
    assert weight_files(config.store) == before


def test_changed_start_weights_are_rejected_before_training(tmp_path: Path) -> None:
    run_trainings(make_trainings(tmp_path))
    config = make_trainings(tmp_path, recipes={"tuned": TUNED})
    path = config.store / records(config)["plain", 6].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"Loading weights failed for .* plain 2 epochs seed 0 .* changed"):
        run_trainings(config)


def test_additional_snapshot_retrains_to_same_end(tmp_path: Path) -> None:
    run_trainings(make_trainings(tmp_path))
    before = weight_files(tmp_path / "store")
    more = RECIPE | {"snapshots": {"every_epochs": 1, "iterations": [2, 4], "epochs": [0]}}
    config = make_trainings(tmp_path, recipes={"plain": more})
    assert run_trainings(config).evaluations == 2
    after = weight_files(config.store)
    assert before.items() < after.items()
    assert {name.split("-")[-2] for name in after.keys() - before.keys()} == {"e0", "i4"}


def test_training_starts_from_final_weights_of_another(tmp_path: Path, uninterrupted: dict[str, str]) -> None:
    config = both_recipes(tmp_path)
    tally = run_trainings(config)
    assert (tally.complete, tally.evaluations) == (True, 4)
    assert weight_files(config.store) == uninterrupted
    stored = records(config)
    tuned = stored["tuned", 3]
    assert tuned.training["inputs"]["start"] == stored["plain", 6].sha256
    # The same recipe from initial weights gives different weights.
    fresh = make_trainings(tmp_path / "fresh", recipes={"tuned": TUNED | {"start": None}})
    run_trainings(fresh)
    assert records(fresh)["tuned", 3].sha256 != tuned.sha256


def test_start_weights_may_come_from_store_but_must_exist(tmp_path: Path) -> None:
    alone = make_trainings(tmp_path, recipes={"tuned": TUNED})
    with pytest.raises(
        CheckpointError, match=r"tuned seed 0: it starts from the final weights of #309 bright plain seed 0, which "
    ):
        run_trainings(alone)
    assert not (tmp_path / "store").exists()
    run_trainings(make_trainings(tmp_path))
    assert run_trainings(alone).complete


def test_start_weights_must_be_final_snapshot(tmp_path: Path) -> None:
    both, alone = both_recipes(tmp_path), make_trainings(tmp_path, recipes={"tuned": TUNED})
    run_trainings(make_trainings(tmp_path))
    stored = records(both)
    manifest = both.store / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(line for line in lines if stored["plain", 6].sha256.encode() not in line))
    for config, selection in ((both, TrainingSelection(("tuned",))), (alone, ALL_TRAININGS)):
        with pytest.raises(
            CheckpointError, match=r"tuned seed 0: it starts from the final weights of #309 bright plain seed 0, "
        ):
            run_trainings(config, selection=selection)
    assert run_trainings(both).complete
    assert records(both)["tuned", 3].training["inputs"]["start"] == stored["plain", 6].sha256


def test_different_training_with_same_name_is_rejected(tmp_path: Path) -> None:
    run_trainings(make_trainings(tmp_path))
    before = weight_files(tmp_path / "store")
    changed = make_trainings(tmp_path, recipes={"plain": RECIPE | {"learning_rate": 0.2}})
    with pytest.raises(CheckpointError, match=r"\(recipe\.learning_rate: 0\.1 → 0\.2\)\. Rename the recipe"):
        run_trainings(changed)
    with pytest.raises(CheckpointError, match=r"has a different training under this name \(threads: 1 → 2\)"):
        run_trainings(make_trainings(tmp_path, execution={"threads": 2}))
    assert weight_files(tmp_path / "store") == before


def test_snapshots_can_be_evaluated_by_sweep(tmp_path: Path, robust201: RunCommand) -> None:
    run_trainings(make_trainings(tmp_path))
    sweep = tmp_path / "sweep.yaml"
    fields = {
        "name": "snapshots",
        "results": str(tmp_path / "results"),
        "architectures": [309],
        "network": {"channels": 2, "cells": 1},
        "weights": {"path": str(tmp_path / "store"), "recipe": "plain", "epochs": [2], "steps": [2, 3]},
        "datasets": {"bright": write_images(tmp_path)},
        "keys": {"clean": {}},
        "execution": {"executor": "inline", "device": "cpu"},
    }
    sweep.write_text(yaml.safe_dump(fields))
    result = robust201("run", sweep)
    assert result.code == 0, result.err
    exported = robust201("export", tmp_path / "results", "--out", tmp_path / "out", "--no-json", "--parquet")
    assert exported.code == 0, exported.err
    recorded = json.loads((tmp_path / "out/sweep.json").read_text())["weights"]
    assert [(name, state["epochs"], state["steps"]) for name, state in recorded.items()] == [
        ("plain-i2-s0", None, 2),
        ("plain-e1-s0", 1, 3),
        ("plain-e2-s0", 2, 6),
    ]


# --- errors ----------------------------------------------------------------------------------------------------


def test_diverging_training_fails_alone_with_one_line_error(tmp_path: Path) -> None:
    recipes = {"tuned": TUNED | {"start": {"recipe": "wild", "dataset": "bright"}}, "plain": RECIPE}
    config = make_trainings(tmp_path, recipes=recipes | {"wild": RECIPE | {"learning_rate": 1e30}})
    output: list[str] = []
    tally = run_trainings(config, say=output.append)
    assert not tally.complete
    assert sorted(step for recipe, step in records(config) if recipe == "plain") == list(STEPS)
    (failure,) = tally.failures
    assert failure.part.label == "#309 s0 bright wild"
    assert failure.message.count("\n") == 0
    assert "Training failed for #309 on bright: expected" in failure.message
    assert "Lower the learning rate (1e+30)." in failure.message
    assert tally.remaining == 1  # the training that starts from it
    assert any("start weights are missing, such as #309 bright tuned seed 0" in line for line in output)


@pytest.mark.parametrize("damage", ["absent", "cut", "label"])
def test_train_rejects_bad_images_before_writing(tmp_path: Path, robust201: RunCommand, damage: str) -> None:
    fields = training_fields(tmp_path)
    path = Path(fields["datasets"]["bright"]["path"]) / "train.npz"
    if damage == "absent":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    else:
        with np.load(path) as stored:
            images = dict(stored)
        np.savez(path, images=images["images"], labels=images["labels"] + 1)
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(fields))
    robust201("train", tmp_path / "train.yaml").refusal(2)
    assert not (tmp_path / "store").exists()


def test_run_trainings_rejects_too_few_images_and_late_snapshots(tmp_path: Path) -> None:
    few = write_images(tmp_path, "few") | {"train": False}
    with np.load(tmp_path / "few/train.npz") as stored:
        whole = dict(stored)
    np.savez(tmp_path / "few/train.npz", images=whole["images"][:2], labels=whole["labels"][:2])
    datasets = {"bright": write_images(tmp_path), "few": few}
    mixed = RECIPE | {"data": {"mixture": {"robust": "few", "alpha": 0.5}}}
    with pytest.raises(DatasetError, match="robust ones, and there are only"):
        run_trainings(make_trainings(tmp_path, datasets=datasets, recipes={"mixed": mixed}))
    late = RECIPE | {"snapshots": {"iterations": [7]}}
    with pytest.raises(ConfigError, match=r"its snapshots: .* step 7\. .* The recipe is late on bright"):
        run_trainings(make_trainings(tmp_path, recipes={"late": late}))


def test_training_on_mixture_and_fusion(tmp_path: Path) -> None:
    datasets = {"bright": write_images(tmp_path), "more": write_images(tmp_path, "more", seed=1) | {"train": False}}
    data = {
        "mixed": {"mixture": {"robust": "more", "alpha": 0.5}},
        "blended": {"fusion": {"first": "bright", "second": "more", "label": "second"}},
    }
    recipes = {name: RECIPE | {"snapshots": {}, "epochs": 1, "data": section} for name, section in data.items()}
    config = make_trainings(tmp_path, datasets=datasets, recipes=recipes)
    assert run_trainings(config).complete
    stored = CheckpointStore(config.store).records()
    assert [record.recipe for record in stored] == ["blended", "mixed"]
    assert [{*record.training["inputs"]["data"]} for record in stored if record.training] == [
        {"fusion", "normalisation"},
        {"mixture", "normalisation"},
    ]


def test_run_trainings_requires_lease(tmp_path: Path) -> None:
    config = make_trainings(tmp_path)
    config.results.mkdir(parents=True)
    with Lease.acquire(config.results), pytest.raises(LeaseHeldError):
        run_trainings(config)


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.ray)])
def execution(request: pytest.FixtureRequest) -> dict[str, object]:
    if request.param == "inline":
        return {"executor": "inline"}
    return {"executor": "ray", "workers": 1, "ray_address": request.getfixturevalue("ray_address")}


def test_drained_training_resumes_to_same_bytes(
    tmp_path: Path, uninterrupted: dict[str, str], execution: dict[str, object]
) -> None:
    signalled: list[Event] = []

    def interrupt(_progress: RunProgress, event: Event | None) -> None:
        if isinstance(event, Receipt) and not signalled:
            signalled.append(event)
            signal.raise_signal(signal.SIGTERM)

    # The signal arrives in the middle of a training.
    drained = run_trainings(both_recipes(tmp_path, execution=execution), on_progress=interrupt)
    assert drained.drained
    assert not drained.complete
    assert run_trainings(both_recipes(tmp_path)).complete
    assert weight_files(tmp_path / "store") == uninterrupted


def test_signal_during_last_training_drains_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drain, is_draining = TrainingWorker.drain, threading.Event()

    def note(worker: TrainingWorker) -> None:
        drain(worker)
        is_draining.set()

    def interrupt(_worker: TrainingWorker, _record: EpochRecord) -> None:
        if not is_draining.is_set():
            signal.raise_signal(signal.SIGTERM)
            assert is_draining.wait(60)

    monkeypatch.setattr(TrainingWorker, "drain", note)
    monkeypatch.setattr(TrainingWorker, "_log_epoch", interrupt)
    tally = run_trainings(make_trainings(tmp_path, recipes={"plain": RECIPE | {"snapshots": {}}}))
    assert (tally.drained, tally.evaluations, tally.remaining) == (True, 0, 1)


def run_in_child(work: Callable[[], object]) -> None:
    """Call `work` in a forked process and end the process, so that pytest does not continue in it."""
    try:
        work()
    except BaseException:  # noqa: BLE001 - reported by the exit code
        os._exit(1)
    os._exit(0)


def in_child(work: Callable[[], object]) -> int:
    """Call `work` in a forked process and return its exit code, negative for a signal."""
    child = os.fork()
    if not child:
        run_in_child(work)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_and_die(config: TrainingConfig, flushes: int) -> None:
    """Train, and be killed at the given call of fsync, that is, before or after a file is renamed."""

    def flush(_descriptor: int) -> None:
        nonlocal flushes
        flushes -= 1
        if not flushes:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = flush
    assert run_trainings(config).complete


def test_training_run_killed_anywhere_gives_same_bytes(tmp_path: Path, uninterrupted: dict[str, str]) -> None:
    draws = random.Random(1)
    config = both_recipes(tmp_path)
    codes = []
    while not codes or codes[-1] != 0:
        moment = draws.randint(1, 24)
        codes.append(in_child(lambda moment=moment: run_and_die(config, moment)))  # type: ignore[misc]
        assert codes[-1] in {0, -signal.SIGKILL}
        assert len(codes) < 30
    assert codes.count(-signal.SIGKILL) > 2
    assert run_trainings(config).evaluations == 0
    assert weight_files(config.store) == uninterrupted
    assert list((config.results / "finished").glob("*.json")) == []


class LosingExecutor(InlineExecutor):
    """Simulates a worker that dies once, after storing a snapshot and before reporting it."""

    def __init__(self, work: TrainingWork, losses: list[Receipt]) -> None:
        super().__init__(TrainingWorker(work).run)
        self._losses = losses

    def poll(self, timeout: float) -> list[Event]:
        events = super().poll(timeout)
        if self._losses or not isinstance(events[0], Receipt) or self._current is None:
            return events
        self._losses.append(events[0])
        bundle, self._current = self._current[0], None
        return [BundleLost(bundle, started=True, preempted=False, reason="killed")]


def test_snapshots_of_lost_worker_are_not_retrained(tmp_path: Path, uninterrupted: dict[str, str]) -> None:
    config = both_recipes(tmp_path)
    losses: list[Receipt] = []
    written: list[str] = []
    tally = run_trainings(
        config,
        lambda work: LosingExecutor(work, losses),
        on_progress=lambda _progress, event: written.append(event.shard) if isinstance(event, Receipt) else None,
    )
    assert (tally.complete, tally.deaths, tally.evaluations) == (True, 1, 4)
    assert losses[0].shard in written
    assert len(written) == len(set(written)) == 4
    assert weight_files(config.store) == uninterrupted


def test_snapshots_missing_from_manifest_are_recovered(tmp_path: Path) -> None:
    config = make_trainings(tmp_path)
    run_trainings(config)
    before = weight_files(config.store)
    # State after a driver was killed between the second receipt and the manifest.
    lines = (config.store / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (config.store / "manifest.jsonl").write_bytes(b"".join(lines[:2]))
    finished = config.results / "finished"
    for number, line in enumerate(lines[2:]):
        (finished / f"{number}.json").write_bytes(line)
    torn = finished / "2.json"
    torn.write_bytes(lines[3][:50])
    gone = json.loads(lines[2]) | {"file": "bright/absent.safetensors"}
    (finished / "3.json").write_text(json.dumps(gone) + "\n")
    output: list[str] = []
    assert run_trainings(config, say=output.append).evaluations == 0
    assert any("to the manifest: 2" in line for line in output)
    assert weight_files(config.store) == before
    assert sorted(step for _, step in records(config) if step is not None) == list(STEPS)
    assert list(finished.iterdir()) == []


def test_training_selection_limits_run(tmp_path: Path) -> None:
    config = both_recipes(tmp_path, seeds=[0, 1])
    tally = run_trainings(config, selection=TrainingSelection(recipes=("plain",), limit=1))
    assert (tally.complete, tally.evaluations) == (True, 3)
    assert {record.seed for record in CheckpointStore(config.store).records()} == {0}


def test_status_reports_trainings(tmp_path: Path, robust201: RunCommand) -> None:
    path = tmp_path / "train.yaml"
    wild = RECIPE | {"learning_rate": 1e30}
    path.write_text(yaml.safe_dump(training_fields(tmp_path, recipes={"plain": RECIPE, "wild": wild})))
    assert "it has no training runs yet" in robust201("status", path).refusal(2)
    result = robust201("train", path)
    assert result.code == 3
    assert "Planned 6 snapshots of 2 training runs: 0 done, 6 missing." in result.err
    for target, trainings in ((path, "; 1 of 2 training runs complete"), (tmp_path / "store", "")):
        result = robust201("status", target)
        assert result.out == f"finished: 3 of 6 snapshots{trainings}; 0 active workers\n"
        assert "failed: EvaluationError: Training failed for #309 on bright" in result.err
    state = json.loads(robust201("status", path, "--json").out)
    assert (state["done"], state["trainings_done"], state["complete"], state["running"]) == (3, 1, False, False)
    assert "exclude each other" in robust201("status", path, "--watch", "--json").refusal(2)


def test_status_reports_steps_before_first_snapshot(
    tmp_path: Path, robust201: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(training_fields(tmp_path, recipes={"plain": RECIPE | {"snapshots": {}}})))
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    make_step = loop._Training._make_step
    texts: list[str] = []
    states: list[TrainingStatus] = []

    def look_and_step(training: Any) -> None:
        deadline = time.monotonic() + 60
        while training.step == 4 and time.monotonic() < deadline:
            states.append(read_training_status(tmp_path / "store"))
            if any(beat.training and beat.training.step == 4 for beat in states[-1].in_progress):
                texts.append(str(console_status.describe_trainings(states[-1])))
                break
        make_step(training)

    monkeypatch.setattr(loop._Training, "_make_step", look_and_step)
    assert robust201("train", path).code == 0
    (beat,) = states[-1].in_progress
    assert beat.training is not None
    steps = beat.training
    assert (steps.begun, steps.last, steps.per_epoch, steps.epoch, steps.epochs) == (0, 6, 3, 2, 2)
    record = CheckpointStore(tmp_path / "store").records()[0]
    assert record.training is not None
    assert steps.loss is not None
    assert steps.accuracy is not None
    assert 0 <= steps.accuracy <= 1
    assert "running: 0 of 1 snapshot" in texts[0]
    (payload,) = states[-1].to_payload()["in_progress"]
    assert (payload["label"], payload["step"], payload["last"]) == ("#309 s0 bright plain", 4, 6)
    assert read_training_status(tmp_path / "store").in_progress == ()


def test_status_watch_waits_for_all_trainings_of_yaml(
    tmp_path: Path, robust201: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(training_fields(tmp_path, recipes={"plain": RECIPE}, seeds=[0, 1])))
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    queued = robust201("status", path, "--watch", "--patience", "0")
    assert queued.code == 3
    assert "not started: 0 of 0 snapshots; 0 of 2 training runs complete; 0 active workers" in queued.out
    assert "No worker has been active for 0 minutes." in queued.err
    assert robust201("train", path, "--limit", "1").code == 0
    # A store alone has only the last run, which had one training.
    assert robust201("status", tmp_path / "store", "--watch", "--patience", "0").code == 0
    assert robust201("status", path, "--watch", "--patience", "0").code == 3

    def train(_seconds: float) -> None:
        assert robust201("train", path).code == 0

    monkeypatch.setattr(time, "sleep", train)
    watched = robust201("status", path, "--watch", "--patience", "10")
    assert watched.code == 0
    assert "finished: 6 of 6 snapshots; 2 of 2 training runs complete" in watched.out.splitlines()[-1]


def test_training_status_shows_running_and_killed_driver(tmp_path: Path) -> None:
    config = make_trainings(tmp_path)

    def look(_progress: RunProgress, _event: Event | None) -> None:
        seen.append(read_training_status(config.store))

    seen: list[TrainingStatus] = []
    run_trainings(config, on_progress=look)
    assert seen[0].state == "running"
    assert f"process {os.getpid()}, since" in str(seen[0].driver)
    assert seen[0].running
    assert not read_training_status(config.store).running

    def die(_progress: RunProgress, event: Event | None) -> None:
        if isinstance(event, Receipt):
            os.kill(os.getpid(), signal.SIGKILL)

    killed_config = make_trainings(tmp_path / "killed")
    assert in_child(lambda: run_trainings(killed_config, on_progress=die)) == -signal.SIGKILL
    for beat in (tmp_path / "killed/store/training/heartbeats").glob("*"):
        os.utime(beat, (0, 0))  # the killed worker has been silent for a long time
    killed = read_training_status(tmp_path / "killed/store")
    assert (tmp_path / "killed/store/training/lease.json").exists()
    assert (killed.state, killed.driver) == ("interrupted", None)
