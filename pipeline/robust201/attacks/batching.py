"""A model that evaluates samples, which are (image, epsilon) pairs, batch by batch."""

from collections.abc import Callable, Sequence

import torch

from robust201.attacks.context import Context, slices
from robust201.networks.device import is_gpu
from robust201.networks.model import Model, Objective, WindowSearch, start_search
from robust201.networks.watch import Watch, WatchedModel

_POOL_BYTES = {"cpu": 2**26, "gpu": 2**30}
"""Maximum size in bytes of a pool's images in float32, by device type. A pool contains the samples that are attacked
together, at least a batch. Attacks with `Procedure.grouping` "sample" use batches instead of pools."""

_POOL_BATCHES = {"cpu": 128, "gpu": 16}
"""Maximum number of batches in a pool, by device type. This limit applies if batches are small. With sixteen or more
batches per full pool, a partly filled last batch costs little."""

_POOL_COPIES = 6
"""Number of pool-sized float32 tensors that Square keeps in memory at once. Other attacks need fewer."""

MAX_IMAGES_PER_SAMPLE = _POOL_COPIES * _POOL_BATCHES["gpu"] + 4
"""Maximum number of float32 images in GPU memory during an attack, per sample in a batch: copies of Square's pool, and
temporary tensors of a query. APGD needs less: about fourteen images per sample."""


class BatchedModel:
    """`Model` that passes any number of samples through another model, batch by batch.

    Batch sizes affect results only through rounding, in networks whose sums depend on the batch size.

    Attributes:
        n_classes: number of classes C.
        batch_size: maximum number of samples per batch.
        pool_size: maximum number of samples that are attacked together, except by attacks with `grouping="sample"`.
    """

    def __init__(self, model: Model, n_classes: int, batch_size: int, pool_size: int) -> None:
        self._model = model
        self.n_classes, self.batch_size, self.pool_size = n_classes, batch_size, pool_size

    @classmethod
    def of(cls, context: Context, watch: Watch, n_values: int) -> "BatchedModel":
        """Return the context's model with suitable batch sizes for images of `n_values` values; `watch` observes it."""
        batch_size = context.attacked_model.batch_sizes.attack_samples
        device_type = "gpu" if is_gpu(context.classifier.device) else "cpu"
        pool_size = min(_POOL_BYTES[device_type] // (4 * max(1, n_values)), _POOL_BATCHES[device_type] * batch_size)
        model = WatchedModel(context.attacked_model, watch)
        return cls(model, context.classifier.n_classes, batch_size, max(batch_size, pool_size))

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
        """Start a window search (of Square) on one batch of images (see `networks.model.start_search`)."""
        return start_search(self._model, pixels, sides)

    def _in_batches(
        self, n_samples: int, compute: Callable[[slice], tuple[torch.Tensor, ...]]
    ) -> tuple[torch.Tensor, ...]:
        outputs = [compute(batch) for batch in slices(n_samples, self.batch_size)]
        if len(outputs) == 1:  # the usual case; torch.cat would copy the outputs
            return outputs[0]
        return tuple(torch.cat(batch_outputs) for batch_outputs in zip(*outputs, strict=True))
