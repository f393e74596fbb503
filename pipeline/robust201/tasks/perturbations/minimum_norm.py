"""What attacks for the smallest perturbation share: one run per image, cut to the ball of each epsilon.

At an epsilon, an image whose nearest misclassified perturbation lies in the ball comes back so perturbed, every other
one as it was. So the accuracy at an epsilon is the share of images whose distance is larger, and at an epsilon as large
as the range of pixels every image comes back at its distance.
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
"""(job, images) → (B, 3, H, W), the nearest misclassified perturbation of each, the clean image where there is none."""

LibrarySearch = Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor]
"""(Foolbox's model, pixels, labels) → the same."""


def fused_batches(job: AttackJob, constraint: Constraint, search: Search) -> Iterator[Perturbed]:
    """Attack the images that are classified correctly, once for all epsilons; the distance of the others is 0."""
    images = dataclasses.replace(job, epsilons=(math.inf,))
    every = np.arange(len(job.images))
    # Foolbox also attacks images that are wrong from the start, to no effect: with its batches, so does this.
    correct = np.ones(len(every), np.bool_) if job.batching.as_library else job.correct()
    for samples in job.chunks(every[~correct]):
        yield from batches_by_strength(samples, samples.clean)
    for samples in images.pools_of_images(every[correct]):
        with torch.inference_mode():
            nearest = search(images, samples)
        positions = torch.from_numpy(samples.positions).to(nearest.device)
        for strength, radius in enumerate(job.epsilons):
            # A copy, made outside of inference mode, as in `batches_by_strength`.
            yield Perturbed(strength, positions, within(constraint, samples.clean, nearest, radius).clone())


def foolbox_minima(
    context: Context, request: Request, constraint: Constraint, search: LibrarySearch
) -> Iterator[Perturbed]:
    """Run one of Foolbox's attacks once on every batch, for all strengths."""
    from robust201.tasks.perturbations.foolbox_engine import foolbox

    images, labels = request.images, request.labels
    model = foolbox.PyTorchModel(context.classifier, bounds=(0, 1), device=context.classifier.device)
    for number, batch in context.batches(len(images)):
        clean = to_float(images[batch])
        with context.draws(number), torch.enable_grad():
            nearest = search(model, clean, labels[batch]).detach()
        for strength, value in enumerate(request.strengths):
            cut = within(constraint, clean, nearest, constraint.radius(value))
            yield Perturbed(strength, positions_of(batch, images.device), cut)


def within(constraint: Constraint, clean: torch.Tensor, nearest: torch.Tensor, radius: float) -> torch.Tensor:
    """Keep the perturbations that count as in a ball, as those of every attack do, and the clean image elsewhere."""
    is_within = constraint.distances(nearest - clean).double() <= constraint.reach_of_radius(radius)
    return torch.where(is_within.view(-1, 1, 1, 1), nearest, clean)


def cosine(step: int, steps: int) -> float:
    """Value between 1 at the first step and 0 behind the last one."""
    return (1 + math.cos(math.pi * step / steps)) / 2


def per_image(values: torch.Tensor) -> torch.Tensor:
    """Make values (B,) broadcast over images."""
    return values.view(-1, 1, 1, 1)


def image_lengths(images: torch.Tensor) -> torch.Tensor:
    """L2 norms (B,) in Foolbox's order of operations."""
    return (images.flatten(1) ** 2).sum(dim=-1).sqrt()
