"""APGD on the targeted difference of logits ratio, one target class after the other.

Source: Croce and Hein, ICML 2020, equation 7; `pyautoattack.autopgd_base.APGDAttack_targeted`. An image's targets are
the classes with the second largest, third largest, … logit of the clean image. An image that is misclassified after the
attack on one target is not attacked on the remaining ones. The loss needs at least four classes; all classes except the
label can be targets.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import logits_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import ApgdTargeted
from robust201.tasks.perturbations.apgd import Loss, library_arguments, run_apgd

if TYPE_CHECKING:
    from pyautoattack import AutoAttack


def reference(context: Context, parameters: ApgdTargeted, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import autoattack_batches

    def configure(adversary: "AutoAttack") -> None:
        configure_library(adversary, context, parameters)

    constraint = CONSTRAINTS[parameters.norm]
    yield from autoattack_batches(context, request, constraint, names=("apgd-t",), configure=configure)


def configure_library(adversary: "AutoAttack", context: Context, parameters: ApgdTargeted) -> None:
    """Replace AutoAttack's targeted APGD object with one that has these parameters."""
    from pyautoattack.autopgd_base import APGDAttack_targeted

    adversary.apgd_targeted = APGDAttack_targeted(
        context.classifier,
        n_restarts=parameters.restarts,
        n_target_classes=min(parameters.targets, context.classifier.n_classes - 1),
        **library_arguments(adversary, parameters),
    )


def fused(job: AttackJob, parameters: ApgdTargeted) -> Iterator[Perturbed]:
    """Attack at all epsilons together, one target after the other."""
    yield from attack_correct(job, job.chunks, single_run(parameters), parameters.targets * parameters.restarts)


def single_run(parameters: ApgdTargeted) -> SingleRun:
    """Return a function that runs the attack once; each target has `restarts` consecutive runs."""

    def run(job: AttackJob, samples: Samples, run_number: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = logits_of(job.model, job.batching, samples.clean, samples.strength_indices)
        rank = run_number // parameters.restarts + 2
        if rank > logits.shape[1]:
            return samples.clean, torch.zeros_like(samples.labels, dtype=torch.bool)
        targets = logits.sort(dim=1)[1][:, -rank]
        return run_apgd(job, samples, run_number, parameters, _loss(samples.labels, targets))

    return run


def _loss(labels: torch.Tensor, targets: torch.Tensor) -> Loss:
    def targeted_difference_of_logits_ratio(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        # AutoAttack's expression, unchanged: reordering terms changes the last bits of the gradient.
        true_classes, target_classes = labels[rows].clone(), targets[rows].clone()
        ordered, _ = logits.sort(dim=1)
        row_numbers = torch.arange(len(logits), device=logits.device)
        return -(logits[row_numbers, true_classes] - logits[row_numbers, target_classes]) / (
            ordered[:, -1] - 0.5 * (ordered[:, -3] + ordered[:, -4]) + 1e-12
        )

    return targeted_difference_of_logits_ratio
