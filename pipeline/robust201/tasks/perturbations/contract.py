"""What a perturbation gets and must give back, and the checks that hold every one of them to it.

A module of this package has one public function::

    def perturb(
        context: Context,
        parameters: <its parameter class>,
        strengths: Sequence[float],
        *,
        images: torch.Tensor,      # (N, 3, H, W) uint8 on the context's device
        labels: torch.Tensor,      # (N,) int64 on the context's device
        indices: NDArray[int64],   # (N,) rows of the dataset's full test split
    ) -> Iterator[Perturbed]

It may batch, merge and order as it likes, as long as each position appears once a strength. It yields outside of any
changed torch state (random generators, gradient mode): what happens between two batches is the caller's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import PerturbationError
from robust201.core.noise import derived_seed
from robust201.engine.classifier import Classifier, Model

# A float32 pixel in [0, 1] is off by at most 2**-25 after one rounding; attacks add, subtract and clip a few times.
EPSILON_SLACK = 1e-6


class Perturbed(NamedTuple):
    """A batch of perturbed images.

    Attributes:
        strength: index into the strengths asked for.
        positions: (B,) int64, positions in the images given.
        images: (B, 3, H, W) float32 in [0, 1].
    """

    strength: int
    positions: torch.Tensor
    images: torch.Tensor


CorruptedImages = Callable[[str, int, NDArray[np.int64]], NDArray[np.uint8]]
"""(corruption, severity 1 to 5, (n,) rows of the full test split) → (n, 3, H, W) uint8."""


@dataclass(frozen=True)
class Context:
    """What surrounds one perturbation.

    Attributes:
        classifier: the network under test, [0, 1] pixels to logits.
        seed: the sweep's seed.
        batch_size: images that share one batch of draws in the reference engine (part of the protocol).
        corrupted: where corrupted images come from; None where the sweep has no corruptions.
        first_batch: number of batches that come before the images given, so that a part draws what the whole would.
        key: the key being evaluated; it names the draws and the corruption. `tasks.evaluate.evaluate` sets it and
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
    first_batch: int = 0
    key: str = ""
    engine: str = "reference"
    model: Model | None = None
    model_batch: int | None = None

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classify (B, 3, H, W) float32 in [0, 1] with the network in the form that is attacked: logits (B, C)."""
        logits: torch.Tensor = self.classifier(pixels) if self.model is None else self.model.logits(pixels)
        return logits

    def batches(self, n_images: int) -> Iterator[tuple[int, slice]]:
        """Cut images into the protocol's batches.

        Args:
            n_images: how many images there are.

        Yields:
            The batch's number in the whole image set, and its slice of the images at hand.
        """
        for offset in range(0, n_images, self.batch_size):
            number = self.first_batch + offset // self.batch_size
            yield number, slice(offset, min(offset + self.batch_size, n_images))

    def slices(self, n_images: int) -> Iterator[slice]:
        """Cut images that nothing is drawn for into what is shown at once, which decides no number.

        Args:
            n_images: how many images there are.

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
    """Pixels as the attacks see them: (B, 3, H, W) uint8 to float32 in [0, 1]."""
    return images.to(torch.float32).div(255.0)


def positions_of(batch: slice, device: torch.device) -> torch.Tensor:
    """Positions (B,) int64 that a slice of `Context.batches` covers."""
    return torch.arange(batch.start, batch.stop, device=device)


def checked(
    perturbed: Iterator[Perturbed],
    *,
    name: str,
    images: torch.Tensor,
    strengths: Sequence[float],
    ball: bool,
) -> Iterator[Perturbed]:
    """Pass perturbed batches through, holding them to the contract.

    Args:
        perturbed: what a `perturb` function yields.
        name: the unit's label, for messages.
        images: (N, 3, H, W) uint8, the images given.
        strengths: (S,) the strengths asked for.
        ball: whether strengths are Linf epsilons in units of 1/255 that the images must keep to.

    Yields:
        The same batches. A strength is complete when N images of it have come: a repeated position raises at once.

    Raises:
        PerturbationError: a batch is of the wrong shape or type, names a strength or position that was not given, is
            out of [0, 1], NaN or out of its epsilon ball, repeats a position, or at the end a position is missing.
    """
    counts = torch.zeros((len(strengths), len(images)), dtype=torch.int32, device=images.device)
    for batch in perturbed:
        _check_names(batch, name, len(images), strengths)
        _check_pixels(batch, name, images, strengths, ball=ball)
        seen = counts[batch.strength]
        seen.index_add_(0, batch.positions, torch.ones_like(batch.positions, dtype=torch.int32))
        if bool((seen > 1).any()):
            raise _coverage_error(name, counts, strengths)
        yield batch
    if not bool((counts == 1).all()):
        raise _coverage_error(name, counts, strengths)


def _coverage_error(name: str, counts: torch.Tensor, strengths: Sequence[float]) -> PerturbationError:
    surplus = (counts > 1).nonzero()
    strength, position = (surplus if len(surplus) else (counts != 1).nonzero())[0].tolist()
    return PerturbationError(
        f"Perturbing failed for {name}: expected each image once a strength, got image {position} "
        f"{int(counts[strength, position])} times at strength {strengths[strength]:g}. This is a bug in the attack."
    )


def _check_names(batch: Perturbed, name: str, n_images: int, strengths: Sequence[float]) -> None:
    if not 0 <= batch.strength < len(strengths):
        raise PerturbationError(
            f"Perturbing failed for {name}: expected a strength index below {len(strengths)}, got {batch.strength}. "
            "This is a bug in the attack."
        )
    if batch.positions.ndim != 1 or batch.positions.dtype != torch.int64 or len(batch.positions) == 0:
        raise PerturbationError(
            f"Perturbing failed for {name}: expected one or more positions (B,) int64, got "
            f"{batch.positions.dtype} {tuple(batch.positions.shape)}. This is a bug in the attack."
        )
    first, last = int(batch.positions.min()), int(batch.positions.max())
    if first < 0 or last >= n_images:
        raise PerturbationError(
            f"Perturbing failed for {name}: expected positions in [0, {n_images}), got {first} to {last}. "
            "This is a bug in the attack."
        )


def _check_pixels(batch: Perturbed, name: str, images: torch.Tensor, strengths: Sequence[float], *, ball: bool) -> None:
    shape = (len(batch.positions), *images.shape[1:])
    if tuple(batch.images.shape) != shape or batch.images.dtype != torch.float32:
        raise PerturbationError(
            f"Perturbing failed for {name}: expected float32 images of shape {shape}, "
            f"got {batch.images.dtype} {tuple(batch.images.shape)}. This is a bug in the attack."
        )
    # min and max propagate NaN, and a comparison with NaN is false
    if not bool((batch.images.min() >= 0) & (batch.images.max() <= 1)):
        raise PerturbationError(
            f"Perturbing failed for {name}: expected pixels in [0, 1], got "
            f"[{float(batch.images.min())}, {float(batch.images.max())}]. "
            "This is a bug in the attack, or NaN in the network's weights."
        )
    if ball:
        epsilon = strengths[batch.strength] / 255
        distance = float((batch.images - to_float(images[batch.positions])).abs().max())
        if not distance <= epsilon + EPSILON_SLACK:
            raise PerturbationError(
                f"Perturbing failed for {name}: expected Linf distances up to epsilon {epsilon:.6g}, "
                f"got {distance:.6g}. This is a bug in the attack."
            )
