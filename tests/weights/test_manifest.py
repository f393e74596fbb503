"""Manifests keep their records; errors about invalid lines contain the file, line and field."""

import json
from pathlib import Path
from typing import Any

import pytest

from robust201.core.errors import CheckpointError
from robust201.weights.manifest import ManifestWriter, read_manifest
from tests.support.runs import run_trainings
from tests.support.tiny_trainings import make_training_config

INVALID_VALUES: dict[str, list[Any]] = {
    "space": [None, 1],
    "index": [None, 2.5, True, []],
    "dataset": [None, 3],
    "epochs": [None, "text", -1, 2.5, True, 10**30],
    "seed": [None, "0777", 2.5, 10**30],
    "channels": ["text", -1, True],
    "n_classes": [None, 10.5],
    "parameters": [None, -1],
    "source_sha256": [None, "text", "g" * 64],
    "sha256": [None, "0" * 63],
    "training": ["text", [None]],
    "training.inputs": [None, "text", []],
    "training.outcome": ["text", []],
    "training.outcome.steps": ["text", -1, 2.5],
    "training.outcome.test_accuracy": ["text", -1, 2.5],
    "recipe": [None, 3],
    "test_accuracy": ["text", -1, 2.5],
    "steps": ["7", -1, 1.5, True],
    "unknown": [1],
}


@pytest.fixture(scope="module")
def trained_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the manifest of a store written by a training run."""
    config = make_training_config(tmp_path_factory.mktemp("trained"))
    assert run_trainings(config).is_complete
    return config.store / "manifest.jsonl"


def test_written_manifest_equals_the_read_one(tmp_path: Path, trained_manifest: Path) -> None:
    writer, records = ManifestWriter(tmp_path / "copy.jsonl"), read_manifest(trained_manifest)
    for trials in records.values():
        for record in trials.values():
            writer.append(record)
            assert record.is_final == (record.steps_done == 6)
    writer.close()
    assert read_manifest(tmp_path / "copy.jsonl") == records
    assert (tmp_path / "copy.jsonl").read_bytes() == trained_manifest.read_bytes()


@pytest.mark.parametrize("field_name", INVALID_VALUES)
def test_error_contains_line_and_field_of_an_invalid_value(
    tmp_path: Path, trained_manifest: Path, field_name: str
) -> None:
    header, line, *other_lines = trained_manifest.read_text().splitlines()
    path = tmp_path / "manifest.jsonl"
    for value in INVALID_VALUES[field_name]:
        fields = json.loads(line)
        *parents, key = field_name.split(".")
        section = fields
        for parent in parents:
            section = section[parent]
        section[key] = value
        path.write_text("\n".join([header, json.dumps(fields), *other_lines, ""]))
        with pytest.raises(CheckpointError, match=rf"manifest\.jsonl line 2: the field '{field_name}"):
            read_manifest(path)
