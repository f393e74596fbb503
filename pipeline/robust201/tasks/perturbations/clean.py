"""Unchanged images."""

from collections.abc import Iterator

from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of, to_float
from robust201.tasks.parameters import Parameters


def yield_images(context: Context, parameters: Parameters, request: Request) -> Iterator[Perturbed]:
    """Yield the images unchanged."""
    del parameters  # unused
    for strength_index in range(len(request.strengths)):
        for _, batch in context.batches(len(request.images)):
            yield Perturbed(strength_index, positions_of(batch, request.images.device), to_float(request.images[batch]))
