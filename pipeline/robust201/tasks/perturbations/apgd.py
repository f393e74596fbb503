"""APGD on the cross-entropy loss, as AutoAttack runs it.

Source: Croce and Hein, ICML 2020, algorithm 1; `pyautoattack.autopgd_base.APGDAttack`. Momentum .75, first step size 2
epsilon, halved at checkpoints where progress stalls (rho .75); one random start a restart.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pyautoattack import AutoAttack
from pyautoattack.autopgd_base import APGDAttack

from robust201.tasks import ApgdParameters
from robust201.tasks.perturbations.autoattack_engine import attack_batches
from robust201.tasks.perturbations.contract import Context, Perturbed

STEP_DECAY_THRESHOLD = 0.75
"""rho of Croce and Hein (2020), section 3.2, which AutoAttack sets too."""


def perturb(
    context: Context,
    parameters: ApgdParameters,
    strengths: Sequence[float],
    *,
    images: torch.Tensor,
    labels: torch.Tensor,
    indices: NDArray[np.int64],
) -> Iterator[Perturbed]:
    """Attack every image that is classified correctly (see `tasks.perturbations.contract` for the contract).

    Args:
        context: what surrounds the attack.
        parameters: iterations and restarts.
        strengths: (S,) epsilons in units of 1/255.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        indices: unused.

    Yields:
        Batches of images: perturbed where the attack succeeded, else clean.
    """

    def configure(adversary: AutoAttack) -> None:
        # Made anew, because the checkpoints of the step size are derived from the iterations when the attack is made.
        adversary.apgd = APGDAttack(
            context.classifier,
            n_iter=parameters.steps,
            norm=adversary.norm,
            n_restarts=parameters.restarts,
            eps=adversary.epsilon,
            seed=adversary.seed,
            loss="ce",
            eot_iter=1,
            rho=STEP_DECAY_THRESHOLD,
            device=adversary.device,
            logger=adversary.logger,
        )

    yield from attack_batches(
        context, name="apgd-ce", configure=configure, strengths=strengths, images=images, labels=labels
    )
