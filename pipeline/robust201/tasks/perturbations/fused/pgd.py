"""Projected gradient descent, all epsilons together.

Source and semantics: `tasks.perturbations.pgd`. Every image is attacked, and the last iterate is returned, of images
that were fooled on the way too.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks import PgdParameters
from robust201.tasks.perturbations.contract import Context, Perturbed
from robust201.tasks.perturbations.fused.job import Job, Samples, handed_back, job_of
from robust201.tasks.perturbations.fused.model import gradient_of, logits_of


def perturb(
    context: Context,
    parameters: PgdParameters,
    strengths: Sequence[float],
    *,
    images: torch.Tensor,
    labels: torch.Tensor,
    indices: NDArray[np.int64],
) -> Iterator[Perturbed]:
    """Attack every image (see `tasks.perturbations.contract` for the contract).

    Args:
        context: what surrounds the attack.
        parameters: steps, relative step size, random start and target (see `tasks.perturbations.pgd`).
        strengths: (S,) epsilons in units of 1/255.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        indices: (N,) rows of the test split, which name the random starts.

    Yields:
        Batches of perturbed images.
    """
    yield from attack(job_of(context, strengths, images=images, labels=labels, indices=indices), parameters)


def attack(job: Job, parameters: PgdParameters) -> Iterator[Perturbed]:
    """Attack every image of a job (see `perturb`)."""
    for samples in job.chunks(np.arange(len(job.images))):
        yield from handed_back(samples, _attack_samples(job, samples, parameters))


@torch.inference_mode()
def _attack_samples(job: Job, samples: Samples, parameters: PgdParameters) -> torch.Tensor:
    clean, epsilons = samples.clean, samples.epsilons
    steps = samples.scaled_epsilons(parameters.rel_stepsize, job.epsilons)
    classes = samples.labels
    if parameters.target == "least_likely":
        classes = logits_of(job.model, job.batching, clean, samples.strengths).argmin(dim=1)
        steps = -steps
    images = clean.clone()
    if parameters.random_start:
        noise = job.draws.uniforms(0, samples.images, job.shape).to(clean.device)
        images.add_(noise.mul_(2 * epsilons).sub_(epsilons)).clamp_(0, 1)
    for _ in range(parameters.steps):
        gradient = gradient_of(job.model, job.batching, images, classes, samples.strengths)[2]
        images = _project(images.add_(gradient.sign().mul_(steps)), clean, epsilons).clamp_(0, 1)
    return _project(images, clean, epsilons)


def _project(images: torch.Tensor, clean: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    """Project to the epsilon ball, in Foolbox's order of operations; overwrites `images`."""
    difference = images.sub_(clean)
    return torch.minimum(torch.maximum(difference, -epsilons, out=difference), epsilons, out=difference).add_(clean)
