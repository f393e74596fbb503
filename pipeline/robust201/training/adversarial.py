"""Adversarial training in an Linf ball: PGD (Madry et al., ICLR 2018) and TRADES (Zhang et al., ICML 2019)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import nn
from torch.nn import functional

from robust201.networks.device import restored_random_state
from robust201.training.augmentation import to_device
from robust201.training.draws import image_random_words, uniform
from robust201.training.recipes import AdversarialTraining, PgdTraining, TradesTraining, parse_distance

LogitsFunction = Callable[[torch.Tensor], torch.Tensor]
"""Maps pixels (B, channels, H, W) in [0, 1] to logits (B, C)."""

_NORMAL_START_STD = 0.001
"""Standard deviation of the normal random start in TRADES, for pixels in [0, 1], as in the authors' code."""


class StepLoss(NamedTuple):
    """Mean loss of one training step, and the logits (B, C) from which the accuracy is computed.

    With PGD, the logits are those of the adversarial images; otherwise, of the augmented images.
    """

    loss: torch.Tensor
    logits: torch.Tensor


class RandomStarts(NamedTuple):
    """Source of an attack's random starts on a batch: seed, epoch (counted from 0) and image ids (B,)."""

    seed: int
    epoch: int
    ids: NDArray[np.int64]

    def random_words(self, count: int) -> NDArray[np.uint64]:
        """Return `count` random 64-bit words per image, (B, count)."""
        return np.stack([image_random_words(self.seed, self.epoch, "start", int(image), count) for image in self.ids])


def step_loss(
    network: nn.Module,
    logits_of: LogitsFunction,
    pixels: torch.Tensor,
    labels: torch.Tensor,
    adversarial: AdversarialTraining | None,
    random_starts: RandomStarts,
) -> StepLoss:
    """Compute the loss of one training step; `adversarial` is None for standard training.

    `network` is the module that `logits_of` calls, in training mode. Attacks may temporarily set it to evaluation mode.
    `pixels` are (B, channels, H, W) float32 in [0, 1], `labels` (B,) int64.
    """
    if adversarial is not None and adversarial.trades is not None:
        return _trades_loss(network, logits_of, pixels, labels, adversarial.trades, random_starts)
    if adversarial is not None and adversarial.pgd is not None:
        pixels = _perturb_with_pgd(network, logits_of, pixels, labels, adversarial.pgd, random_starts)
    logits = logits_of(pixels)
    return StepLoss(functional.cross_entropy(logits, labels), logits)


def _perturb_with_pgd(
    network: nn.Module,
    logits_of: LogitsFunction,
    pixels: torch.Tensor,
    labels: torch.Tensor,
    attack: PgdTraining,
    random_starts: RandomStarts,
) -> torch.Tensor:
    start = pixels if attack.start == "none" else pixels + _uniform_noise(pixels, attack, random_starts)
    with _attack_mode(network, attack):
        return ascend(lambda images: functional.cross_entropy(logits_of(images), labels), pixels, start, attack)


def _trades_loss(
    network: nn.Module,
    logits_of: LogitsFunction,
    pixels: torch.Tensor,
    labels: torch.Tensor,
    attack: TradesTraining,
    random_starts: RandomStarts,
) -> StepLoss:
    noise = (
        _normal_noise(pixels, random_starts)
        if attack.start == "normal"
        else _uniform_noise(pixels, attack, random_starts)
    )
    with _attack_mode(network, attack):
        with torch.no_grad():
            clean_probabilities = logits_of(pixels).softmax(dim=1)
        perturbed = ascend(
            lambda images: _divergence(logits_of(images), clean_probabilities), pixels, pixels + noise, attack
        )
    logits = logits_of(pixels)
    clean_loss = functional.cross_entropy(logits, labels)
    divergence = _divergence(logits_of(perturbed), logits.softmax(dim=1))
    return StepLoss(clean_loss + attack.beta * divergence, logits)


def ascend(
    objective: Callable[[torch.Tensor], torch.Tensor],
    pixels: torch.Tensor,
    start: torch.Tensor,
    attack: PgdTraining | TradesTraining,
) -> torch.Tensor:
    """Maximise `objective` with signed gradient steps inside the ball around `pixels` and inside [0, 1]."""
    epsilon, step = parse_distance(attack.epsilon), parse_distance(attack.step)
    lower, upper = (pixels - epsilon).clamp(min=0), (pixels + epsilon).clamp(max=1)
    images = start.clamp(lower, upper)
    for _ in range(attack.steps):
        images = images.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(images), images, materialize_grads=True)
        images = (images.detach() + step * gradient.sign()).clamp(lower, upper)
    return images.detach()


def _divergence(logits: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Return the mean of KL(`probabilities` || prediction) over the batch."""
    return functional.kl_div(logits.log_softmax(dim=1), probabilities, reduction="batchmean")


@contextmanager
def _attack_mode(network: nn.Module, attack: PgdTraining | TradesTraining) -> Iterator[None]:
    """Set the network's mode for the attack. Afterwards, restore training mode.

    Unless `update_statistics` is set, also restore the buffers. The random state is always restored, so that dropout is
    the same with and without an attack.
    """
    buffers = [] if attack.update_statistics else [(buffer, buffer.clone()) for buffer in network.buffers()]
    network.train(attack.mode == "training")
    try:
        with restored_random_state(next(network.parameters()).device):
            yield
    finally:
        network.train()
        with torch.no_grad():
            for buffer, saved_values in buffers:
                buffer.copy_(saved_values)


def _uniform_noise(
    pixels: torch.Tensor, attack: PgdTraining | TradesTraining, random_starts: RandomStarts
) -> torch.Tensor:
    noise = (2 * uniform(random_starts.random_words(pixels[0].numel())) - 1) * parse_distance(attack.epsilon)
    return to_device(noise.astype(np.float32), pixels.device).view_as(pixels)


def _normal_noise(pixels: torch.Tensor, random_starts: RandomStarts) -> torch.Tensor:
    # The offset excludes 0, whose quantile is infinite.
    levels = uniform(random_starts.random_words(pixels[0].numel())) + 2.0**-54
    return to_device((_NORMAL_START_STD * ndtri(levels)).astype(np.float32), pixels.device).view_as(pixels)
