"""Measured time of a network's passes."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from robust201.models.model import Model

_REPEATS = 2
"""Timed calls, after one that is not timed; the fastest counts."""


class PassTime(NamedTuple):
    """Seconds of a forward pass; a gradient counts as three passes, as in `tasks.TASKS`.

    Attributes:
        fixed: per batch.
        per_image: per image of a batch, in addition.
    """

    fixed: float
    per_image: float


def measure_pass(model: Model, pixels: torch.Tensor, labels: torch.Tensor) -> PassTime:
    """Measure passes with a single image and with all of them.

    Args:
        model: the network.
        pixels: (B, 3, H, W) float32 in [0, 1], on its device.
        labels: (B,) int64.
    """
    single, batch = (_seconds(model, pixels[:count], labels[:count]) for count in (1, len(pixels)))
    # On a GPU a batch may be as fast as a single image; a hundredth of it per batch keeps images from being free.
    per_image = max(batch - single, batch / 100) / max(1, len(pixels) - 1)
    return PassTime(single, per_image)


def _seconds(model: Model, pixels: torch.Tensor, labels: torch.Tensor) -> float:
    forward = _fastest(lambda: model.logits(pixels), pixels.device)
    return max(forward, _fastest(lambda: model.loss_and_gradient(pixels, labels), pixels.device) / 3)


def _fastest(call: Callable[[], object], device: torch.device) -> float:
    call()
    seconds = []
    for _ in range(_REPEATS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begun = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
