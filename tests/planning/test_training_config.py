"""The training YAML is validated with one-line errors, and training runs are derived from it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.planning.loading import is_training_yaml, load_training
from robust201.planning.training_config import Training
from robust201.planning.training_plan import estimate_trainings
from tests.conftest import REPOSITORY, RunCommand
from tests.support.tiny_trainings import RECIPE, make_training_config, training_fields, write_images
from tests.training.support import ONE_CONVOLUTION


def make_recipes(**changes: Any) -> dict[str, Any]:
    return {"plain": RECIPE | changes}


# `extra_datasets` and `trains_on_bright` are not fields: the test changes the section `datasets` accordingly.
INVALID_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no recipes": ({"recipes": {}}, "recipes: expected 1 or more entries"),
    "unknown field of a recipe": (
        {"recipes": make_recipes(learning_rat=0.1)},
        r"got 'recipes\.plain\.learning_rat'\. Did you mean 'learning_rate'\?",
    ),
    "invalid recipe name": ({"recipes": {"2nd": RECIPE}}, "begin with a letter, got '2nd'"),
    "epochs and iterations": (
        {"recipes": make_recipes(iterations=3)},
        r"recipes\.plain: set exactly one of epochs and iterations",
    ),
    "NaN learning rate": (
        {"recipes": make_recipes(learning_rate=float("nan"))},
        r"recipes\.plain\.learning_rate: expected a finite number, got nan\.",
    ),
    "infinite weight decay": (
        {"recipes": make_recipes(weight_decay=float("inf"))},
        r"recipes\.plain\.weight_decay: expected a finite number, got inf\.",
    ),
    "snapshot after the end": (
        {"recipes": make_recipes(snapshots={"epochs": [3]})},
        "ends after 2 epochs, but a snapshot is due after 3",
    ),
    "unknown dataset in `on`": (
        {"recipes": make_recipes(on=["brigth"])},
        r"recipes\.plain\.on: .*got 'brigth'\. Did you mean 'bright'\?",
    ),
    "empty `on`": ({"recipes": make_recipes(on=[])}, r"recipes\.plain\.on: expected at least one dataset"),
    "unknown dataset in mixture": (
        {"recipes": make_recipes(data={"mixture": {"robust": "brite", "alpha": 0.5}})},
        r"recipes\.plain\.data\.mixture\.robust: expected one of `datasets`, got 'brite'\. Did you mean 'bright'\?",
    ),
    "class count mismatch in mixture": (
        {
            "recipes": make_recipes(data={"mixture": {"robust": "digits", "alpha": 0.5}}, on=["bright"]),
            "extra_datasets": ["digits"],
        },
        r"plain\.data\.mixture\.robust: `classes` of bright is 2, but `classes` of digits is 10\.",
    ),
    "cyclic start": (
        {"recipes": make_recipes(start={"recipe": "plain", "dataset": "bright"})},
        "starts must not form a cycle, got plain on bright from plain on bright",
    ),
    "unknown dataset in start": (
        {"recipes": make_recipes() | {"tuned": RECIPE | {"start": {"recipe": "plain", "dataset": "digits"}}}},
        r"recipes\.tuned\.start\.dataset: expected a dataset of the recipe plain, got 'digits'",
    ),
    "class count mismatch in start": (
        {
            "recipes": make_recipes()
            | {"tuned": RECIPE | {"start": {"recipe": "plain", "dataset": "digits"}, "on": ["bright"]}},
            "extra_datasets": ["digits"],
        },
        r"recipes\.tuned\.start: digits has 10 classes, but bright has 2\.",
    ),
    "no dataset to train on": ({"trains_on_bright": False}, "at least one dataset to train on"),
    "duplicate seeds": ({"seeds": [1, 1]}, "distinct numbers"),
    "negative seed": ({"seeds": [-1]}, "at least 0"),
    "seed beyond 64 bits": ({"seeds": [2**63]}, r"at most 9\.22"),
    "unknown architecture": ({"architectures": [99999]}, "Looking up an architecture failed|expected"),
    "unknown field": ({"recipe": {}}, r"expected a known field, got 'recipe'\. Did you mean 'recipes'\?"),
    "unknown precision": ({"precision": "bf16"}, "precision: expected 'fp32' or 'tf32', got 'bf16'"),
    "tf32 on a CPU": ({"precision": "tf32"}, "CPUs do not support tf32"),
}


@pytest.mark.parametrize("case", INVALID_CONFIGS)
def test_invalid_training_config_gives_one_line_error(tmp_path: Path, case: str) -> None:
    changes, message = INVALID_CONFIGS[case]
    fields = training_fields(tmp_path, **changes)
    fields["datasets"] |= {dataset: {} for dataset in fields.pop("extra_datasets", [])}
    if not fields.pop("trains_on_bright", True):
        fields["datasets"]["bright"]["train"] = False
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(fields))
    with pytest.raises((ConfigError, ArchitectureError), match=message) as error:
        load_training(path)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("Reading the training YAML failed for ")
    assert message.endswith("docs/training.md explains every field.")


# The recipes train on 20 images of digits, which are 3 steps per epoch.
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"snapshots": {"iterations": [7]}},
            r"snapshots: training ends after 6 steps \(3 per epoch\), but a snapshot is due after step 7\.",
        ),
        (
            {"epochs": None, "iterations": 5, "snapshots": {"epochs": [2]}},
            r"snapshots: training ends after 5 steps \(3 per epoch\), but a snapshot is due after step 6\.",
        ),
        (
            {"schedule": {"steps": {"at_iterations": [6]}}},
            r"schedule: training ends after 6 steps .*, but the learning rate drops at step 6\.",
        ),
        (
            {"epochs": None, "iterations": 6, "schedule": {"steps": {"at_epochs": [2.5]}}},
            r"schedule: .*, but the learning rate drops at step 7\.5\.",
        ),
        ({"epochs": 10**9 - 1}, r"epochs: 2,999,999,997 steps \(3 per epoch\) exceed the maximum of 999,999,999"),
        ({"batch_size": 21}, r"recipes\.odd\.batch_size: expected at most 20, the number of training images"),
    ],
)
def test_plan_rejects_out_of_range_steps_and_batch_sizes_without_reading_images(
    tmp_path: Path, robust201: RunCommand, changes: dict[str, Any], message: str
) -> None:
    odd_recipe = {name: field for name, field in (RECIPE | {"snapshots": {}} | changes).items() if field is not None}
    recipes = {"plain": RECIPE | {"snapshots": {}}, "odd": odd_recipe}
    fields = training_fields(tmp_path, datasets={"digits": {}}, images={"count": 20}, recipes=recipes)
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(fields))
    error_line = robust201("plan", path).error_line(2)
    assert re.search(message, error_line), error_line
    assert "odd on digits" in error_line


def test_export_rejects_training_yaml(robust201: RunCommand, tmp_path: Path) -> None:
    result = robust201("export", REPOSITORY / "jobs/train-digits.yaml", "--out", tmp_path / "out")
    assert "expected a sweep, got a training YAML" in result.error_line(2)
    assert not list(tmp_path.iterdir())


def test_yaml_boolean_field_names_are_read_as_strings(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(
        yaml.safe_dump(training_fields(tmp_path, recipes=make_recipes(on=["bright"]))).replace("'on':", "on:")
    )
    assert " on:" in path.read_text()
    assert load_training(path).recipes["plain"].on == ("bright",)


def test_training_runs_are_unique_and_resolve_their_start(tmp_path: Path) -> None:
    recipes = {"a": RECIPE, "b": RECIPE | {"on": ["digits"], "start": {"recipe": "a", "dataset": "digits"}}}
    datasets = {
        "bright": write_images(tmp_path),
        "digits": {},
        "more": write_images(tmp_path, "more") | {"train": False},
    }
    config = make_training_config(
        tmp_path, datasets=datasets, recipes=recipes, seeds=[0, 1], architectures=[ONE_CONVOLUTION, 21]
    )
    trainings = list(config.trainings())
    assert len(trainings) == len(set(trainings)) == len({training.digest for training in trainings}) == 2 * 2 * (2 + 1)
    assert {training.dataset for training in trainings} == {"bright", "digits"}
    assert config.start_of(Training(21, "digits", "b", 1)) == Training(21, "digits", "a", 1)
    assert config.start_of(Training(21, "digits", "a", 1)) is None


def test_example_training_is_planned_without_images(robust201: RunCommand) -> None:
    example = REPOSITORY / "jobs/train-digits.yaml"
    assert is_training_yaml(example)
    assert not is_training_yaml(REPOSITORY / "jobs/demo.yaml")
    result = robust201("plan", example)
    assert result.code == 0
    assert "snapshots" in result.out
    summary = estimate_trainings(load_training(example), list(load_training(example).trainings()))
    # Two cells, two seeds and two recipes; one recipe has five snapshots in 30 steps, the other has one after 10 steps.
    assert (summary["trainings"], summary["snapshots"], summary["steps"]) == (8, 4 * 5 + 4, 4 * 30 + 4 * 10)


def test_estimate_includes_gradients_of_adversarial_training(tmp_path: Path) -> None:
    def estimate_hours(**changes: Any) -> float:
        config = make_training_config(tmp_path, datasets={"digits": {}}, recipes=make_recipes(**changes))
        estimated_hours: float = estimate_trainings(config, list(config.trainings()))["estimated_worker_hours"]
        return estimated_hours

    assert estimate_hours(adversarial={"pgd": {"steps": 7}}) == pytest.approx(8 * estimate_hours())
    assert estimate_hours(adversarial={"trades": {"steps": 10}}) == pytest.approx(12 * estimate_hours())


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("yaml_name", "option", "value"),
    [
        ("train-digits", "--architectures", "0"),
        ("train-digits", "--datasets", "digits"),
        ("train-digits", "--keys", "clean"),
        ("train-digits", "--share", "1/2"),
        ("train-digits", "--save", None),
        ("demo", "--recipes", "plain"),
    ],
)
def test_options_that_do_not_apply_to_the_yaml_are_rejected(
    robust201: RunCommand, tmp_path: Path, command: str, yaml_name: str, option: str, value: str | None
) -> None:
    options = (option,) if value is None else (option, value)
    out = ("--out", tmp_path / "out") if command == "run" else ()
    assert option in robust201(command, REPOSITORY / f"jobs/{yaml_name}.yaml", *options, *out).error_line(2)
    assert not list(tmp_path.iterdir())


def test_run_suggests_recipe(robust201: RunCommand, tmp_path: Path) -> None:
    command = ("run", REPOSITORY / "jobs/train-digits.yaml", "--out", tmp_path / "out", "--recipes", "plan")
    assert "Did you mean 'plain'" in robust201(*command).error_line(2)
