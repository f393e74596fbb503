"""Projected gradient descent.

Source: Kurakin, Goodfellow and Bengio, "Adversarial Machine Learning at Scale", ICLR 2017; Madry et al., "Towards Deep
Learning Models Resistant to Adversarial Attacks", ICLR 2018; `foolbox.attacks.LinfPGD`. The published dataset uses
Foolbox's defaults (docs/protocol.md). The attack starts at a uniformly random point of the epsilon ball. It takes
`steps` steps of size `rel_stepsize` × epsilon along the sign of the cross-entropy's gradient, each projected to the
ball and clipped to [0, 1]. Every image is attacked, and the last iterate is returned, even if an earlier one was
misclassified. By default there is no target. `target: least_likely` targets the clean image's least likely class, as in
equation 2 of Jung et al. (ICLR 2023), which their published numbers do not follow.
"""

from collections.abc import Iterator

import numpy as np
import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, batches_by_strength
from robust201.tasks.attack_kit.batching import logits_of, loss_and_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import LINF
from robust201.tasks.parameters import Pgd


def reference(context: Context, parameters: Pgd, request: Request) -> Iterator[Perturbed]:
    """Attack with Foolbox."""
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.foolbox_engine import Aim, foolbox, foolbox_batches

    attack = foolbox.attacks.LinfPGD(
        rel_stepsize=parameters.rel_stepsize, steps=parameters.steps, random_start=parameters.random_start
    )
    aim: Aim = "least_likely" if parameters.target == "least_likely" else "label"
    yield from foolbox_batches(context, attack, request, LINF, aim=aim)


def fused(job: AttackJob, parameters: Pgd) -> Iterator[Perturbed]:
    """Attack at all epsilons together."""
    for samples in job.chunks(np.arange(len(job.images))):
        yield from batches_by_strength(samples, _attack_samples(job, samples, parameters))


@torch.inference_mode()
def _attack_samples(job: AttackJob, samples: Samples, parameters: Pgd) -> torch.Tensor:
    clean, epsilons = samples.clean, samples.epsilons
    step_sizes = samples.scaled_epsilons(parameters.rel_stepsize, job.epsilons)
    classes = samples.labels
    if parameters.target == "least_likely":
        classes = logits_of(job.model, job.batching, clean, samples.strength_indices).argmin(dim=1)
        step_sizes = -step_sizes
    images = start_in_cube(job, samples) if parameters.random_start else clean.clone()
    for _ in range(parameters.steps):
        _, _, gradient = loss_and_gradient_of(job.model, job.batching, images, classes, samples.strength_indices)
        images = project_to_cube(images.add_(gradient.sign().mul_(step_sizes)), clean, epsilons).clamp_(0, 1)
    return project_to_cube(images, clean, epsilons)


def start_in_cube(job: AttackJob, samples: Samples) -> torch.Tensor:
    """Draw starting points uniformly from the epsilon ball, clipped to [0, 1]: (B, 3, H, W)."""
    noise = job.random_numbers.uniforms(0, samples.dataset_indices, job.shape).to(samples.clean.device)
    noise.mul_(2 * samples.epsilons).sub_(samples.epsilons)
    return samples.clean.clone().add_(noise).clamp_(0, 1)


def project_to_cube(images: torch.Tensor, clean: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    """Project to the epsilon ball, in Foolbox's order of operations; overwrites `images`."""
    difference = images.sub_(clean)
    return torch.minimum(torch.maximum(difference, -epsilons, out=difference), epsilons, out=difference).add_(clean)
