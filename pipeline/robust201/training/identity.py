"""The identity of a training run, without torch."""

import hashlib
from collections.abc import Mapping
from typing import Any

from robust201.core.records import ArchitectureId, canonical_json

TRAINING_VERSION = 1
"""Version of the training code. It increases only when equal recipes give different weights than before."""


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
) -> str:
    """Return the SHA-256 (64 hex digits) of everything that determines the weights of a training run.

    `data` is the identity of the training data (`training.data.TrainingData.identity`), `recipe` is the identity of the
    recipe (`training.recipes.Recipe.identity`), and `start` is the hash of the initial weights. The hash
    includes the device's type (not its model), and the number of threads on a CPU or the precision on a GPU.
    """
    payload = {
        "version": TRAINING_VERSION,
        "space": [space, space_identity],
        "architecture": architecture,
        "n_classes": n_classes,
        "data": data,
        "recipe": recipe,
        "seed": seed,
        "device": {device.partition(":")[0]: threads if device == "cpu" else precision},
        "start": start,
    }
    return hashlib.sha256(canonical_json(payload).encode()).hexdigest()
