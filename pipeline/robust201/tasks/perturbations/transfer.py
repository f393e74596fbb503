"""Transfer attacks: adversarial images computed on a source network, classified by the network under test.

Source: Papernot, McDaniel and Goodfellow, "Transferability in Machine Learning: from Phenomena to Black-Box Attacks
using Adversarial Samples", 2016. The pixels come from `Context.adversarial_images`.
"""

from collections.abc import Iterator

import numpy as np
import torch

from robust201.core.errors import PerturbationError
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of
from robust201.tasks.parameters import Parameters


def yield_images(context: Context, parameters: Parameters, request: Request) -> Iterator[Perturbed]:
    """Yield the source's adversarial images at every strength.

    Raises:
        PerturbationError: the context has no adversarial images.
    """
    del parameters  # `context.adversarial_images` already depends on them
    if context.adversarial_images is None:
        raise PerturbationError(
            f"Transferring adversarial images failed for {context.key!r}: the context has no source of images. "
            "Evaluate transfers in a sweep."
        )
    for strength_index, strength in enumerate(request.strengths):
        for batch in context.slices(len(request.images)):
            # Copy, since torch rejects read-only memory, such as memory maps.
            pixels = np.array(context.adversarial_images(strength, request.indices[batch]))
            adversarial = torch.from_numpy(pixels).to(request.images.device)
            yield Perturbed(strength_index, positions_of(batch, request.images.device), adversarial)
