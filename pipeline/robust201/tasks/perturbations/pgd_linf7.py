"""Seven steps of projected gradient descent in an Linf ball, as Wang and Horne (2020) use them (docs/protocol.md).

Source: Madry et al., "Towards Deep Learning Models Resistant to Adversarial Attacks", ICLR 2018;
`foolbox.attacks.LinfPGD` with steps of a quarter of epsilon and no random start. Implementations differ in the
starting point, in the returned iterate (see `pgd_l2`), and in whether the attack leads away from the image's label or
from the class predicted at the starting point. Each of these choices is a parameter.
"""

from collections.abc import Iterator

import numpy as np
import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, batches_by_strength
from robust201.tasks.attack_kit.batching import loss_and_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import LINF
from robust201.tasks.parameters import PgdVariant
from robust201.tasks.perturbations.pgd import project_to_cube, start_in_cube
from robust201.tasks.perturbations.pgd_variants import BestIterate, labels_to_attack


def reference(context: Context, parameters: PgdVariant, request: Request) -> Iterator[Perturbed]:
    """Attack with Foolbox."""
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.foolbox_engine import Aim, foolbox, foolbox_batches

    attack = foolbox.attacks.LinfPGD(
        rel_stepsize=parameters.rel_stepsize, steps=parameters.steps, random_start=parameters.random_start
    )
    aim: Aim = "predicted" if parameters.label == "predicted" else "label"
    yield from foolbox_batches(context, attack, request, LINF, aim=aim)


def fused(job: AttackJob, parameters: PgdVariant) -> Iterator[Perturbed]:
    """Attack at all epsilons together."""
    for samples in job.chunks(np.arange(len(job.images))):
        yield from batches_by_strength(samples, _attack_samples(job, samples, parameters))


@torch.inference_mode()
def _attack_samples(job: AttackJob, samples: Samples, parameters: PgdVariant) -> torch.Tensor:
    clean, epsilons = samples.clean, samples.epsilons
    step_sizes = samples.scaled_epsilons(parameters.rel_stepsize, job.epsilons)
    images = start_in_cube(job, samples) if parameters.random_start else clean
    labels = labels_to_attack(job, samples, images, parameters)
    best_iterate, returns_best = BestIterate(images), parameters.iterate == "best"
    for _ in range(parameters.steps):
        _, loss, gradient = loss_and_gradient_of(job.model, job.batching, images, labels, samples.strength_indices)
        if returns_best:
            best_iterate.offer(images, loss)
        # Make a new tensor, since `best_iterate` refers to earlier iterates.
        images = project_to_cube(images + gradient.sign().mul_(step_sizes), clean, epsilons).clamp_(0, 1)
    if returns_best:
        best_iterate.offer_last(job, samples, images, labels)
        images = best_iterate.images
    return project_to_cube(images.clone(), clean, epsilons)
