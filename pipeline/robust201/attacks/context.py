"""Inputs and outputs of tasks: the context (network and sources of random numbers and images), requests and batches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.noise import derived_seed
from robust201.networks.classifier import Classifier
from robust201.networks.device import restored_random_state
from robust201.networks.model import Model


@dataclass(frozen=True, eq=False)
class Request:
    """Images to evaluate, and the strengths at which to evaluate them.

    Attributes:
        strengths: (S,) strengths in the task's units.
        images: (N, C, H, W), on the classifier's device; uint8, or float32 in [0, 1] if the user passed such images.
        labels: (N,) int64, on the classifier's device.
        indices: (N,) int64 positions of the images in the dataset's full split, which identify their random numbers.
        on_stage: called at the beginning of each stage of an ensemble (in the reference engine, for each batch), with
            the stage's number, its key and its number of samples.
        on_passes: see `Watch`.
        resume_from: saved progress from which an ensemble continues; None to start at the beginning. Only the fused
            engine saves and resumes stages.
        save_stage: called with the progress at the beginning of each stage but the first, when all images that earlier
            stages fooled have been yielded.
    """

    strengths: tuple[float, ...]
    images: torch.Tensor
    labels: torch.Tensor
    indices: NDArray[np.int64]
    on_stage: Callable[[int, str, int], None] | None = None
    on_passes: Callable[[int], None] | None = None
    resume_from: "StageProgress | None" = None
    save_stage: "Callable[[StageProgress], None] | None" = None

    def are_yielded(self) -> NDArray[np.bool_]:
        """Return which images were yielded at each strength before the evaluation was interrupted: (S, N)."""
        yielded = np.full(len(self.strengths) * len(self.images), self.resume_from is not None)
        if self.resume_from is not None:
            yielded[self.resume_from.remaining] = False
        return yielded.reshape(len(self.strengths), len(self.images))


class StageProgress(NamedTuple):
    """Progress of an ensemble at the beginning of a stage.

    Attributes:
        stage: number of the stage, from 1.
        remaining: (M,) int64, numbers of the samples that the stage attacks (see `attacks.runner`).
    """

    stage: int
    remaining: NDArray[np.int64]


class Perturbed(NamedTuple):
    """A batch of perturbed images.

    Attributes:
        strength_index: index of the strength in the request's strengths.
        positions: (B,) int64, positions of the images in the request.
        images: (B, C, H, W) float32 in [0, 1].
    """

    strength_index: int
    positions: torch.Tensor
    images: torch.Tensor


CorruptedImageSource = Callable[[str, int, NDArray[np.int64]], NDArray[np.uint8]]
"""Source of corrupted images: (corruption, severity 1 to 5, (n,) positions in the full test split) → (n, 3, H, W)
uint8."""


@dataclass(frozen=True)
class Context:
    """The context of one task: the network, random numbers and images.

    Attributes:
        classifier: the network under test, which maps pixels in [0, 1] to logits.
        seed: the sweep's seed.
        batch_size: number of images whose random numbers come from one seed in the reference engine and in custom
            attacks; part of their protocol.
        corrupted_images: source of corrupted images; None if the sweep has no corruptions.
        first_batch: number of the request's first batch in the whole image set, so that an image has the same random
            numbers if the images are evaluated in several parts.
        key: the evaluated key, which identifies random numbers and the corruption. `evaluation.evaluate` sets
            it and `first_batch`.
        engine: engine of the attacks, a name from `tasks.ENGINES`.
        model: another implementation of the network, which the fused engine attacks and measures; None for the
            classifier.
    """

    classifier: Classifier
    seed: int
    batch_size: int
    corrupted_images: CorruptedImageSource | None = None
    first_batch: int = 0
    key: str = ""
    engine: str = "reference"
    model: Model | None = None

    @property
    def attacked_model(self) -> Model:
        """The model that is attacked and measured: `model` if set, otherwise the classifier."""
        return self.classifier if self.model is None else self.model

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, C) of (B, channels, H, W) float32 pixels in [0, 1], from `attacked_model`."""
        return self.attacked_model.logits(pixels)

    def batches(self, n_images: int) -> Iterator[tuple[int, slice]]:
        """Split the request's images into batches of `batch_size` images, each with its own seed.

        Yields:
            The batch's number in the whole image set, and its slice of the request's images.
        """
        yield from enumerate(slices(n_images, self.batch_size), start=self.first_batch)

    @contextmanager
    def seeded(self, batch_number: int) -> Iterator[int]:
        """Seed torch's generators for a batch, numbered in the whole image set; restore their state afterwards.

        The seed is derived from the sweep's seed, the key and the batch's number. All strengths and all architectures
        therefore use the same random numbers, whichever strengths are evaluated. The seed is yielded for libraries that
        seed their own generators.
        """
        seed = derived_seed(self.seed, self.key, batch_number)
        with restored_random_state(self.classifier.device):
            torch.manual_seed(seed)
            yield seed


def to_float(images: torch.Tensor) -> torch.Tensor:
    """Convert (B, C, H, W) uint8 pixels to float32 in [0, 1]; return float32 pixels unchanged."""
    return images if images.is_floating_point() else images.to(torch.float32).div_(255.0)


def slices(stop: int, size: int, start: int = 0) -> Iterator[slice]:
    """Yield slices of at most `size` rows, which cover [start, stop) in order."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def positions_of(batch: slice, device: torch.device) -> torch.Tensor:
    """Return the positions (B,) int64 in a slice from `Context.batches`."""
    return torch.arange(batch.start, batch.stop, device=device)
