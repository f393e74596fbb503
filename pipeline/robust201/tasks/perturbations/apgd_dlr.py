"""APGD on the difference of logits ratio.

Source: Croce and Hein, ICML 2020, equation 6; `pyautoattack.autopgd_base.APGDAttack` with `loss="dlr"`. The loss does
not change when all logits are scaled or shifted, so it gives gradients where the cross-entropy's vanish. It needs three
classes.
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
    """Attack all epsilons together (see `apgd.fused`)."""
    yield from attack_correct(job, job.chunks, single_run(parameters), parameters.restarts)


def single_run(parameters: ApgdDlr) -> SingleRun:
    """Make a run on the difference of logits ratio."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return run_apgd(job, samples, restart, parameters, _loss(samples.labels))

    return run


def _loss(labels: torch.Tensor) -> Loss:
    def difference_of_logits_ratio(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        # AutoAttack's expression as it is: another order of the same terms gives gradients other last bits.
        own = labels[rows].clone()
        ordered, classes = logits.sort(dim=1)
        is_largest = (classes[:, -1] == own).float()
        images = torch.arange(len(logits), device=logits.device)
        return -(logits[images, own] - ordered[:, -2] * is_largest - ordered[:, -1] * (1.0 - is_largest)) / (
            ordered[:, -1] - ordered[:, -3] + 1e-12
        )

    return difference_of_logits_ratio
