"""Exports of fabricated trained networks with known accuracies, for several recipes, training lengths and seeds."""

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

AccuracyFunction = Callable[[str, str, Weights, str, float], float]
"""Function that returns the accuracy for (architecture, dataset, weights, key, strength)."""


@dataclass(frozen=True)
class _Plan(FabricatedPlan):
    """Plan in which every dataset has `N_CLASSES` classes."""

    def n_classes(self, dataset: str) -> int | None:
        return N_CLASSES


def make_weights(
    recipe: str, lengths: Sequence[int], seeds: Sequence[int], *, steps: Sequence[int] = ()
) -> list[Weights]:
    """Return weights of a recipe for each seed, after `lengths` epochs and after `steps` iterations."""
    snapshots = [(epochs, None) for epochs in lengths] + [(None, iterations) for iterations in steps]
    return [
        Weights("c" * 64, recipe=recipe, epochs=epochs, seed=seed, steps=iterations)
        for seed in seeds
        for epochs, iterations in snapshots
    ]


def correct_images(accuracy: float, offset: int = 0) -> np.ndarray:
    """Return (N,) booleans: the fraction `accuracy` of them is true, in consecutive images from index `offset` on."""
    return (np.arange(N_IMAGES) - offset) % N_IMAGES < round(accuracy * N_IMAGES)


def write_study(
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

    def change(unit: Unit, strength: float, values: Values) -> Values:
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
    outcome_options = (
        {"outcomes": "bits", "images_of": lambda _plan, dataset: _images(dataset)} if with_outcomes else {}
    )
    export(out, plan, ChangedStore(N_CLASSES, change=change), formats=("parquet",), **outcome_options)
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
DECAY_RATES = {"mnist": 0.01, "cifar10": 0.05, "fusion_digit": 0.02, "fusion_object": 0.06}

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
            **{name: {"dataset": name, "recipes": ["plain"]} for name in DECAY_RATES},
            "cifar10_to_mnist": {"dataset": "mnist", "recipes": ["finetuned"]},
            "mnist_to_cifar10": {"dataset": "cifar10", "recipes": ["finetuned"]},
        },
    }
)


def falling_accuracy(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Return an accuracy that decreases with the strength, except for one network that is more accurate under attack.

    The accuracy of other networks increases with the seed; on clean images, by the same amount in all groups.
    """
    if (architecture, dataset, weights.epochs, weights.recipe) == ("resnet18", "fusion_object", 1, "plain"):
        return 0.3 if strength == 0 else 0.4
    decay_rate = DECAY_RATES[dataset] * (0.8 if weights.recipe == "finetuned" else 1)
    return 0.1 + (0.6 + 0.03 * (weights.seed or 0)) * np.exp(-decay_rate * strength)


def plant_image_distribution(folder: Path) -> tuple[ImageDistributionStudy, Exports]:
    plain_weights, tuned_weights = (make_weights(recipe, EPOCHS, FOUR_SEEDS) for recipe in ("plain", "finetuned"))
    keys = {"clean": (), "fgsm": STRENGTHS}
    plain_networks = {dataset: dict.fromkeys(("lenet5", "resnet18"), plain_weights) for dataset in DECAY_RATES}
    tuned_networks = {dataset: dict.fromkeys(("lenet5", "resnet18"), tuned_weights) for dataset in ("mnist", "cifar10")}
    return IMAGE_DISTRIBUTION, Exports(
        [
            write_study(folder / "plain", plain_networks, keys, falling_accuracy),
            write_study(folder / "tuned", tuned_networks, keys, falling_accuracy),
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


def accuracy_during_training(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Return 0.8 for clean images. Rotations fool half of the correct images; PGD fools more in later snapshots."""
    iterations = (weights.epochs or 0) * 625 if weights.steps is None else weights.steps
    robust_fraction = {"clean": 1.0, "rot30": 0.5}.get(key, 1 - iterations / 2500 * strength)
    return 0.8 * robust_fraction


def plant_dynamics(folder: Path) -> tuple[DynamicsStudy, Exports]:
    plain_weights = make_weights("plain", (1, 2), SEEDS, steps=(100,))
    other_weights = make_weights("other", (1,), (0,))
    networks = {"cifar10": {"resnet32-narrow": [*plain_weights, *other_weights]}}
    strengths = {"clean": (), "rot30": (), "pgd_linf7": (0.5, 1.0)}
    out = write_study(folder, networks, strengths, accuracy_during_training, with_outcomes=True)
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


def mixed_training_accuracy(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Return an accuracy that depends on the fraction of robust training images.

    If the fraction is larger, the accuracy is higher under attack and lower on clean images. Under attack,
    VGG-16 is less accurate than the other network if half of the images are robust.
    """
    alpha = MIXING_FRACTIONS[weights.recipe]
    if key == "clean":
        return 0.9 - 0.1 * alpha + 0.01 * (weights.seed or 0)
    dip = 0.1 if architecture == "vgg16" and alpha == 0.5 else 0.0
    return 0.2 + 0.4 * alpha + 0.02 * alpha * (weights.seed or 0) - dip


def plant_mixing(folder: Path) -> tuple[MixingStudy, Exports]:
    weights = [
        network_weights for recipe in MIXING_FRACTIONS for network_weights in make_weights(recipe, (1, 3), SEEDS)
    ]
    networks = {"cifar10": {"resnet50": weights, "vgg16": weights}}
    out = write_study(folder, networks, {"clean": (), "pgd_l2": (0.25,)}, mixed_training_accuracy)
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


def spatial_accuracy(architecture: str, dataset: str, weights: Weights, key: str, strength: float) -> float:
    """Return an accuracy that is higher with depth 34 and with D*, and differs between learning rates only by noise."""
    rng = np.random.default_rng([len(architecture), int(architecture[-1]), *weights.name.encode(), len(key)])
    return 0.5 + 0.2 * ("*" in weights.recipe) + 0.05 * architecture.endswith("34") + 0.02 * rng.random()


def plant_equivariance(folder: Path) -> tuple[EquivarianceStudy, Exports]:
    recipes = [recipe for group in EQUIVARIANCE.settings.values() for recipe in group]
    weights = [network_weights for recipe in recipes for network_weights in make_weights(recipe, (3,), SEEDS)]
    networks = {"cifar10": dict.fromkeys(("resnet50", "stn-resnet18", "stn-resnet34"), weights)}
    out = write_study(folder, networks, {"clean": (), "rot30": ()}, spatial_accuracy, with_outcomes=True)
    return EQUIVARIANCE, Exports([out])


STUDIES: dict[str, Callable[[Path], tuple[Study, Exports]]] = {
    "image-distribution": plant_image_distribution,
    "robust-features-dynamics": plant_dynamics,
    "robust-features-mixing": plant_mixing,
    "robust-features-equivariance": plant_equivariance,
}
"""Functions that write the exports of a study into a folder, and return the study and the exports."""
