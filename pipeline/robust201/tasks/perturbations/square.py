"""Square attack, as AutoAttack runs it.

Source: Andriushchenko et al., "Square Attack: a query-efficient black-box adversarial attack via random search",
ECCV 2020, algorithms 1 and 2; `pyautoattack.square.SquareAttack`. Vertical stripes of ±epsilon to start with, then
random squares of ±2 epsilon (clipped to the ball), kept where the margin shrinks; an image drops out when it is
misclassified. The side of the squares follows the number of the query, not its share of `queries` (AutoAttack's
`resc_schedule=False`).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pyautoattack import AutoAttack
from pyautoattack.square import SquareAttack

from robust201.tasks import SquareParameters
from robust201.tasks.perturbations.autoattack_engine import attack_batches
from robust201.tasks.perturbations.contract import Context, Perturbed


def perturb(
    context: Context,
    parameters: SquareParameters,
    strengths: Sequence[float],
    *,
    images: torch.Tensor,
    labels: torch.Tensor,
    indices: NDArray[np.int64],
) -> Iterator[Perturbed]:
    """Attack every image that is classified correctly (see `tasks.perturbations.contract` for the contract).

    Args:
        context: what surrounds the attack.
        parameters: queries, restarts and the first share of pixels that a square covers.
        strengths: (S,) epsilons in units of 1/255.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        indices: unused.

    Yields:
        Batches of images: perturbed where the attack succeeded, else clean.
    """

    def configure(adversary: AutoAttack) -> None:
        adversary.square = SquareAttack(
            context.classifier,
            norm=adversary.norm,
            n_queries=parameters.queries,
            eps=adversary.epsilon,
            p_init=parameters.p_init,
            n_restarts=parameters.restarts,
            seed=adversary.seed,
            loss="margin",
            resc_schedule=False,
            device=adversary.device,
        )

    yield from attack_batches(
        context, name="square", configure=configure, strengths=strengths, images=images, labels=labels
    )
