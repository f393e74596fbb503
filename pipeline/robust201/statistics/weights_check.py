"""Self-check of weights: compare clean accuracies with those recorded with the weights.

A wrong normalisation, wrong images, a swapped checkpoint or a wrong epoch is detected here before any attack is run. An
archive records each network's accuracy on the whole test split; a sweep may evaluate all of these images, or a sample.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, show_architecture

ROUNDING: dict[Precision, float] = {"fp32": 1e-3, "tf32": 1e-3, "bf16": 1e-2}
"""Difference in accuracy that another device or precision may cause, by the precision of the sweep.

In float32, 10 of 10,000 images: 0 to 3 of 10,000 predictions differ between the engines on a CPU, and TF32, which the
published numbers were computed with, moves logits by less than two images' margins in 100 (docs/protocol.md). In
bfloat16, differences of up to 1.5 points were observed on 200 images of one network.
"""

CHECK_LEVEL = 1e-3
"""Probability that the check flags any network by chance, if the sweep evaluates a sample of the images."""


@dataclass(frozen=True)
class CleanAccuracy:
    """A network's accuracy on clean images, and the accuracy recorded with its weights.

    Attributes:
        weights: short name of the weights if the network has several; otherwise empty.
        measured: fraction of `n_images` images.
        recorded: fraction of the `n_test` images of the whole test split.
        rounding: difference that arithmetic and rounding in files may cause (see `ROUNDING`).
    """

    dataset: str
    architecture: ArchitectureId
    weights: str
    measured: float
    recorded: float
    n_images: int
    n_test: int
    rounding: float = ROUNDING["fp32"]

    @property
    def label(self) -> str:
        return " ".join(filter(None, (show_architecture(self.architecture), self.dataset, self.weights)))


@dataclass(frozen=True)
class UnexpectedAccuracy:
    """A network whose clean accuracy is outside the range that its recorded accuracy allows."""

    accuracy: CleanAccuracy
    low: float
    high: float

    @property
    def message(self) -> str:
        accuracy = self.accuracy
        return (
            f"Checking weights failed for {accuracy.label}: expected {self.low:.4f} to {self.high:.4f} of "
            f"{accuracy.n_images:,} clean images correct, since {accuracy.recorded:.4f} of {accuracy.n_test:,} is "
            f"recorded with the weights, got {accuracy.measured:.4f}. Check the images, their normalisation, and which "
            "weights these are."
        )


def expected_range(
    recorded: float, n_images: int, n_test: int, *, level: float = CHECK_LEVEL, rounding: float = ROUNDING["fp32"]
) -> tuple[float, float]:
    """Return the expected range of accuracies on a sample of the test split, drawn without replacement.

    Args:
        recorded: accuracy on all `n_test` images of the split, in [0, 1].
        n_images: number of sampled images, from 1 to `n_test`.
        n_test: number of images of the split.
        level: probability that a sample's accuracy is outside the range, before `rounding` widens it on both sides.
        rounding: see `ROUNDING`.

    Returns:
        The minimum and maximum accuracy, in [0, 1], with equal tails of the hypergeometric distribution.
    """
    from scipy.stats import hypergeom

    n_correct = round(recorded * n_test)
    low, high = recorded, recorded
    if n_images < n_test:
        sample = hypergeom(n_test, n_correct, n_images)
        low, high = (float(sample.ppf(tail)) / n_images for tail in (level / 2, 1 - level / 2))
    return max(0.0, low - rounding), min(1.0, high + rounding)


@dataclass(frozen=True)
class WeightsCheck:
    """Number of networks with a recorded accuracy, and those whose clean accuracy is unexpected."""

    n_checked: int
    unexpected: tuple[UnexpectedAccuracy, ...]

    def to_payload(self) -> dict[str, Any]:
        return {"checked": self.n_checked, "unexpected": [network.message for network in self.unexpected]}


def check_accuracies(accuracies: Collection[CleanAccuracy]) -> WeightsCheck:
    """Find the networks whose clean accuracy neither sampling of images nor arithmetic explains.

    Each network is tested at `CHECK_LEVEL` divided by their number (Bonferroni), so even a single flagged network
    deserves attention.
    """
    ranges: dict[tuple[float, int, int, float], tuple[float, float]] = {}
    unexpected = []
    for accuracy in accuracies:
        case = accuracy.recorded, accuracy.n_images, accuracy.n_test, accuracy.rounding
        if case not in ranges:
            ranges[case] = expected_range(
                accuracy.recorded,
                accuracy.n_images,
                accuracy.n_test,
                level=CHECK_LEVEL / len(accuracies),
                rounding=accuracy.rounding,
            )
        low, high = ranges[case]
        if not low <= accuracy.measured <= high:
            unexpected.append(UnexpectedAccuracy(accuracy, low, high))
    return WeightsCheck(len(accuracies), tuple(unexpected))
