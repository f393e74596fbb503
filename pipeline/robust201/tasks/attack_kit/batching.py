"""In which batches samples go through a model."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.models.model import Model, Objective


@dataclass(frozen=True)
class Batching:
    """In which batches samples go through the model, and how long Square leaves its batches as they are.

    It decides speed and memory. It decides no number, but for the rounding of networks whose sums depend on the size of
    the batch; which is why the proof of parity needs `as_library`.

    Attributes:
        samples: (image, epsilon) pairs that go through the model at once, at most.
        pool: samples that Square attacks side by side, at most; their survivors share batches. Each takes the memory of
            one float32 image.
        as_library: batches as the reference libraries make them: the samples of one epsilon, whatever their number,
            and fooled images dropped at once. `samples` and `pool` are then without meaning.
    """

    samples: int
    pool: int
    as_library: bool = False

    def slices(self, strengths: NDArray[np.int64]) -> Iterator[slice]:
        """Cut samples into the batches that go through the model.

        Args:
            strengths: (B,) index of each sample's epsilon, ascending where `as_library` is set.

        Yields:
            Slices that cover [0, B) in order.
        """
        if self.as_library:
            yield from runs(strengths)
            return
        for start in range(0, len(strengths), self.samples):
            yield slice(start, min(start + self.samples, len(strengths)))

    def queries_together(self, query: int) -> int:
        """Say how many queries Square makes before it looks for images that it has fooled.

        Looking stops the device, not looking queries for images that need no more. An image's chance to be fooled in a
        query falls like one over the queries made, so a share of them keeps the waste constant and under 1 %.
        """
        return 1 if self.as_library else min(max(1, query // 32), 64)


def runs(values: NDArray[np.int64]) -> Iterator[slice]:
    """Find the stretches of equal values that lie side by side.

    Args:
        values: (B,) integers.

    Yields:
        Slices that cover [0, B) in order.
    """
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    yield from (slice(start, stop) for start, stop in itertools.pairwise(edges) if start < stop)


def logits_of(
    model: Model, batching: Batching, pixels: torch.Tensor, strengths: NDArray[np.int64] | None = None
) -> torch.Tensor:
    """Show pixels to a model, batch by batch.

    Args:
        model: the model.
        batching: how to cut.
        pixels: (B, 3, H, W) float32.
        strengths: (B,) index of each sample's epsilon; all one if None.

    Returns:
        Logits (B, C).
    """
    return _in_batches(batching, len(pixels), strengths, lambda piece: (model.logits(pixels[piece]),))[0]


def gradient_of(
    model: Model,
    batching: Batching,
    pixels: torch.Tensor,
    labels: torch.Tensor,
    strengths: NDArray[np.int64] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Differentiate a model at pixels, batch by batch.

    Args:
        model: the model.
        batching: how to cut.
        pixels: (B, 3, H, W) float32.
        labels: (B,) int64.
        strengths: (B,) index of each sample's epsilon; all one if None.

    Returns:
        Logits (B, C), losses (B,), gradient (B, 3, H, W).
    """
    logits, loss, gradient = _in_batches(
        batching, len(pixels), strengths, lambda piece: model.loss_and_gradient(pixels[piece], labels[piece])
    )
    return logits, loss, gradient


def objective_gradient_of(
    model: Model,
    batching: Batching,
    pixels: torch.Tensor,
    objective: Objective,
    strengths: NDArray[np.int64] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Differentiate an objective of a model's logits at pixels, batch by batch.

    Args:
        model: the model.
        batching: how to cut.
        pixels: (B, 3, H, W) float32.
        objective: what is differentiated; the rows that it is called with are those of `pixels`.
        strengths: (B,) index of each sample's epsilon; all one if None.

    Returns:
        Logits (B, C), the objective's values (B,), gradient (B, 3, H, W).
    """

    def answer(piece: slice) -> tuple[torch.Tensor, ...]:
        def shifted(logits: torch.Tensor, rows: slice) -> torch.Tensor:
            return objective(logits, slice(piece.start + rows.start, piece.start + rows.stop))

        return model.value_and_gradient(pixels[piece], shifted)

    logits, values, gradient = _in_batches(batching, len(pixels), strengths, answer)
    return logits, values, gradient


def _in_batches(
    batching: Batching,
    n_samples: int,
    strengths: NDArray[np.int64] | None,
    answer: Callable[[slice], tuple[torch.Tensor, ...]],
) -> tuple[torch.Tensor, ...]:
    if strengths is None:
        strengths = np.zeros(n_samples, np.int64)
    answers = [answer(piece) for piece in batching.slices(strengths)]
    # One batch is the rule, and concatenating would copy it.
    return answers[0] if len(answers) == 1 else tuple(torch.cat(column) for column in zip(*answers, strict=True))
