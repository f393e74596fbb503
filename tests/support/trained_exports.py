"""Exports of fabricated trained networks with known accuracies, for several recipes, training lengths and seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from robust201.core.records import CLEAN_STRENGTH, ImageSet, Normalisation, Unit, Weights
from robust201.dataset.groups import SweepFacts
from robust201.tasks.columns import Values
from tests.support.fabricated import ChangedStore, FabricatedPlan, export, make_unit

N_IMAGES = 400
N_CLASSES = 10
MEASUREMENTS = ("accuracy", "cm", "predictions")

AccuracyFunction = Callable[[str, str, Weights, str, float], float]
"""Function that returns the accuracy for (architecture, dataset, weights, key, strength)."""


@dataclass(frozen=True)
class _Plan(FabricatedPlan):
    """Plan in which every dataset has `N_CLASSES` classes."""

    def facts(self) -> SweepFacts:
        return replace(super().facts(), n_classes={unit.dataset: N_CLASSES for unit in self.units})


def make_weights(
    recipe: str, epoch_counts: Sequence[int], seeds: Sequence[int], *, steps: Sequence[int] = ()
) -> list[Weights]:
    """Return weights of a recipe for each seed, after `epoch_counts` epochs and after `steps` iterations."""
    snapshots = [(epochs, None) for epochs in epoch_counts] + [(None, iterations) for iterations in steps]
    return [
        Weights("c" * 64, recipe=recipe, epochs=epochs, seed=seed, steps=iterations)
        for seed in seeds
        for epochs, iterations in snapshots
    ]


def correct_images(accuracy: float, offset: int = 0) -> np.ndarray:
    """Return (N,) booleans: the fraction `accuracy` of them is true, in consecutive images from index `offset` on."""
    return (np.arange(N_IMAGES) - offset) % N_IMAGES < round(accuracy * N_IMAGES)


def write_trained(
    out: Path,
    networks: Mapping[str, Mapping[str, Sequence[Weights]]],
    strengths: Mapping[str, Sequence[float]],
    accuracy: AccuracyFunction,
    *,
    with_outcomes: bool = False,
) -> Path:
    """Export results of networks, given as {dataset: {architecture: weights}}, for all keys and strengths.

    With `with_outcomes`, the export has per-image outcomes.
    """
    units, weights_by_name = [], {}
    for dataset, weights_by_architecture in networks.items():
        for key, key_strengths in strengths.items():
            for architecture, weight_list in weights_by_architecture.items():
                for network_weights in weight_list:
                    weights_by_name[network_weights.name] = network_weights
                    unit_strengths = key_strengths or (CLEAN_STRENGTH,)
                    unit = make_unit(
                        architecture, dataset, key, unit_strengths, weights=network_weights.name, columns=()
                    )
                    units.append(replace(unit, n_images=N_IMAGES))

    def compute(unit: Unit, strength: float, values: Values) -> Values:
        is_correct = correct_images(
            accuracy(str(unit.architecture), unit.dataset, weights_by_name[unit.weights], unit.key, strength)
        )
        labels = np.arange(N_IMAGES) % N_CLASSES
        predictions = np.where(is_correct, labels, (labels + 1) % N_CLASSES)
        cm = np.zeros((N_CLASSES, N_CLASSES), np.int32)
        np.add.at(cm, (labels, predictions), 1)
        return {"accuracy": np.array(is_correct.mean()), "cm": cm, "predictions": predictions.astype(np.uint8)}

    plan = _Plan(
        tuple(units), MEASUREMENTS if with_outcomes else MEASUREMENTS[:2], weights=weights_by_name, space_name="zoo"
    )
    store, outcomes = ChangedStore(N_CLASSES, change=compute), "bits" if with_outcomes else None
    export(out, plan, store, formats=("parquet",), outcomes=outcomes, images_of=_images)
    return out


def _images(dataset: str) -> ImageSet:
    pixels = np.zeros((N_IMAGES, 3, 4, 4), np.uint8)
    labels = np.arange(N_IMAGES) % N_CLASSES
    return ImageSet(
        dataset, pixels, labels, np.arange(N_IMAGES), N_CLASSES, Normalisation((0,) * 3, (1,) * 3), "0" * 64
    )
