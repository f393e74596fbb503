"""Training runs that take a fraction of a second: one cell is trained on twenty images of two brightness levels."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from robust201.sweep.training_config import TrainingConfig
from tests.training.support import LIGHT_CELL, make_images

RECIPE: dict[str, Any] = {
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 0.1,
    "nesterov": True,
    "weight_decay": 5e-4,
    "schedule": {"cosine": {}},
    "augmentation": {"flip": True, "crop_padding": 1},
    "snapshots": {"every_epochs": 1, "iterations": [2]},
}
"""Recipe with three steps per epoch, and with snapshots after 2, 3 and 6 steps."""

STEPS = (2, 3, 6)
"""Steps after which `RECIPE` takes snapshots."""


def write_images(folder: Path, name: str = "bright", seed: int = 0) -> dict[str, Any]:
    """Write both splits of a custom dataset, and return the dataset's section for a YAML file."""
    path = folder / name
    if not path.exists():
        path.mkdir(parents=True)
        for split, count in (("train", 20), ("test", 6)):
            images = make_images(count, seed=seed)
            np.savez(path / f"{split}.npz", images=images.images, labels=images.labels)
    normalisation = {"mean": [0.5] * 3, "std": [0.3] * 3}
    return {"path": str(path), "classes": 2, "image_size": 8, "normalisation": normalisation}


def training_fields(folder: Path, **changes: Any) -> dict[str, Any]:
    """Return the fields of a training YAML whose store is in `folder`; keyword arguments replace top-level fields."""
    execution = {"executor": "inline", "device": "cpu"} | changes.pop("execution", {})
    return {
        "name": "tiny",
        "store": str(folder / "store"),
        "architectures": [LIGHT_CELL],
        "network": {"channels": 2, "cells": 1},
        "datasets": {"bright": write_images(folder)},
        "recipes": {"plain": RECIPE},
        "execution": execution,
    } | changes


def write_training_yaml(folder: Path, **changes: Any) -> Path:
    """Write train.yaml with the fields of `training_fields`."""
    path = folder / "train.yaml"
    path.write_text(yaml.safe_dump(training_fields(folder, **changes)))
    return path


def make_training_config(folder: Path, **changes: Any) -> TrainingConfig:
    return TrainingConfig.model_validate(training_fields(folder, **changes))


def hash_weight_files(store: Path) -> dict[str, str]:
    """Return the hashes of a store's weights files by relative path, without the saved states of training runs."""
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*.safetensors"))
        if "training" not in path.relative_to(store).parts
    }
