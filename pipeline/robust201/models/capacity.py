"""How many samples a GPU's memory holds at once: an estimate of bytes per sample, and a rule. Plain Python, no torch.

The rule rounds down to a few sizes, so that equal devices choose equally although their free memory differs a little:
on CUDA the size of a batch decides which kernels the libraries take, and with them the last bit of a logit.
"""

from collections.abc import Sequence
from typing import NamedTuple

BUCKETS = (256, 512, 1024, 2048, 4096, 8192)
"""Sizes of the batches that a GPU is shown; smaller ones are filled up to the next (see `buckets.cut`)."""

USED_SHARE = 0.8
"""Share of the memory that is planned with. The rest is for what is not estimated: the workspaces of cuDNN and cuBLAS,
the allocator's gaps, test images, and CUDA itself."""

_FLOAT_BYTES = 4


class Capacity(NamedTuple):
    """Samples that go through a network at once, at most.

    Attributes:
        logits: where only logits are asked for.
        gradients: where the gradient is taken too.
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
        free_bytes: memory that nobody uses, or this process itself.
        total_bytes: memory of the device.
        share: part of the device that this process may use, in (0, 1].
        sample_bytes: what one sample takes in the network, for logits and for gradients.
        image_size: height and width of the images, in pixels.
        images_held: float32 images that an attack holds for each sample that is shown, beside the network.

    Returns:
        Two of `BUCKETS`. The smallest is given where even that does not fit: memory may run out then, and who asked
        can halve it.
    """
    usable = USED_SHARE * min(free_bytes, share * total_bytes)
    held = images_held * 3 * _FLOAT_BYTES * image_size**2

    def largest(n_bytes: int) -> int:
        room = usable / (n_bytes + held)
        return max((bucket for bucket in BUCKETS if bucket <= room), default=BUCKETS[0])

    return Capacity(largest(sample_bytes.logits), largest(sample_bytes.gradients))


def buckets_up_to(limit: int) -> tuple[int, ...]:
    """List the batch sizes below a limit, and the limit itself, ascending.

    Args:
        limit: samples that may be shown at once, at least 1.
    """
    return (*(bucket for bucket in BUCKETS if bucket < limit), limit)


class Piece(NamedTuple):
    """A stretch of samples that is shown as one batch.

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
    """Cut samples into batches of a few sizes, wasting little.

    Full batches of the largest size come first. What is left goes into the smallest size that holds it if that gets
    three quarters full; else the largest size that it fills is cut off, and so on.

    Args:
        n_samples: how many samples there are.
        buckets: sizes, ascending.

    Returns:
        Pieces that cover [0, n_samples) in order.
    """
    pieces: list[Piece] = []
    start = 0
    while start < n_samples:
        left = n_samples - start
        filled = max((bucket for bucket in buckets if bucket <= left), default=None)
        holding = min((bucket for bucket in buckets if bucket >= left), default=None)
        if filled is None or (holding is not None and left >= _FULL_ENOUGH * holding):
            # One of the two is there: what no bucket holds fills the largest.
            size = holding if holding is not None else buckets[-1]
        else:
            size = filled
        stop = min(start + size, n_samples)
        pieces.append(Piece(start, stop, size))
        start = stop
    return pieces
