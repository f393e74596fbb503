"""Recipes: rejected fields, identity, learning rates of schedules, and snapshot steps."""

import math
import re

import pytest
import yaml
from pydantic import ValidationError

from robust201.sweep.loading import load_training
from robust201.training.identity import hash_training
from robust201.training.recipes import AUGMENTATIONS, Recipe
from tests.conftest import REPOSITORY

BASE = {"epochs": 125, "batch_size": 125, "learning_rate": 0.1, "weight_decay": 5e-4, "schedule": {"cosine": {}}}


def make_recipe(**changes) -> Recipe:
    return Recipe.model_validate(BASE | changes)


def test_step_schedule_drops_in_the_middle_of_an_epoch():
    """As in the study of image distributions, an epoch has 400 batches, and the rate drops to a tenth at epoch 62.5."""
    recipe = make_recipe(schedule={"steps": {"at_epochs": [62.5]}})
    assert [recipe.learning_rate_of(step, 400) for step in (0, 24_999)] == [0.1, 0.1]
    assert [recipe.learning_rate_of(step, 400) for step in (25_000, 49_999)] == pytest.approx([0.01, 0.01])
    # If epoch 62.5 falls within a step, the rate drops at the next step.
    assert recipe.learning_rate_of(24_437, 391) == 0.1
    assert recipe.learning_rate_of(24_438, 391) == pytest.approx(0.01)


def test_step_schedule_accumulates_its_drops():
    recipe = make_recipe(epochs=None, iterations=78_125, schedule={"steps": {"at_iterations": [40_000, 60_000]}})
    rates = [recipe.learning_rate_of(step, 782) for step in (39_999, 40_000, 59_999, 60_000, 78_124)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001])
    recipe = make_recipe(epochs=150, schedule={"steps": {"at_epochs": [50, 100], "factor": 0.5}})
    rates = [recipe.learning_rate_of(step, 391) for step in (19_549, 19_550, 39_099, 39_100)]
    assert rates == [0.1, 0.05, 0.05, 0.025]


def test_cosine_schedule_falls_to_zero():
    recipe = make_recipe(epochs=2)
    rates = [recipe.learning_rate_of(step, 4) for step in (0, 2, 4, 8)]
    assert rates == pytest.approx([0.1, 0.05 * (1 + math.sqrt(0.5)), 0.05, 0.0])


def test_snapshot_at_a_learning_rate_drop_is_taken_before_the_drop():
    recipe = make_recipe(epochs=4, schedule={"steps": {"at_epochs": [2]}}, snapshots={"epochs": [2]})
    assert recipe.snapshot_steps(10) == (20, 40)
    assert (recipe.learning_rate_of(19, 10), recipe.learning_rate_of(20, 10)) == (0.1, pytest.approx(0.01))


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, (1250,)),
        ({"snapshots": {"epochs": [0, 1, 10]}}, (0, 10, 100, 1250)),
        ({"snapshots": {"iterations": [1, 25, 1250]}}, (1, 25, 1250)),
        ({"snapshots": {"every_epochs": 50}}, (500, 1000, 1250)),
        ({"snapshots": {"every_epochs": 25}}, (250, 500, 750, 1000, 1250)),
        ({"snapshots": {"epochs": [1], "iterations": [10, 11], "every_epochs": 125}}, (10, 11, 1250)),
        ({"epochs": None, "iterations": 27, "snapshots": {"every_epochs": 1, "epochs": [2]}}, (10, 20, 27)),
        ({"snapshots": {"every_epochs": 500}}, (1250,)),
    ],
    ids=str,
)
def test_snapshot_steps_follow_from_epochs_and_iterations(changes, steps):
    assert make_recipe(**changes).snapshot_steps(n_batches=10) == steps


INVALID_RECIPES = [
    ({"momentun": 0.9}, "momentun"),
    ({"epochs": None}, "exactly one of epochs and iterations \\(neither is set\\)"),
    ({"learning_rate": float("nan")}, "less than 1"),
    ({"schedule": {}}, "exactly one of cosine and steps"),
    ({"schedule": {"steps": {"at_epochs": [100, 50]}}}, r"strictly increasing numbers, got \[100.0, 50.0\]"),
    ({"schedule": {"steps": {"at_epochs": [1], "factor": 1e300}}}, "less than 1000"),
    ({"augmentation": "st"}, "unknown augmentation 'st'.*Did you mean 'std'"),
    ({"augmentation": {"flip": 1, "crop": 2}}, "crop"),
    ({"adversarial": {"pgd": {}, "trades": {}}}, r"exactly one of pgd and trades \(both are set\)"),
    ({"adversarial": {"pgd": {"epsilon": -1}}}, "numbers above 0 or text such as 8/255"),
    ({"adversarial": {"pgd": {"epsilon": 8}}}, "numbers up to 1"),
    ({"adversarial": {"trades": {"step": "2/0"}}}, "numbers above 0 or text such as 8/255"),
    ({"adversarial": {"pgd": {"update_statistics": True}}}, "`update_statistics` needs `mode: training`"),
    ({"nesterov": True, "momentum": 0}, "needs a `momentum` above 0"),
]


