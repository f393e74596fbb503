"""Exports of fabricated trained networks with planted accuracies: several recipes, lengths and seeds per
architecture."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from robust201.core.records import CLEAN_STRENGTH, ImageSet, Normalisation, Unit, Weights
from robust201.studies.config import DynamicsStudy, EquivarianceStudy, ImageDistributionStudy, MixingStudy, Study
from robust201.studies.image_distribution import EPSILONS
from robust201.studies.networks import Exports
from robust201.tasks.columns import Values
from tests.support.fabricated import ChangedStore, FabricatedPlan, export, make_unit

N_IMAGES = 400
N_CLASSES = 10
MEASUREMENTS = ("accuracy", "cm", "predictions")

Accuracy = Callable[[str, str, Weights, str, float], float]
"""(architecture, dataset, weights, key, strength) → planted accuracy."""


@dataclass(frozen=True)
class _Plan(FabricatedPlan):
    def n_classes(self, dataset: str) -> int | None:
        return N_CLASSES


def make_weights(
    recipe: str, lengths: Sequence[int], seeds: Sequence[int], *, steps: Sequence[int] = ()
) -> list[Weights]:
    """Return weights of a recipe for each seed, after some numbers of epochs and some numbers of iterations."""
    snapshots = [(epochs, None) for epochs in lengths] + [(None, count) for count in steps]
    return [
        Weights("c" * 64, recipe=recipe, epochs=epochs, seed=seed, steps=count)
        for seed in seeds
        for epochs, count in snapshots
    ]


def correct_images(accuracy: float, offset: int = 0) -> np.ndarray:
    """Return which images are correct, bool: the first ones, counted from an offset."""
    return (np.arange(N_IMAGES) - offset) % N_IMAGES < round(accuracy * N_IMAGES)


def write_study(
    out: Path,
    networks: Mapping[str, Mapping[str, Sequence[Weights]]],
    strengths: Mapping[str, Sequence[float]],
    accuracy: Accuracy,
    *,
    outcomes: bool = False,
) -> Path:
    """Export networks, {dataset: {architecture: weights}}, with keys at their strengths."""
    units, weights = [], {}
    for dataset, by_architecture in networks.items():
        for key, values in strengths.items():
            for architecture, weight_list in by_architecture.items():
                for item in weight_list:
                    weights[item.name] = item
                    unit_strengths = values or (CLEAN_STRENGTH,)
                    unit = make_unit(architecture, dataset, key, unit_strengths, weights=item.name, columns=())
                    units.append(replace(unit, n_images=N_IMAGES))

    def change(unit: Unit, strength: float, values: Values) -> Values:
        correct = correct_images(
            accuracy(str(unit.architecture), unit.dataset, weights[unit.weights], unit.key, strength)
        )
        labels = np.arange(N_IMAGES) % N_CLASSES
        predictions = np.where(correct, labels, (labels + 1) % N_CLASSES)
        cm = np.zeros((N_CLASSES, N_CLASSES), np.int32)
        np.add.at(cm, (labels, predictions), 1)
        return {"accuracy": np.array(correct.mean()), "cm": cm, "predictions": predictions.astype(np.uint8)}

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


# --- Image distribution

STRENGTHS = tuple(255 * epsilon for epsilon in EPSILONS[1:])
EPOCHS = (1, 4)
FOUR_SEEDS = tuple(range(4))
PACE = {"mnist": 0.01, "cifar10": 0.05, "fusion_digit": 0.02, "fusion_object": 0.06}

IMAGE_DISTRIBUTION = ImageDistributionStudy.model_validate(
    {
        "name": "planted",
        "study": "image-distribution",
        "sweeps": ["sweep.yaml"],
        "mixed_model": True,
        "networks": {
            "LeNet": {"architecture": "lenet5", "printed_epochs": {1: 1, 4: 50}},
            "tiny": {"architecture": "resnet18"},
        },
        "groups": {
            **{name: {"dataset": name, "recipes": ["plain"]} for name in PACE},
            "cifar10_to_mnist": {"dataset": "mnist", "recipes": ["finetuned"]},
            "mnist_to_cifar10": {"dataset": "cifar10", "recipes": ["finetuned"]},
        },
    }
)


def falling(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Return an accuracy that decreases with strength; seeds shift all groups alike, one network gains under attack."""
    if (architecture, dataset, weights.epochs, weights.recipe) == ("resnet18", "fusion_object", 1, "plain"):
        return 0.3 if strength == 0 else 0.4
    rate = PACE[dataset] * (0.8 if weights.recipe == "finetuned" else 1)
    return 0.1 + (0.6 + 0.03 * (weights.seed or 0)) * np.exp(-rate * strength)


def plant_image_distribution(folder: Path) -> tuple[ImageDistributionStudy, Exports]:
    plain, tuned = (make_weights(recipe, EPOCHS, FOUR_SEEDS) for recipe in ("plain", "finetuned"))
    keys = {"clean": (), "fgsm": STRENGTHS}
    plain_networks = {dataset: dict.fromkeys(("lenet5", "resnet18"), plain) for dataset in PACE}
    tuned_networks = {dataset: dict.fromkeys(("lenet5", "resnet18"), tuned) for dataset in ("mnist", "cifar10")}
    return IMAGE_DISTRIBUTION, Exports(
        [
            write_study(folder / "plain", plain_networks, keys, falling),
            write_study(folder / "tuned", tuned_networks, keys, falling),
        ]
    )


