"""Measure the time that a network's passes take."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from robust201.models.model import Model

_REPEATS = 2
"""Number of timed calls after one untimed call. The fastest time is used."""


class PassTime(NamedTuple):
    """Seconds that a forward pass takes. A pass with a gradient counts as three, as in `tasks.TASKS`.

    Attributes:
        seconds_per_batch: seconds per batch, independent of the number of images.
        seconds_per_image: additional seconds per image.
    """

    seconds_per_batch: float
    seconds_per_image: float


def measure_pass(model: Model, pixels: torch.Tensor, labels: torch.Tensor) -> PassTime:
    """Measure the time of passes with a single image and with all images.

    Args:
        model: the network.
        pixels: (B, 3, H, W) float32 in [0, 1], on the network's device.
        labels: (B,) int64.
    """
    single_seconds, batch_seconds = (
        _forward_pass_seconds(model, pixels[:count], labels[:count]) for count in (1, len(pixels))
    )
    # On a GPU, a batch may be as fast as a single image. The minimum keeps the time per image above zero.
    per_image = max(batch_seconds - single_seconds, batch_seconds / 100) / max(1, len(pixels) - 1)
    return PassTime(single_seconds, per_image)


def _forward_pass_seconds(model: Model, pixels: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the time of a pass without gradient, or a third of the time of a pass with gradient if that is longer."""
    forward_seconds = _fastest_call_seconds(lambda: model.logits(pixels), pixels.device)
    try:
        gradient_seconds = _fastest_call_seconds(lambda: model.loss_and_gradient(pixels, labels), pixels.device)
    except (Exception, SystemExit):  # noqa: BLE001 - the network may lack gradients, which attacks may not need
        return forward_seconds
    return max(forward_seconds, gradient_seconds / 3)


def _fastest_call_seconds(call: Callable[[], object], device: torch.device) -> float:
    call()
    seconds = []
    for _ in range(_REPEATS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
