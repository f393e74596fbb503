"""Decoupled direction and norm (DDN), a minimum-norm attack in L2.

Source: Rony et al., "Decoupling Direction and Norm for Efficient Gradient-Based L2 Adversarial Attacks and Defenses",
CVPR 2019; `foolbox.attacks.DDNAttack`. After a step along the cross-entropy's gradient, the perturbation is scaled to
length epsilon. Epsilon shrinks by the fraction gamma while the image is misclassified, and grows by it otherwise. If
the gradient is 0, the direction is random. Foolbox draws a direction for each step; the fused engine draws one
direction per image, and shifts its values cyclically at each step.
"""

from collections.abc import Iterator
from typing import Any

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples
from robust201.tasks.attack_kit.batching import loss_and_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Ddn
from robust201.tasks.perturbations.minimum_norm import (
    cosine_decay,
    foolbox_minimum_norm_batches,
    fused_minimum_norm_batches,
    l2_norms,
    per_image,
)

_FINAL_STEP_SIZE = 0.01
_MIN_NORM = 1e-12
_SHIFT = 997
"""Number of positions by which the random direction's values are shifted per step. It is coprime to the number of
values of images of common sizes."""


def reference(context: Context, parameters: Ddn, request: Request) -> Iterator[Perturbed]:
    """Attack with Foolbox."""

    def search(model: Any, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # Import here, so that the fused engine does not import libraries that it does not use.
        from robust201.tasks.perturbations.foolbox_engine import foolbox

        attack = foolbox.attacks.DDNAttack(
            init_epsilon=parameters.init_epsilon, steps=parameters.steps, gamma=parameters.gamma
        )
        nearest: torch.Tensor = attack.run(model, pixels, foolbox.criteria.Misclassification(labels))
        return nearest

    yield from foolbox_minimum_norm_batches(context, request, CONSTRAINTS[parameters.norm], search)


def fused(job: AttackJob, parameters: Ddn) -> Iterator[Perturbed]:
    """Attack each image once for all epsilons."""
    yield from fused_minimum_norm_batches(
        job, CONSTRAINTS[parameters.norm], lambda unbounded_job, samples: run_ddn(unbounded_job, samples, parameters)
    )


def run_ddn(job: AttackJob, samples: Samples, parameters: Ddn) -> torch.Tensor:
    """Return the nearest misclassified iterate of each image, computed in Foolbox's order of operations."""
    clean, labels = samples.clean, samples.labels
    noise = job.random_numbers.normals(0, samples.dataset_indices, clean[0].numel()).to(clean.device)
    delta = torch.zeros_like(clean)
    longest_possible = l2_norms(torch.maximum(clean, 1 - clean))
    shortest_length, best_delta = longest_possible, delta
    epsilons = torch.full_like(longest_possible, parameters.init_epsilon)
    for step in range(parameters.steps):
        stepsize = _FINAL_STEP_SIZE + (1.0 - _FINAL_STEP_SIZE) * cosine_decay(step, parameters.steps)
        logits, _, gradient = loss_and_gradient_of(
            job.model, job.batching, clean + delta, labels, samples.strength_indices
        )
        lengths = l2_norms(delta)
        misclassified = logits.argmax(dim=-1) != labels
        is_nearer = misclassified & (lengths <= shortest_length)
        shortest_length = torch.where(is_nearer, lengths, shortest_length)
        best_delta = torch.where(per_image(is_nearer), delta, best_delta)
        random_direction = noise.roll(_SHIFT * step, dims=1).view_as(clean)
        delta = delta + stepsize * _direction(gradient, random_direction)
        epsilons = epsilons * torch.where(misclassified, 1.0 - parameters.gamma, 1.0 + parameters.gamma)
        epsilons = torch.minimum(epsilons, longest_possible)
        delta = delta * per_image(epsilons / l2_norms(delta))
        delta = (clean + delta).clamp(0, 1) - clean
    return clean + best_delta


def _direction(gradient: torch.Tensor, random_direction: torch.Tensor) -> torch.Tensor:
    gradient = torch.where(per_image(l2_norms(gradient) == 0), random_direction, gradient)
    return gradient * per_image(1 / l2_norms(gradient).clamp_min(_MIN_NORM))
