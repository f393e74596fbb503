"""Sweeps on resized images in class folders with more than 256 classes, and on single-channel images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from robust201 import Dataset
from robust201.sweep.loading import load_config
from tests.conftest import WriteSweep

N_CLASSES, N_IMAGES = 300, 24
MODELS = """
import torch
from torch import nn

def build(architecture, n_classes):
    channels = 1 if architecture == "grey" else 3
    features = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(features, nn.Linear(16, n_classes))
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Write three class folders with photos of different sizes; the labels of the classes are not consecutive."""
    generator = np.random.default_rng(0)
    for index in range(N_IMAGES):
        file = tmp_path / "photos" / ("ant", "bee", "wasp")[index % 3] / f"{index:02d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (20 + index % 4, 25, 3), dtype=np.uint8)).save(file)
    (tmp_path / "photos" / "labels.json").write_text(json.dumps({"ant": 3, "bee": 290, "wasp": 299}))
    return tmp_path / "photos"


@pytest.fixture
def write_custom_sweep(write_sweep: WriteSweep, tmp_path: Path) -> WriteSweep:
    """Return a function that writes a sweep over a network of `MODELS` on a custom dataset."""

    def write(dataset: dict[str, Any], **changes: Any) -> Path:
        (tmp_path / "models.py").write_text(MODELS)
        fields: dict[str, Any] = {
            "space": {"file": str(tmp_path / "models.py")},
            "architectures": ["colour"],
            "network": {},
            "checkpoints": None,
            "weights": {"random": {"seeds": [0]}},
            "datasets": {"mine": dataset},
            "images": {"count": 18},
            "keys": {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}},
        }
        return write_sweep(**(fields | changes))

    return write


def dataset_section(photos: Path, **changes: Any) -> dict[str, Any]:
    resize = {"shorter_side": 18, "resampling": "bicubic"}
    return {"path": str(photos), "classes": N_CLASSES, "image_size": 16, "resize": resize} | changes


def test_sweep_on_class_folders_with_many_classes_can_be_exported_and_resumed(
    photos, write_custom_sweep, robust201, tmp_path
):
    sweep = write_custom_sweep(dataset_section(photos), measurements=["accuracy", "predictions"])
    result = robust201("run", "--allow-code", sweep)
    assert result.code == 0, result.err
    assert robust201("verify", tmp_path / "results").code == 0
    result = robust201("export", tmp_path / "results", "--out", tmp_path / "out", "--parquet", "--outcomes", "bits")
    assert result.code == 0, result.err
    result = robust201("export", tmp_path / "results", "--out", tmp_path / "json-and-parquet", "--parquet")
    assert result.code == 0, result.err
    (protocol, _) = json.loads((tmp_path / "out" / "sweep.json").read_text())["sweep"]["protocols"]
    assert protocol["dataset_fields"]["resize"] == {"shorter_side": 18, "resampling": "bicubic"}
    dataset = Dataset(tmp_path / "json-and-parquet")
    assert 0 <= dataset.accuracy("colour", "mine", "fgsm", 8.0) <= 1
    (file,) = (tmp_path / "json-and-parquet" / "parquet").rglob("key=clean/*.parquet")
    table = pq.read_table(file)
    assert str(table.schema.field("predictions").type) == "list<element: uint16>"
    assert "cm" not in table.column_names
    assert table["n_classes"].to_pylist() == [N_CLASSES]
    predicted = table["predictions"].to_pylist()[0]
    assert len(predicted) == 18
    assert max(predicted) < N_CLASSES
    assert robust201("verify", tmp_path / "json-and-parquet").code == 0
    assert robust201("merge", tmp_path / "results", "--compact").code == 0
    rerun = robust201("run", "--allow-code", sweep)
    assert (rerun.code, "Nothing to compute" in rerun.err or "Computed 0" in rerun.err) == (0, True), rerun.err


@pytest.mark.parametrize(
    ("measurements", "expected"),
    [(None, ("accuracy",)), (["cm"], ("cm",)), (["accuracy", "confidence"], ("accuracy", "confidence"))],
)
def test_default_measurements_with_many_classes(photos, write_custom_sweep, measurements, expected):
    changes = {} if measurements is None else {"measurements": measurements}
    assert load_config(write_custom_sweep(dataset_section(photos), **changes)).measurements == expected
    config_with_256_classes = load_config(write_custom_sweep(dataset_section(photos, classes=256), **changes))
    default_measurements = ("accuracy", "confidence", "cm")
    assert config_with_256_classes.measurements == (default_measurements if measurements is None else expected)


def test_sweep_on_grey_images_needs_network_with_one_channel(write_custom_sweep, robust201, tmp_path):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (N_IMAGES, 1, 9, 9), dtype=np.uint8)
    np.savez(tmp_path / "test.npz", images=images, labels=np.arange(N_IMAGES) % 5)
    dataset = {"path": str(tmp_path / "test.npz"), "classes": 5, "image_size": 9, "channels": 1}
    normalised_dataset = dataset | {"normalisation": {"mean": [0.5], "std": [0.25]}}
    result = robust201("run", "--allow-code", write_custom_sweep(normalised_dataset, architectures=["grey"]))
    assert result.code == 0, result.err
    result = robust201("run", "--allow-code", write_custom_sweep(dataset, results=str(tmp_path / "other")))
    assert result.code == 3
    assert "1 channels instead" in result.err
