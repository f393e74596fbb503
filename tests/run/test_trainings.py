"""Training runs: snapshots, resumption to the same bytes, dependencies, bad input, options and status."""

import json
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from robust201.core.errors import CheckpointError
from robust201.run.lock import hold_lock
from robust201.run.snapshots import folder_of, recorded_steps, saved_steps
from robust201.run.training_status import read_training_status
from robust201.run.trainings import TrainingWork, prepare_training_runs, preview_training_runs
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.training_config import TrainingConfig
from robust201.training import loop
from robust201.weights.store import CheckpointStore
from tests.support.runs import run_trainings
from tests.support.tiny_trainings import (
    RECIPE,
    STEPS,
    hash_weight_files,
    make_training_config,
    write_images,
    write_training_yaml,
)

TUNED_RECIPE = RECIPE | {"epochs": 1, "start": {"recipe": "plain", "dataset": "bright"}, "snapshots": {}}
"""Recipe with one epoch, which starts from the final weights of `RECIPE`."""

N_STEPS = 9
"""Number of steps of both recipes together."""


@pytest.fixture(scope="module")
def uninterrupted_hashes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the hashes of both recipes' weights after an uninterrupted run."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert run_trainings(make_config_with_both_recipes(folder)).is_complete
    return hash_weight_files(folder / "store")


def make_config_with_both_recipes(folder: Path, **changes: Any) -> TrainingConfig:
    return make_training_config(folder, recipes={"tuned": TUNED_RECIPE, "plain": RECIPE}, **changes)


def records_by_recipe_and_step(config: TrainingConfig) -> dict[tuple[str, int | None], Any]:
    checkpoints = CheckpointStore(config.store)
    records = checkpoints.records() if checkpoints.manifest.exists() else ()
    return {(record.recipe, record.steps_done): record for record in records}


def count_missing(config: TrainingConfig) -> int:
    return sum(len(planned.missing) for planned in preview_training_runs(config))


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_snapshots_are_stored_once(tmp_path):
    config = make_training_config(tmp_path)
    assert count_missing(config) == 3
    tally = run_trainings(config)
    assert (tally.is_complete, tally.n_planned, tally.n_done_before, tally.failures) == (True, 2, 0, [])
    records = records_by_recipe_and_step(config)
    assert sorted(records) == [("plain", step) for step in STEPS]
    epochs_and_steps = [(records["plain", step].epochs, records["plain", step].steps) for step in STEPS]
    assert epochs_and_steps == [(0, 2), (1, None), (2, None)]
    assert all(0 <= record.recorded_accuracy <= 1 for record in records.values())
    assert len({record.sha256 for record in records.values()}) == 3
    for record in records.values():
        CheckpointStore(config.store).load(record)
    assert list((config.results / "states").iterdir()) == []
    assert not (config.results / "images").exists()
    rerun = run_trainings(config)
    assert (rerun.is_complete, rerun.n_done_before, rerun.n_parts) == (True, 2, 0)
    assert count_missing(config) == 0


def test_damaged_weights_are_retrained_to_same_bytes(tmp_path):
    config = make_training_config(tmp_path)
    run_trainings(config)
    original_hashes = hash_weight_files(config.store)
    paths = {step: config.store / record.file for (_, step), record in records_by_recipe_and_step(config).items()}
    paths[2].unlink()
    flip_last_byte(paths[3])
    paths[6].write_bytes(paths[6].read_bytes()[:-1])
    assert count_missing(config) == 3
    assert run_trainings(config).is_complete
    assert hash_weight_files(config.store) == original_hashes


def test_additional_snapshots_do_not_change_existing_snapshots(tmp_path):
    run_trainings(make_training_config(tmp_path))
    original_hashes = hash_weight_files(tmp_path / "store")
    extended_recipe = RECIPE | {"snapshots": {"every_epochs": 1, "iterations": [2, 4], "epochs": [0]}}
    assert run_trainings(make_training_config(tmp_path, recipes={"plain": extended_recipe})).is_complete
    hashes = hash_weight_files(tmp_path / "store")
    assert original_hashes.items() < hashes.items()
    assert {name.split("-")[-2] for name in hashes.keys() - original_hashes.keys()} == {"e0", "i4"}


