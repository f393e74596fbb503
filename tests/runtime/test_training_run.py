"""Training runs: completion, resumption to the same bytes, draining, one-line errors, and status."""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from robust201.core.errors import CheckpointError
from robust201.core.records import Receipt
from robust201.planning.training_plan import TrainingWork
from robust201.runtime.executors.base import BundleLost, Event
from robust201.runtime.executors.inline import InlineExecutor
from robust201.runtime.progress import RunProgress, read_progress
from robust201.runtime.training_run import ALL_TRAININGS, TrainingSelection, preview_trainings, run_trainings
from robust201.runtime.training_worker import TrainingWorker
from robust201.sweep.training_config import TrainingConfig
from robust201.weights.store import CheckpointStore
from tests.conftest import RunCommand
from tests.support.tiny_trainings import (
    RECIPE,
    STEPS,
    hash_weight_files,
    make_training_config,
    training_fields,
    write_images,
)

TUNED_RECIPE = RECIPE | {"epochs": 1, "start": {"recipe": "plain", "dataset": "bright"}, "snapshots": {}}


@pytest.fixture(scope="module")
def uninterrupted_hashes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the hashes of both recipes' weights after an uninterrupted run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert run_trainings(make_config_with_both_recipes(folder)).complete
    return hash_weight_files(folder / "store")


def make_config_with_both_recipes(folder: Path, **changes: Any) -> TrainingConfig:
    return make_training_config(folder, recipes={"tuned": TUNED_RECIPE, "plain": RECIPE}, **changes)


def records_by_recipe_and_step(config: TrainingConfig) -> dict[tuple[str, int | None], Any]:
    return {(record.recipe, record.steps_done): record for record in CheckpointStore(config.store).records()}


def test_run_trainings_stores_snapshots_once(tmp_path: Path) -> None:
    config = make_training_config(tmp_path)
    previews = []
    tally = run_trainings(config, on_preview=previews.append)
    assert tally.complete
    assert (tally.results, tally.evaluations, tally.failures) == (3, 3, [])
    assert (previews[0].n_evaluations, previews[0].n_done) == (3, 0)
    records = records_by_recipe_and_step(config)
    assert sorted(records) == [("plain", step) for step in STEPS]
    assert [(records["plain", step].epochs, records["plain", step].steps) for step in STEPS] == [
        (0, 2),
        (1, None),
        (2, None),
    ]
    assert all(0 <= record.recorded_accuracy <= 1 for record in records.values())
    assert len({record.sha256 for record in records.values()}) == 3
    for record in records.values():
        CheckpointStore(config.store).load(record)
    assert list((config.results / "states").iterdir()) == []
    assert not (config.results / "lease.json").exists()
    assert not (config.results / "images").exists()
    progress = read_progress(config.results)
    assert (progress["state"], progress["done_evaluations"], progress["total_evaluations"]) == ("finished", 3, 3)
    rerun = run_trainings(config)
    assert (rerun.complete, rerun.results) == (True, 0)
    assert preview_trainings(config).n_done == 3


def test_damaged_weights_are_retrained_to_same_bytes(tmp_path: Path) -> None:
    config = make_training_config(tmp_path)
    run_trainings(config)
    original_hashes = hash_weight_files(config.store)
    records = records_by_recipe_and_step(config)
    (config.store / records["plain", 2].file).unlink()
    truncated_file = config.store / records["plain", 6].file
    truncated_file.write_bytes(truncated_file.read_bytes()[:-1])
    flipped_file = config.store / records["plain", 3].file
    content = bytearray(flipped_file.read_bytes())
    content[-1] ^= 1
    flipped_file.write_bytes(content)
    assert preview_trainings(config).n_done == 0
    assert run_trainings(config).results == 3
    assert hash_weight_files(config.store) == original_hashes


def test_changed_start_weights_are_rejected_before_training(tmp_path: Path) -> None:
    run_trainings(make_training_config(tmp_path))
    config = make_training_config(tmp_path, recipes={"tuned": TUNED_RECIPE})
    path = config.store / records_by_recipe_and_step(config)["plain", 6].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"Loading weights failed for .* plain 2 epochs seed 0 .* changed"):
        run_trainings(config)


