"""The reference engine of APGD, FAB and Square: AutoAttack (PyPI's pyautoattack), called once an epsilon and batch.

Source: Croce and Hein, "Reliable evaluation of adversarial robustness with an ensemble of diverse parameter-free
attacks", ICML 2020. AutoAttack attacks only images that are classified correctly, and hands back the clean image where
the attack does not succeed.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pyautoattack import AutoAttack
from pyautoattack.autoattack import AttackName

from robust201.engine.context import Context, Perturbed, Request, positions_of, to_float
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
                # AutoAttack asks for its version only to decide whether to spend 5 forward passes on looking for a
                # randomised defence, which a frozen network in evaluation mode is not.
                adversary.version = "rand"
                adversary.verbose = False
                perturbed, _ = adversary.run_standard_evaluation(
                    to_float(images[batch]), labels[batch], batch_size=batch.stop - batch.start
                )
            # The projection to an L1 ball rounds, and may leave [0, 1] by that.
            yield Perturbed(strength, positions_of(batch, images.device), perturbed.detach().clamp(0, 1))