def test_recipe_can_start_from_final_weights_of_another_recipe(tmp_path, uninterrupted_hashes):
    config = make_config_with_both_recipes(tmp_path)
    tally = run_trainings(config)
    assert (tally.is_complete, tally.n_parts, tally.n_planned) == (True, 2, 3)
    assert hash_weight_files(config.store) == uninterrupted_hashes
    assert read_training_status(config.store).complete
    records = records_by_recipe_and_step(config)
    assert records["tuned", 3].inputs["start"] == records["plain", 6].sha256
    config_without_start = make_training_config(tmp_path / "fresh", recipes={"tuned": TUNED_RECIPE | {"start": None}})
    run_trainings(config_without_start)
    assert records_by_recipe_and_step(config_without_start)["tuned", 3].sha256 != records["tuned", 3].sha256


def test_start_weights_must_exist_and_be_intact_and_final(tmp_path):
    tuned_config = make_training_config(tmp_path, recipes={"tuned": TUNED_RECIPE})
    missing_start = r"tuned seed 0.*#309 bright plain seed 0"
    with pytest.raises(CheckpointError, match=missing_start):
        run_trainings(tuned_config)
    misspelt_start = TUNED_RECIPE | {"start": {"recipe": "tund", "dataset": "bright"}}
    with pytest.raises(CheckpointError, match=r"Did you mean 'tuned'\?"):
        run_trainings(make_training_config(tmp_path, recipes={"tuned": misspelt_start}))
    assert not (tmp_path / "store").exists()
    run_trainings(make_training_config(tmp_path))
    final_record = records_by_recipe_and_step(tuned_config)["plain", 6]
    manifest, path = tuned_config.store / "manifest.jsonl", tuned_config.store / final_record.file
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text("".join(line for line in lines if final_record.sha256 not in line))
    for config, recipes in ((make_config_with_both_recipes(tmp_path), ("tuned",)), (tuned_config, None)):
        with pytest.raises(CheckpointError, match=missing_start):
            run_trainings(config, Filters(recipes=recipes))
    manifest.write_text("".join(lines))
    flip_last_byte(path)
    with pytest.raises(CheckpointError, match=r"plain 2 epochs seed 0 .* changed"):
        run_trainings(tuned_config)
    flip_last_byte(path)
    assert run_trainings(tuned_config).is_complete


def test_recipes_can_train_on_mixtures_and_fusions_of_datasets(tmp_path):
    datasets = {"bright": write_images(tmp_path), "more": write_images(tmp_path, "more", seed=1) | {"train": False}}
    data_sections = {
        "mixed": {"mixture": {"robust": "more", "alpha": 0.5}},
        "blended": {"fusion": {"first": "bright", "second": "more", "label": "second"}},
    }
    recipes = {
        name: RECIPE | {"snapshots": {}, "epochs": 1, "data": section} for name, section in data_sections.items()
    }
    config = make_training_config(tmp_path, datasets=datasets, recipes=recipes)
    assert run_trainings(config).is_complete
    assert [(record.recipe, {*record.inputs["data"]}) for record in CheckpointStore(config.store).records()] == [
        ("blended", {"fusion", "normalisation"}),
        ("mixed", {"mixture", "normalisation"}),
    ]


def test_snapshots_can_be_evaluated_by_sweep(tmp_path, robust201):
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


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"recipes": {"plain": RECIPE | {"learning_rate": 0.2}}}, r"recipe\.learning_rate: 0\.1 → 0\.2"),
        ({"execution": {"threads": 2}}, "threads: 1 → 2"),
        ({"images": {"count": 16}}, r"data\.images"),
    ],
)
@pytest.mark.parametrize("is_in_manifest", [True, False])
def test_changed_training_under_the_same_name_is_rejected(tmp_path, changes, difference, is_in_manifest, monkeypatch):
    if not is_in_manifest:  # the driver was killed before it had added the snapshots to the manifest
        monkeypatch.setattr(TrainingWork, "finish", lambda _work, _part, _outcome: ())
    run_trainings(make_training_config(tmp_path))
    monkeypatch.undo()
    hashes = hash_weight_files(tmp_path / "store")
    with pytest.raises(CheckpointError, match=rf"has a different training run under this name \({difference}"):
        run_trainings(make_training_config(tmp_path, **changes))
    assert hash_weight_files(tmp_path / "store") == hashes
    assert run_trainings(make_training_config(tmp_path)).n_parts == 0


def test_diverging_run_fails_and_other_runs_complete(tmp_path):
    recipes = {"tuned": TUNED_RECIPE | {"start": {"recipe": "wild", "dataset": "bright"}}, "plain": RECIPE}
    config = make_training_config(tmp_path, recipes=recipes | {"wild": RECIPE | {"learning_rate": 1e30}})
    messages: list[str] = []
    tally = run_trainings(config, say=messages.append)
    assert not tally.is_complete
    assert sorted(step for recipe, step in records_by_recipe_and_step(config) if recipe == "plain") == list(STEPS)
    (outcome,) = tally.failures
    assert outcome.label == "#309 bright wild seed 0"
    assert "Training failed for #309 on bright: the loss diverged" in outcome.failure
    assert "\n" not in outcome.failure
    assert any("start weights are missing: 1, such as #309 bright tuned seed 0" in message for message in messages)