# --- Robust features

SEEDS = (0, 1)

DYNAMICS = DynamicsStudy.model_validate(
    {
        "name": "planted",
        "study": "robust-features-dynamics",
        "sweeps": ["sweep.yaml"],
        "dataset": "cifar10",
        "architecture": "resnet32-narrow",
        "runs": {"std": "plain", "tiny": "other"},
        "attacks": ["rot30", "pgd_linf7"],
        "iterations_per_epoch": 625,
    }
)


def growing(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Clean accuracy is .8. Rotations fool half of the correct images at every snapshot, PGD more and more of them."""
    done = (weights.epochs or 0) * 625 if weights.steps is None else weights.steps
    remaining = {"clean": 1.0, "rot30": 0.5}.get(key, 1 - done / 2500 * strength)
    return 0.8 * remaining


def plant_dynamics(folder: Path) -> tuple[DynamicsStudy, Exports]:
    plain = make_weights("plain", (1, 2), SEEDS, steps=(100,))
    other = make_weights("other", (1,), (0,))
    networks = {"cifar10": {"resnet32-narrow": [*plain, *other]}}
    strengths = {"clean": (), "rot30": (), "pgd_linf7": (0.5, 1.0)}
    out = write_study(folder, networks, strengths, growing, outcomes=True)
    return DYNAMICS, Exports([out], iterations_per_epoch=625)


MIXING = MixingStudy.model_validate(
    {
        "name": "planted",
        "study": "robust-features-mixing",
        "sweeps": ["sweep.yaml"],
        "dataset": "cifar10",
        "networks": {"ResNet-50": "resnet50", "VGG-16": "vgg16"},
        "alphas": {0.0: "mix-0", 0.5: "mix-5", 1.0: "mix-10"},
        "epochs": 3,
        "panels": {"L2": ["pgd_l2"]},
    }
)
MIXING_FRACTIONS = {"mix-0": 0.0, "mix-5": 0.5, "mix-10": 1.0}


def mixed(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Robust images increase accuracy under attack and decrease clean accuracy; VGG-16 has a minimum in the middle."""
    alpha = MIXING_FRACTIONS[weights.recipe]
    if key == "clean":
        return 0.9 - 0.1 * alpha + 0.01 * (weights.seed or 0)
    dip = 0.1 if architecture == "vgg16" and alpha == 0.5 else 0.0
    return 0.2 + 0.4 * alpha + 0.02 * alpha * (weights.seed or 0) - dip


def plant_mixing(folder: Path) -> tuple[MixingStudy, Exports]:
    weights = [item for recipe in MIXING_FRACTIONS for item in make_weights(recipe, (1, 3), SEEDS)]
    networks = {"cifar10": {"resnet50": weights, "vgg16": weights}}
    out = write_study(folder, networks, {"clean": (), "pgd_l2": (0.25,)}, mixed)
    return MIXING, Exports([out])


EQUIVARIANCE = EquivarianceStudy.model_validate(
    {
        "name": "planted",
        "study": "robust-features-equivariance",
        "sweeps": ["sweep.yaml"],
        "dataset": "cifar10",
        "networks": {
            "ResNet-50": {"ResNet-50": "resnet50"},
            "STN": {"STN-ResNet-18": "stn-resnet18", "STN-ResNet-34": "stn-resnet34"},
        },
        "settings": {"D": ["d-1", "d-2"], "D*": ["d*-1", "d*-2"]},
        "attacks": ["rot30"],
        "epochs": 3,
    }
)


def spatial(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Depth 34 is slightly better, rates differ only by noise, and training on rotations helps."""
    draws = np.random.default_rng([len(architecture), int(architecture[-1]), *weights.name.encode(), len(key)])
    return 0.5 + 0.2 * ("*" in weights.recipe) + 0.05 * architecture.endswith("34") + 0.02 * draws.random()


def plant_equivariance(folder: Path) -> tuple[EquivarianceStudy, Exports]:
    recipes = [recipe for group in EQUIVARIANCE.settings.values() for recipe in group]
    weights = [item for recipe in recipes for item in make_weights(recipe, (3,), SEEDS)]
    networks = {"cifar10": dict.fromkeys(("resnet50", "stn-resnet18", "stn-resnet34"), weights)}
    out = write_study(folder, networks, {"clean": (), "rot30": ()}, spatial, outcomes=True)
    return EQUIVARIANCE, Exports([out])


STUDIES: dict[str, Callable[[Path], tuple[Study, Exports]]] = {
    "image-distribution": plant_image_distribution,
    "robust-features-dynamics": plant_dynamics,
    "robust-features-mixing": plant_mixing,
    "robust-features-equivariance": plant_equivariance,
}
"""Functions that write the exports of each study into a folder, and return the study and the exports."""
