"""The reference implementation of APGD, FAB and Square, which calls pyautoattack for each epsilon and batch.

Source: Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", ICML 2020. AutoAttack attacks only images that are classified correctly, and returns the clean image if the
attack does not succeed.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from pyautoattack import AutoAttack
from pyautoattack.autoattack import AttackName

from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of, to_float
from robust201.tasks.constraints import Constraint


@contextmanager
def _preserve_trace_function() -> Iterator[None]:
    # AutoAttack's check for dynamic defences resets the interpreter's trace function, which coverage tools need.
    trace = sys.gettrace()
    try:
        yield
    finally:
        sys.settrace(trace)


def autoattack_batches(
    context: Context,
    request: Request,
    constraint: Constraint,
    *,
    names: Sequence[AttackName],
    configure: Callable[[AutoAttack], None],
) -> Iterator[Perturbed]:
    """Run some of AutoAttack's attacks on every batch at every epsilon, each on the images that still resist.

    Args:
        context: context of the attack.
        request: images and strengths.
        constraint: ball of the attack.
        names: AutoAttack's names of the attacks.
        configure: function that sets the attacks' parameters on a new `AutoAttack`.

    Yields:
        Batches of images, one strength after the other: perturbed if the attack succeeded, otherwise clean.
    """
    images, labels = request.images, request.labels
    for strength_index, strength in enumerate(request.strengths):
        for batch_number, batch in context.batches(len(images)):
            pixels = to_float(images[batch])
            perturbed = run_autoattack(
                context, batch_number, names, configure, constraint, strength, (pixels, labels[batch])
            )
            yield Perturbed(strength_index, positions_of(batch, images.device), perturbed)


def run_autoattack(
    context: Context,
    batch_number: int,
    names: Sequence[AttackName],
    configure: Callable[[AutoAttack], None],
    constraint: Constraint,
    strength: float,
    labelled_images: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Run some of AutoAttack's attacks on one batch at one strength.

    Args:
        context: context of the attack.
        batch_number: number of the batch, which determines its random numbers.
        names: see `autoattack_batches`.
        configure: see `autoattack_batches`.
        constraint: ball of the attack.
        strength: strength of the attacks.
        labelled_images: pixels (B, 3, H, W) float32 in [0, 1] and labels (B,) of the batch's images to attack.

    Returns:
        (B, 3, H, W) float32, perturbed if an attack succeeded, otherwise clean.
    """
    pixels, labels = labelled_images
    with context.seeded(batch_number) as seed, _preserve_trace_function():
        adversary = AutoAttack(
            context.classifier,
            attacks=list(names),
            device=context.classifier.device,
            eps=constraint.radius(strength),
            norm=constraint.name,
            seed=seed,
            version="custom",
        )
        configure(adversary)
        # AutoAttack uses its version only to decide whether to spend 5 forward passes on detecting a randomised
        # defence. A frozen network in evaluation mode is not randomised, so skip the detection.
        adversary.version = "rand"
        adversary.verbose = False
        perturbed, _ = adversary.run_standard_evaluation(pixels, labels, batch_size=len(pixels))
    # Rounding in the projection to an L1 ball may move values slightly outside [0, 1].
    clipped: torch.Tensor = perturbed.detach().clamp(0, 1)
    return clipped
