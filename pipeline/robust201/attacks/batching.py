"""Batches of samples, which are (image, epsilon) pairs, and a model that computes them batch by batch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from robust201.attacks.context import Context, slices
from robust201.networks.device import is_gpu
from robust201.networks.model import Model, Objective, WindowSearch, start_search

_POOL_BYTES = {"cpu": 2**26, "gpu": 2**30}
"""Maximum size in bytes of a pool in float32, by device type. A pool contains the samples that are attacked
together. Attacks that are `per` sample (see `tasks.task.Procedure`) have none."""

_POOL_BATCHES = {"cpu": 128, "gpu": 16}
"""Maximum number of batches in a pool, by device type. This limit applies if batches are small. At this limit, even on
CUDA, a full pool has sixteen batches, so the one that may be only partly filled costs little."""

_POOL_COPIES = 6
"""Number of float32 tensors of the size of the pool that Square, which needs the most, keeps in memory at once."""

MAX_IMAGES_PER_SAMPLE = _POOL_COPIES * _POOL_BATCHES["gpu"] + 4
"""Maximum number of float32 images in GPU memory during an attack, per sample in a batch: copies of Square's pool, and
temporary tensors of a query. APGD needs less: about fourteen images per sample."""


@dataclass(frozen=True)
class Batching:
    """Sizes of the batches that go through the model.

    They affect results only through rounding, in networks whose sums depend on the batch size.

    Attributes:
        batch_size: maximum number of samples per batch.
        pool_size: maximum number of samples that are attacked together, except by attacks that are `per` sample. Each
            sample takes the memory of one float32 image.
    """

    batch_size: int
    pool_size: int

    @classmethod
    def of(cls, context: Context, n_values: int) -> "Batching":
        """Return the sizes for images of `n_values` pixel values each."""
        batch_size = context.attacked_model.batch_sizes.attack_samples
        device_type = "gpu" if is_gpu(context.classifier.device) else "cpu"
        pool_size = min(_POOL_BYTES[device_type] // (4 * max(1, n_values)), _POOL_BATCHES[device_type] * batch_size)
        return cls(batch_size, max(batch_size, pool_size))

    def slices(self, n_samples: int) -> Iterator[slice]:
        """Yield slices of at most `batch_size` samples, which cover [0, n_samples) in order."""
        yield from slices(n_samples, self.batch_size)


class BatchedModel:
    """`Model` that passes any number of samples through another model, batch by batch."""

    def __init__(self, model: Model, batching: Batching, n_classes: int) -> None:
        self._model = model
        self.batching = batching
        self.n_classes = n_classes

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._in_batches(len(pixels), lambda batch: (self._model.logits(pixels[batch]),))[0]

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, loss, gradient = self._in_batches(
            len(pixels), lambda batch: self._model.loss_and_gradient(pixels[batch], labels[batch])
        )
        return logits, loss, gradient

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        def differentiate(batch: slice) -> tuple[torch.Tensor, ...]:
            def objective_of_batch(logits: torch.Tensor, rows: slice) -> torch.Tensor:
                return objective(logits, slice(batch.start + rows.start, batch.start + rows.stop))

            return self._model.value_and_gradient(pixels[batch], objective_of_batch)

        logits, values, gradient = self._in_batches(len(pixels), differentiate)
        return logits, values, gradient

    def start_search(self, pixels: torch.Tensor, sides: Sequence[int]) -> WindowSearch:
        """Start a search on one batch of images (see `networks.model.start_search`)."""
        return start_search(self._model, pixels, sides)

    def _in_batches(
        self, n_samples: int, compute: Callable[[slice], tuple[torch.Tensor, ...]]
    ) -> tuple[torch.Tensor, ...]:
        outputs = [compute(batch) for batch in self.batching.slices(n_samples)]
        if len(outputs) == 1:  # the usual case, which concatenation would copy
            return outputs[0]
        return tuple(torch.cat(batch_outputs) for batch_outputs in zip(*outputs, strict=True))
