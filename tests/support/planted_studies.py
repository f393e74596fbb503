"""Exports of invented trained networks with planted accuracies: several recipes, lengths and seeds per architecture."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from robust201.core.records import CLEAN_STRENGTH, ImageSet, Normalisation, Unit, Weights
from robust201.tasks.columns import Values
from tests.support.fabricated import ChangedStore, FabricatedPlan, export, make_unit

N_IMAGES = 400
N_CLASSES = 10
MEASUREMENTS = ("accuracy", "cm", "predictions")

Accuracy = Callable[[str, str, Weights, str, float], float]
"""(architecture, dataset, weights, key, strength) to the planted accuracy."""


@dataclass(frozen=True)
class _Plan(FabricatedPlan):
    def n_classes(self, dataset: str) -> int | None:
        return N_CLASSES


def make_weights(
    recipe: str, lengths: Sequence[int], seeds: Sequence[int], *, steps: Sequence[int] = ()
) -> list[Weights]:
    """Weights of a recipe after some epochs and some iterations, of each seed."""
    made = [(epochs, None) for epochs in lengths] + [(None, count) for count in steps]
    return [
        Weights("c" * 64, recipe=recipe, epochs=epochs, seed=seed, steps=count)
        for seed in seeds
        for epochs, count in made
    ]


def correct_images(accuracy: float, offset: int = 0) -> np.ndarray:
    """Which images are right, bool: the first ones, counted from an offset on."""
    return (np.arange(N_IMAGES) - offset) % N_IMAGES < round(accuracy * N_IMAGES)


def write_study(
    out: Path,
    networks: Mapping[str, Mapping[str, Sequence[Weights]]],
    strengths: Mapping[str, Sequence[float]],
    accuracy: Accuracy,
    *,
    outcomes: bool = False,
) -> Path:
    """Export networks, {dataset: {architecture: weights}}, under keys at their strengths."""
    units, weights = [], {}
    for dataset, by_architecture in networks.items():
        for key, values in strengths.items():
            for architecture, several in by_architecture.items():
                for one in several:
                    weights[one.name] = one
                    held = values or (CLEAN_STRENGTH,)
                    unit = make_unit(architecture, dataset, key, held, weights=one.name, columns=())
                    units.append(replace(unit, n_images=N_IMAGES))

    def change(unit: Unit, strength: float, values: Values) -> Values:
        right = correct_images(
            accuracy(str(unit.architecture), unit.dataset, weights[unit.weights], unit.key, strength)
        )
        labels = np.arange(N_IMAGES) % N_CLASSES
        predictions = np.where(right, labels, (labels + 1) % N_CLASSES)
        cm = np.zeros((N_CLASSES, N_CLASSES), np.int32)
        np.add.at(cm, (labels, predictions), 1)
        return {"accuracy": np.array(right.mean()), "cm": cm, "predictions": predictions.astype(np.uint8)}

    plan = _Plan(tuple(units), MEASUREMENTS if outcomes else MEASUREMENTS[:2], weights=weights, space_name="zoo")
    extra = {"outcomes": "bits", "images_of": lambda _plan, dataset: _images(dataset)} if outcomes else {}
    export(out, plan, ChangedStore(N_CLASSES, change=change), formats=("parquet",), **extra)
    return out


def _images(dataset: str) -> ImageSet:
    pixels = np.zeros((N_IMAGES, 3, 4, 4), np.uint8)
    labels = np.arange(N_IMAGES) % N_CLASSES
    return ImageSet(
        dataset, pixels, labels, np.arange(N_IMAGES), N_CLASSES, Normalisation((0,) * 3, (1,) * 3), "0" * 64
    )