@pytest.mark.parametrize(("changes", "message"), INVALID_RECIPES, ids=lambda value: str(value)[:60])
def test_invalid_recipe_is_rejected(changes, message):
    with pytest.raises(ValidationError, match=message):
        make_recipe(**changes)


TRAINING_FIELDS = {
    "space": "zoo",
    "space_identity": {},
    "architecture": "resnet18",
    "n_classes": 10,
    "data": {"images": "ab"},
    "seed": 1,
    "device": "cpu",
    "threads": 1,
    "precision": "fp32",
    "start": None,
}


def training_id(recipe, **fields):
    return hash_training(recipe=recipe.identity(), **fields)


def test_training_id_depends_on_all_inputs_of_training():
    ids = {
        training_id(**(TRAINING_FIELDS | changes), recipe=recipe)
        for changes, recipe in (
            ({}, make_recipe()),
            ({"space": "mine"}, make_recipe()),
            ({"space_identity": {"cells": 1}}, make_recipe()),
            ({"architecture": "vgg16"}, make_recipe()),
            ({"n_classes": 100}, make_recipe()),
            ({"data": {"images": "cd"}}, make_recipe()),
            ({"seed": 2}, make_recipe()),
            ({"threads": 2}, make_recipe()),
            ({"device": "cuda"}, make_recipe()),
            ({"device": "cuda", "precision": "tf32"}, make_recipe()),
            ({"start": "ef"}, make_recipe()),
            ({}, make_recipe(epochs=100)),
            ({}, make_recipe(augmentation="std")),
            ({}, make_recipe(decay="weights")),
            ({}, make_recipe(adversarial={"pgd": {}})),
            ({}, make_recipe(adversarial={"trades": {}})),
        )
    }
    assert len(ids) == 16


def test_training_id_does_not_depend_on_names_or_snapshots():
    base_id = training_id(**TRAINING_FIELDS, recipe=make_recipe(augmentation="std"))
    equivalent_recipe = make_recipe(
        augmentation=AUGMENTATIONS["std"].model_dump(),
        snapshots={"epochs": [1]},
        on=["cifar10"],
        data={"mixture": {"robust": "by any name", "alpha": 0.3}},
        start={"recipe": "other", "dataset": "mnist"},
        learning_rate=0.1,
    )
    assert training_id(**TRAINING_FIELDS, recipe=equivalent_recipe) == base_id
    gpu_fields = TRAINING_FIELDS | {"device": "cuda"}
    assert training_id(**(gpu_fields | {"device": "cuda:1", "threads": 8}), recipe=make_recipe()) == training_id(
        **gpu_fields, recipe=make_recipe()
    )


def test_adversarial_training_has_the_published_defaults():
    """NAS-RobBench-201 uses PGD-7 with epsilon 8/255, step 2/255 and a random start; TRADES uses beta 6."""
    pgd = make_recipe(adversarial={"pgd": {}}).adversarial.pgd
    assert (pgd.epsilon, pgd.step, pgd.steps, pgd.start, pgd.mode) == ("8/255", "2/255", 7, "uniform", "evaluation")
    trades = make_recipe(adversarial={"trades": {}}).adversarial.trades
    assert (trades.epsilon, trades.beta, trades.start, trades.update_statistics) == ("8/255", 6, "normal", False)


def test_documented_recipes_are_valid(monkeypatch):
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (REPOSITORY / "docs" / "training.md").read_text(), re.M | re.S)
    recipes = {
        name: Recipe.model_validate(fields)
        for block in blocks
        for name, fields in yaml.safe_load(block)["recipes"].items()
    }
    monkeypatch.setenv("ROBUST201_DATA", "data")
    job = load_training(REPOSITORY / "jobs/train-published.yaml")
    assert recipes["published"].identity() == job.recipes["published"].identity()
    assert recipes["image-distribution"].snapshot_steps(400) == (400, 4000, 10_000, 20_000, 40_000, 50_000)


def test_documentation_lists_all_augmentations():
    table = (REPOSITORY / "docs" / "training.md").read_text().partition("| name | fields |")[2].partition("\n\n")[0]
    names = re.findall(r"`([^`]*)`", "".join(line.split("|")[1] for line in table.splitlines()[1:] if line))
    assert names == list(AUGMENTATIONS)
