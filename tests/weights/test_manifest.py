"""Errors about invalid types and edited recipes in a manifest contain the file, line and field."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from robust201.core.errors import CheckpointError
from robust201.planning.loading import parse_training
from robust201.planning.training_config import TrainingConfig
from robust201.runtime.training_run import run_trainings
from robust201.weights.manifest import read_manifest
from tests.support.tiny_trainings import make_training_config, training_fields

Edit = Callable[[dict[str, Any]], object]

CANDIDATE_VALUES = [None, "text", -1, 2.5, True, [], {}, [None], 10**30, {"a": 1}]
"""Values with which each field is replaced in turn."""

VALID_VALUES: dict[str, list[Any]] = {
    "space": ["text"],  # the ids of a custom space cannot be computed from the manifest alone
    "index": [],
    "spec": [None, "text"],
    "dataset": ["text"],
    "epochs": [],
    "seed": [],
    "channels": [],
    "cells": [],
    "n_classes": [],
    "parameters": [],
    "source": ["text"],
    "source_sha256": [],
    "file": ["text"],
    "sha256": [],
    "training": [None, {}, {"a": 1}],
    "training.inputs": [None, {}],
    "training.inputs.recipe": [],
    "training.inputs.recipe.epochs": [],
    "training.outcome": [None, {}, {"a": 1}],
    "training.outcome.steps": [None],
    "training.outcome.n_batches": [None],
    "training.outcome.test_accuracy": [None],
    "training.outcome.train_accuracy": [None],
    "training.outcome.train_loss": [None, -1, 2.5, 10**30],
    "recipe": ["text"],
    "test_accuracy": [None],
    "steps": [None],
}
"""Values from `CANDIDATE_VALUES` that are valid, by field."""


@pytest.fixture(scope="module")
def trained_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the manifest of a store written by `train`."""
    config = make_training_config(tmp_path_factory.mktemp("trained"))
    assert run_trainings(config).complete
    return config.store / "manifest.jsonl"


def edit_line(source: Path, target: Path, edit: Edit) -> Path:
    """Copy a manifest, and edit its second line."""
    header, record_line, *other_lines = source.read_text().splitlines()
    fields = json.loads(record_line)
    edit(fields)
    target.write_text("\n".join([header, json.dumps(fields), *other_lines, ""]))
    return target


def set_field(name: str, value: Any) -> Edit:
    """Return an edit that sets a field, such as ``training.inputs.recipe``."""

    def edit(fields: dict[str, Any]) -> None:
        *parents, key = name.split(".")
        parent_fields = fields
        for parent in parents:
            parent_fields = parent_fields[parent]
        parent_fields[key] = value

    return edit


@pytest.mark.parametrize("field_name", VALID_VALUES)
def test_manifest_error_contains_line_and_field_of_an_invalid_type(
    tmp_path: Path, trained_manifest: Path, field_name: str
) -> None:
    for value in CANDIDATE_VALUES:
        path = edit_line(trained_manifest, tmp_path / "manifest.jsonl", set_field(field_name, value))
        if any(type(value) is type(valid_value) and value == valid_value for valid_value in VALID_VALUES[field_name]):
            for trials in read_manifest(path).values():
                for record in trials.values():
                    assert record.label
                    assert record.is_final in {True, False, None}
        else:
            start = re.escape(f"{path} line 2: ")
            with pytest.raises(CheckpointError, match=f"{start}.*('{field_name}'|was edited)"):
                read_manifest(path)


def test_manifest_with_deep_nesting_is_rejected(tmp_path: Path, trained_manifest: Path) -> None:
    path = edit_line(trained_manifest, tmp_path / "manifest.jsonl", set_field("training.inputs.data", "nested"))
    content = path.read_text()
    for depth in range(0, sys.getrecursionlimit() + 20, 5):
        path.write_text(content.replace('"nested"', "[" * depth + "1" + "]" * depth))
        with pytest.raises(CheckpointError, match=r"manifest.jsonl line 2: "):
            read_manifest(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("name", ["training.inputs.recipe.learning_rate", "training.inputs.data", "training.extra"])
def test_manifest_with_a_number_that_is_not_finite_is_rejected(
    tmp_path: Path, trained_manifest: Path, name: str, number: str
) -> None:
    path = edit_line(trained_manifest, tmp_path / "manifest.jsonl", set_field(name, "a number"))
    path.write_text(path.read_text().replace('"a number"', number))
    with pytest.raises(CheckpointError, match=rf"manifest.jsonl line 2: .*not finite: {re.escape(number)}"):
        read_manifest(path)


@pytest.mark.parametrize(
    "edit",
    [
        set_field("training.inputs.recipe.learning_rate", 0.2),
        set_field("training.inputs.recipe.batch_size", 16),
        set_field("training.inputs.data", {"images": "0" * 64}),
        set_field("training.inputs.start", "0" * 64),
        set_field("training.inputs.threads", 7),
        set_field("seed", 1),
        set_field("n_classes", 3),
        set_field("channels", 4),
        set_field("index", 0),
        set_field("source_sha256", "0" * 64),
    ],
)
def test_manifest_with_an_edited_recipe_is_rejected(tmp_path: Path, trained_manifest: Path, edit: Edit) -> None:
    path = edit_line(trained_manifest, tmp_path / "manifest.jsonl", edit)
    with pytest.raises(CheckpointError, match=r"manifest.jsonl line 2: the line was edited"):
        read_manifest(path)


SPACE_SOURCE = """
from torch import nn

def build(architecture, n_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, n_classes))
"""


def custom_training_config(folder: Path) -> TrainingConfig:
    (folder / "models.py").write_text(SPACE_SOURCE)
    space = {"file": str(folder / "models.py"), "function": "build"}
    fields = training_fields(folder, space=space, architectures=["flat"])
    del fields["network"]
    return parse_training(fields, "test")


def test_training_of_a_custom_space_rejects_an_edited_recipe(tmp_path: Path) -> None:
    config = custom_training_config(tmp_path)
    assert run_trainings(config).complete
    manifest = config.store / "manifest.jsonl"
    assert run_trainings(config).evaluations == 0
    edit_line(manifest, manifest, set_field("training.inputs.recipe.learning_rate", 0.2))
    with pytest.raises(CheckpointError, match=r"manifest.jsonl: the record's line was edited: its field 'training'"):
        run_trainings(config)
