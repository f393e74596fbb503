"""The steps of APGD in balls of three norms: starting points, moves and step sizes.

Sources: Croce and Hein, ICML 2020, algorithm 1 (Linf, L2), and "Mind the box", ICML 2021 (L1);
`pyautoattack.autopgd_base.APGDAttack`, whose order of operations this module follows.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.l1_projection import correction_to_l1
from robust201.attacks.norms import norms, per_image
from robust201.attacks.samples import Samples

STEP_DECAY_THRESHOLD = 0.75
"""Rho: step sizes are halved if the loss rises in at most this fraction of the iterations since the last checkpoint
(Croce and Hein, 2020, section 3.2; AutoAttack)."""

_MOMENTUM = 0.75


class _HalvingSteps:
    """Steps that start at 2 epsilon and are halved at checkpoints where progress stalls (Croce and Hein, 2020, 3.2).

    As in the library, the first interval between checkpoints is .22 of the iterations. Each further interval is shorter
    by .03 of the iterations, down to a minimum of .06. `start_loss` (B,) is the loss at the starting points.
    """

    def __init__(self, samples: Samples, n_steps: int, start_loss: torch.Tensor) -> None:
        self._clean, self._radii = samples.clean, samples.epsilons
        self._sizes = 2 * samples.epsilons
        self._interval = max(int(0.22 * n_steps), 1)
        self._min_interval = max(int(0.06 * n_steps), 1)
        self._decrease = max(int(0.03 * n_steps), 1)
        self._n_since_check = 0
        # Row 0 stays zero, because AutoAttack compares the first iteration's loss with 0, not with the starting loss.
        self._losses = start_loss.new_zeros((n_steps + 1, len(start_loss)))
        self._best_at_check = start_loss
        self._halved_at_check = torch.ones_like(start_loss, dtype=torch.bool)

    def update_step_sizes(
        self, iteration: int, loss: torch.Tensor, best_loss: torch.Tensor, best_images: torch.Tensor
    ) -> torch.Tensor | None:
        """Record the losses (B,) of an iteration, from 0, and update the step sizes if it is a checkpoint.

        `best_loss` (B,) and `best_images` (B, C, H, W) are the highest loss so far and its iterates.

        Returns:
            (B,) bool, which samples revert to their best iterate; None between checkpoints.
        """
        del best_images
        row = iteration + 1
        self._losses[row] = loss
        self._n_since_check += 1
        if self._n_since_check < self._interval:
            return None
        losses = self._losses[row - self._interval : row + 1]
        n_rises = (losses[1:] > losses[:-1]).sum(dim=0)
        rises_rarely = n_rises <= STEP_DECAY_THRESHOLD * self._interval
        halved = rises_rarely | (~self._halved_at_check & (self._best_at_check >= best_loss))
        self._halved_at_check, self._best_at_check = halved, best_loss
        self._interval = max(self._interval - self._decrease, self._min_interval)
        self._n_since_check = 0
        self._sizes = torch.where(per_image(halved), self._sizes / 2, self._sizes)
        return halved


class LinfSteps(_HalvingSteps):
    """Steps along the gradient's sign."""

    def __init__(self, samples: Samples, n_steps: int, start_loss: torch.Tensor) -> None:
        super().__init__(samples, n_steps, start_loss)
        self._lower, self._upper = self._clean - self._radii, self._clean + self._radii

    def move(
        self, images: torch.Tensor, previous: torch.Tensor, gradient: torch.Tensor, iteration: int
    ) -> torch.Tensor:
        """Return the next iterates from the current ones, the previous ones and the gradient, all (B, C, H, W)."""
        momentum = _MOMENTUM if iteration > 0 else 1.0
        stepped = images + self._sizes * gradient.sign()
        stepped = self._clip(stepped).sub_(images).mul_(momentum).add_(images)
        return self._clip(stepped.add_((images - previous).mul_(1 - momentum)))

    def _clip(self, images: torch.Tensor) -> torch.Tensor:
        """Clip to the epsilon ball and to [0, 1]; overwrites `images`."""
        return torch.minimum(torch.maximum(images, self._lower, out=images), self._upper, out=images).clamp_(0, 1)


