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
_FORWARD_MAPS = 8
_BACKWARD_MAPS = 4
_STAGE_WEIGHTS = 1 + 1 / 2 + 1 / 4
_REDUCTION_MAPS = 1 + 1 / 2 + 1 / 2 + 1 / 4


class Capacity(NamedTuple):
    """Samples that go through a network at once, at most.

    Attributes:
        logits: where only logits are asked for.
        gradients: where the gradient is taken too.
    """

    logits: int
    gradients: int


def network_bytes(channels: int, cells: int, image_size: int, *, gradient: bool) -> int:
    """Estimate from above what one sample takes while it goes through an inference network of any cell.

    The unit is a feature map of the first stage, 4 * channels * image_size**2 bytes; each later stage's is half of the
    one before. A forward pass holds up to eight of them: the nodes of one cell, as they are and after their ReLUs, and
    what a kernel writes. The way back needs the ReLUs' outputs, up to three a cell and two a reduction, from where they
    are made to where they are used: that is nearly all of it at the published depth. A test compares both numbers with
    what a pass really allocates.

    Args:
        channels: C, channels of the first stage.
        cells: N, cells a stage.
        image_size: height and width of the images, in pixels.
        gradient: whether the gradient is taken.

    Returns:
        Bytes.
    """
    image = 3 * _FLOAT_BYTES * image_size**2
    feature_map = channels * _FLOAT_BYTES * image_size**2
    if not gradient:
        return _FORWARD_MAPS * feature_map + image
    remembered = 3 * cells * _STAGE_WEIGHTS + _REDUCTION_MAPS
    return round((remembered + _BACKWARD_MAPS) * feature_map) + 3 * image


def choose_capacity(
    *,
    free_bytes: int,
    total_bytes: int,
    share: float,
    skeleton: tuple[int, int, int],
    images_held: int,
) -> Capacity:
    """Choose batch sizes for a device.

    Args:
        free_bytes: memory that nobody uses, or this process itself.
        total_bytes: memory of the device.
        share: part of the device that this process may use, in (0, 1].
        skeleton: channels C, cells N and image size (see `network_bytes`).
        images_held: float32 images that an attack holds for each sample that is shown, beside the network.

    Returns:
        Two of `BUCKETS`. The smallest is given where even that does not fit: memory may run out then, and who asked
        can halve it.
    """
    channels, cells, image_size = skeleton
    usable = USED_SHARE * min(free_bytes, share * total_bytes)
    held = images_held * 3 * _FLOAT_BYTES * image_size**2

    def largest(*, gradient: bool) -> int:
        room = usable / (network_bytes(channels, cells, image_size, gradient=gradient) + held)
        return max((bucket for bucket in BUCKETS if bucket <= room), default=BUCKETS[0])

    return Capacity(largest(gradient=False), largest(gradient=True))


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
