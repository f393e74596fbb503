"""The training YAML is validated with one-line errors, and training runs are derived from it."""

from typing import Any

import pytest

from robust201.core.errors import ArchitectureError, ConfigError
from robust201.sweep.loading import is_training_yaml, load_training
from robust201.sweep.training_config import TrainingRun
from robust201.sweep.training_plan import estimate_training_runs
from tests.conftest import REPOSITORY
from tests.support.tiny_trainings import RECIPE, make_training_config, write_images, write_training_yaml
from tests.training.support import LIGHT_CELL


def make_recipes(**changes: Any) -> dict[str, Any]:
    return {"plain": RECIPE | changes}


INVALID_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"recipes": {}}, "recipes: "),
    ({"recipe": {}}, "'recipe'"),
    ({"recipes": make_recipes(learning_rat=0.1)}, "'recipes.plain.learning_rat'"),
    ({"recipes": {"2nd": RECIPE}}, "'2nd'"),
    ({"recipes": make_recipes(learning_rate=float("nan"))}, "recipes.plain.learning_rate: "),
    ({"recipes": make_recipes(on=["brigth"])}, "recipes.plain.on: "),
    ({"recipes": make_recipes(data={"mixture": {"robust": "brite", "alpha": 0.5}})}, "plain.data: "),
    ({"recipes": make_recipes(start={"recipe": "plain", "dataset": "bright"})}, "cycle"),
    (
        {
            "datasets": {"bright": {"path": "x", "classes": 2, "image_size": 8}, "digits": {}},
            "recipes": make_recipes(on=["digits"], start={"recipe": "stored", "dataset": "bright"}),
        },
        "recipes.plain.start: bright has 2 classes, but digits has 10",
    ),
    ({"datasets": {"digits": {"train": False}}}, "at least one dataset to train on"),
    ({"seeds": [1, 1]}, "distinct"),
    ({"seeds": [-1]}, "at least 0"),
    ({"seeds": [2**63]}, "at most 9.22"),
    ({"precision": "bf16"}, "precision: "),
    ({"precision": "tf32"}, "tf32"),
]


@pytest.mark.parametrize(("changes", "subject"), INVALID_CONFIGS)
def test_invalid_training_config_gives_one_line_error(tmp_path, changes, subject):
    path = write_training_yaml(tmp_path, **changes)
    with pytest.raises((ConfigError, ArchitectureError)) as error:
        load_training(path)
    message = str(error.value)
    assert subject in message
    assert "\n" not in message
    assert message.startswith("Reading the training YAML failed for ")


# The recipes train on 20 images of digits in batches of 8, so an epoch has 3 steps.
@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"snapshots": {"iterations": [7]}}, "snapshots: "),
        ({"epochs": None, "iterations": 5, "snapshots": {"epochs": [2]}}, "snapshots: "),
        ({"schedule": {"steps": {"at_iterations": [6]}}}, "schedule: "),
        ({"epochs": 10**9 - 1}, "epochs: "),
        ({"batch_size": 21}, "recipes.odd.batch_size: "),
    ],
)
def test_plan_rejects_out_of_range_steps_and_batch_sizes_without_reading_images(tmp_path, robust201, changes, subject):
    odd_recipe = {name: field for name, field in (RECIPE | {"snapshots": {}} | changes).items() if field is not None}
    recipes = {"plain": RECIPE | {"snapshots": {}}, "odd": odd_recipe}
    path = write_training_yaml(tmp_path, datasets={"digits": {}}, images={"count": 20}, recipes=recipes)
    error_line = robust201("plan", path).error_line(exit_code=2)
    assert subject in error_line
    assert "odd on digits" in error_line


def test_training_runs_are_unique_and_resolve_their_start(tmp_path):
    recipes = {"a": RECIPE, "b": RECIPE | {"on": ["digits"], "start": {"recipe": "a", "dataset": "digits"}}}
    datasets = {
        "bright": write_images(tmp_path),
        "digits": {},
        "more": write_images(tmp_path, "more") | {"train": False},
    }
    config = make_training_config(
        tmp_path, datasets=datasets, recipes=recipes, seeds=[0, 1], architectures=[LIGHT_CELL, 21]
    )
    runs = list(config.training_runs())
    assert len(runs) == len(set(runs)) == len({training.digest for training in runs}) == 2 * 2 * (2 + 1)
    assert {training.dataset for training in runs} == {"bright", "digits"}
    assert config.start_of(TrainingRun(21, "digits", "b", 1)) == TrainingRun(21, "digits", "a", 1)
    assert config.start_of(TrainingRun(21, "digits", "a", 1)) is None


def test_example_training_is_planned_without_images(robust201):
    example = REPOSITORY / "jobs/train-digits.yaml"
    assert is_training_yaml(example)
    assert not is_training_yaml(REPOSITORY / "jobs/demo.yaml")
    result = robust201("plan", example)
    assert result.code == 0
    assert "snapshots" in result.out
    summary = estimate_training_runs(load_training(example), list(load_training(example).training_runs()))
    # Two cells, two seeds and two recipes; one recipe has five snapshots in 30 steps, the other has one after 10 steps.
    assert (summary["trainings"], summary["snapshots"], summary["steps"]) == (8, 4 * 5 + 4, 4 * 30 + 4 * 10)


def test_estimate_includes_gradients_of_adversarial_training(tmp_path):
    def estimate_hours(**changes: Any) -> float:
        config = make_training_config(tmp_path, datasets={"digits": {}}, recipes=make_recipes(**changes))
        estimated_hours: float = estimate_training_runs(config, list(config.training_runs()))["estimated_worker_hours"]
        return estimated_hours

    assert estimate_hours(adversarial={"pgd": {"steps": 7}}) == pytest.approx(8 * estimate_hours())
    assert estimate_hours(adversarial={"trades": {"steps": 10}}) == pytest.approx(12 * estimate_hours())


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("yaml_name", "option", "value"),
    [
        ("train-digits", "--keys", "clean"),
        ("train-digits", "--share", "1/2"),
        ("train-digits", "--save", None),
        ("demo", "--recipes", "plain"),
    ],
)
def test_options_that_do_not_apply_to_the_yaml_are_rejected(robust201, tmp_path, command, yaml_name, option, value):
    options = (option,) if value is None else (option, value)
    out = ("--out", tmp_path / "out") if command == "run" else ()
    assert option in robust201(command, REPOSITORY / f"jobs/{yaml_name}.yaml", *options, *out).error_line(exit_code=2)
    assert not list(tmp_path.iterdir())
