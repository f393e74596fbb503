"""APGD on the cross-entropy, and on the targeted difference of logits ratio (DLR).

Source: Croce and Hein, ICML 2020, algorithm 1 and equation 7, and ICML 2021 (L1);
`pyautoattack.autopgd_base.APGDAttack` and `APGDAttack_targeted`. In Linf and L2, the momentum is .75, and the step
size (first 2 epsilon) is halved at checkpoints where progress stalls (rho .75). In L1, steps are sparse and have no
momentum, and the first step size is the radius. Each run has one random start. The attack continues for images that are
already fooled, because AutoAttack returns the last misclassified iterate. A run never removes samples, so the host
never waits for the device.

An image's targets are the classes with the second largest, third largest, … logit of the clean image. Each target has
`restarts` consecutive runs. The targeted loss needs at least four classes.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.apgd_steps import (
    L1Steps,
    L2Steps,
    LinfSteps,
    normal_noise,
    random_start,
)
from robust201.attacks.batching import BatchedModel
from robust201.attacks.l1_projection import correction_to_l1
from robust201.attacks.samples import Samples
from robust201.tasks.attacks import Apgd, ApgdTargeted

_Differentiate = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Images (B, C, H, W) → logits (B, C), the loss to maximise (B,) and its gradient (B, C, H, W)."""


def attack(model: BatchedModel, samples: Samples, options: Apgd) -> torch.Tensor:
    """Return each image's last misclassified iterate of one run, or the clean image if there is none."""
    if isinstance(options, ApgdTargeted):
        differentiate = _targeted_loss(model, samples, samples.run // options.restarts + 2)
    else:
        differentiate = functools.partial(model.loss_and_gradient, labels=samples.labels)
    if options.norm == "L1" and options.larger_epsilons:
        return _ascend_in_shrinking_balls(samples, options.steps, differentiate).fooling_images()
    ascent = _Ascent(samples, random_start(samples, options.norm), differentiate)
    if options.norm == "L1":
        ascent.run(L1Steps(samples, options.steps, samples.radii, None), options.steps)
    else:
        steps = LinfSteps if options.norm == "Linf" else L2Steps
        ascent.run(steps(samples, options.steps, ascent.best_loss), options.steps)
    return ascent.fooling_images()


def _targeted_loss(model: BatchedModel, samples: Samples, rank: int) -> _Differentiate:
    """Return the targeted DLR. The target is the class whose logit for the clean image has this rank (1: largest)."""
    targets = model.logits(samples.clean).sort(dim=1)[1][:, -rank]

    def targeted_difference_of_logits_ratio(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        # AutoAttack's expression, unchanged: reordering terms changes the last bits of the gradient.
        true_classes, target_classes = samples.labels[rows].clone(), targets[rows].clone()
        sorted_logits, _ = logits.sort(dim=1)
        row_numbers = torch.arange(len(logits), device=logits.device)
        return -(logits[row_numbers, true_classes] - logits[row_numbers, target_classes]) / (
            sorted_logits[:, -1] - 0.5 * (sorted_logits[:, -3] + sorted_logits[:, -4]) + 1e-12
        )

    return lambda images: model.value_and_gradient(images, targeted_difference_of_logits_ratio)


class _Ascent:
    """APGD in one ball (Croce and Hein, 2020, algorithm 1), from starting points (B, C, H, W).

    Attributes:
        best_images: (B, C, H, W) iterates with the highest loss.
        best_loss: (B,) loss at `best_images`.
    """

    def __init__(self, samples: Samples, start: torch.Tensor, differentiate: _Differentiate) -> None:
        self._samples, self._differentiate = samples, differentiate
        logits, self.best_loss, self._best_gradient = differentiate(start)
        self._images = self.best_images = start
        self._gradient, self._loss = self._best_gradient, self.best_loss
        self._is_fooled = logits.argmax(dim=1) != samples.labels
        self._last_fooling = start

    def run(self, steps: LinfSteps | L2Steps | L1Steps, n_steps: int) -> None:
        previous = self._images
        for iteration in range(n_steps):
            current = self._images
            self._images, previous = steps.move(current, previous, self._gradient, iteration), current
            self._evaluate()
            reverted = steps.update_step_sizes(iteration, self._loss, self.best_loss, self.best_images)
            if reverted is not None:
                self._images = _select(reverted, self.best_images, self._images)
                self._gradient = _select(reverted, self._best_gradient, self._gradient)

    def _evaluate(self) -> None:
        """Evaluate the iterates, and update the last misclassified and the best iterates."""
        logits, self._loss, self._gradient = self._differentiate(self._images)
        misclassified = logits.argmax(dim=1) != self._samples.labels
        is_better = self._loss > self.best_loss
        self._is_fooled = self._is_fooled | misclassified
        self._last_fooling = _select(misclassified, self._images, self._last_fooling)
        self.best_images = _select(is_better, self._images, self.best_images)
        self._best_gradient = _select(is_better, self._gradient, self._best_gradient)
        self.best_loss = torch.where(is_better, self._loss, self.best_loss)

    def fooling_images(self) -> torch.Tensor:
        """Return each image's last misclassified iterate, or the clean image if there is none: (B, C, H, W)."""
        return _select(self._is_fooled, self._last_fooling, self._samples.clean)


def _select(is_selected: torch.Tensor, images: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return torch.where(is_selected.view(-1, 1, 1, 1), images, others)


def _ascend_in_shrinking_balls(samples: Samples, n_steps: int, differentiate: _Differentiate) -> _Ascent:
    """Ascend in L1 balls of 3, 2 and 1 epsilon: from a random start, then from the best iterate in the previous ball.

    Source: Croce and Hein, 2021.
    """
    n_large_ball_steps = math.ceil(0.3 * n_steps)
    images = _project_to_l1(samples, samples.clean + normal_noise(samples), 3.0 * samples.radii)
    for factor, n_ball_steps in (
        (3.0, n_large_ball_steps),
        (2.0, n_large_ball_steps),
        (1.0, n_steps - 2 * n_large_ball_steps),
    ):
        radii = factor * samples.radii
        images = _project_to_l1(samples, images, radii).clamp(0, 1)
        ascent = _Ascent(samples, images, differentiate)
        ascent.run(L1Steps(samples, n_ball_steps, radii, images), n_ball_steps)
        images = ascent.best_images
    return ascent


def _project_to_l1(samples: Samples, images: torch.Tensor, radii: NDArray[np.float64]) -> torch.Tensor:
    return images + correction_to_l1(samples.clean, images - samples.clean, samples.per_sample(radii))
