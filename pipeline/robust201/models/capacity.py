"""Batch sizes that fit a GPU's memory, by estimated bytes per sample. Does not import torch.

Sizes are rounded down to a few values, so that equal devices choose equal sizes although their free memory differs
slightly: on CUDA the batch size affects the choice of kernels, and thus the last bit of a logit.
"""

from collections.abc import Sequence
from typing import NamedTuple

BUCKETS = (256, 512, 1024, 2048, 4096, 8192)
"""Batch sizes on a GPU; smaller batches are padded to the next size (see `cut`)."""

USED_FRACTION = 0.8
"""Fraction of the memory to use. The rest is for memory that is not estimated: workspaces of cuDNN and cuBLAS, gaps of
the allocator, test images, and CUDA itself."""

_FLOAT_BYTES = 4


class Capacity(NamedTuple):
    """Maximum batch sizes of a network.

    Attributes:
        logits: for passes without gradients.
        gradients: for passes with gradients.
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
    images_held: int,
) -> Capacity:
    """Choose batch sizes for a device.

    Args:
        free_bytes: memory that is free or used by this process.
        total_bytes: memory of the device.
        share: fraction of the device that this process may use, in (0, 1].
        sample_bytes: memory of one sample in the network, for logits and for gradients.
        image_size: height and width of the images, in pixels.
        images_held: number of float32 images per sample that an attack keeps in memory in addition.

    Returns:
        Two of `BUCKETS`, the smallest if none fits: memory may then run out, and the caller can halve the size.
    """
    usable = USED_FRACTION * min(free_bytes, share * total_bytes)
    attack_bytes = images_held * 3 * _FLOAT_BYTES * image_size**2

    def largest(n_bytes: int) -> int:
        n_samples = usable / (n_bytes + attack_bytes)
        return max((bucket for bucket in BUCKETS if bucket <= n_samples), default=BUCKETS[0])

    return Capacity(largest(sample_bytes.logits), largest(sample_bytes.gradients))


def buckets_up_to(limit: int) -> tuple[int, ...]:
    """Return the batch sizes below a limit, and the limit itself, ascending.

    Args:
        limit: maximum batch size, at least 1.
    """
    return (*(bucket for bucket in BUCKETS if bucket < limit), limit)


class Piece(NamedTuple):
    """A range of samples that form one batch.

    Attributes:
        start: first sample.
        stop: one past the last sample.
        bucket: size of the batch, at least stop - start.
    """

    start: int
    stop: int
    bucket: int


_FULL_ENOUGH = 3 / 4


def cut(n_samples: int, buckets: Sequence[int]) -> list[Piece]:
    """Split samples into batches of a few sizes with little padding.

    Full batches of the largest size come first. The remaining samples form one batch of the smallest sufficient size if
    they fill three quarters of it; otherwise the largest size that they fill is split off, and so on.

    Args:
        n_samples: number of samples.
        buckets: batch sizes, ascending.

    Returns:
        Pieces that cover [0, n_samples) in order.
    """
    pieces: list[Piece] = []
    start = 0
    while start < n_samples:
        n_remaining = n_samples - start
        largest_full = max((bucket for bucket in buckets if bucket <= n_remaining), default=None)
        smallest_sufficient = min((bucket for bucket in buckets if bucket >= n_remaining), default=None)
        if largest_full is None or (
            smallest_sufficient is not None and n_remaining >= _FULL_ENOUGH * smallest_sufficient
        ):
            # At least one of the two exists: too many samples for any bucket fill the largest.
            size = smallest_sufficient if smallest_sufficient is not None else buckets[-1]
        else:
            size = largest_full
        stop = min(start + size, n_samples)
        pieces.append(Piece(start, stop, size))
        start = stop
    return pieces
