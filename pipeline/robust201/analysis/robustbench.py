"""The evaluation protocols of RobustBench's CIFAR-10 leaderboards, and the fields of RobustBench's `model_info` files.

Source: Croce et al., "RobustBench: a standardized adversarial robustness benchmark", NeurIPS Datasets and Benchmarks
2021; https://github.com/RobustBench/robustbench (the fields of `model_info/cifar10/*/*.json`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from robust201.core.errors import ConfigError, did_you_mean
from robust201.tasks import CORRUPTIONS

if TYPE_CHECKING:
    import pandas as pd

DATASET = "cifar10"
N_CLASSES = 10
N_IMAGES = 10_000
"""Number of images in a leaderboard evaluation: the complete test split."""

_USER_FIELDS = (
    *("link", "name", "authors", "additional_data", "number_forward_passes"),
    *("venue", "architecture", "reported", "footnote", "unreliable"),
)
"""Fields that describe the network and its paper, which only the user knows."""


@dataclass(frozen=True)
class Benchmark:
    """Evaluation protocol of a leaderboard.

    Attributes:
        name: the name on the command line.
        keys: keys to evaluate, with their parameters.
        eps: radius of the norm ball as the leaderboard writes it; None for corruptions.
        accuracy_field: name of the field for the accuracy under the attack, or for the mean accuracy over all
            corruptions and severities.
    """

    name: str
    keys: Mapping[str, Mapping[str, Any]]
    eps: str | None
    accuracy_field: str

    @property
    def uses_corrupted_images(self) -> bool:
        """Whether the evaluation uses the images of CIFAR-10-C."""
        return self.eps is None

    def model_info(self, table: "pd.DataFrame", n_images: int) -> dict[str, Any]:
        """Return the results as a JSON object with the fields of a `model_info` file.

        Accuracies are strings in percent. Fields that describe the network are null. If fewer than all test images were
        evaluated, the field `n_examples` is added, which the leaderboard's files do not have. A partial result can
        therefore not be mistaken for a leaderboard entry.
        """
        is_clean = table["key"] == "clean"
        accuracies = {"clean_acc": table[is_clean]["accuracy"], self.accuracy_field: table[~is_clean]["accuracy"]}
        entry = dict.fromkeys(_USER_FIELDS) | {"dataset": DATASET, "eps": self.eps}
        entry |= {
            name: f"{100 * float(accuracies_of_field.mean()):.2f}" for name, accuracies_of_field in accuracies.items()
        }
        return entry if n_images == N_IMAGES else entry | {"n_examples": n_images}


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("robustbench-linf", {"clean": {}, "aa_standard": {"epsilons": ["8/255"]}}, "8/255", "autoattack_acc"),
        Benchmark("robustbench-l2", {"clean": {}, "aa_standard_l2": {"epsilons": [0.5]}}, "0.5", "autoattack_acc"),
        Benchmark("robustbench-corruptions", {key: {} for key in ("clean", *CORRUPTIONS)}, None, "corruptions_acc"),
    )
}
"""Benchmarks by name."""


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark with this name; for an unknown name, the ConfigError suggests the closest one."""
    if name not in BENCHMARKS:
        raise ConfigError(
            f"Looking up a benchmark failed for {name!r}: it must be one of {', '.join(BENCHMARKS)}."
            f"{did_you_mean(name, BENCHMARKS)}"
        )
    return BENCHMARKS[name]
