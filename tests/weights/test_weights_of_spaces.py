"""Weights of several spaces in a store, imports by architecture name, and weight files for all datasets."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from robust201.core.errors import CheckpointError
from robust201.core.user_code import hash_file
from robust201.dataset.reader import Dataset
from robust201.images.specs import custom_dataset
from robust201.loading import load_model
from robust201.networks.zoo import resnet
from robust201.networks.zoo.zoo_space import NETWORKS, ZooNetwork
from robust201.sweep.facts import load_plan
from robust201.sweep.loading import parse_config
from robust201.sweep.sweep_record import portable_fields
from robust201.weights.store import CheckpointStore
from tests.conftest import RunCommand
from tests.support.dataset_files import fabricate, write_parquet

STATE_DICT = {"weight": torch.arange(4.0)}
CELL = "|nor_conv_1x1~0|+|none~0|none~1|+|none~0|none~1|none~2|"
COMMON_FIELDS: dict[str, Any] = {
    "dataset": "cifar10", "n_classes": 10, "source": "a test", "source_sha256": "0" * 64, "state_dict": STATE_DICT
}  # fmt: skip
SIZE = {"spec": CELL, "channels": 4, "cells": 1}


class SmallNetwork(nn.Module):
    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, width, 5, stride=4)
        self.head = nn.Linear(width, n_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.convolution(images).relu().mean(dim=(2, 3)))


MODELS = """
from tests.weights.test_weights_of_spaces import SmallNetwork

def build(architecture, n_classes):
    return SmallNetwork({"tiny": 4, "wide": 8}[architecture], n_classes)
"""


@pytest.fixture(autouse=True)
def tiny_zoo_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a small network to the zoo."""
    monkeypatch.setattr(resnet, "build_tiny", SmallNetwork, raising=False)
    monkeypatch.setitem(NETWORKS, "tiny", ZooNetwork("resnet.build_tiny", 4))


