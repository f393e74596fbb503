"""The self-check of weights: clean accuracies beside those that were recorded with the weights.

A wrong normalisation, other images, a swapped checkpoint or a wrong epoch shows here before any attack is trusted. An
archive records each network's accuracy on the whole test split; a sweep may evaluate all of these images, or a sample.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, show_architecture

ROUNDING: dict[Precision, float] = {"fp32": 1e-3, "tf32": 1e-3, "bf16": 1e-2}
"""Difference in accuracy that another device and arithmetic may explain, by the precision of the sweep.

10 of 10,000 images in float32: between the engines on a CPU 0 to 3 of 10,000 predictions differ, and TF32, in which the
published numbers were computed, moves logits by less than two images' margins in 100 (docs/protocol.md). In bfloat16 up
to 1.5 points were seen on 200 images of one network.
"""

CHECK_LEVEL = 1e-3
"""Probability that a check of all networks names one by chance, where the sweep evaluates a sample of the images."""


@dataclass(frozen=True)
class CleanAccuracy:
    """The accuracy of a network on clean images, and what was recorded with its weights.

    Attributes:
        weights: short name of the weights where a network has several; else empty.
        measured: fraction of `n_images` images.
        recorded: fraction of the `n_test` images of the whole test split.
        rounding: difference that arithmetic and rounded files explain (see `ROUNDING`).
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
    """A network whose clean accuracy lies outside the range that its recorded one allows."""

    found: CleanAccuracy
    low: float
    high: float

    @property
    def message(self) -> str:
        one = self.found
        return (
            f"Checking weights failed for {one.label}: expected {self.low:.4f} to {self.high:.4f} of {one.n_images:,} "
            f"clean images correct, since {one.recorded:.4f} of {one.n_test:,} is recorded with the weights, got "
            f"{one.measured:.4f}. Check the images, their normalisation, and which weights these are."
        )


def expected_range(
    recorded: float, n_images: int, n_test: int, *, level: float = CHECK_LEVEL, rounding: float = ROUNDING["fp32"]
) -> tuple[float, float]:
    """Return the range of accuracies on a sample of the test split, drawn without replacement, that is no surprise.

    Args:
        recorded: accuracy on all `n_test` images of the split, in [0, 1].
        n_images: images of the sample, 1 to `n_test`.
        n_test: images of the split.
        level: probability that a sample's accuracy lies outside, before `rounding` widens the range on both sides.
        rounding: see `ROUNDING`.

    Returns:
        The least and the greatest accuracy, in [0, 1]: equal tails of the hypergeometric distribution.
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
    """How many networks had an accuracy recorded with their weights, and those whose clean accuracy is another."""

    n_checked: int
    unexpected: tuple[UnexpectedAccuracy, ...]

    def to_payload(self) -> dict[str, Any]:
        return {"checked": self.n_checked, "unexpected": [one.message for one in self.unexpected]}


def check_accuracies(accuracies: Collection[CleanAccuracy]) -> WeightsCheck:
    """Find the networks whose clean accuracy neither the choice of images nor arithmetic explains.

    The level of each is `CHECK_LEVEL` divided by their number (Bonferroni): even one that is named deserves a look.
    """
    ranges: dict[tuple[float, int, int, float], tuple[float, float]] = {}
    unexpected = []
    for one in accuracies:
        case = one.recorded, one.n_images, one.n_test, one.rounding
        if case not in ranges:
            ranges[case] = expected_range(
                one.recorded, one.n_images, one.n_test, level=CHECK_LEVEL / len(accuracies), rounding=one.rounding
            )
        low, high = ranges[case]
        if not low <= one.measured <= high:
            unexpected.append(UnexpectedAccuracy(one, low, high))
    return WeightsCheck(len(accuracies), tuple(unexpected))
