"""The attack of Brendel and Bethge, which follows the decision boundary towards the image.

Source: Brendel et al., "Accurate, reliable and fast robustness evaluation", NeurIPS 2019;
`foolbox.attacks.brendel_bethge`. It needs numba (`pip install 'robust201[bb]'`), which compiles for up to a minute in
each process. The attack starts from a misclassified blend of the image and uniform noise. Foolbox fails for images
without such a blend; here they are returned unchanged. There is no fused implementation.
"""

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch

from robust201.core.errors import ConfigError
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import BrendelBethge
from robust201.tasks.perturbations.minimum_norm import foolbox_minimum_norm_batches, per_image

_CLASS_PREFIXES = {"Linf": "Linfinity", "L2": "L2", "L1": "L1", "L0": "L0"}
"""Prefix of the name of Foolbox's class for each norm."""


def reference(context: Context, parameters: BrendelBethge, request: Request) -> Iterator[Perturbed]:
    """Attack the correctly classified images with Foolbox."""
    if find_spec("numba") is None:
        raise ConfigError(
            f"Perturbing failed for {context.key}: Foolbox's attack needs numba, which is not installed. "
            "Run pip install 'robust201[bb]', or use fmn in the same norm."
        )
    # Import here, so that planning and the fused engine do not import libraries that they do not use.
    from robust201.tasks.perturbations.foolbox_engine import foolbox

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="At the first initialisation the optimizer needs to be compiled")
        attack = getattr(foolbox.attacks, f"{_CLASS_PREFIXES[parameters.norm]}BrendelBethgeAttack")(
            steps=parameters.steps, lr=parameters.lr
        )

    def search(model: Any, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        nearest = pixels.clone()
        correct_rows = (context.classifier.logits(pixels).argmax(dim=1) == labels).nonzero().flatten()
        if len(correct_rows) == 0:
            return nearest
        starts = _starting_points(foolbox, model, pixels[correct_rows], labels[correct_rows])
        is_valid_start = context.classifier.logits(starts).argmax(dim=1) != labels[correct_rows]
        rows = correct_rows[is_valid_start]
        if len(rows):
            criterion = foolbox.criteria.Misclassification(labels[rows])
            with warnings.catch_warnings():
                # In L1 Foolbox passes a read-only array to PyTorch, which does not write to it.
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                adversarial = attack.run(model, pixels[rows], criterion, starting_points=starts[is_valid_start])
            nearest[rows] = adversarial.detach()
        return torch.where(torch.isfinite(per_image(nearest.flatten(1).sum(dim=1))), nearest, pixels)

    yield from foolbox_minimum_norm_batches(context, request, CONSTRAINTS[parameters.norm], search)


def _starting_points(foolbox: Any, model: Any, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*failed to draw sufficient random inputs")
        attack = foolbox.attacks.LinearSearchBlendedUniformNoiseAttack()
        points: torch.Tensor = attack.run(model, pixels, foolbox.criteria.Misclassification(labels))
    return points
