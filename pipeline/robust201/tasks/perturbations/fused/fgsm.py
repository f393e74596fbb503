"""Fast gradient sign method, all epsilons from one gradient.

Source and semantics: `tasks.perturbations.fgsm`. The gradient is taken at the clean image, so it is the same for
every epsilon: S epsilons cost one gradient, not S.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks import FgsmParameters
from robust201.tasks.perturbations.contract import Context, Perturbed, to_float
from robust201.tasks.perturbations.fused.job import Job, job_of


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
        indices: (N,) rows of the test split; unused, since nothing is drawn.

    Yields:
        Batches of perturbed images.
    """
    yield from attack(job_of(context, strengths, images=images, labels=labels, indices=indices), parameters)


def attack(job: Job, parameters: FgsmParameters) -> Iterator[Perturbed]:
    """Attack every image of a job (see `perturb`)."""
    del parameters
    for piece in job.batching.slices(np.zeros(len(job.images), np.int64)):
        clean = to_float(job.images[piece])
        direction = _direction(job, clean, job.labels[piece])
        positions = torch.arange(piece.start, piece.stop, device=clean.device)
        for strength, epsilon in enumerate(job.epsilons):
            yield Perturbed(strength, positions, _step(clean, direction, epsilon))


@torch.inference_mode()
def _direction(job: Job, clean: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return job.model.loss_and_gradient(clean, labels)[2].sign()


def _step(clean: torch.Tensor, direction: torch.Tensor, epsilon: float) -> torch.Tensor:
    # Foolbox projects to the ball, clips to [0, 1], and projects again what it returns; each rounds.
    stepped = clean + epsilon * direction
    stepped = (clean + (stepped - clean).clamp_(-epsilon, epsilon)).clamp_(0, 1)
    return clean + (stepped - clean).clamp_(-epsilon, epsilon)
