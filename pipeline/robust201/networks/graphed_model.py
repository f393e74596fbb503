"""A model whose passes are recorded as CUDA graphs, once per batch size and image shape, and then replayed."""

import torch

from robust201.networks.batch_sizes import BatchSizes
from robust201.networks.device import GraphCapture, Pass
from robust201.networks.model import CompiledNetwork, Objective


class GraphedModel:
    """A compiled network with prepared passes for logits and cross-entropies. Other objectives run without preparation.

    Padding rows contain zeros or values of earlier batches. Images do not affect each other, so these values have no
    effect, and overwriting them would take time.

    Args:
        model: the network, whose batch sizes are padded.
        prepare: records the pass of each batch size on its first use.
    """

    def __init__(self, model: CompiledNetwork, prepare: GraphCapture) -> None:
        self.model = model
        self._prepare = prepare
        self._buffers: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]] = {}
        self._passes: dict[tuple[torch.Size, int, bool], Pass] = {}

    @property
    def batch_sizes(self) -> BatchSizes:
        return self.model.batch_sizes

    def release(self) -> None:
        """Free passes and buffers. The next call creates new ones, for the batch limit at that time."""
        self._passes.clear()
        self._prepare.release()
        self._buffers.clear()

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._compute(pixels, None)[0]

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, loss, gradient = self._compute(pixels, labels)
        return logits, loss, gradient

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.model.value_and_gradient(pixels, objective)

    def _compute(self, pixels: torch.Tensor, labels: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        outputs = []
        for batch in self.batch_sizes.split(len(pixels), gradient=labels is not None):
            compute = self._prepared_pass(pixels.shape[1:], batch.size, gradient=labels is not None)
            pixel_buffer, label_buffer = self._buffers[pixels.shape[1:]]
            pixel_buffer[: batch.stop - batch.start].copy_(pixels[batch.slice])
            if labels is not None:
                label_buffer[: batch.stop - batch.start].copy_(labels[batch.slice])
            # The outputs are cloned, because the next pass overwrites the same memory.
            outputs.append(tuple(batch.without_padding(output).clone() for output in compute()))
        if not outputs:
            return (self.model.logits(pixels),) if labels is None else self.model.loss_and_gradient(pixels, labels)
        # Usually there is only one batch, and concatenating it would copy it.
        return outputs[0] if len(outputs) == 1 else tuple(torch.cat(column) for column in zip(*outputs, strict=True))

    def _prepared_pass(self, shape: torch.Size, size: int, *, gradient: bool) -> Pass:
        """Return the pass for a batch size and image shape; prepare it on its first use."""
        pass_key = (shape, size, gradient)
        if pass_key not in self._passes:
            # Tensors created in inference mode could not be modified outside inference mode.
            with torch.inference_mode(mode=False), torch.no_grad():
                if shape not in self._buffers:
                    self._buffers[shape] = self._make_buffers(shape)
                pixels, labels = (buffer[:size] for buffer in self._buffers[shape])

                def compute() -> tuple[torch.Tensor, ...]:
                    return self.model.loss_and_gradient(pixels, labels) if gradient else (self.model.logits(pixels),)

                self._passes[pass_key] = self._prepare(compute)
        return self._passes[pass_key]

    def _make_buffers(self, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
        n_samples = max(self.batch_sizes.maximum(gradient=gradient) or 0 for gradient in (False, True))
        device = self.model.device
        return torch.zeros((n_samples, *shape), device=device), torch.zeros(n_samples, dtype=torch.int64, device=device)
