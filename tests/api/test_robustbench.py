"""Presets of RobustBench's leaderboards on a small CIFAR-10, and their JSON entries."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import robust201
from robust201.analysis.robustbench import LEADERBOARDS, N_IMAGES, model_info
from robust201.core.errors import DatasetError, EvaluationError
from robust201.images import dataset, load_images
from robust201.tasks import CORRUPTIONS, PRESETS
from tests.support.dataset_files import fabricate, write_parquet

N_TEST_IMAGES = 30
FIELDS = {
    *("link", "name", "authors", "additional_data", "number_forward_passes", "dataset", "venue", "architecture"),
    *("eps", "clean_acc", "reported", "footnote", "unreliable"),
}
"""Fields that all leaderboards have in `model_info`; the name of the robust accuracy differs."""

MODEL = """
from torch import nn
import torch

def build(n_classes=10):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, n_classes))
"""


def build(n_classes: int = 10) -> nn.Module:
    with torch.random.fork_rng():
        namespace: dict[str, Any] = {}
        exec(MODEL, namespace)
        network: nn.Module = namespace["build"](n_classes)
        return network


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data folder with synthetic images of CIFAR-10 and CIFAR-10-C; at least half are classified correctly."""
    monkeypatch.setenv("ROBUST201_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    images, labels = fabricate(dataset("cifar10"), N_TEST_IMAGES)
    with torch.no_grad():
        predicted = build()(torch.from_numpy(images) / 255).argmax(1).numpy()
    labels = np.where(np.arange(N_TEST_IMAGES) % 2, predicted, labels).astype(np.int64)
    write_parquet(tmp_path / "cifar10", dataset("cifar10"), "test", images, labels)
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    pixels = images.transpose(0, 2, 3, 1)
    for key_index, key in enumerate(CORRUPTIONS):
        np.save(
            folder / f"{key}.npy",
            np.concatenate([pixels // np.uint8(1 + (severity + key_index) % 7) for severity in range(5)]),
        )
    (tmp_path / "my_model.py").write_text(MODEL)
    return tmp_path


@pytest.mark.parametrize("preset", ["robustbench-linf", "robustbench-l2"])
def test_leaderboard_entry_of_attacks_matches_evaluation(data_folder, preset):
    result = robust201.evaluate(build(), load_images("cifar10"), keys=preset, count=6, progress=False)
    assert result.outcomes.index.tolist() == [0, 1, 2, 3, 4, 5]  # the first images, in the order of the test split
    entry = result.model_info
    assert entry.keys() == FIELDS | {"autoattack_acc", "n_examples"}
    assert (entry["dataset"], entry["eps"], entry["n_examples"]) == ("cifar10", LEADERBOARDS[preset].eps, 6)
    clean, attacked = result.table["accuracy"]
    assert (entry["clean_acc"], entry["autoattack_acc"]) == (f"{100 * clean:.2f}", f"{100 * attacked:.2f}")
    assert attacked < clean
    images = load_images("cifar10")
    key = result.table["key"].iloc[1]
    result_from_keys = robust201.evaluate(
        build(), images.images[:6], images.labels[:6], ["clean", {key: PRESETS[preset][key]}], progress=False
    )
    assert result_from_keys.table["accuracy"].tolist() == [clean, attacked]


def test_leaderboard_entry_of_corruptions_is_mean_over_published_images(data_folder):
    result = robust201.evaluate(build(), load_images("cifar10"), keys="robustbench-corruptions", progress=False)
    assert len(result.table) == 1 + 15 * 5
    entry = result.model_info
    assert entry.keys() == FIELDS | {"corruptions_acc", "n_examples"}
    assert entry["eps"] is None
    labels = load_images("cifar10").labels
    accuracies = []
    for key in CORRUPTIONS:
        pixels = torch.from_numpy(np.load(data_folder / "CIFAR-10-C" / f"{key}.npy").transpose(0, 3, 1, 2)) / 255
        with torch.no_grad():
            accuracies.append(build()(pixels).argmax(1).numpy() == np.tile(labels, 5))
    assert entry["corruptions_acc"] == f"{100 * np.mean(accuracies):.2f}"
    assert entry["corruptions_acc"] != entry["clean_acc"]
    assert model_info("robustbench-corruptions", result.table, N_IMAGES).keys() == FIELDS | {"corruptions_acc"}


def test_evaluate_command_prints_leaderboard_entry(data_folder, robust201):
    result = robust201(
        "evaluate", "my_model.py:build", "--data", "cifar10", "--keys", "robustbench-corruptions", "--images", 10
    )
    assert result.code == 0, result.err
    entry = json.loads(result.out)
    assert (entry["dataset"], entry["n_examples"]) == ("cifar10", 10)
    assert "are classified correctly" in result.err


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": build(7)}, EvaluationError, "expected logits of shape"),
        ({"images": np.full((2, 3, 8, 8), 128, np.uint8), "labels": [0, 1]}, DatasetError, "8x8 pixels"),
        (
            {"images": np.full((N_IMAGES, 3, 32, 32), 128, np.uint8), "labels": np.arange(N_IMAGES) ** 2 % 10},
            DatasetError,
            "1,000 of each class",
        ),
    ],
)
def test_evaluate_rejects_wrong_arguments(data_folder, changes, error, message):
    options = {"model": build(), "images": load_images("cifar10"), "keys": "robustbench-linf", "progress": False}
    with pytest.raises(error, match=message):
        robust201.evaluate(**(options | changes))
