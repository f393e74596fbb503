"""Manifests keep their records; errors about invalid lines contain the file, line and field."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from robust201.core.errors import CheckpointError
from robust201.weights.manifest import ManifestWriter, read_manifest
from tests.support.runs import run_trainings
from tests.support.tiny_trainings import make_training_config

INVALID_VALUES: dict[str, Any] = {
    "space": None,
    "index": True,
    "epochs": -1,
    "seed": "0777",
    "sha256": "0" * 63,
    "training.inputs": [],
    "training.outcome.test_accuracy": 2.5,
    "steps": 1.5,
    "unknown": 1,
}


@pytest.fixture(scope="module")
def trained_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the manifest of a store written by a training run."""
    config = make_training_config(tmp_path_factory.mktemp("trained"))
    assert run_trainings(config).is_complete
    return config.store / "manifest.jsonl"


def test_written_manifest_equals_the_read_one(tmp_path, trained_manifest):
    writer, records = ManifestWriter(tmp_path / "copy.jsonl"), read_manifest(trained_manifest)
    for trials in records.values():
        for record in trials.values():
            writer.append(record)
            assert record.is_final == (record.steps_done == 6)
    writer.close()
    assert read_manifest(tmp_path / "copy.jsonl") == records
    assert (tmp_path / "copy.jsonl").read_bytes() == trained_manifest.read_bytes()


@pytest.mark.parametrize("field_name", INVALID_VALUES)
def test_error_contains_line_and_field_of_an_invalid_value(tmp_path, trained_manifest, field_name):
    header, line, *other_lines = trained_manifest.read_text().splitlines()
    path, fields = tmp_path / "manifest.jsonl", json.loads(line)
    *parents, key = field_name.split(".")
    functools.reduce(dict.__getitem__, parents, fields)[key] = INVALID_VALUES[field_name]
    path.write_text("\n".join([header, json.dumps(fields), *other_lines, ""]))
    with pytest.raises(CheckpointError, match=rf"manifest\.jsonl line 2: the field '{field_name}"):
        read_manifest(path)
