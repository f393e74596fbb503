"""Compare measured clean accuracies with the accuracies that are recorded with the weights.

This check detects a wrong normalisation, wrong images, a swapped checkpoint or a wrong epoch from clean images alone.
The recorded accuracy is on the full test split, whereas a sweep may evaluate only a sample of it.
"""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from robust201.core.precision import Precision
from robust201.core.records import ArchitectureId, format_architecture

ACCURACY_TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "tf32": 1e-3, "bf16": 1e-2}
"""Tolerated difference between measured and recorded accuracy, by the precision of the sweep.

In fp32 and tf32, it is 10 of 10,000 images. The engines' predictions on a CPU differ for 0 to 3 of 10,000 images. The
published numbers were probably computed with TF32; emulated TF32 changed no outcome of 100 images under FGSM and PGD
(docs/protocol/attacks.md). In bf16, the number of correct images of one network differed by up to 3 of 200.
"""

CHECK_LEVEL = 1e-3
"""Maximum probability that the check flags any network by chance, if a sweep evaluates a sample of the images."""


@dataclass(frozen=True)
class CleanAccuracy:
    """Accuracy of a network on clean images, and the accuracy recorded with its weights.

    Attributes:
        weights: short name of the weights if the network has several; otherwise empty.
        measured: accuracy on `n_images` images, as a fraction.
        recorded: accuracy on the `n_test` images of the full test split, as a fraction.
        tolerance: difference that arithmetic and rounding in files may cause (see `ACCURACY_TOLERANCE`).
    """

    dataset: str
    architecture: ArchitectureId
    weights: str
    measured: float
    recorded: float
    n_images: int
    n_test: int
    tolerance: float = ACCURACY_TOLERANCE["fp32"]

    @property
    def label(self) -> str:
        return " ".join(filter(None, (format_architecture(self.architecture), self.dataset, self.weights)))


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
            f"Checking weights failed for {accuracy.label}: the accuracy on {accuracy.n_images:,} clean images is "
            f"{accuracy.measured:.4f}, but {self.low:.4f} to {self.high:.4f} was expected, because an accuracy of "
            f"{accuracy.recorded:.4f} on {accuracy.n_test:,} images was recorded with the weights. Check the images, "
            "their normalisation, and the weights."
        )


@functools.cache
def expected_range(
    recorded: float,
    n_images: int,
    n_test: int,
    *,
    level: float = CHECK_LEVEL,
    tolerance: float = ACCURACY_TOLERANCE["fp32"],
) -> tuple[float, float]:
    """Return the range of accuracies in [0, 1] to expect on a random sample of the test split without replacement.

    The number of correct images in the sample is hypergeometric, given the accuracy `recorded` on all `n_test` images.
    It is below the range, or above it, with a probability of at most `level` / 2 each; `tolerance` extends both ends.
    """
    from scipy.stats import hypergeom

    n_correct = round(recorded * n_test)
    low, high = recorded, recorded
    if n_images < n_test:
        sample = hypergeom(n_test, n_correct, n_images)
        low, high = (float(sample.ppf(probability)) / n_images for probability in (level / 2, 1 - level / 2))
    return max(0.0, low - tolerance), min(1.0, high + tolerance)


@dataclass(frozen=True)
class WeightsCheck:
    """Number of compared networks, and the networks whose clean accuracy is unexpected."""

    n_checked: int
    unexpected: tuple[UnexpectedAccuracy, ...]

    def to_payload(self) -> dict[str, Any]:
        return {"checked": self.n_checked, "unexpected": [accuracy.message for accuracy in self.unexpected]}


def check_accuracies(accuracies: Collection[CleanAccuracy]) -> WeightsCheck:
    """Find the networks whose clean accuracy cannot be explained by the sampling of images or by arithmetic.

    Each network is tested at `CHECK_LEVEL` divided by the number of networks (Bonferroni), so even a single flagged
    network deserves attention.
    """
    unexpected = []
    for accuracy in accuracies:
        low, high = expected_range(
            accuracy.recorded,
            accuracy.n_images,
            accuracy.n_test,
            level=CHECK_LEVEL / len(accuracies),
            tolerance=accuracy.tolerance,
        )
        if not low <= accuracy.measured <= high:
            unexpected.append(UnexpectedAccuracy(accuracy, low, high))
    return WeightsCheck(len(accuracies), tuple(unexpected))
