"""The fast adaptive boundary attack towards one target class after the other.

Source: Croce and Hein, ICML 2020; `pyautoattack.fab_base.FABAttack` with its option `targeted`, as AutoAttack runs it.
The targets are the classes with the second largest, third largest, … logit of the clean image; there are no restarts.
Each step takes one gradient instead of one per class.
"""

from collections.abc import Iterator

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import logits_of, value_and_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.parameters import FabTargeted
from robust201.tasks.perturbations.fab import Boundary, fab_batches, run_fab


def reference(context: Context, parameters: FabTargeted, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    yield from fab_batches(context, parameters, request, "fab-t")


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

        return run_fab(job, samples, run_number, parameters, boundary_for, starts_at_random=False)

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
