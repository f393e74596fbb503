"""`robust201 run` selects training runs, and prints the test accuracies of finished ones."""

import json
import re

from robust201.weights.store import CheckpointStore
from tests.support.tiny_trainings import RECIPE, write_images, write_training_yaml


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
        assert value in robust201("run", path, option, value).error_line(2)
    robust201("run", path, "--datasets", "bright", "--recipes", "rare").error_line(2)
    assert not (tmp_path / "store").exists()
    selection = ("--architectures", "21", "--datasets", "bright")
    assert json.loads(robust201("plan", path, *selection, "--json").out)["trainings"] == 1
    assert robust201("run", path, *selection).code == 0
    records = CheckpointStore(tmp_path / "store").records()
    assert {(record.index, record.dataset, record.recipe) for record in records} == {(21, "bright", "plain")}
