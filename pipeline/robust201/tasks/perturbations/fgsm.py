"""Fast gradient sign method, as Foolbox runs it.

Source: Goodfellow, Shlens and Szegedy, "Explaining and Harnessing Adversarial Examples", ICLR 2015;
`foolbox.attacks.LinfFastGradientAttack`. One step of size epsilon along the sign of the cross-entropy's gradient, from
the clean image, clipped to [0, 1]. Draws nothing.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks import FgsmParameters
from robust201.tasks.perturbations.contract import Context, Perturbed
from robust201.tasks.perturbations.foolbox_engine import attack_batches, foolbox


def perturb(
    context: Context,
    parameters: FgsmParameters,
    strengths: Sequence[float],
    *,
    images: torch.Tensor,
    labels: torch.Tensor,
    indices: NDArray[np.int64],
) -> Iterator[Perturbed]:
    """Attack every image (see `tasks.perturbations.contract` for the contract).

    Args:
        context: what surrounds the attack.
        parameters: unused: the method has none but epsilon.
        strengths: (S,) epsilons in units of 1/255.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        indices: unused.

    Yields:
        Batches of perturbed images.
    """
    attack = foolbox.attacks.LinfFastGradientAttack()
    yield from attack_batches(context, attack, strengths=strengths, images=images, labels=labels)
