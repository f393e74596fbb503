"""The reference implementation of FGSM, PGD and spatial attacks, which calls Foolbox for each epsilon and batch.

Source: Rauber et al., "Foolbox Native", JOSS 5(53), 2020. Foolbox attacks every image, including those that are
misclassified without an attack, and returns the last iterate instead of the best.
"""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of, to_float
from robust201.tasks.constraints import Constraint


@contextmanager
def _quiet_import() -> Iterator[None]:
    previous_setting = os.environ.get("GIT_PYTHON_REFRESH")
    # Foolbox's model zoo, which is not used here, imports GitPython. By default GitPython fails if git is missing.
    os.environ["GIT_PYTHON_REFRESH"] = "quiet"
    try:
        with warnings.catch_warnings():
            # One of Foolbox's blur attacks imports SciPy's filters under their old name.
            warnings.filterwarnings("ignore", message=r"Please import `gaussian_filter`", category=DeprecationWarning)
            yield
    finally:
        if previous_setting is None:
            del os.environ["GIT_PYTHON_REFRESH"]
        else:
            os.environ["GIT_PYTHON_REFRESH"] = previous_setting


with _quiet_import():
    import foolbox

__all__ = ["Aim", "foolbox", "foolbox_batches"]


Aim = Literal["label", "least_likely", "predicted"]
"""Class that an attack leads away from or towards.

`label`: away from the image's label. `predicted`: away from the class that the network predicts for the clean image.
`least_likely`: towards the class with the clean image's smallest logit.
"""


def foolbox_batches(
    context: Context, attack: Any, request: Request, constraint: Constraint | None, *, aim: Aim = "label"
) -> Iterator[Perturbed]:
    """Run one of Foolbox's attacks on every batch at every strength.

    Args:
        context: context of the attack.
        attack: a `foolbox.attacks` object; if there is a constraint, one that attacks at a given epsilon.
        request: images and strengths.
        constraint: ball of the attack; None for an attack without epsilon.
        aim: the class that the attack leads away from, or towards.

    Yields:
        Batches of perturbed images, one strength after the other.
    """
    images, labels = request.images, request.labels
    model = foolbox.PyTorchModel(context.classifier, bounds=(0, 1), device=context.classifier.device)
    for strength_index, strength in enumerate(request.strengths):
        epsilon = None if constraint is None else constraint.radius(strength)
        for batch_number, batch in context.batches(len(images)):
            pixels = to_float(images[batch])
            criterion = _criterion(context, pixels, labels[batch], aim)
            with context.seeded(batch_number), torch.enable_grad():
                _, clipped, _ = attack(model, pixels, criterion, epsilons=epsilon)
            yield Perturbed(strength_index, positions_of(batch, images.device), clipped.detach())


def _criterion(context: Context, pixels: torch.Tensor, labels: torch.Tensor, aim: Aim) -> Any:
    if aim == "label":
        return foolbox.criteria.Misclassification(labels)
    with torch.no_grad():
        logits = context.classifier(pixels)
    if aim == "predicted":
        return foolbox.criteria.Misclassification(logits.argmax(dim=1))
    return foolbox.criteria.TargetedMisclassification(logits.argmin(dim=1))