def write_tiny_weights(path: Path, width: int = 4, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    save_file(SmallNetwork(width, 10).state_dict(), path)
    return path


# --- the store --------------------------------------------------------------------------------------------------------


def test_equal_architecture_ids_of_several_spaces_are_stored_separately(tmp_path):
    spaces = ("nasbench201", "zoo", "custom", "custom-numbers")
    with CheckpointStore(tmp_path) as store:
        for value, space in enumerate(spaces):
            state = {"weight": torch.full((4,), float(value))}
            size = SIZE if space == "nasbench201" else {}
            index = 21 if space in {"nasbench201", "custom-numbers"} else "shared-name"
            store.add(space=space, index=index, epochs=1, seed=0, **size, **COMMON_FIELDS | {"state_dict": state})
    reopened = CheckpointStore(tmp_path)
    assert len({record.file for record in reopened.records()}) == len(reopened.records()) == 4
    for value, (space, index) in enumerate(zip(spaces, (21, "shared-name", "shared-name", 21), strict=True)):
        record = reopened.find(index, "cifar10", space=space)
        assert reopened.load(record)["weight"][0] == value
        assert reopened.find_all(index, "cifar10", space=space) == (record,)
        assert reopened.find_by_hash(index, "cifar10", record.sha256, space=space) == record
    lines = [json.loads(line) for line in store.manifest.read_text().splitlines()]
    assert "channels" not in lines[2]
    with pytest.raises(CheckpointError, match=r"#21 .*weights of 4 other networks: shared-name on cifar10 \(custom\)"):
        reopened.find(21, "cifar10", space="absent")


def test_store_writes_different_files_for_names_and_recipes_with_dashes(tmp_path):
    with CheckpointStore(tmp_path) as store:
        for name, recipe in (("a-b", "c"), ("a", "b-c")):
            store.add(space="zoo", index=name, recipe=recipe, epochs=1, seed=0, **COMMON_FIELDS)
    assert len({record.file for record in store.records()}) == 2


@pytest.mark.parametrize("invalid_field", [{"space": "../zoo"}, {"index": "a/b"}, {"recipe": ".."}, {"dataset": ""}])
def test_store_rejects_names_that_cannot_name_files(tmp_path, invalid_field):
    fields = {"space": "zoo", "index": "tiny", "epochs": 1, "seed": 0, **COMMON_FIELDS, **invalid_field}
    with CheckpointStore(tmp_path) as store, pytest.raises(CheckpointError, match="cannot be the name of a folder"):
        store.add(**fields)


# --- import and evaluation -------------------------------------------------------------------------------------------


def import_tiny(robust201: RunCommand, folder: Path, *options: object, dataset: str = "digits") -> Any:
    return robust201("import", folder, "--out", folder.parent / "store", "--datasets", dataset, *options)


def test_sweep_evaluates_several_recipes_of_a_users_space(robust201, write_sweep, tmp_path):
    models = tmp_path / "my_models.py"
    models.write_text(MODELS)
    for seed, recipe in enumerate(("plain", "pgd7")):
        write_tiny_weights(tmp_path / "source/tiny.safetensors", seed=seed)
        options = ("--recipe", recipe, "--epochs", 90, "--seed", 3, "--architectures", "tiny")
        assert import_tiny(robust201, tmp_path / "source", "--space", f"{models}:build", *options).code == 0
    assert {record.file for record in CheckpointStore(tmp_path / "store").records()} == {
        f"build-{hash_file(models)[:8]}/digits/tiny/{recipe}-e90-s3.safetensors" for recipe in ("plain", "pgd7")
    }
    fields = {"space": {"file": str(models)}, "architectures": ["tiny"], "network": {}, "checkpoints": None}
    weights = {"path": str(tmp_path / "store"), "recipe": ["plain", "pgd7"]}
    sweep = write_sweep(**fields, weights=weights, keys={"clean": {}, "fgsm": {"epsilons": ["8/255"]}})
    result = robust201("run", "--allow-code", sweep)
    assert result.code == 0, result.err
    assert robust201("export", tmp_path / "results", "--out", tmp_path / "out", "--parquet", "--no-json").code == 0
    dataset = Dataset(tmp_path / "out")
    assert dataset.weights == ["pgd7-e90-s3", "plain-e90-s3"]
    for weights in dataset.weights:
        assert 0 <= dataset.with_weights(weights).accuracy("tiny", "digits", "fgsm", 8.0) <= 1
    assert "Computed 0 evaluations" in robust201("run", "--allow-code", sweep).err


def test_load_model_finds_a_zoo_network_in_a_store(robust201, tmp_path):
    path = write_tiny_weights(tmp_path / "source/tiny.safetensors")
    assert import_tiny(robust201, tmp_path / "source", "--space", "zoo").code == 0
    pixels = torch.rand((2, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    loaded = load_model("tiny", "digits", tmp_path / "store")
    assert torch.equal(loaded(pixels), load_model("tiny", "digits", weights=path)(pixels))


@pytest.mark.parametrize(
    ("name", "options", "subject"),
    [
        ("tiny", ["--space", "zo"], "'zo'"),
        ("tiny", ["--space", "zoo", "--recipe", "1e3"], "1e3"),
        ("tinny", ["--space", "zoo"], "'tinny'"),
        ("wide", ["--space", "zoo", "--architectures", "tiny"], "no file tiny.safetensors"),
        ("000021", ["--space", "zoo"], "source"),
    ],
)
def test_invalid_import_gives_a_one_line_error(robust201, tmp_path, name, options, subject):
    write_tiny_weights(tmp_path / f"source/{name}.safetensors")
    assert subject in import_tiny(robust201, tmp_path / "source", *options).error_line(exit_code=2)
    assert not (tmp_path / "store").exists()


def test_import_for_a_custom_dataset_needs_its_number_of_classes(robust201, tmp_path):
    write_tiny_weights(tmp_path / "source/tiny.safetensors")
    arguments = (robust201, tmp_path / "source", "--space", "zoo")
    error_line = import_tiny(*arguments, dataset="mine").error_line(exit_code=2)
    assert "the number of classes of the dataset mine is unknown" in error_line
    assert import_tiny(*arguments, "--classes", 10, dataset="mine").code == 0
    assert CheckpointStore(tmp_path / "store").find("tiny", "mine", space="zoo").n_classes == 10


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fields_with_two_datasets(tmp_path: Path) -> dict[str, Any]:
    spec = custom_dataset("mine", n_classes=10, image_size=32)
    write_parquet(tmp_path, spec, "test", *fabricate(spec, 20))
    section = {"path": str(tmp_path), "form": "parquet", "classes": 10, "image_size": 32}
    return {"space": "zoo", "architectures": ["tiny"], "network": {}, "checkpoints": None,
            "datasets": {"digits": {}, "mine": section}, "keys": {"clean": {}}}  # fmt: skip


def weights_of(results: Path) -> dict[str, str]:
    """Return the hash of the weights of the only network, by dataset."""
    datasets = load_plan(results)[1].datasets
    return {dataset: facts.networks[0].weights.sha256 for dataset, facts in datasets.items()}


def test_weight_files_by_network_are_used_for_every_dataset(robust201, write_sweep, tmp_path, fields_with_two_datasets):
    files = {"tiny": str(write_tiny_weights(tmp_path / "tiny.safetensors"))}
    sweep = write_sweep(**fields_with_two_datasets, weights={"files": files})
    assert robust201("run", sweep).code == 0
    assert len(set(weights_of(tmp_path / "results").values())) == 1
    config = parse_config(yaml.safe_load(sweep.read_text()), "sweep")
    assert portable_fields(config)["weights"]["files"] == {"tiny": "tiny.safetensors"}


@pytest.mark.parametrize(
    ("files", "subject"),
    [({"digits": "a"}, "none for tiny"), ({"tiny": 3}, "weights.files.tiny"), ({"tiny": {}}, "weights.files.tiny")],
)
def test_invalid_weight_files_give_a_one_line_error(robust201, write_sweep, fields_with_two_datasets, files, subject):
    sweep = write_sweep(**fields_with_two_datasets, weights={"files": files})
    assert subject in robust201("run", sweep).error_line(exit_code=2)
