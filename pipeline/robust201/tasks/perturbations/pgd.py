"""Projected gradient descent, as Foolbox runs it.

Source: Kurakin, Goodfellow and Bengio, "Adversarial Machine Learning at Scale", ICLR 2017; Madry et al., "Towards Deep
Learning Models Resistant to Adversarial Attacks", ICLR 2018; `foolbox.attacks.LinfPGD`, whose defaults are the
published sweep's (docs/protocol.md). Start at a uniform draw from the epsilon ball, then `steps` steps of size
`rel_stepsize` × epsilon along the sign of the cross-entropy's gradient, each projected to the ball and clipped to
[0, 1].
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks import PgdParameters
from robust201.tasks.perturbations.contract import Context, Perturbed
from robust201.tasks.perturbations.foolbox_engine import attack_batches, foolbox


def perturb(
    context: Context,
    parameters: PgdParameters,
    strengths: Sequence[float],
    *,
    images: torch.Tensor,
    labels: torch.Tensor,
    indices: NDArray[np.int64],
) -> Iterator[Perturbed]:
    """Attack every image (see `tasks.perturbations.contract` for the contract).

    Args:
        context: what surrounds the attack.
        parameters: steps, relative step size, random start, and the target: none, or the class that the network finds
            least likely for the clean image (equation 2 of Jung et al., ICLR 2023, which their numbers do not follow).
        strengths: (S,) epsilons in units of 1/255.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        indices: unused.

    Yields:
        Batches of perturbed images.
    """
    attack = foolbox.attacks.LinfPGD(
        rel_stepsize=parameters.rel_stepsize, steps=parameters.steps, random_start=parameters.random_start
    )
    least_likely = parameters.target == "least_likely"
    yield from attack_batches(
        context, attack, strengths=strengths, images=images, labels=labels, least_likely=least_likely
    )
