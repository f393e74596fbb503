"""Common parts of minimum-norm attacks: one run per image, whose result is used for all epsilons.

At each epsilon, the result is the nearest misclassified image that the attack finds, if it is inside the ball, and the
clean image otherwise. The accuracy at an epsilon is therefore the fraction of images for which the attack finds no
misclassified image within epsilon.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, batches_by_strength
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of, to_float
from robust201.tasks.constraints import Constraint

Search = Callable[[AttackJob, Samples], torch.Tensor]
"""(job, samples) → (B, 3, H, W), the nearest misclassified image that the search finds for each sample, or the clean
image if it finds none."""

LibrarySearch = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
"""(Foolbox's model, pixels, labels) → the same result as `Search`."""


def fused_minimum_norm_batches(job: AttackJob, constraint: Constraint, search: Search) -> Iterator[Perturbed]:
    """Attack each correctly classified image once for all epsilons, and return misclassified images unchanged."""
    unbounded_job = dataclasses.replace(job, epsilons=(math.inf,))
    positions = np.arange(len(job.images))
    # Foolbox also attacks images that are misclassified without an attack, and returns them unchanged. If
    # `uses_library_batches` is set, attack them too, so that batches contain the same images as Foolbox's.
    correct = np.ones(len(positions), np.bool_) if job.batching.uses_library_batches else job.is_correct()
    for samples in job.chunks(positions[~correct]):
        yield from batches_by_strength(samples, samples.clean)
    for samples in unbounded_job.groups_of_images(positions[correct]):
        with torch.inference_mode():
            nearest = search(unbounded_job, samples)
        attacked_positions = torch.from_numpy(samples.positions).to(nearest.device)
        for strength_index, radius in enumerate(job.epsilons):
            yield Perturbed(
                strength_index,
                attacked_positions,
                # Copy outside of inference mode, as in `batches_by_strength`.
                replace_outside_ball(constraint, samples.clean, nearest, radius).clone(),
            )


def foolbox_minimum_norm_batches(
    context: Context, request: Request, constraint: Constraint, search: LibrarySearch
) -> Iterator[Perturbed]:
    """Run one of Foolbox's attacks once on every batch, for all strengths."""
    from robust201.tasks.perturbations.foolbox_engine import foolbox

    images, labels = request.images, request.labels
    model = foolbox.PyTorchModel(context.classifier, bounds=(0, 1), device=context.classifier.device)
    for batch_number, batch in context.batches(len(images)):
        clean = to_float(images[batch])
        with context.seeded(batch_number), torch.enable_grad():
            nearest = search(model, clean, labels[batch]).detach()
        for strength_index, strength in enumerate(request.strengths):
            perturbed = replace_outside_ball(constraint, clean, nearest, constraint.radius(strength))
            yield Perturbed(strength_index, positions_of(batch, images.device), perturbed)


def replace_outside_ball(
    constraint: Constraint, clean: torch.Tensor, nearest: torch.Tensor, radius: float
) -> torch.Tensor:
    """Return the nearest misclassified images, with those outside of a ball replaced by the clean images."""
    is_inside = constraint.distances(nearest - clean).double() <= constraint.reach_of_radius(radius)
    return torch.where(is_inside.view(-1, 1, 1, 1), nearest, clean)


def cosine_decay(step: int, n_steps: int) -> float:
    """Return the value of the cosine schedule, which decreases from 1 at the first step to 0 after the last step."""
    return (1 + math.cos(math.pi * step / n_steps)) / 2


def per_image(values: torch.Tensor) -> torch.Tensor:
    """Reshape values (B,) to broadcast over images."""
    return values.view(-1, 1, 1, 1)


def l2_norms(images: torch.Tensor) -> torch.Tensor:
    """Return the L2 norms (B,) of images, in Foolbox's order of operations."""
    return (images.flatten(1) ** 2).sum(dim=-1).sqrt()
