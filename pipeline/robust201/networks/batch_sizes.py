"""Batch sizes: the numbers of samples that a network processes at once in an evaluation.

On a GPU, `gpu_memory` measures the maxima. Measures that differentiate twice or in training mode choose their own batch
sizes (`measures.trainable`). A sample is one row of a batch. In an attack, it is one image at one strength.
"""

from itertools import pairwise
from typing import NamedTuple

import torch

from robust201.networks.device import is_gpu

CPU_SAMPLES = 64
"""Number of samples that an attack, and a pass of a compiled network, process together on a CPU: enough to amortise the
fixed cost of a call, but few enough that activations stay in the cache (docs/internals/engine.md)."""

SIZES = (16, 64, 256, 512, 1024, 2048, 4096, 8192)
"""Batch sizes on a GPU, besides the current maximum. Smaller batches are padded. There are few sizes, because the size
affects the choice of kernels, and therefore the last bit of a logit. Few sizes also let equal devices choose equal
sizes, although their free memory differs slightly."""

_GPU_SAMPLES = 2048
"""Maximum batch size on a GPU before the memory per sample has been measured (see `gpu_memory`)."""

_MIN_FILLED_FRACTION = 3 / 4
"""Minimum fraction of a padded batch that samples fill, unless the batch has the smallest size."""


class Maxima(NamedTuple):
    """Maximum numbers of samples in passes without gradients (`logits`) and with gradients."""

    logits: int
    gradients: int


class Batch(NamedTuple):
    """Samples `start` to `stop` (excluded), which form a batch of `size` rows; the remaining rows are padding."""

    start: int
    stop: int
    size: int

    @property
    def slice(self) -> slice:
        """Slice of the samples."""
        return slice(self.start, self.stop)

    def rows(self, samples: torch.Tensor) -> torch.Tensor:
        """Return the rows of this batch, (size, …), with copies of the last row as padding."""
        # A slice of all samples would be copied in the backward pass.
        rows = samples if (self.start, self.stop) == (0, len(samples)) else samples[self.slice]
        n_padding = self.size - len(rows)
        return torch.cat([rows, rows[-1:].expand(n_padding, *rows.shape[1:])]) if n_padding else rows

    def without_padding(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the batch's rows (size, …) without the padding rows."""
        n_samples = self.stop - self.start
        return rows if n_samples == self.size else rows[:n_samples]


class BatchSizes:
    """Numbers of samples that a network processes at once; there is one object per network and device.

    Args:
        maxima: maximum numbers of samples per pass; None for no maximum.
        limit: maximum number of samples per pass, set by the user or after memory ran out; None for no limit.
        minimum: minimum number of samples per pass; smaller batches are padded.
        is_padded: whether batches have only sizes of `SIZES`, or the maximum. Otherwise, they may have any size.

    Attributes:
        largest_batch: size of the largest batch since the last change of the limit; 0 if there was none.
    """

    def __init__(
        self, maxima: Maxima | None = None, *, limit: int | None = None, minimum: int = 1, is_padded: bool = False
    ) -> None:
        self.maxima, self.minimum, self.is_padded = maxima, minimum, is_padded
        self.largest_batch = 0
        self._limit = limit

    @classmethod
    def on(
        cls, device: torch.device, *, cpu_samples: int | None = None, limit: int | None = None, minimum: int = 1
    ) -> "BatchSizes":
        """Return the sizes for a device: padded on a GPU, and at most `cpu_samples` on a CPU."""
        if is_gpu(device):
            return cls(Maxima(_GPU_SAMPLES, _GPU_SAMPLES), limit=limit, minimum=minimum, is_padded=True)
        maxima = None if cpu_samples is None else Maxima(cpu_samples, cpu_samples)
        return cls(maxima, limit=limit, minimum=minimum)

    @property
    def limit(self) -> int | None:
        return self._limit

    @limit.setter
    def limit(self, n_samples: int | None) -> None:
        self._limit, self.largest_batch = n_samples, 0

    def halve(self) -> bool:
        """Limit batches to half of the largest batch, after memory ran out; return whether that is possible."""
        if self.largest_batch <= self.minimum:
            return False
        self.limit = self.largest_batch // 2
        return True

    def maximum(self, *, gradient: bool = False) -> int | None:
        """Return the maximum number of samples of a pass; None for no maximum."""
        maximum = None if self.maxima is None else self.maxima.gradients if gradient else self.maxima.logits
        bounds = [bound for bound in (maximum, self._limit) if bound is not None]
        return max(self.minimum, min(bounds)) if bounds else None

    def describe(self) -> str:
        """Return the maximum numbers of samples in passes without and with gradients, such as ``2048/1024``."""
        return "/".join(str(self.maximum(gradient=gradient) or "none") for gradient in (False, True))

    @property
    def attack_samples(self) -> int:
        """Number of samples that an attack processes together."""
        maximum = self.maximum() or CPU_SAMPLES
        return min(maximum, CPU_SAMPLES) if self.maxima is None else maximum

    def split(self, n_samples: int, *, gradient: bool = False, maximum: int | None = None) -> list[Batch]:
        """Split samples into batches that cover [0, n_samples) in order; none if there are no samples.

        Args:
            n_samples: number of samples.
            gradient: whether gradients are computed.
            maximum: additional maximum number of samples per batch.
        """
        bounds = [bound for bound in (self.maximum(gradient=gradient), maximum) if bound is not None]
        size = max(self.minimum, min(bounds, default=n_samples))
        if self.is_padded:
            batches = split_into_sizes(n_samples, (*(smaller for smaller in SIZES if smaller < size), size))
        else:
            edges = [*range(0, n_samples, size), n_samples]
            batches = [Batch(start, stop, max(stop - start, self.minimum)) for start, stop in pairwise(edges)]
        self.largest_batch = max([self.largest_batch, *(batch.size for batch in batches)])
        return batches


def halve_all(*all_sizes: BatchSizes) -> int | None:
    """Halve each distinct `BatchSizes` of a network; return the largest new limit, or None if none can be halved."""
    halved_sizes = [sizes for sizes in {id(sizes): sizes for sizes in all_sizes}.values() if sizes.halve()]
    return max((sizes.limit for sizes in halved_sizes if sizes.limit is not None), default=None)


def split_into_sizes(n_samples: int, sizes: tuple[int, ...]) -> list[Batch]:
    """Split samples into batches of the given sizes, with little padding.

    Full batches of the largest size come first. If the remaining samples fill three quarters of the smallest sufficient
    size, or none of the sizes, they form one batch of the smallest sufficient size. Otherwise, a batch of the largest
    size that they fill comes next, and so on. `sizes` are ascending.
    """
    batches: list[Batch] = []
    start = 0
    while start < n_samples:
        n_remaining = n_samples - start
        sufficient_size = next((size for size in sizes if size >= n_remaining), None)
        full_sizes = [size for size in sizes if size <= n_remaining]
        if sufficient_size is not None and (not full_sizes or n_remaining >= _MIN_FILLED_FRACTION * sufficient_size):
            size = sufficient_size
        else:
            size = full_sizes[-1]
        batches.append(Batch(start, min(start + size, n_samples), size))
        start = batches[-1].stop
    return batches