class L2Steps(_HalvingSteps):
    """Steps along the gradient divided by its norm."""

    def move(
        self, images: torch.Tensor, previous: torch.Tensor, gradient: torch.Tensor, iteration: int
    ) -> torch.Tensor:
        momentum = _MOMENTUM if iteration > 0 else 1.0
        stepped = self._project(images + self._sizes * _normalised_l2(gradient))
        return self._project(images + (stepped - images) * momentum + (images - previous) * (1 - momentum))

    def _project(self, images: torch.Tensor) -> torch.Tensor:
        difference = images - self._clean
        lengths = torch.minimum(self._radii, per_image(norms(difference, "L2")))
        return (self._clean + _normalised_l2(difference) * lengths).clamp(0, 1)


class L1Steps:
    """Steps along the signs of the gradient's largest entries, in balls of radii (B,).

    The fraction of entries that a step uses depends on the sparsity of the best iterate, initially of `start`. If
    `start` is None (a random start), the fraction is initially .2.
    """

    def __init__(self, samples: Samples, n_steps: int, radii: NDArray[np.float64], start: torch.Tensor | None) -> None:
        self._clean, self._radii = samples.clean, samples.per_sample(radii)
        self._min_sizes = samples.per_sample(radii / 10.0)
        self._sizes = self._radii
        self._interval = max(int(0.04 * n_steps), 1)
        n_values = samples.clean[0].numel()
        if start is None:
            self._n_changed = torch.full((len(samples),), n_values, device=samples.clean.device)
            self._fraction = torch.full((len(samples),), 0.2, device=samples.clean.device)
        else:
            self._n_changed = self._count_changed(start)
            self._fraction = self._n_changed / n_values / 1.5

    def _count_changed(self, images: torch.Tensor) -> torch.Tensor:
        """Return the number of values (B,) int64 that differ from the clean images."""
        return (images - self._clean != 0).flatten(1).sum(-1)

    def move(
        self, images: torch.Tensor, previous: torch.Tensor, gradient: torch.Tensor, iteration: int
    ) -> torch.Tensor:
        del previous, iteration
        sorted_magnitudes = gradient.abs().flatten(1).sort(-1)[0]
        n_values = sorted_magnitudes.shape[1]
        index = torch.clamp((1.0 - self._fraction) * n_values, min=0, max=n_values - 1).long()
        threshold = sorted_magnitudes.gather(1, index[:, None]).view(-1, 1, 1, 1)
        signs = (gradient * (gradient.abs() >= threshold).float()).sign()
        stepped = images + self._sizes * signs / (per_image(norms(signs, "L1")) + 1e-10)
        difference = stepped - self._clean
        return self._clean + difference + correction_to_l1(self._clean, difference, self._radii)

    def update_step_sizes(
        self, iteration: int, loss: torch.Tensor, best_loss: torch.Tensor, best_images: torch.Tensor
    ) -> torch.Tensor | None:
        del loss, best_loss
        if (iteration + 1) % self._interval:
            return None
        n_changed = self._count_changed(best_images)
        is_sparser = n_changed / self._n_changed < 0.95
        self._fraction = n_changed / self._clean[0].numel() / 1.5
        sizes = torch.where(per_image(is_sparser), self._radii, self._sizes / 1.5)
        self._sizes = torch.minimum(torch.maximum(sizes, self._min_sizes), self._radii)
        self._n_changed = n_changed
        return is_sparser


def _normalised_l2(images: torch.Tensor) -> torch.Tensor:
    """Divide images (B, C, H, W) by their L2 norms."""
    return images / (per_image(norms(images, "L2")) + 1e-12)


def random_start(samples: Samples, norm: str) -> torch.Tensor:
    """Draw the starting points of a run: (B, C, H, W) in the ball and in [0, 1].

    In Linf, a starting point is clean + epsilon * t / max |t| with t uniform in [-1, 1). In L2, t is normal and divided
    by its L2 norm. In L1, a starting point is the projection of clean + t with normal t.
    """
    clean, epsilons = samples.clean, samples.epsilons
    if norm == "Linf":
        direction = samples.uniforms().mul_(2).sub_(1)
        largest = per_image(norms(direction, "Linf"))
        return direction.div_(largest + 1e-12).mul_(epsilons).add_(clean).clamp_(0, 1)
    direction = normal_noise(samples)
    if norm == "L2":
        return (clean + epsilons * _normalised_l2(direction)).clamp(0, 1)
    return (clean + direction + correction_to_l1(clean, direction, epsilons)).clamp(0, 1)


def normal_noise(samples: Samples) -> torch.Tensor:
    """Draw standard normal numbers for a run: (B, C, H, W)."""
    return samples.normals(samples.clean[0].numel()).view(samples.clean.shape)