def test_additional_snapshots_do_not_change_existing_snapshots(tmp_path: Path) -> None:
    run_trainings(make_training_config(tmp_path))
    original_hashes = hash_weight_files(tmp_path / "store")
    extended_recipe = RECIPE | {"snapshots": {"every_epochs": 1, "iterations": [2, 4], "epochs": [0]}}
    config = make_training_config(tmp_path, recipes={"plain": extended_recipe})
    assert run_trainings(config).results == 2
    hashes = hash_weight_files(config.store)
    assert original_hashes.items() < hashes.items()
    assert {name.split("-")[-2] for name in hashes.keys() - original_hashes.keys()} == {"e0", "i4"}


def test_recipe_can_start_from_final_weights_of_another_recipe(
    tmp_path: Path, uninterrupted_hashes: dict[str, str]
) -> None:
    config = make_config_with_both_recipes(tmp_path)
    tally = run_trainings(config)
    assert (tally.complete, tally.results) == (True, 4)
    assert hash_weight_files(config.store) == uninterrupted_hashes
    records = records_by_recipe_and_step(config)
    tuned_record = records["tuned", 3]
    assert tuned_record.inputs["start"] == records["plain", 6].sha256
    # Without the start weights, the final weights differ.
    config_without_start = make_training_config(tmp_path / "fresh", recipes={"tuned": TUNED_RECIPE | {"start": None}})
    run_trainings(config_without_start)
    assert records_by_recipe_and_step(config_without_start)["tuned", 3].sha256 != tuned_record.sha256


def test_start_weights_are_read_from_store_and_must_exist(tmp_path: Path) -> None:
    tuned_config = make_training_config(tmp_path, recipes={"tuned": TUNED_RECIPE})
    with pytest.raises(CheckpointError, match=r"tuned seed 0.*#309 bright plain seed 0"):
        run_trainings(tuned_config)
    assert not (tmp_path / "store").exists()
    run_trainings(make_training_config(tmp_path))
    assert run_trainings(tuned_config).complete


def test_start_weights_must_be_final_snapshot(tmp_path: Path) -> None:
    run_trainings(make_training_config(tmp_path))
    tuned_config = make_training_config(tmp_path, recipes={"tuned": TUNED_RECIPE})
    final_hash = records_by_recipe_and_step(tuned_config)["plain", 6].sha256
    manifest = tuned_config.store / "manifest.jsonl"
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(line for line in lines if final_hash not in line))
    both_config = make_config_with_both_recipes(tmp_path)
    for config, selection in ((both_config, TrainingSelection(("tuned",))), (tuned_config, ALL_TRAININGS)):
        with pytest.raises(CheckpointError, match=r"tuned seed 0.*#309 bright plain seed 0"):
            run_trainings(config, selection=selection)
    assert {recipe for recipe, _ in records_by_recipe_and_step(both_config)} == {"plain"}


def test_changed_recipe_with_same_name_is_rejected(tmp_path: Path) -> None:
    run_trainings(make_training_config(tmp_path))
    original_hashes = hash_weight_files(tmp_path / "store")
    changed_config = make_training_config(tmp_path, recipes={"plain": RECIPE | {"learning_rate": 0.2}})
    with pytest.raises(CheckpointError, match=r"\(recipe\.learning_rate: 0\.1 → 0\.2\)\. Rename the recipe"):
        run_trainings(changed_config)
    with pytest.raises(CheckpointError, match=r"has a different training run under this name \(threads: 1 → 2\)"):
        run_trainings(make_training_config(tmp_path, execution={"threads": 2}))
    assert hash_weight_files(tmp_path / "store") == original_hashes


def test_snapshots_can_be_evaluated_by_sweep(tmp_path: Path, robust201: RunCommand) -> None:
    run_trainings(make_training_config(tmp_path))
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
    weights_by_name = json.loads((tmp_path / "out/sweep.json").read_text())["weights"]
    assert [(name, weights["epochs"], weights["steps"]) for name, weights in weights_by_name.items()] == [
        ("plain-i2-s0", None, 2),
        ("plain-e1-s0", 1, 3),
        ("plain-e2-s0", 2, 6),
    ]


# --- errors ----------------------------------------------------------------------------------------------------


