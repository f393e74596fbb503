"""Batches of samples, which are (image, epsilon) pairs, and the logits and gradients of a model on them."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.models.model import Model, Objective


@dataclass(frozen=True)
class Batching:
    """Sizes of the batches that go through the model.

    The sizes affect speed and memory. They affect results only through rounding, in networks whose sums depend on the
    batch size. Bitwise comparisons with Foolbox and AutoAttack therefore set `uses_library_batches`.

    Attributes:
        batch_size: maximum number of samples per batch.
        pool_size: maximum number of samples that Square attacks together. Samples that are not fooled yet share
            batches. Each sample takes the memory of one float32 image.
        uses_library_batches: whether to form batches as the reference libraries do, from all samples of one epsilon
            that are not fooled yet. `batch_size` and `pool_size` are then ignored.
    """

    batch_size: int
    pool_size: int
    uses_library_batches: bool = False

    def slices(self, strength_indices: NDArray[np.int64]) -> Iterator[slice]:
        """Split samples into the batches that go through the model.

        Args:
            strength_indices: (B,) index of each sample's epsilon, ascending if `uses_library_batches` is set.

        Yields:
            Slices that cover [0, B) in order.
        """
        if self.uses_library_batches:
            yield from slices_of_equal_values(strength_indices)
            return
        for start in range(0, len(strength_indices), self.batch_size):
            yield slice(start, min(start + self.batch_size, len(strength_indices)))

    def queries_per_check(self, query: int) -> int:
        """Return the number of queries that Square makes before it checks which images are fooled.

        A check stalls the device, but without checks, queries are wasted on images that are already fooled. The
        probability that a query fools an image decreases as 1 / (queries so far). If the interval between checks is
        proportional to the queries so far, the wasted fraction is constant; it is below 1%.
        """
        return 1 if self.uses_library_batches else min(max(1, query // 32), 64)


def slices_of_equal_values(values: NDArray[np.int64]) -> Iterator[slice]:
    """Yield the slices of equal consecutive values.

    Args:
        values: (B,) integers.

    Yields:
        Slices that cover [0, B) in order.
    """
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    yield from (slice(start, stop) for start, stop in itertools.pairwise(edges) if start < stop)


def logits_of(
    model: Model, batching: Batching, pixels: torch.Tensor, strength_indices: NDArray[np.int64] | None = None
) -> torch.Tensor:
    """Return a model's logits, batch by batch.

    Args:
        model: the model.
        batching: sizes of the batches.
        pixels: (B, 3, H, W) float32.
        strength_indices: (B,) index of each sample's epsilon; None if all are equal.

    Returns:
        Logits (B, C).
    """
    return _in_batches(batching, len(pixels), strength_indices, lambda batch: (model.logits(pixels[batch]),))[0]


def loss_and_gradient_of(
    model: Model,
    batching: Batching,
    pixels: torch.Tensor,
    labels: torch.Tensor,
    strength_indices: NDArray[np.int64] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a model's logits, losses and input gradient, batch by batch.

    Args:
        model: the model.
        batching: sizes of the batches.
        pixels: (B, 3, H, W) float32.
        labels: (B,) int64.
        strength_indices: (B,) index of each sample's epsilon; None if all are equal.

    Returns:
        Logits (B, C), losses (B,), gradient (B, 3, H, W).
    """
    logits, loss, gradient = _in_batches(
        batching, len(pixels), strength_indices, lambda batch: model.loss_and_gradient(pixels[batch], labels[batch])
    )
    return logits, loss, gradient


def value_and_gradient_of(
    model: Model,
    batching: Batching,
    pixels: torch.Tensor,
    objective: Objective,
    strength_indices: NDArray[np.int64] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a model's logits, an objective's values and the objective's input gradient, batch by batch.

    Args:
        model: the model.
        batching: sizes of the batches.
        pixels: (B, 3, H, W) float32.
        objective: (logits (b, C), slice of the rows of `pixels`) → (b,) values to differentiate.
        strength_indices: (B,) index of each sample's epsilon; None if all are equal.

    Returns:
        Logits (B, C), the objective's values (B,), gradient (B, 3, H, W).
    """

    def differentiate(batch: slice) -> tuple[torch.Tensor, ...]:
        def objective_of_batch(logits: torch.Tensor, rows: slice) -> torch.Tensor:
            return objective(logits, slice(batch.start + rows.start, batch.start + rows.stop))

        return model.value_and_gradient(pixels[batch], objective_of_batch)

    logits, values, gradient = _in_batches(batching, len(pixels), strength_indices, differentiate)
    return logits, values, gradient


def _in_batches(
    batching: Batching,
    n_samples: int,
    strength_indices: NDArray[np.int64] | None,
    compute: Callable[[slice], tuple[torch.Tensor, ...]],
) -> tuple[torch.Tensor, ...]:
    if strength_indices is None:
        strength_indices = np.zeros(n_samples, np.int64)
    outputs = [compute(batch) for batch in batching.slices(strength_indices)]
    if len(outputs) == 1:  # the usual case, which concatenation would copy
        return outputs[0]
    return tuple(torch.cat(batch_outputs) for batch_outputs in zip(*outputs, strict=True))
