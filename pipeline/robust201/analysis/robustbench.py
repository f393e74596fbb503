"""Leaderboards of RobustBench on CIFAR-10: checks of the images, and the fields of RobustBench's `model_info` files.

Source: Croce et al., "RobustBench: a standardized adversarial robustness benchmark", NeurIPS Datasets and Benchmarks
2021; https://github.com/RobustBench/robustbench (the fields of `model_info/cifar10/*/*.json`).
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.records import ImageSet
from robust201.images import DATASETS
from robust201.tasks import PRESETS

if TYPE_CHECKING:
    import pandas as pd

DATASET = "cifar10"
N_CLASSES = 10
N_IMAGES = 10_000
"""Number of images in a leaderboard evaluation: the complete test split."""

_IMAGE_SIZE = 32

_USER_FIELDS = (
    *("link", "name", "authors", "additional_data", "number_forward_passes"),
    *("venue", "architecture", "reported", "footnote", "unreliable"),
)
"""Fields that describe the network and its paper, which only the user knows."""


class LeaderboardFields(NamedTuple):
    """Fields of a leaderboard's `model_info` files.

    Attributes:
        eps: radius of the norm ball as the leaderboard writes it; None for the corruptions of CIFAR-10-C.
        accuracy_field: name of the field for the accuracy under the attack, or for the mean accuracy over all
            corruptions and severities.
    """

    eps: str | None
    accuracy_field: str


LEADERBOARDS = {
    "robustbench-linf": LeaderboardFields("8/255", "autoattack_acc"),
    "robustbench-l2": LeaderboardFields("0.5", "autoattack_acc"),
    "robustbench-corruptions": LeaderboardFields(None, "corruptions_acc"),
}
"""Leaderboards by the name of their preset."""


def check_images(preset: str, images: ImageSet) -> None:
    """Reject images that cannot be test images of CIFAR-10, by dataset name, size and number of images per class."""
    counts = {*np.bincount(images.labels, minlength=N_CLASSES).tolist()}
    has_plausible_counts = len(images.labels) < N_IMAGES or counts == {N_IMAGES // N_CLASSES}
    is_other_dataset = images.dataset in DATASETS and images.dataset != DATASET
    if is_other_dataset or images.images.shape[2:] != (_IMAGE_SIZE, _IMAGE_SIZE) or not has_plausible_counts:
        raise DatasetError(
            f"Reading images failed for {preset}: expected the test images of {DATASET} ({_IMAGE_SIZE}x{_IMAGE_SIZE} "
            f"pixels, {N_IMAGES // N_CLASSES:,} of each class), got {images.dataset}: "
            f"{images.images.shape[2]}x{images.images.shape[3]} "
            f"pixels and {min(counts):,} to {max(counts):,} of each class. Pass robust201.images.load_images"
            f'("{DATASET}") (--data {DATASET}).'
        )


def model_info(preset: str | None, table: "pd.DataFrame", n_images: int) -> dict[str, Any]:
    """Return the results of a preset as a JSON object with the fields of a `model_info` file.

    Accuracies are strings in percent. Fields that describe the network are null. If fewer than all test images were
    evaluated, the field `n_examples` is added, which the leaderboard's files do not have. A partial result can
    therefore not be mistaken for a leaderboard entry.

    Raises:
        ConfigError: the preset is not a leaderboard, or the table has other keys than the preset.
    """
    if preset not in LEADERBOARDS or {*table["key"]} != {*PRESETS[preset]}:
        raise ConfigError(
            "Writing a leaderboard entry failed: the keys were not the preset of a leaderboard. Evaluate with keys="
            f"{next(iter(LEADERBOARDS))!r} (or {', '.join([*LEADERBOARDS][1:])})."
        )
    eps, accuracy_field = LEADERBOARDS[preset]
    is_clean = table["key"] == "clean"
    accuracies = {"clean_acc": table[is_clean]["accuracy"], accuracy_field: table[~is_clean]["accuracy"]}
    entry = dict.fromkeys(_USER_FIELDS) | {"dataset": DATASET, "eps": eps}
    entry |= {name: f"{100 * float(values.mean()):.2f}" for name, values in accuracies.items()}
    return entry if n_images == N_IMAGES else entry | {"n_examples": n_images}
