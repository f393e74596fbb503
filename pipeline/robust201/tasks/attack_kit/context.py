"""What surrounds a task: the network in the forms that attacks see, where random draws come from, which images."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.noise import derived_seed
from robust201.models.classifier import Classifier
from robust201.models.model import Model
from robust201.tasks.attack_kit.step_log import StepLog


@dataclass(frozen=True, eq=False)
class Request:
    """Images to work on, at some strengths.

    Attributes:
        strengths: (S,) on the task's axis.
        images: (N, C, H, W) uint8, on the context's device; float32 where a user gave floats.
        labels: (N,) int64, on the context's device.
        indices: (N,) int64 rows of the dataset's whole split, which name the draws.
        step_log: where the attack notes at which step it fools each image; None if nobody asks.
        on_stage: called with the number and the key of each stage that an attack in stages begins.
    """

    strengths: tuple[float, ...]
    images: torch.Tensor
    labels: torch.Tensor
    indices: NDArray[np.int64]
    step_log: StepLog | None = None
    on_stage: Callable[[int, str], None] | None = None


class Perturbed(NamedTuple):
    """A batch of perturbed images.

    Attributes:
        strength: index into the strengths asked for.
        positions: (B,) int64, positions in the images given.
        images: (B, 3, H, W) float32 in [0, 1].
        stage: number of the stage that fooled these images where an attack has several, from 1; else 0.
    """

    strength: int
    positions: torch.Tensor
    images: torch.Tensor
    stage: int = 0


AdversarialImages = Callable[[float, NDArray[np.int64]], NDArray[np.float32]]
"""(strength, (n,) rows of the full test split) → (n, 3, H, W) float32 in [0, 1]."""

CorruptedImages = Callable[[str, int, NDArray[np.int64]], NDArray[np.uint8]]
"""(corruption, severity 1 to 5, (n,) rows of the full test split) → (n, 3, H, W) uint8."""


@dataclass(frozen=True)
class Context:
    """What surrounds one task.

    Attributes:
        classifier: the network under test, [0, 1] pixels to logits.
        seed: the sweep's seed.
        batch_size: images that share one batch of draws in the reference engine (part of the protocol).
        corrupted: where corrupted images come from; None where the sweep has no corruptions.
        adversarial: where the images of a transfer come from; None for every other key.
        first_batch: number of batches that come before the images given, so that a part draws what the whole would.
        key: the key being evaluated; it names the draws and the corruption. `tasks.evaluate.evaluate_part` sets it and
            `first_batch`.
        engine: which attacks run, a name from `tasks.ENGINES`.
        model: the network in the form that the fused engine attacks and measures; None for the classifier itself.
        model_batch: images, or (image, epsilon) pairs, that the fused engine shows it at once; None for the device's
            default.
    """

    classifier: Classifier
    seed: int
    batch_size: int
    corrupted: CorruptedImages | None = None
    adversarial: AdversarialImages | None = None
    first_batch: int = 0
    key: str = ""
    engine: str = "reference"
    model: Model | None = None
    model_batch: int | None = None

    @property
    def attacked_model(self) -> Model:
        """The network in the form that is attacked and measured."""
        return self.classifier if self.model is None else self.model

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classify (B, 3, H, W) float32 in [0, 1] with the network in the form that is attacked: logits (B, C)."""
        return self.attacked_model.logits(pixels)

    def batches(self, n_images: int) -> Iterator[tuple[int, slice]]:
        """Cut images into the protocol's batches.

        Yields:
            The batch's number in the whole image set, and its slice of the images at hand.
        """
        for offset in range(0, n_images, self.batch_size):
            number = self.first_batch + offset // self.batch_size
            yield number, slice(offset, min(offset + self.batch_size, n_images))

    def slices(self, n_images: int) -> Iterator[slice]:
        """Cut images that nothing is drawn for into what is shown at once, which decides no number.

        Yields:
            Slices that cover [0, n_images) in order: of `model_batch` images where it is given, else of `batch_size`.
        """
        step = self.model_batch or self.batch_size
        for start in range(0, n_images, step):
            yield slice(start, min(start + step, n_images))

    @contextmanager
    def draws(self, batch: int) -> Iterator[int]:
        """Seed torch's generators for one batch, and give the caller its own state back afterwards.

        The seed is made of the sweep's seed, the key and the batch's number, so all strengths and all architectures
        draw the same, and a strength's draws do not depend on which others are asked for.

        Args:
            batch: the batch's number in the whole image set (see `batches`).

        Yields:
            The seed, for libraries that seed by themselves.
        """
        seed = derived_seed(self.seed, self.key, batch)
        # Both libraries seed every CUDA device, so every one is restored; a run on the CPU must not wake CUDA for that.
        devices = range(torch.cuda.device_count()) if self.classifier.device.type == "cuda" else ()
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield seed


def to_float(images: torch.Tensor) -> torch.Tensor:
    """Pixels as the attacks see them: (B, C, H, W) uint8 to float32 in [0, 1]; float32 pixels stay as they are."""
    return images if images.is_floating_point() else images.to(torch.float32).div(255.0)


def positions_of(batch: slice, device: torch.device) -> torch.Tensor:
    """Positions (B,) int64 that a slice of `Context.batches` covers."""
    return torch.arange(batch.start, batch.stop, device=device)
