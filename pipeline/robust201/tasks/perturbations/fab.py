"""The fast adaptive boundary attack (FAB), and the parts that it shares with its targeted version.

Source: Croce and Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack", ICML 2020;
`pyautoattack.fab_base.FABAttack` and its PyTorch subclass. An iterate moves slightly beyond the nearest linearised
boundary between the label and another class, biased towards the clean image. A misclassified iterate is stored if it is
the nearest so far, and then moves back to nine tenths of its distance from the clean image. Epsilon only decides which
results count, so the first run serves all epsilons. Further runs start at random points at a distance of epsilon / 2.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import logits_of, value_and_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Fab, FabTargeted
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

_DUAL_NORMS = {"Linf": "L1", "L2": "L2", "L1": "Linf"}
"""Norm → dual norm. The distance from a point to the zeros of a linear function is the absolute value of the function
at the point, divided by the dual norm of its gradient."""

Boundary: TypeAlias = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Iterates (B, 3, H, W) → the logit of another class (the one with the nearest linearised boundary, or the target)
minus the label's logit (B,), and the gradient of this difference (B, 3, H, W)."""


def reference(context: Context, parameters: Fab, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    yield from fab_batches(context, parameters, request, "fab")


def fab_batches(
    context: Context, parameters: Fab | FabTargeted, request: Request, name: Literal["fab", "fab-t"]
) -> Iterator[Perturbed]:
    """Attack with one of AutoAttack's two versions of FAB."""
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import autoattack_batches

    def configure(adversary: "AutoAttack") -> None:
        configure_library(adversary, context, parameters)

    yield from autoattack_batches(context, request, CONSTRAINTS[parameters.norm], names=(name,), configure=configure)


def configure_library(adversary: "AutoAttack", context: Context, parameters: Fab | FabTargeted) -> None:
    """Replace AutoAttack's FAB object with one that has these parameters."""
    from pyautoattack.fab_pt import FABAttack_PT

    restarts, targets = 1, 1
    if isinstance(parameters, Fab):
        restarts = parameters.restarts
    else:
        targets = min(parameters.targets, context.classifier.n_classes - 1)
    adversary.fab = FABAttack_PT(
        context.classifier,
        n_restarts=restarts,
        n_iter=parameters.steps,
        eps=adversary.epsilon,
        seed=adversary.seed,
        norm=adversary.norm,
        device=adversary.device,
        n_target_classes=targets,
    )


def fused(job: AttackJob, parameters: Fab) -> Iterator[Perturbed]:
    """Attack at all epsilons together, with one sample per image in the first run."""
    yield from attack_correct(job, job.groups_of_images, single_run(parameters), parameters.restarts)


def single_run(parameters: Fab) -> SingleRun:
    """Return a function that runs the attack once, towards the nearest class."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return run_fab(
            job,
            samples,
            restart,
            parameters,
            lambda subset: _nearest_class_boundary(job, subset, parameters.norm),
            restart > 0,
        )

    return run


def run_fab(
    job: AttackJob,
    samples: Samples,
    run_number: int,
    parameters: Fab | FabTargeted,
    boundary_for: Callable[[Samples], Boundary],
    starts_at_random: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run FAB once.

    Args:
        job: model, batches and random numbers.
        samples: samples to attack.
        run_number: number of the run, which determines its random numbers.
        parameters: parameters of the attack.
        boundary_for: function that returns the boundary function of some samples.
        starts_at_random: whether to start at a random point at a distance of epsilon / 2. Otherwise the run starts at
            the clean image, and does not depend on epsilon.

    Returns:
        Candidates (B, 3, H, W), and which of them are misclassified and inside their ball (B,).
    """
    norm = parameters.norm
    if starts_at_random:
        start = _random_start(job, samples, run_number, norm)
        nearest = _search(job, samples, start, boundary_for(samples), parameters.steps, norm)
    else:
        _, first_samples, inverse = np.unique(samples.positions, return_index=True, return_inverse=True)
        order = np.argsort(first_samples)  # images in order of appearance
        image_samples, image_of_sample = samples.take(first_samples[order]), np.argsort(order)[inverse]
        nearest = _search(job, image_samples, image_samples.clean, boundary_for(image_samples), parameters.steps, norm)
        nearest = nearest[torch.from_numpy(image_of_sample).to(nearest.device)]
    logits = logits_of(job.model, job.batching, nearest, samples.strength_indices)
    distances = _LENGTHS[norm]((samples.clean - nearest).flatten(1))
    return nearest, (logits.argmax(dim=1) != samples.labels) & ~(distances > samples.epsilons.flatten())


def _search(
    job: AttackJob, samples: Samples, start: torch.Tensor, boundary: Boundary, n_steps: int, norm: str
) -> torch.Tensor:
    """Return the nearest misclassified iterate of each image (B, 3, H, W), or the clean image if there is none."""
    clean, length_of, project = samples.clean, _LENGTHS[norm], _PROJECTIONS[norm]
    n_samples = len(clean)
    flat_clean = clean.flatten(1)
    images, nearest = start, clean
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


def _random_start(job: AttackJob, samples: Samples, run_number: int, norm: str) -> torch.Tensor:
    """Draw starting points at a distance of epsilon / 2, in AutoAttack's order of operations."""
    if norm == "Linf":
        noise = (
            job.random_numbers.uniforms(run_number, samples.dataset_indices, job.shape).to(samples.clean.device) * 2 - 1
        )
    else:
        normals = job.random_numbers.normals(run_number, samples.dataset_indices, samples.clean[0].numel())
        noise = normals.to(samples.clean.device).view(samples.clean.shape)
    lengths = _LENGTHS[norm](noise.flatten(1)).view(-1, 1, 1, 1)
    return (samples.clean + samples.epsilons * noise / lengths * 0.5).clamp(0.0, 1.0)


def _nearest_class_boundary(job: AttackJob, samples: Samples, norm: str) -> Boundary:
    """Return a boundary function for the nearest class, which differentiates the logits of all classes in turn."""

    def boundary(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, _, label_gradient = _gradient_of_logit(job, samples, images, samples.labels)
        label_logit = logits.gather(1, samples.labels[:, None])[:, 0]
        smallest_distance = torch.full_like(label_logit, torch.inf)
        difference, gradient = torch.zeros_like(label_logit), torch.zeros_like(label_gradient)
        for class_index in range(logits.shape[1]):
            classes = torch.full_like(samples.labels, class_index)
            class_gradient = _gradient_of_logit(job, samples, images, classes)[2] - label_gradient
            class_difference = torch.where(
                samples.labels == class_index, _INFINITE_DISTANCE, logits[:, class_index] - label_logit
            )
            distance = class_difference.abs() / (1e-12 + _LENGTHS[_DUAL_NORMS[norm]](class_gradient.flatten(1)))
            is_nearer = distance < smallest_distance
            smallest_distance = torch.where(is_nearer, distance, smallest_distance)
            difference = torch.where(is_nearer, class_difference, difference)
            gradient = torch.where(is_nearer.view(-1, 1, 1, 1), class_gradient, gradient)
        return difference, gradient

    return boundary


def _gradient_of_logit(
    job: AttackJob, samples: Samples, images: torch.Tensor, classes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def logit_of_class(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        return logits.gather(1, classes[rows].clone()[:, None])[:, 0]

    return value_and_gradient_of(job.model, job.batching, images, logit_of_class, samples.strength_indices)
