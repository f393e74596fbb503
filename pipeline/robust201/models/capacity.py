"""Choose batch sizes that fit a GPU's memory, from estimated bytes per sample. This module does not import torch.

A sample is one row of a batch. In an attack, it is one image at one strength.
Sizes are rounded down to a few values, so that equal devices choose equal sizes although their free memory differs
slightly. On CUDA, the batch size affects the choice of kernels, and therefore the last bit of a logit.
"""

from collections.abc import Sequence
from typing import NamedTuple

BUCKETS = (256, 512, 1024, 2048, 4096, 8192)
"""Batch sizes on a GPU. Smaller batches are padded to one of them (see `split_into_batches`)."""

USED_FRACTION = 0.8
"""Fraction of the memory to use. The rest is for memory that is not estimated: workspaces of cuDNN and cuBLAS, gaps of
the allocator, test images, and CUDA itself."""

_FLOAT_BYTES = 4


class Capacity(NamedTuple):
    """Maximum batch sizes of a network.

    Attributes:
        logits: maximum for passes without gradients.
        gradients: maximum for passes with gradients.
    """

    logits: int
    gradients: int


def choose_capacity(
    *,
    free_bytes: int,
    total_bytes: int,
    share: float,
    sample_bytes: Capacity,
    image_size: int,
    images_per_sample: int,
) -> Capacity:
    """Choose batch sizes for a device.

    Args:
        free_bytes: memory that is free or used by this process.
        total_bytes: memory of the device.
        share: fraction of the device's memory that this process may use, in (0, 1].
        sample_bytes: memory of one sample in the network, for logits and for gradients.
        image_size: height and width of the images, in pixels.
        images_per_sample: number of additional float32 images per sample that an attack keeps in memory.

    Returns:
        Two of the sizes in `BUCKETS`. If no size fits, the result is the smallest size. Passes of this size may run out
        of memory; the caller can then halve it.
    """
    usable_bytes = USED_FRACTION * min(free_bytes, share * total_bytes)
    attack_bytes = images_per_sample * 3 * _FLOAT_BYTES * image_size**2

    def largest_bucket(n_bytes: int) -> int:
        n_samples = usable_bytes / (n_bytes + attack_bytes)
        return max((bucket for bucket in BUCKETS if bucket <= n_samples), default=BUCKETS[0])

    return Capacity(largest_bucket(sample_bytes.logits), largest_bucket(sample_bytes.gradients))


def buckets_up_to(limit: int) -> tuple[int, ...]:
    """Return the sizes in `BUCKETS` below a limit, and the limit itself, in ascending order.

    Args:
        limit: maximum batch size, at least 1.
    """
    return (*(bucket for bucket in BUCKETS if bucket < limit), limit)


class Batch(NamedTuple):
    """Range of samples that form one batch.

    Attributes:
        start: position of the first sample.
        stop: position after the last sample.
        bucket: size of the batch, at least stop - start; the remaining rows are padding.
    """

    start: int
    stop: int
    bucket: int


_MIN_FILLED_FRACTION = 3 / 4
"""Minimum fraction of a batch that samples fill, unless the batch has the smallest size."""


def split_into_batches(n_samples: int, buckets: Sequence[int]) -> list[Batch]:
    """Split samples into batches of a few sizes, with little padding.

    Full batches of the largest size come first. If the remaining samples fill three quarters of the smallest sufficient
    size, they form one batch of this size. Otherwise, a batch of the largest size that they fill comes next, and so on.

    Args:
        n_samples: number of samples.
        buckets: batch sizes in ascending order.

    Returns:
        Batches that cover [0, n_samples) in order.
    """
    batches: list[Batch] = []
    start = 0
    while start < n_samples:
        n_remaining = n_samples - start
        largest_full = max((bucket for bucket in buckets if bucket <= n_remaining), default=None)
        smallest_sufficient = min((bucket for bucket in buckets if bucket >= n_remaining), default=None)
        if largest_full is None or (
            smallest_sufficient is not None and n_remaining >= _MIN_FILLED_FRACTION * smallest_sufficient
        ):
            # A sufficient size always exists here; the alternative satisfies the type checker.
            size = smallest_sufficient if smallest_sufficient is not None else buckets[-1]
        else:
            size = largest_full
        stop = min(start + size, n_samples)
        batches.append(Batch(start, stop, size))
        start = stop
    return batches
