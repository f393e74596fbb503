"""A model that runs in batches of a few sizes (buckets).

Each size is prepared once, for example by recording a CUDA graph, and then reused.
"""

from typing import Protocol

import torch

from robust201.models.capacity import Capacity, buckets_up_to, split_into_batches
from robust201.models.device import Pass
from robust201.models.model import Model, Objective


class Preparation(Protocol):
    """Prepares passes for repeated execution, for example `device.GraphCapture`."""

    def __call__(self, compute: Pass) -> Pass:
        """Prepare a pass, and return the function to call instead."""
        ...

    def release(self) -> None:
        """Free the resources of all prepared passes. They must not be called afterwards."""
        ...


class DirectCalls:
    """`Preparation` that returns each pass unchanged."""

    def __call__(self, compute: Pass) -> Pass:
        return compute

    def release(self) -> None:
        """Do nothing, because there are no resources."""


class BucketedModel:
    """A model that runs in batches of a few sizes. Smaller batches are padded to one of these sizes.

    Padding rows contain zeros or values of earlier batches. Images do not affect each other, so these values have no
    effect, and overwriting them would take time.

    Args:
        model: the network.
        capacity: maximum batch sizes.
        device: device of the model.
        prepare: prepares the pass of each batch size on its first use; None calls the model directly.

    Attributes:
        last_batch_size: size of the largest batch in the last call, including padding.
    """

    def __init__(
        self,
        model: Model,
        capacity: Capacity,
        *,
        device: torch.device | str = "cpu",
        prepare: Preparation | None = None,
    ) -> None:
        self.model = model
        self.last_batch_size = 0
        self._device = torch.device(device)
        self._capacity = capacity
        self._limit: int | None = None
        self._prepare = prepare or DirectCalls()
        self._buffers: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]] = {}
        self._passes: dict[tuple[torch.Size, int, bool], Pass] = {}

    @property
    def capacity(self) -> Capacity:
        """Maximum batch sizes."""
        if self._limit is None:
            return self._capacity
        return Capacity(min(self._capacity.logits, self._limit), min(self._capacity.gradients, self._limit))

    def limit(self, n_samples: int | None) -> None:
        """Limit batch sizes below the capacity.

        Args:
            n_samples: maximum batch size, at least 1; None removes the limit.
        """
        if n_samples != self._limit:
            # Prepared passes of larger sizes would keep the memory that the limit is meant to free.
            self.release()
            self._limit = n_samples

    def release(self) -> None:
        """Free passes and buffers; the next call creates them again."""
        self._passes.clear()
        self._prepare.release()
        self._buffers.clear()

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._compute_in_buckets(pixels, None)[0]

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, loss, gradient = self._compute_in_buckets(pixels, labels)
        return logits, loss, gradient

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits, values and gradient (see `Model`), without preparing passes for the objective."""
        limit = self.capacity.gradients
        self.last_batch_size = min(limit, len(pixels))
        outputs = []
        for start in range(0, max(1, len(pixels)), limit):

            def objective_of_batch(logits: torch.Tensor, rows: slice, start: int = start) -> torch.Tensor:
                return objective(logits, slice(rows.start + start, rows.stop + start))

            outputs.append(self.model.value_and_gradient(pixels[start : start + limit], objective_of_batch))
        logits, values, gradient = (torch.cat(column) for column in zip(*outputs, strict=True))
        return logits, values, gradient

    def _compute_in_buckets(self, pixels: torch.Tensor, labels: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        limit = self.capacity.logits if labels is None else self.capacity.gradients
        batches = split_into_batches(len(pixels), buckets_up_to(limit))
        self.last_batch_size = max((batch.bucket for batch in batches), default=0)
        outputs = []
        for start, stop, bucket in batches:
            compute = self._prepared_pass(pixels.shape[1:], bucket, gradient=labels is not None)
            pixel_buffer, label_buffer = self._buffers[pixels.shape[1:]]
            pixel_buffer[: stop - start].copy_(pixels[start:stop])
            if labels is not None:
                label_buffer[: stop - start].copy_(labels[start:stop])
            # The outputs are cloned, because the next pass overwrites the same memory.
            outputs.append(tuple(output[: stop - start].clone() for output in compute()))
        if not outputs:
            return (self.model.logits(pixels),) if labels is None else self.model.loss_and_gradient(pixels, labels)
        # Usually there is only one batch, and concatenating it would copy it.
        return outputs[0] if len(outputs) == 1 else tuple(torch.cat(column) for column in zip(*outputs, strict=True))

    def _prepared_pass(self, shape: torch.Size, bucket: int, *, gradient: bool) -> Pass:
        """Return the pass for a batch size and image shape; prepare it on its first use."""
        pass_key = (shape, bucket, gradient)
        if pass_key not in self._passes:
            # Tensors created in inference mode could not be modified outside inference mode.
            with torch.inference_mode(mode=False), torch.no_grad():
                if shape not in self._buffers:
                    self._buffers[shape] = self._make_buffers(shape)
                pixels, labels = (buffer[:bucket] for buffer in self._buffers[shape])

                def compute() -> tuple[torch.Tensor, ...]:
                    return self.model.loss_and_gradient(pixels, labels) if gradient else (self.model.logits(pixels),)

                self._passes[pass_key] = self._prepare(compute)
        return self._passes[pass_key]

    def _make_buffers(self, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
        n_samples = max(self.capacity)
        pixels = torch.zeros((n_samples, *shape), device=self._device)
        return pixels, torch.zeros(n_samples, dtype=torch.int64, device=self._device)
