"""APGD on the difference of logits ratio.

Source: Croce and Hein, ICML 2020, equation 6; `pyautoattack.autopgd_base.APGDAttack` with `loss="dlr"`. The loss is
invariant to scaling and shifting all logits, so its gradients do not vanish where the cross-entropy's do. It needs
at least three classes.
"""

from collections.abc import Iterator

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.parameters import ApgdDlr
from robust201.tasks.perturbations.apgd import Loss, apgd_batches, run_apgd


def reference(context: Context, parameters: ApgdDlr, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    yield from apgd_batches(context, parameters, request, "dlr")


def fused(job: AttackJob, parameters: ApgdDlr) -> Iterator[Perturbed]:
    """Attack at all epsilons together (see `apgd.fused`)."""
    yield from attack_correct(job, job.chunks, single_run(parameters), parameters.restarts)


def single_run(parameters: ApgdDlr) -> SingleRun:
    """Return a function that runs the attack once on the difference of logits ratio."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return run_apgd(job, samples, restart, parameters, _loss(samples.labels))

    return run


def _loss(labels: torch.Tensor) -> Loss:
    def difference_of_logits_ratio(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        # AutoAttack's expression, unchanged: reordering terms changes the last bits of the gradient.
        true_classes = labels[rows].clone()
        ordered, classes = logits.sort(dim=1)
        is_largest = (classes[:, -1] == true_classes).float()
        row_numbers = torch.arange(len(logits), device=logits.device)
        return -(
            logits[row_numbers, true_classes] - ordered[:, -2] * is_largest - ordered[:, -1] * (1.0 - is_largest)
        ) / (ordered[:, -1] - ordered[:, -3] + 1e-12)

    return difference_of_logits_ratio