def test_train_rejects_bad_images_before_writing(tmp_path, robust201):
    training_yaml, path = write_training_yaml(tmp_path), tmp_path / "bright/train.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, images=arrays["images"], labels=arrays["labels"] + 1)
    robust201("run", training_yaml).error_line(exit_code=2)
    assert not (tmp_path / "store").exists()


# --- interruptions ----------------------------------------------------------------------------------------------------


def signal_after(n_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send SIGTERM to this process after a number of training steps."""
    make_step, n_made = loop._TrainingRun._make_step, 0

    def make_step_and_signal(training: loop._TrainingRun) -> None:
        nonlocal n_made
        make_step(training)
        n_made += 1
        if n_made == n_steps:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop._TrainingRun, "_make_step", make_step_and_signal)


@pytest.mark.parametrize("n_steps", range(1, N_STEPS))
def test_drained_run_resumes_to_same_bytes(tmp_path, uninterrupted_hashes, n_steps, monkeypatch):
    config = make_config_with_both_recipes(tmp_path)
    signal_after(n_steps, monkeypatch)
    tally = run_trainings(config)
    assert (tally.is_drained, tally.is_complete) == (True, False)
    # A signal during a recipe's last step does not prevent the final snapshot and epoch.
    assert tally.n_done == n_steps // 3
    assert sorted(step for recipe, step in records_by_recipe_and_step(config) if recipe == "plain") == [
        step for step in STEPS if step <= n_steps
    ]
    rerun = run_trainings(config)
    assert (rerun.is_complete, rerun.n_done_before) == (True, n_steps // 3)
    assert hash_weight_files(config.store) == uninterrupted_hashes


def call_in_child(function: Callable[[], object]) -> int:
    """Call a function in a forked process, and return its exit code, which is negative for a signal."""
    child = os.fork()
    if not child:
        try:
            function()
        except BaseException:  # noqa: BLE001 - the exit code reports the error
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_and_die(config: TrainingConfig, n_calls: int) -> None:
    """Train, and kill the process at the n-th call of `os.fsync`, which is just before or after a file is renamed."""

    def count_or_die(_descriptor: int) -> None:
        nonlocal n_calls
        n_calls -= 1
        if not n_calls:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = count_or_die
    assert run_trainings(config).is_complete


def test_run_killed_at_random_times_gives_same_bytes(tmp_path, uninterrupted_hashes):
    generator = random.Random(1)
    config = make_config_with_both_recipes(tmp_path)
    exit_codes = []
    while not exit_codes or exit_codes[-1] != 0:
        n_calls = generator.randint(1, 12)
        exit_codes.append(call_in_child(lambda n_calls=n_calls: run_and_die(config, n_calls)))  # type: ignore[misc]
        assert exit_codes[-1] in {0, -signal.SIGKILL}
        assert len(exit_codes) < 40
    assert exit_codes.count(-signal.SIGKILL) > 2
    assert run_trainings(config).n_parts == 0
    assert hash_weight_files(config.store) == uninterrupted_hashes


def test_snapshots_of_a_lost_worker_are_not_trained_again(tmp_path, monkeypatch):
    config = make_training_config(tmp_path)
    with prepare_training_runs(config, EVERYTHING, lambda _line: None) as work:
        (part,) = work.parts
        folder = folder_of(config.results, part.folder_name)
        work.start_worker().compute(part, lambda: bool(recorded_steps(folder)))
        assert recorded_steps(folder) == STEPS[:1]
        assert work.find_stored(part) is None
        monkeypatch.setattr(CheckpointStore, "write", forbid(CheckpointStore.write, "steps", 2))
        outcome = work.start_worker().compute(part, lambda: False)
        assert outcome.strengths == STEPS
        assert work.find_stored(part) is not None
        assert not work.finish(part, outcome)
        assert work.n_done == work.n_planned == 2
    assert sorted(records_by_recipe_and_step(config)) == [("plain", step) for step in STEPS]


def test_time_left_is_estimated_from_finished_epochs_every_ten_seconds(tmp_path, monkeypatch):
    config, now = make_training_config(tmp_path, recipes={"plain": RECIPE | {"snapshots": {}}}), [100.0]
    monkeypatch.setattr("robust201.run.trainings.time", SimpleNamespace(monotonic=lambda: now[0]))
    with prepare_training_runs(config, EVERYTHING, lambda _line: None) as work:
        (part,) = work.parts
        work.start_worker().compute(part, lambda: any(saved_steps(config.results).values()))  # one of two epochs
        estimates = []
        for seconds in (5.0, 15.0, 5.0):
            now[0] += seconds
            estimates.append((work.seconds_left(1), work.n_done))
        assert estimates == [(None, 0), (20.0, 1), (20.0, 1)]
        assert work.seconds_left(0) is None


def test_missing_test_images_are_reported(tmp_path):
    config, messages = make_config_with_both_recipes(tmp_path), list[str]()
    (tmp_path / "bright/test.npz").unlink()
    assert run_trainings(config, say=messages.append).is_complete
    assert len([line for line in messages if line.startswith("Test accuracies will not be computed")]) == 1


def forbid(function: Callable[..., Any], name: str, value: object) -> Callable[..., Any]:
    """Return a wrapper of a function that fails if the argument `name` has this value."""

    def call(*arguments: Any, **options: Any) -> Any:
        assert options[name] != value
        return function(*arguments, **options)

    return call


# --- commands --------------------------------------------------------------------------------------------------


def test_commands_count_epochs_and_report_failures(tmp_path, robust201):
    path = write_training_yaml(tmp_path, recipes={"plain": RECIPE, "wild": RECIPE | {"learning_rate": 1e30}})
    assert "no training runs yet" in robust201("status", path).error_line(exit_code=2)
    result = robust201("run", path)
    assert result.code == 3
    assert "Planned 4 epochs: 0 done, 4 missing." in result.err
    for target in (path, tmp_path / "store"):
        result = robust201("status", target)
        assert "2 of 4 epochs; 1 of 2 training runs complete" in result.out
        assert "failed: #309 bright wild seed 0: EvaluationError: Training failed for #309 on bright" in result.out
    status = json.loads(robust201("status", path, "--json").out)
    assert (status["n_done"], status["n_trainings_done"], status["complete"]) == (2, 1, False)
    assert "--watch excludes" in robust201("status", path, "--watch", "--json").error_line(exit_code=2)


def test_snapshots_added_between_plan_and_lock_are_not_trained_again(tmp_path, monkeypatch):
    config = make_training_config(tmp_path)
    with monkeypatch.context() as patch:

        def add_snapshots(folder: Path) -> Any:
            patch.undo()
            assert run_trainings(config).is_complete
            return hold_lock(folder)

        patch.setattr("robust201.run.trainings.hold_lock", add_snapshots)
        with prepare_training_runs(config, EVERYTHING, lambda _line: None) as work:
            assert (list(work.parts), work.n_done) == ([], work.n_planned)


def test_train_prints_test_accuracies_of_finished_runs(tmp_path, robust201):
    recipe = {"epochs": 1, "batch_size": 20, "learning_rate": 0.1, "weight_decay": 0, "schedule": {"cosine": {}}}
    path = write_training_yaml(tmp_path, recipes={"plain": recipe, "other": recipe | {"learning_rate": 0.2}})
    one_recipe_result = robust201("run", path, "--recipes", "plain")
    (line,) = [line for line in one_recipe_result.err.splitlines() if "test accuracy" in line]
    assert re.match(r"#309 bright plain 1 epoch seed 0: test accuracy 0\.\d{4}$", line)
    all_recipes_result = robust201("run", path)
    assert sum("test accuracy" in line for line in all_recipes_result.err.splitlines()) == 2


def test_options_select_training_runs(tmp_path, robust201):
    datasets = {"bright": write_images(tmp_path), "more": write_images(tmp_path, "more", seed=1)}
    recipes = {"plain": RECIPE, "rare": RECIPE | {"on": ["more"]}}
    path = write_training_yaml(tmp_path, architectures=[0, 21], datasets=datasets, recipes=recipes)
    for option, value in (("--architectures", "5"), ("--datasets", "moer"), ("--recipes", "plian")):
        assert value in robust201("run", path, option, value).error_line(exit_code=2)
    robust201("run", path, "--datasets", "bright", "--recipes", "rare").error_line(exit_code=2)
    assert not (tmp_path / "store").exists()
    selection = ("--architectures", "21", "--datasets", "bright")
    assert json.loads(robust201("plan", path, *selection, "--json").out)["trainings"] == 1
    assert robust201("run", path, *selection).code == 0
    records = CheckpointStore(tmp_path / "store").records()
    assert {(record.index, record.dataset, record.recipe) for record in records} == {(21, "bright", "plain")}
