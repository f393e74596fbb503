"""Results of trained networks in exports, with the recipe, length and seed of their training."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201 import Dataset


class RunWeights(NamedTuple):
    """Weights in an export: all networks with the same recipe, length of training and seed.

    Attributes:
        reader: the export.
        weights: name of the weights in it.
        recipe: recipe of the training run.
        epochs: length of training in epochs; None if it ended within an epoch.
        steps: length of training in iterations; None if it ended after whole epochs.
        seed: seed of the training run.
    """

    reader: Dataset
    weights: str
    recipe: str
    epochs: int | None
    steps: int | None
    seed: int


def read_trained(exports: Sequence[Path]) -> list[RunWeights]:
    """Return the weights of all exports.

    Raises:
        ValueError: an export does not describe its weights.
    """
    networks = []
    for path in exports:
        reader = Dataset(path)
        weights = (reader.sweep or {}).get("weights") or {}
        if not weights:
            raise ValueError(
                f"Reading {path} failed: its sweep.json has no weights with recipes. Export a sweep of trained weights."
            )
        for name, fields in weights.items():
            networks.append(
                RunWeights(reader, name, fields["recipe"], fields.get("epochs"), fields.get("steps"), fields["seed"])
            )
    return networks


def read_accuracies(networks: Sequence[RunWeights], dataset: str, key: str) -> pd.DataFrame:
    """Return one row per accuracy: architecture, strength, accuracy, recipe, epochs, steps and seed."""
    frames = []
    for network in networks:
        if dataset not in network.reader.data or key not in network.reader.keys_all:
            continue
        frame = network.reader.with_weights(network.weights).read_table(dataset, key)
        columns = {"recipe": network.recipe, "epochs": network.epochs, "steps": network.steps, "seed": network.seed}
        frames.append(
            frame[["architecture", "strength", "value"]].rename(columns={"value": "accuracy"}).assign(**columns)
        )
    return pd.concat(frames, ignore_index=True)


def read_outcomes(network: RunWeights, dataset: str, key: str, strength: float) -> dict[str, NDArray[np.bool_]]:
    """Return whether each image was classified correctly, by architecture."""
    outcomes = network.reader.with_weights(network.weights).outcomes(dataset, key, strength)
    return {str(name): correct for name, correct in zip(outcomes.architectures, outcomes.correct, strict=True)}
