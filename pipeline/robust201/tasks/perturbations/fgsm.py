"""Fast gradient sign method.

Source: Goodfellow, Shlens and Szegedy, "Explaining and Harnessing Adversarial Examples", ICLR 2015;
`foolbox.attacks.LinfFastGradientAttack`. The attack takes one step of size epsilon from the clean image along the sign
of the cross-entropy's gradient, and clips to [0, 1]. It uses no random numbers, and attacks every image.
"""

from collections.abc import Iterator

import numpy as np
import torch

from robust201.tasks.attack_kit.attack_job import AttackJob
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, to_float
from robust201.tasks.constraints import LINF
from robust201.tasks.parameters import Attack


def reference(context: Context, parameters: Attack, request: Request) -> Iterator[Perturbed]:
    """Attack with Foolbox."""
    del parameters  # epsilon is its only parameter
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.foolbox_engine import foolbox, foolbox_batches

    yield from foolbox_batches(context, foolbox.attacks.LinfFastGradientAttack(), request, LINF)


def fused(job: AttackJob, parameters: Attack) -> Iterator[Perturbed]:
    """Attack at all epsilons with a single gradient, since all attacks start at the clean image."""
    del parameters
    for batch in job.batching.slices(np.zeros(len(job.images), np.int64)):
        clean = to_float(job.images[batch])
        direction = _direction(job, clean, job.labels[batch])
        positions = torch.arange(batch.start, batch.stop, device=clean.device)
        for strength_index, epsilon in enumerate(job.epsilons):
            yield Perturbed(strength_index, positions, _take_step(clean, direction, epsilon))


@torch.inference_mode()
def _direction(job: AttackJob, clean: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return job.model.loss_and_gradient(clean, labels)[2].sign()


def _take_step(clean: torch.Tensor, direction: torch.Tensor, epsilon: float) -> torch.Tensor:
    # Repeat Foolbox's operations, since each one rounds: project to the ball, clip to [0, 1], and project again.
    stepped = clean + epsilon * direction
    stepped = (clean + (stepped - clean).clamp_(-epsilon, epsilon)).clamp_(0, 1)
    return clean + (stepped - clean).clamp_(-epsilon, epsilon)
