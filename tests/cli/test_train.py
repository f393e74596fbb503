"""`robust201 run` prints the test accuracies of finished training runs."""

import re
from pathlib import Path

import yaml

from tests.conftest import RunCommand


def test_train_prints_test_accuracies_of_finished_runs(tmp_path: Path, robust201: RunCommand) -> None:
    recipe = {"epochs": 1, "batch_size": 20, "learning_rate": 0.1, "weight_decay": 0, "schedule": {"cosine": {}}}
    trainings = {
        "name": "tiny",
        "space": "zoo",
        "store": str(tmp_path / "store"),
        "architectures": ["fc7500-w8"],
        "datasets": {"digits": {}},
        "images": {"count": 40},
        "recipes": {"plain": recipe, "other": recipe | {"learning_rate": 0.2}},
        "execution": {"executor": "inline", "device": "cpu"},
    }
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(trainings))
    one_recipe_result = robust201("run", path, "--recipes", "plain")
    (line,) = [line for line in one_recipe_result.err.splitlines() if "test accuracy" in line]
    assert re.match(r"fc7500-w8 digits plain 1 epoch seed 0: test accuracy 0\.\d{4}$", line)
    all_recipes_result = robust201("run", path)
    assert sum("test accuracy" in line for line in all_recipes_result.err.splitlines()) == 2
