"""Transfer: adversarial images that were made on a source network, shown to the network under test.

Source: Papernot, McDaniel and Goodfellow, "Transferability in Machine Learning: from Phenomena to Black-Box Attacks
using Adversarial Samples", 2016. The pixels come from `Context.adversarial`.
"""

from collections.abc import Iterator

import numpy as np
import torch

from robust201.core.errors import PerturbationError
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, positions_of
from robust201.tasks.parameters import Parameters


def show(context: Context, parameters: Parameters, request: Request) -> Iterator[Perturbed]:
    """Yield the source's images at every strength.

    Raises:
        PerturbationError: the context has no such images.
    """
    del parameters  # what made the images decides the folder that they lie in
    if context.adversarial is None:
        raise PerturbationError(
            f"Showing adversarial images failed for {context.key!r}: expected those of a source, got none. "
            "Transfers need a sweep."
        )
    for strength, radius in enumerate(request.strengths):
        for batch in context.slices(len(request.images)):
            # A copy: torch takes no read-only memory, which is what memory maps are.
            pixels = np.array(context.adversarial(radius, request.indices[batch]))
            shown = torch.from_numpy(pixels).to(request.images.device)
            yield Perturbed(strength, positions_of(batch, request.images.device), shown)