def test_diverging_training_run_gives_one_line_error_and_other_runs_complete(tmp_path: Path) -> None:
    recipes = {"tuned": TUNED_RECIPE | {"start": {"recipe": "wild", "dataset": "bright"}}, "plain": RECIPE}
    config = make_training_config(tmp_path, recipes=recipes | {"wild": RECIPE | {"learning_rate": 1e30}})
    messages: list[str] = []
    tally = run_trainings(config, say=messages.append)
    assert not tally.complete
    assert sorted(step for recipe, step in records_by_recipe_and_step(config) if recipe == "plain") == list(STEPS)
    (failure,) = tally.failures
    assert failure.part.label == "#309 s0 bright wild"
    assert failure.message.count("\n") == 0
    assert "Training failed for #309 on bright: the loss diverged" in failure.message
    assert "Lower the learning rate (1e+30)." in failure.message
    assert tally.remaining == 1  # the training run that starts from the diverged run's weights
    assert any("start weights are missing: 1, such as #309 bright tuned seed 0" in message for message in messages)


@pytest.mark.parametrize("damage", ["absent", "truncated", "label"])
def test_train_rejects_bad_images_before_writing(tmp_path: Path, robust201: RunCommand, damage: str) -> None:
    fields = training_fields(tmp_path)
    path = Path(fields["datasets"]["bright"]["path"]) / "train.npz"
    if damage == "absent":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    else:
        with np.load(path) as archive:
            arrays = dict(archive)
        np.savez(path, images=arrays["images"], labels=arrays["labels"] + 1)
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(fields))
    robust201("run", tmp_path / "train.yaml").error_line(2)
    assert not (tmp_path / "store").exists()


def test_recipes_can_train_on_mixtures_and_fusions_of_datasets(tmp_path: Path) -> None:
    datasets = {"bright": write_images(tmp_path), "more": write_images(tmp_path, "more", seed=1) | {"train": False}}
    data_sections = {
        "mixed": {"mixture": {"robust": "more", "alpha": 0.5}},
        "blended": {"fusion": {"first": "bright", "second": "more", "label": "second"}},
    }
    recipes = {
        name: RECIPE | {"snapshots": {}, "epochs": 1, "data": section} for name, section in data_sections.items()
    }
    config = make_training_config(tmp_path, datasets=datasets, recipes=recipes)
    assert run_trainings(config).complete
    records = CheckpointStore(config.store).records()
    assert [record.recipe for record in records] == ["blended", "mixed"]
    assert [{*record.inputs["data"]} for record in records if record.training] == [
        {"fusion", "normalisation"},
        {"mixture", "normalisation"},
    ]


# --- interruptions ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.ray)])
def execution(request: pytest.FixtureRequest) -> dict[str, object]:
    """Return the section `execution` of the training YAML, for each executor."""
    if request.param == "inline":
        return {"executor": "inline"}
    return {"executor": "ray", "workers": 1, "ray_address": request.getfixturevalue("ray_address")}


def test_drained_training_resumes_to_same_bytes(
    tmp_path: Path, uninterrupted_hashes: dict[str, str], execution: dict[str, object]
) -> None:
    interrupted_receipts: list[Event] = []

    def interrupt(_progress: RunProgress, event: Event | None) -> None:
        if isinstance(event, Receipt) and not interrupted_receipts:
            interrupted_receipts.append(event)
            signal.raise_signal(signal.SIGTERM)

    # The signal arrives after the first snapshot, in the middle of a training run.
    tally = run_trainings(make_config_with_both_recipes(tmp_path, execution=execution), on_progress=interrupt)
    assert tally.drained
    assert not tally.complete
    assert run_trainings(make_config_with_both_recipes(tmp_path)).complete
    assert hash_weight_files(tmp_path / "store") == uninterrupted_hashes


def call_and_exit(function: Callable[[], object]) -> None:
    """Call a function in a forked process, and end the process, so that pytest does not continue in it."""
    try:
        function()
    except BaseException:  # noqa: BLE001 - the exit code reports the error
        os._exit(1)
    os._exit(0)


