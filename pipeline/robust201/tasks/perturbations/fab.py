"""The fast adaptive boundary attack (FAB) towards one target class after the other.

Source: Croce and Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack", ICML 2020;
`pyautoattack.fab_base.FABAttack` with its option `targeted`, as AutoAttack runs it. An iterate moves slightly beyond
the linearised boundary between the label and the target, biased towards the clean image. A misclassified iterate is
stored if it is the nearest so far, and then moves back to nine tenths of its distance from the clean image. Epsilon
only decides which results count, so one run serves all epsilons. The targets are the classes with the second largest,
third largest, … logit of the clean image; there are no restarts.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import logits_of, value_and_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import FabTargeted
from robust201.tasks.perturbations.hyperplanes import project_l1, project_l2, project_linf

if TYPE_CHECKING:
    from pyautoattack import AutoAttack

_OVERSHOOT = 1.05  # eta in Croce and Hein's notation
_MAX_CLEAN_WEIGHT = 0.1  # alpha_max in their notation
_BACKWARD_FACTOR = 0.9  # beta in their notation
_INFINITE_DISTANCE = 1e10
"""Number that stands for an infinite distance."""

_PROJECTIONS = {"Linf": project_linf, "L2": project_l2, "L1": project_l1}

_LENGTHS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Linf": lambda flat: flat.abs().max(dim=1)[0],
    "L2": lambda flat: (flat**2).sum(dim=1).sqrt(),
    "L1": lambda flat: flat.abs().sum(dim=1),
}
"""Norm → function that returns the lengths (B,) of vectors (B, D), in AutoAttack's order of operations."""

Boundary: TypeAlias = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Iterates (B, 3, H, W) → the target's logit minus the label's logit (B,), and the gradient of this difference
(B, 3, H, W)."""


def reference(context: Context, parameters: FabTargeted, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import autoattack_batches

    def configure(adversary: "AutoAttack") -> None:
        configure_library(adversary, context, parameters)

    yield from autoattack_batches(context, request, CONSTRAINTS[parameters.norm], names=("fab-t",), configure=configure)


def configure_library(adversary: "AutoAttack", context: Context, parameters: FabTargeted) -> None:
    """Replace AutoAttack's FAB object with one that has these parameters."""
    from pyautoattack.fab_pt import FABAttack_PT

    adversary.fab = FABAttack_PT(
        context.classifier,
        n_restarts=1,
        n_iter=parameters.steps,
        eps=adversary.epsilon,
        seed=adversary.seed,
        norm=adversary.norm,
        device=adversary.device,
        n_target_classes=min(parameters.targets, context.classifier.n_classes - 1),
    )


def fused(job: AttackJob, parameters: FabTargeted) -> Iterator[Perturbed]:
    """Attack at all epsilons together, with one sample per image, one target after the other."""
    yield from attack_correct(job, job.groups_of_images, single_run(parameters), parameters.targets)


def single_run(parameters: FabTargeted) -> SingleRun:
    """Return a function that runs the attack once; each target has one run."""

    def run(job: AttackJob, samples: Samples, run_number: int) -> tuple[torch.Tensor, torch.Tensor]:
        rank = run_number + 2
        n_classes = logits_of(job.model, job.batching, samples.clean[:1]).shape[1]
        if rank > n_classes:
            return samples.clean, torch.zeros_like(samples.labels, dtype=torch.bool)

        def boundary_for(subset: Samples) -> Boundary:
            logits = logits_of(job.model, job.batching, subset.clean, subset.strength_indices)
            return _target_boundary(job, subset, logits.sort(dim=-1)[1][:, -rank])

        return _run_fab(job, samples, parameters, boundary_for)

    return run


def _target_boundary(job: AttackJob, samples: Samples, targets: torch.Tensor) -> Boundary:
    def logit_difference(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        true_classes, target_classes = samples.labels[rows].clone(), targets[rows].clone()
        row_numbers = torch.arange(len(logits), device=logits.device)
        return -(logits[row_numbers, true_classes] - logits[row_numbers, target_classes])

    def boundary(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        _, differences, gradient = value_and_gradient_of(
            job.model, job.batching, images, logit_difference, samples.strength_indices
        )
        return differences, gradient

    return boundary


def _run_fab(
    job: AttackJob, samples: Samples, parameters: FabTargeted, boundary_for: Callable[[Samples], Boundary]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run FAB once per image, from the clean image, for all epsilons.

    Args:
        job: model, batches and random numbers.
        samples: samples to attack.
        parameters: parameters of the attack.
        boundary_for: function that returns the boundary function of some samples.

    Returns:
        Candidates (B, 3, H, W), and which of them are misclassified and inside their ball (B,).
    """
    norm = parameters.norm
    _, first_samples, inverse = np.unique(samples.positions, return_index=True, return_inverse=True)
    order = np.argsort(first_samples)  # images in order of appearance
    image_samples, image_of_sample = samples.take(first_samples[order]), np.argsort(order)[inverse]
    nearest = _search(job, image_samples, boundary_for(image_samples), parameters.steps, norm)
    nearest = nearest[torch.from_numpy(image_of_sample).to(nearest.device)]
    logits = logits_of(job.model, job.batching, nearest, samples.strength_indices)
    distances = _LENGTHS[norm]((samples.clean - nearest).flatten(1))
    return nearest, (logits.argmax(dim=1) != samples.labels) & ~(distances > samples.epsilons.flatten())


def _search(job: AttackJob, samples: Samples, boundary: Boundary, n_steps: int, norm: str) -> torch.Tensor:
    """Return the nearest misclassified iterate of each image (B, 3, H, W), or the clean image if there is none."""
    clean, length_of, project = samples.clean, _LENGTHS[norm], _PROJECTIONS[norm]
    n_samples = len(clean)
    flat_clean = clean.flatten(1)
    images, nearest = clean, clean
    shortest = torch.full((n_samples,), _INFINITE_DISTANCE, device=clean.device)
    for _ in range(n_steps):
        difference, gradient = boundary(images)
        offset = -difference + (gradient * images).flatten(1).sum(dim=-1)
        normal = gradient.flatten(1)
        points = torch.cat((images.flatten(1), flat_clean), 0)
        moves = project(points, torch.cat((normal, normal), 0), torch.cat((offset, offset), 0))
        lengths = length_of(moves).clamp_min(1e-8)
        from_image, from_clean = lengths[:n_samples], lengths[n_samples:]
        weight = (from_image / (from_image + from_clean)).clamp(0, _MAX_CLEAN_WEIGHT).view(-1, 1, 1, 1)
        step, clean_step = moves[:n_samples].view(clean.shape), moves[n_samples:].view(clean.shape)
        images = (images + _OVERSHOOT * step) * (1 - weight) + (clean + clean_step * _OVERSHOOT) * weight
        images = images.clamp(0.0, 1.0)
        misclassified = (
            logits_of(job.model, job.batching, images, samples.strength_indices).argmax(dim=1) != samples.labels
        )
        distances = length_of((images - clean).flatten(1))
        is_nearer = misclassified & (distances < shortest)
        nearest = torch.where(is_nearer.view(-1, 1, 1, 1), images, nearest)
        shortest = torch.where(is_nearer, distances, shortest)
        images = torch.where(misclassified.view(-1, 1, 1, 1), clean + (images - clean) * _BACKWARD_FACTOR, images)
    return nearest
