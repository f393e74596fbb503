"""The targeted fast adaptive boundary attack (FAB), which runs once per target class.

Source: Croce and Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack", ICML 2020;
`pyautoattack.fab_base.FABAttack` with its option `targeted`, as AutoAttack runs it. An iterate moves slightly beyond
the linearised boundary between the label and the target, biased towards the clean image. A misclassified iterate is
stored if it is the nearest so far, and in any case moves back to nine tenths of its distance from the clean image.
Epsilon only decides which results count, so one run serves all epsilons. The targets are the classes with the second
largest, third largest, … logit of the clean image. There are no restarts.
"""

import torch

from robust201.attacks.batching import BatchedModel
from robust201.attacks.hyperplanes import project_l1, project_l2, project_linf
from robust201.attacks.norms import norms, per_image
from robust201.attacks.samples import Samples
from robust201.tasks.attacks import FabTargeted

_OVERSHOOT = 1.05  # eta in Croce and Hein's notation
_MAX_CLEAN_WEIGHT = 0.1  # alpha_max in their notation
_BACKWARD_FACTOR = 0.9  # beta in their notation
_INFINITE_DISTANCE = 1e10
"""Number that stands for an infinite distance."""

_PROJECTIONS = {"Linf": project_linf, "L2": project_l2, "L1": project_l1}


def attack(model: BatchedModel, samples: Samples, options: FabTargeted) -> torch.Tensor:
    """Return each image's nearest misclassified iterate if it lies in the ball, otherwise the clean image."""
    images, rows = samples.unique_images()
    nearest = _search(model, images, options.steps, options.norm)[rows]
    distances = norms(samples.clean - nearest, options.norm)
    return torch.where(per_image(distances > samples.epsilons.flatten()), samples.clean, nearest)


def _search(model: BatchedModel, samples: Samples, n_steps: int, norm: str) -> torch.Tensor:
    """Return the nearest misclassified iterate of each image (B, C, H, W), or the clean image if there is none."""
    clean, project = samples.clean, _PROJECTIONS[norm]
    n_samples = len(clean)
    targets = model.logits(clean).sort(dim=1)[1][:, -(samples.run + 2)]

    def logit_difference(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return the target's logit minus the label's logit (b,)."""
        true_classes, target_classes = samples.labels[rows].clone(), targets[rows].clone()
        row_numbers = torch.arange(len(logits), device=logits.device)
        return -(logits[row_numbers, true_classes] - logits[row_numbers, target_classes])

    flat_clean = clean.flatten(1)
    images, nearest = clean, clean
    shortest = torch.full((n_samples,), _INFINITE_DISTANCE, device=clean.device)
    for _ in range(n_steps):
        _, difference, gradient = model.value_and_gradient(images, logit_difference)
        offset = -difference + (gradient * images).flatten(1).sum(dim=-1)
        normal = gradient.flatten(1)
        points = torch.cat((images.flatten(1), flat_clean), 0)
        moves = project(points, torch.cat((normal, normal), 0), torch.cat((offset, offset), 0))
        lengths = norms(moves, norm).clamp_min(1e-8)
        from_image, from_clean = lengths[:n_samples], lengths[n_samples:]
        weight = per_image((from_image / (from_image + from_clean)).clamp(0, _MAX_CLEAN_WEIGHT))
        step, clean_step = moves[:n_samples].view(clean.shape), moves[n_samples:].view(clean.shape)
        images = (images + _OVERSHOOT * step) * (1 - weight) + (clean + clean_step * _OVERSHOOT) * weight
        images = images.clamp(0.0, 1.0)
        misclassified = model.logits(images).argmax(dim=1) != samples.labels
        distances = norms(images - clean, norm)
        is_nearer = misclassified & (distances < shortest)
        nearest = torch.where(per_image(is_nearer), images, nearest)
        shortest = torch.where(is_nearer, distances, shortest)
        images = torch.where(per_image(misclassified), clean + (images - clean) * _BACKWARD_FACTOR, images)
    return nearest
