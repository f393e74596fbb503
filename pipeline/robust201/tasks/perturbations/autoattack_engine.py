"""The reference engine of APGD-CE and Square: AutoAttack (PyPI's pyautoattack), called once an epsilon and batch.

Source: Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", ICML 2020. AutoAttack attacks only images that are classified correctly, and hands back the clean image where
the attack does not succeed.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from pyautoattack import AutoAttack

from robust201.tasks.perturbations.contract import Context, Perturbed, positions_of, to_float


@contextmanager
def _trace_function_kept() -> Iterator[None]:
    # AutoAttack's check for dynamic defences takes the interpreter's trace function away from coverage and debuggers.
    trace = sys.gettrace()
    try:
        yield
    finally:
        sys.settrace(trace)


def attack_batches(
    context: Context,
    *,
    name: Literal["apgd-ce", "square"],
    configure: Callable[[AutoAttack], None],
    strengths: Sequence[float],
    images: torch.Tensor,
    labels: torch.Tensor,
) -> Iterator[Perturbed]:
    """Run one of AutoAttack's attacks by itself on every batch at every epsilon.

    Args:
        context: what surrounds the attack.
        name: AutoAttack's name of the attack.
        configure: sets the attack's parameters on a fresh `AutoAttack`.
        strengths: (S,) epsilons in units of 1/255.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.

    Yields:
        Batches of images, one strength after the other: perturbed where the attack succeeded, else clean.
    """
    for strength, epsilon_255 in enumerate(strengths):
        for number, batch in context.batches(len(images)):
            with context.draws(number) as seed, _trace_function_kept():
                adversary = AutoAttack(
                    context.classifier,
                    attacks=[name],
                    device=context.classifier.device,
                    eps=epsilon_255 / 255,
                    norm="Linf",
                    seed=seed,
                    version="custom",
                )
                configure(adversary)
                # AutoAttack asks for its version only to decide whether to spend 5 forward passes on looking for a
                # randomised defence, which a frozen network in evaluation mode is not.
                adversary.version = "rand"
                adversary.verbose = False
                perturbed, _ = adversary.run_standard_evaluation(
                    to_float(images[batch]), labels[batch], batch_size=batch.stop - batch.start
                )
            yield Perturbed(strength, positions_of(batch, images.device), perturbed.detach())
