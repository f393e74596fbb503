"""The reference engine of APGD, FAB and Square: AutoAttack (PyPI's pyautoattack), called once per epsilon and batch.

Source: Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", ICML 2020. AutoAttack attacks only images that are classified correctly, and hands back the clean image where
the attack does not succeed.
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
def _trace_function_kept() -> Iterator[None]:
    # AutoAttack's check for dynamic defences takes the interpreter's trace function away from coverage and debuggers.
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
    """Run some of AutoAttack's attacks, each on what those before left, on every batch at every epsilon.

    Args:
        context: what surrounds the attack.
        request: images at strengths.
        constraint: what the strengths mean.
        names: AutoAttack's names of the attacks.
        configure: sets the attacks' parameters on a fresh `AutoAttack`.

    Yields:
        Batches of images, one strength after the other: perturbed where the attack succeeded, else clean.
    """
    images, labels = request.images, request.labels
    for strength, value in enumerate(request.strengths):
        for number, batch in context.batches(len(images)):
            given = to_float(images[batch]), labels[batch]
            perturbed = run_autoattack(context, number, names, configure, constraint, value, given)
            yield Perturbed(strength, positions_of(batch, images.device), perturbed)


def run_autoattack(
    context: Context,
    number: int,
    names: Sequence[AttackName],
    configure: Callable[[AutoAttack], None],
    constraint: Constraint,
    value: float,
    given: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Run some of AutoAttack's attacks on one batch at one strength.

    Args:
        context: what surrounds the attack.
        number: of the batch, which names its draws.
        names: see `autoattack_batches`.
        configure: see `autoattack_batches`.
        constraint: what the strength means.
        value: the strength.
        given: pixels (B, 3, H, W) float32 in [0, 1] and labels (B,) of the images to attack, of that batch.

    Returns:
        (B, 3, H, W) float32, perturbed where an attack succeeded, else clean.
    """
    pixels, labels = given
    with context.draws(number) as seed, _trace_function_kept():
        adversary = AutoAttack(
            context.classifier,
            attacks=list(names),
            device=context.classifier.device,
            eps=constraint.radius(value),
            norm=constraint.name,
            seed=seed,
            version="custom",
        )
        configure(adversary)
        # AutoAttack asks for its version only to decide whether to spend 5 forward passes on looking for a randomised
        # defence, which a frozen network in evaluation mode is not.
        adversary.version = "rand"
        adversary.verbose = False
        perturbed, _ = adversary.run_standard_evaluation(pixels, labels, batch_size=len(pixels))
    # The projection to an L1 ball rounds, and may leave [0, 1] by that.
    clipped: torch.Tensor = perturbed.detach().clamp(0, 1)
    return clipped
