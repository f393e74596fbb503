"""The id of a training: a hash of everything that decides its weights."""

import hashlib
from collections.abc import Mapping
from typing import Any

from robust201.core.records import ArchitectureId, canonical_json

TRAINING_VERSION = 1
"""Raised only when an equal recipe gives different weights."""


def hash_recipe(recipe: Mapping[str, Any]) -> str:
    """Hash a recipe that names network, images and seed itself, as in older stores: 64 hex digits."""
    return hashlib.sha256(canonical_json(recipe).encode()).hexdigest()


def hash_training(
    *,
    space: str,
    space_identity: Mapping[str, Any],
    architecture: ArchitectureId,
    n_classes: int,
    data: Any,
    recipe: Mapping[str, Any],
    seed: int,
    device: str,
    threads: int | None,
    precision: str | None,
    start: str | None,
    version: int = TRAINING_VERSION,
) -> str:
    """Hash everything that decides a training's weights: 64 hex digits.

    `data` is the identity of the training data (`training.data.TrainingData.identity`), `recipe` that of the recipe
    (`training.recipes.Recipe.identity`), and `start` the hash of the weights to start from. The device enters by its
    kind, on a CPU with the number of threads, on which the last bits depend.
    """
    payload = {
        "version": version,
        "space": [space, space_identity],
        "architecture": architecture,
        "n_classes": n_classes,
        "data": data,
        "recipe": recipe,
        "seed": seed,
        "device": {"cpu": threads} if device == "cpu" else {"cuda": precision},
        "start": start,
    }
    return hashlib.sha256(canonical_json(payload).encode()).hexdigest()
