"""Projected gradient descent in an L2 ball.

Source: Madry et al., "Towards Deep Learning Models Resistant to Adversarial Attacks", ICLR 2018;
`foolbox.attacks.L2PGD`. Each step moves by `step_size` along the cross-entropy's normalised gradient; then the image is
projected to the ball and clipped to [0, 1]. Every image is attacked. `iterate: best` returns each image's iterate with
the highest cross-entropy, including the starting point, as the library of Engstrom et al. ("Robustness", 2019) does;
Foolbox returns the last iterate. `label: predicted` leads away from the class predicted at the starting point instead
of the image's label.
"""

from collections.abc import Iterator

import numpy as np
import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, batches_by_strength
from robust201.tasks.attack_kit.batching import loss_and_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import L2
from robust201.tasks.parameters import PgdVariant
from robust201.tasks.perturbations.pgd_variants import BestIterate, labels_to_attack

_MIN_NORM = 1e-12


def reference(context: Context, parameters: PgdVariant, request: Request) -> Iterator[Perturbed]:
    """Attack with Foolbox."""
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.foolbox_engine import Aim, foolbox, foolbox_batches

    attack = foolbox.attacks.L2PGD(
        abs_stepsize=parameters.step_size, steps=parameters.steps, random_start=parameters.random_start
    )
    aim: Aim = "predicted" if parameters.label == "predicted" else "label"
    yield from foolbox_batches(context, attack, request, L2, aim=aim)


def fused(job: AttackJob, parameters: PgdVariant) -> Iterator[Perturbed]:
    """Attack at all epsilons together."""
    for samples in job.chunks(np.arange(len(job.images))):
        yield from batches_by_strength(samples, _attack_samples(job, samples, parameters))


@torch.inference_mode()
def _attack_samples(job: AttackJob, samples: Samples, parameters: PgdVariant) -> torch.Tensor:
    clean, epsilons = samples.clean, samples.epsilons
    images = _start(job, samples) if parameters.random_start else clean
    labels = labels_to_attack(job, samples, images, parameters)
    best_iterate, returns_best = BestIterate(images), parameters.iterate == "best"
    for _ in range(parameters.steps):
        _, loss, gradient = loss_and_gradient_of(job.model, job.batching, images, labels, samples.strength_indices)
        if returns_best:
            best_iterate.offer(images, loss)
        gradient = gradient * _norms(gradient).reciprocal()
        images = _project(images + parameters.step_size * gradient, clean, epsilons).clamp(0, 1)
    if returns_best:
        best_iterate.offer_last(job, samples, images, labels)
        images = best_iterate.images
    return _project(images, clean, epsilons)


def _start(job: AttackJob, samples: Samples) -> torch.Tensor:
    """Draw starting points uniformly from the ball, as Foolbox does.

    They are the first n coordinates of points on a sphere in n + 2 dimensions (Voelker et al., 2017).
    """
    n_values = int(np.prod(job.shape))
    normals = job.random_numbers.normals(0, samples.dataset_indices, n_values + 2).to(samples.clean.device)
    directions = normals / (normals**2).sum(dim=-1, keepdim=True).sqrt()
    points_in_ball = directions[:, :n_values].reshape(samples.clean.shape)
    return (samples.clean + samples.epsilons * points_in_ball).clamp(0, 1)


def _norms(images: torch.Tensor) -> torch.Tensor:
    """Return L2 norms (B, 1, 1, 1), replacing 0 by a small number, in Foolbox's order of operations."""
    return (images.flatten(1) ** 2).sum(dim=-1).sqrt().clamp_min(_MIN_NORM).view(-1, 1, 1, 1)


def _project(images: torch.Tensor, clean: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    difference = images - clean
    return clean + difference * (_norms(difference).reciprocal() * epsilons).clamp_max(1)
