"""Images that need no attack: unchanged ones, and common corruptions, whose pixels `Context.corrupted_images` provides.

Source: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019.
"""

from collections.abc import Iterator

import numpy as np
import torch

from robust201.attacks.context import Context, Perturbed, Request, positions_of, to_float
from robust201.core.errors import PerturbationError
from robust201.tasks.parameters import Corruption, Parameters


def clean(context: Context, parameters: Parameters, request: Request) -> Iterator[Perturbed]:
    """Yield the images unchanged."""
    del parameters  # unused
    for strength_index in range(len(request.strengths)):
        for _, batch in context.batches(len(request.images)):
            yield Perturbed(strength_index, positions_of(batch, request.images.device), to_float(request.images[batch]))


def corruption(context: Context, parameters: Corruption, request: Request) -> Iterator[Perturbed]:
    """Yield the images under the corruption `context.key`, at the request's severities.

    Raises:
        PerturbationError: the context has no corrupted images.
    """
    del parameters  # the severities are in the request
    images = request.images
    if context.corrupted_images is None:
        raise PerturbationError(
            f"Corrupting failed for {context.key!r}: this dataset has no source of corrupted images. "
            "Add one in the sweep YAML, or remove the dataset's corruptions."
        )
    for strength_index, severity in enumerate(request.strengths):
        for _, batch in context.batches(len(images)):
            pixels = context.corrupted_images(context.key, int(severity), request.indices[batch])
            # Copy, since torch rejects read-only memory, such as memory maps and arrays from Ray's object store.
            corrupted = torch.from_numpy(np.array(pixels)).to(images.device)
            yield Perturbed(strength_index, positions_of(batch, images.device), to_float(corrupted))