def call_in_child(function: Callable[[], object]) -> int:
    """Call a function in a forked process, and return the exit code, which is negative for a signal."""
    child = os.fork()
    if not child:
        call_and_exit(function)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_and_die(config: TrainingConfig, n_calls: int) -> None:
    """Train, and kill the process at the n-th call of `os.fsync`, which is just before or after a file is renamed."""

    def count_or_die(_descriptor: int) -> None:
        nonlocal n_calls
        n_calls -= 1
        if not n_calls:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = count_or_die
    assert run_trainings(config).complete


def test_training_run_killed_at_random_times_gives_same_bytes(
    tmp_path: Path, uninterrupted_hashes: dict[str, str]
) -> None:
    generator = random.Random(1)
    config = make_config_with_both_recipes(tmp_path)
    exit_codes = []
    while not exit_codes or exit_codes[-1] != 0:
        n_calls = generator.randint(1, 24)
        exit_codes.append(call_in_child(lambda n_calls=n_calls: run_and_die(config, n_calls)))  # type: ignore[misc]
        assert exit_codes[-1] in {0, -signal.SIGKILL}
        assert len(exit_codes) < 30
    assert exit_codes.count(-signal.SIGKILL) > 2
    assert run_trainings(config).results == 0
    assert hash_weight_files(config.store) == uninterrupted_hashes


class LosingExecutor(InlineExecutor):
    """Executor whose worker dies once, after storing a snapshot and before reporting it."""

    def __init__(self, work: TrainingWork, lost_receipts: list[Receipt]) -> None:
        super().__init__(TrainingWorker(work).run)
        self._lost_receipts = lost_receipts

    def poll(self, timeout: float) -> list[Event]:
        events = super().poll(timeout)
        if self._lost_receipts or not isinstance(events[0], Receipt) or self._current is None:
            return events
        self._lost_receipts.append(events[0])
        bundle, self._current = self._current[0], None
        return [BundleLost(bundle, was_started=True, preempted=False, reason="killed")]


def test_snapshot_that_a_lost_worker_did_not_report_is_computed_again(
    tmp_path: Path, uninterrupted_hashes: dict[str, str]
) -> None:
    config = make_config_with_both_recipes(tmp_path)
    lost_receipts: list[Receipt] = []
    reported_files: list[str] = []
    tally = run_trainings(
        config,
        lambda work: LosingExecutor(work, lost_receipts),
        on_progress=lambda _progress, event: reported_files.append(event.shard) if isinstance(event, Receipt) else None,
    )
    assert (tally.complete, tally.deaths, tally.results) == (True, 1, 4)
    assert lost_receipts[0].shard in reported_files
    assert len(reported_files) == len(set(reported_files)) == 4
    assert hash_weight_files(config.store) == uninterrupted_hashes


def test_training_selection_limits_run(tmp_path: Path) -> None:
    config = make_config_with_both_recipes(tmp_path)
    tally = run_trainings(config, selection=TrainingSelection(("plain",)))
    assert (tally.complete, tally.results) == (True, 3)
    assert {record.recipe for record in CheckpointStore(config.store).records()} == {"plain"}


def test_status_counts_complete_training_runs_and_reports_failures(tmp_path: Path, robust201: RunCommand) -> None:
    path = tmp_path / "train.yaml"
    diverging_recipe = RECIPE | {"learning_rate": 1e30}
    path.write_text(yaml.safe_dump(training_fields(tmp_path, recipes={"plain": RECIPE, "wild": diverging_recipe})))
    assert "it has no training runs yet" in robust201("status", path).error_line(2)
    result = robust201("run", path)
    assert result.code == 3
    assert "Planned 6 snapshots of 2 training runs: 0 done, 6 missing." in result.err
    for target, trainings_text in ((path, "; 1 of 2 training runs complete"), (tmp_path / "store", "")):
        result = robust201("status", target)
        assert result.out == f"finished: 3 of 6 snapshots{trainings_text}; 0 active workers\n"
        assert "failed: EvaluationError: Training failed for #309 on bright" in result.err
    status = json.loads(robust201("status", path, "--json").out)
    assert (status["done"], status["trainings_done"], status["complete"], status["running"]) == (3, 1, False, False)
    assert "mutually exclusive" in robust201("status", path, "--watch", "--json").error_line(2)
