"""A network shown in batches of a few fixed sizes, so that each size can be made ready once and used often."""

from collections.abc import Callable
from typing import Protocol

import torch

from robust201.models.capacity import Capacity, buckets_up_to, cut
from robust201.models.model import Model, Objective

Compute = Callable[[], tuple[torch.Tensor, ...]]
"""One pass on fixed memory: reads what lies in its buffers, returns tensors that its next call may overwrite."""


class Preparation(Protocol):
    """Makes passes ready to be repeated, as `graphs.GraphCapture` does."""

    def __call__(self, compute: Compute) -> Compute:
        """Make a pass ready: give what is to be called in its place."""
        ...

    def release(self) -> None:
        """Give back what was held for the passes made ready so far; they are not called any more."""
        ...


class PlainCalls:
    """Prepares nothing: each pass is computed as it is (a `Preparation`)."""

    def __call__(self, compute: Compute) -> Compute:
        return compute

    def release(self) -> None:
        """Nothing is held."""


class Bucketed:
    """A model that is only ever shown batches of a few sizes; smaller ones are filled up.

    What stands in the rows that are filled up is left from before, zeros at first: images do not see each other, so it
    decides nothing, and overwriting it would cost a pass over memory.

    Args:
        model: the network.
        capacity: samples that may go through it at once.
        device: where it computes.
        prepare: makes the pass of one size ready when that size is first met; plain calls if None.

    Attributes:
        shown: samples that the last call showed the model at once, rows that were filled up included.
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
        self.shown = 0
        self._device = torch.device(device)
        self._capacity = capacity
        self._bound: int | None = None
        self._prepare = prepare or PlainCalls()
        self._buffers: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]] = {}
        self._passes: dict[tuple[torch.Size, int, bool], Compute] = {}

    @property
    def capacity(self) -> Capacity:
        """Samples that go through the model at once, at most."""
        if self._bound is None:
            return self._capacity
        return Capacity(min(self._capacity.logits, self._bound), min(self._capacity.gradients, self._bound))

    def limit(self, n_samples: int | None) -> None:
        """Show at most this many samples at once, on top of the capacity.

        Args:
            n_samples: at least 1; None for no further limit.
        """
        if n_samples != self._bound:
            # Passes of sizes that are now too large would hold the memory that the limit is to save.
            self.release()
            self._bound = n_samples

    def release(self) -> None:
        """Forget passes and buffers, and with them their memory. The next call makes them anew."""
        self._passes.clear()
        self._prepare.release()
        self._buffers.clear()

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._in_buckets(pixels, None)[0]

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits, loss, gradient = self._in_buckets(pixels, labels)
        return logits, loss, gradient

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Classify and differentiate (see `Model`) in batches that fit; no pass is prepared for an objective."""
        limit = self.capacity.gradients
        self.shown = min(limit, len(pixels))
        answers = []
        for start in range(0, max(1, len(pixels)), limit):

            def shifted(logits: torch.Tensor, rows: slice, start: int = start) -> torch.Tensor:
                return objective(logits, slice(rows.start + start, rows.stop + start))

            answers.append(self.model.value_and_gradient(pixels[start : start + limit], shifted))
        logits, values, gradient = (torch.cat(column) for column in zip(*answers, strict=True))
        return logits, values, gradient

    def _in_buckets(self, pixels: torch.Tensor, labels: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        limit = self.capacity.logits if labels is None else self.capacity.gradients
        pieces = cut(len(pixels), buckets_up_to(limit))
        self.shown = max((piece.bucket for piece in pieces), default=0)
        answers = []
        for start, stop, bucket in pieces:
            compute = self._pass(pixels.shape[1:], bucket, gradient=labels is not None)
            held_pixels, held_labels = self._buffers[pixels.shape[1:]]
            held_pixels[: stop - start].copy_(pixels[start:stop])
            if labels is not None:
                held_labels[: stop - start].copy_(labels[start:stop])
            # Copies: the next pass writes into the same memory.
            answers.append(tuple(answer[: stop - start].clone() for answer in compute()))
        if not answers:
            return (self.model.logits(pixels),) if labels is None else self.model.loss_and_gradient(pixels, labels)
        # One batch is the rule, and concatenating would copy it.
        return answers[0] if len(answers) == 1 else tuple(torch.cat(column) for column in zip(*answers, strict=True))

    def _pass(self, shape: torch.Size, bucket: int, *, gradient: bool) -> Compute:
        key = (shape, bucket, gradient)
        if key not in self._passes:
            # Tensors made in inference mode could not be written to outside of it.
            with torch.inference_mode(mode=False), torch.no_grad():
                if shape not in self._buffers:
                    self._buffers[shape] = self._make_buffers(shape)
                pixels, labels = (buffer[:bucket] for buffer in self._buffers[shape])

                def compute() -> tuple[torch.Tensor, ...]:
                    return self.model.loss_and_gradient(pixels, labels) if gradient else (self.model.logits(pixels),)

                self._passes[key] = self._prepare(compute)
        return self._passes[key]

    def _make_buffers(self, shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
        n_samples = max(self.capacity)
        pixels = torch.zeros((n_samples, *shape), device=self._device)
        return pixels, torch.zeros(n_samples, dtype=torch.int64, device=self._device)
