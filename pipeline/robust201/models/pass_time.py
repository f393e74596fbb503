"""Measurement of the time of a network's passes."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from robust201.models.model import Model

_REPEATS = 2
"""Timed calls, after an untimed one; the fastest counts."""


class PassTime(NamedTuple):
    """Seconds of a forward pass; a gradient counts as three passes, as in `tasks.TASKS`.

    Attributes:
        fixed: seconds per batch.
        per_image: additional seconds per image.
    """

    fixed: float
    per_image: float


def measure_pass(model: Model, pixels: torch.Tensor, labels: torch.Tensor) -> PassTime:
    """Measure passes with a single image and with all images.

    Args:
        model: the network.
        pixels: (B, 3, H, W) float32 in [0, 1], on its device.
        labels: (B,) int64.
    """
    single, batch = (_seconds(model, pixels[:count], labels[:count]) for count in (1, len(pixels)))
    # On a GPU a batch may be as fast as a single image; the minimum of a hundredth keeps images from costing nothing.
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
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds)
