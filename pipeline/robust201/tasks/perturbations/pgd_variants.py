"""Common parts of the variants of projected gradient descent: the class to lead away from, and the best iterate."""

import torch
from torch.nn import functional

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples
from robust201.tasks.attack_kit.batching import logits_of
from robust201.tasks.parameters import PgdVariant


def labels_to_attack(job: AttackJob, samples: Samples, start: torch.Tensor, parameters: PgdVariant) -> torch.Tensor:
    """Return the labels (B,) that the attack leads away from: the images' labels, or predictions at the start."""
    if parameters.label == "given":
        return samples.labels
    return logits_of(job.model, job.batching, start, samples.strength_indices).argmax(dim=1)


class BestIterate:
    """Stores each image's iterate with the highest loss; of equal losses, the first.

    Args:
        images: (B, 3, H, W) initial iterates, which the first offered iterates replace.
    """

    def __init__(self, images: torch.Tensor) -> None:
        self.images = images
        self._loss = torch.full((len(images),), -torch.inf, device=images.device)

    def offer(self, images: torch.Tensor, loss: torch.Tensor) -> None:
        """Store the iterates (B, 3, H, W) whose losses (B,) are the highest so far."""
        is_better = loss > self._loss
        self.images = torch.where(is_better.view(-1, 1, 1, 1), images, self.images)
        self._loss = torch.where(is_better, loss, self._loss)

    def offer_last(self, job: AttackJob, samples: Samples, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Offer iterates whose loss is unknown. Computing it takes one more forward pass."""
        logits = logits_of(job.model, job.batching, images, samples.strength_indices)
        self.offer(images, functional.cross_entropy(logits, labels, reduction="none"))
