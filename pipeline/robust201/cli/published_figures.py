"""`robust201 doctor --published-figures`: compare accuracies of architecture #0's official weights with published ones.

This is the strongest check of the choices that docs/protocol.md infers from the paper. It needs the weights of
NATS-Bench (#0, CIFAR-10, 200 epochs, seed 777) and the test images of CIFAR-10, which robust201 cannot include.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from robust201.api import evaluate, load_model
from robust201.core.errors import CheckpointError, DatasetError
from robust201.core.records import ImageSet
from robust201.images import load_images, select
from robust201.images.downloads.registry import data_folder
from robust201.monitoring.doctor import HealthCheck

ARCHITECTURE = 0
DATASET = "cifar10"
EPOCHS = 200
SEED = 777

PUBLISHED: Mapping[str, Mapping[float, float]] = {
    "clean": {0.0: 0.8562},
    "pgd": {0.1: 0.812, 0.5: 0.582, 1.0: 0.295, 2.0: 0.034, 3.0: 0.002, 4.0: 0.0, 8.0: 0.0},
}
"""Accuracies by key and strength: clean accuracy as recorded in NATS-Bench (the paper has 0.856, figure 11), PGD from
Jung, Lukasik and Keuper (ICLR 2023), rounded to three decimals."""

RANDOM_TOLERANCE = 0.01
"""Largest expected difference on the same images, due to different random starts, batches and rounding."""

_IMPORT_REMEDY = (
    "Import the official weights: robust201 import NATS-tss-v1_0-3ffb9-full.taraa --architectures 0 "
    "--out $ROBUST201_DATA/checkpoints"
)

_PROTOCOL_REMEDY = "If the clean accuracy agrees, a choice in docs/protocol.md is wrong. Please report this."


def examine_published_figures(
    *, count: int | None = 1_000, store: Path | None = None, published: Mapping[str, Mapping[float, float]] = PUBLISHED
) -> Iterator[HealthCheck]:
    """Evaluate #0 on `count` test images of CIFAR-10 (None: all), and compare it with every published accuracy.

    An accuracy agrees if the published accuracy lies in the 95% interval of the measured accuracy, widened by
    `RANDOM_TOLERANCE`. If all images are evaluated, the interval has zero width. Missing weights or images are
    reported as a failed check.
    """
    try:
        model = load_model(ARCHITECTURE, DATASET, store or data_folder() / "checkpoints", epochs=EPOCHS, seed=SEED)
    except CheckpointError as error:
        yield HealthCheck("official weights", ok=False, detail="not found", fix=f"{error} {_IMPORT_REMEDY}")
        return
    try:
        images = load_images(DATASET)
    except DatasetError as error:
        yield HealthCheck("official test images", ok=False, detail="not found", fix=str(error))
        return
    subset = images if count is None or count >= len(images) else select(images, count=count, seed=0)
    keys: list[str | Mapping[str, Any]] = [
        "clean" if key == "clean" else {key: {"epsilons": [f"{strength:g}/255" for strength in accuracies]}}
        for key, accuracies in published.items()
    ]
    yield from _compare(evaluate(model, subset.images, subset.labels, keys), subset, len(images), published)


def _compare(
    frame: Any, images: ImageSet, n_all: int, published: Mapping[str, Mapping[float, float]]
) -> Iterator[HealthCheck]:
    """Yield a check for each row of an evaluation on `images`, out of `n_all` test images."""
    for row in frame.itertuples():
        published_accuracy = published[row.key][row.strength]
        low, high = (row.accuracy, row.accuracy) if len(images) == n_all else (row.low, row.high)
        agrees = low - RANDOM_TOLERANCE <= published_accuracy <= high + RANDOM_TOLERANCE
        evaluation = "clean" if row.key == "clean" else f"{row.key} at {row.strength:g}/255"
        yield HealthCheck(
            f"#{ARCHITECTURE} {evaluation}",
            ok=agrees,
            detail=f"{row.accuracy:.4f} on {len(images):,} images, published {published_accuracy:g}, "
            f"difference {row.accuracy - published_accuracy:+.4f}",
            fix=_IMPORT_REMEDY if row.key == "clean" else _PROTOCOL_REMEDY,
        )
