"""The images as they are."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks import CleanParameters
from robust201.tasks.perturbations.contract import Context, Perturbed, positions_of, to_float


def perturb(
    context: Context,
    parameters: CleanParameters,
    strengths: Sequence[float],
    *,
    images: torch.Tensor,
    labels: torch.Tensor,
    indices: NDArray[np.int64],
) -> Iterator[Perturbed]:
    """Yield the images unchanged (see `tasks.perturbations.contract` for the contract).

    Yields:
        Batches of float32 images in [0, 1].
    """
    for strength in range(len(strengths)):
        for batch in context.slices(len(images)):
            yield Perturbed(strength, positions_of(batch, images.device), to_float(images[batch]))
