"""The id of a training: a hash of everything that decides its weights, which a manifest's record repeats.

So the recipe that a record names can be checked against its id, and one that was edited is not believed.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from robust201.core.records import ArchitectureId, canonical_json
from robust201.spaces import SPACES

if TYPE_CHECKING:
    from robust201.spaces.base import Space
    from robust201.weights.manifest import CheckpointRecord

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


def is_as_trained(record: "CheckpointRecord", space: "Space | None" = None) -> bool:
    """Whether the recipe that a record repeats is the one that its id was made of; True where it repeats none.

    Without `space`, records of custom spaces are believed: their ids contain the hash of a file that is not at hand.
    """
    if record.inputs:
        space = space or _space_of(record)
        return space is None or record.source_sha256 in _ids_of(record, record.inputs, space)
    recipe = (record.training or {}).get("recipe")
    if recipe is not None:
        settings = recipe.get("settings") or {}
        repeated = {"epochs": record.epochs, "seed": record.seed, "channels": record.channels, "cells": record.cells}
        return (
            record.source_sha256 == hash_recipe(recipe)
            and recipe.get("spec", record.spec) == record.spec
            and all(settings.get(name, value) == value for name, value in repeated.items())
        )
    return True


def _space_of(record: "CheckpointRecord") -> "Space | None":
    space = SPACES.get(record.space)
    if space is None or not space.is_sized or record.channels is None or record.cells is None:
        return space
    return space.sized(channels=record.channels, cells=record.cells)


def _ids_of(record: "CheckpointRecord", inputs: Mapping[str, Any], space: "Space") -> list[str]:
    """Ids of the training with these inputs, by each version of the training code until now."""
    return [
        hash_training(
            space=space.name,
            space_identity=space.identity(),
            architecture=record.index,
            n_classes=record.n_classes,
            data=inputs.get("data"),
            recipe=inputs.get("recipe") or {},
            seed=record.seed,
            device=str(inputs.get("device")),
            threads=inputs.get("threads"),
            precision=inputs.get("precision"),
            start=inputs.get("start"),
            version=version,
        )
        for version in range(1, TRAINING_VERSION + 1)
    ]
