"""AutoAttack's version for networks whose outputs are random: APGD-CE, then APGD-DLR on the images that resist.

Source: Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", ICML 2020; `pyautoattack.AutoAttack` with `version="rand"`. Each attack runs once, without restarts. Each step
averages the gradient over several passes (expectation over transformations, Athalye et al., ICML 2018). Predictions and
losses come from the last pass. Images that resist are returned unchanged.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from robust201.models.model import Model, Objective
from robust201.tasks.attack_kit.attack_job import AttackJob
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Apgd, ApgdDlr, Rand, parameters_in_ball
from robust201.tasks.perturbations import apgd, apgd_dlr
from robust201.tasks.perturbations.standard import Stage, attack_in_stages, run_library_stages

if TYPE_CHECKING:
    from typing import Literal

    from pyautoattack import AutoAttack


def reference(context: Context, parameters: Rand, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    apgd_parameters = parameters_in_ball(Apgd, parameters.norm)(steps=parameters.steps)

    def configuration_for_loss(loss: "Literal['ce', 'dlr']") -> "Callable[[AutoAttack], None]":
        def configure(adversary: "AutoAttack") -> None:
            apgd.configure_library(adversary, context, apgd_parameters, loss)
            adversary.apgd.eot_iter = parameters.passes

        return configure

    stages = (("apgd-ce", configuration_for_loss("ce")), ("apgd-dlr", configuration_for_loss("dlr")))
    yield from run_library_stages(context, CONSTRAINTS[parameters.norm], request, stages)


def fused(job: AttackJob, parameters: Rand) -> Iterator[Perturbed]:
    """Attack at all epsilons together."""
    norm_suffix = "" if parameters.norm == "Linf" else f"_{parameters.norm.lower()}"
    ce = parameters_in_ball(Apgd, parameters.norm)(steps=parameters.steps)
    dlr = parameters_in_ball(ApgdDlr, parameters.norm)(steps=parameters.steps)
    batch_size = job.batching.batch_size
    stages = (
        Stage(f"aa_apgd-ce{norm_suffix}", apgd.single_run(ce), ce.restarts, batch_size),
        Stage(f"aa_apgd-dlr{norm_suffix}", apgd_dlr.single_run(dlr), dlr.restarts, batch_size),
    )
    averaged_job = dataclasses.replace(job, model=AveragedGradients(job.model, parameters.passes))
    yield from attack_in_stages(averaged_job, stages)


class AveragedGradients:
    """A model whose gradients are means over several passes; logits and losses come from the last pass."""

    def __init__(self, model: Model, passes: int) -> None:
        self._model = model
        self._passes = passes

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Classify in one pass (see `Model`)."""
        return self._model.logits(pixels)

    def loss_and_gradient(
        self, pixels: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Differentiate the cross-entropy (see `Model`)."""
        return self._average(pixels, lambda: self._model.loss_and_gradient(pixels, labels))

    def value_and_gradient(
        self, pixels: torch.Tensor, objective: Objective
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Differentiate an objective (see `Model`)."""
        return self._average(pixels, lambda: self._model.value_and_gradient(pixels, objective))

    def _average(
        self, pixels: torch.Tensor, differentiate: Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # Sum from zero, then divide, as AutoAttack does, since other orders change the last bits.
        total = torch.zeros_like(pixels)
        for _ in range(self._passes):
            logits, losses, gradient = differentiate()
            total = total + gradient
        return logits, losses, total / float(self._passes)
