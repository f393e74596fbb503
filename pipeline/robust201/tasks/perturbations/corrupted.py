"""Common corruptions: images that were made before the sweep, by their published files or by our generator.

Source: Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019. The pixels come from `Context.corrupted`; this module only shows them to the network.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.errors import PerturbationError
from robust201.tasks import CorruptionParameters
from robust201.tasks.perturbations.contract import Context, Perturbed, positions_of, to_float


def perturb(
    context: Context,
    parameters: CorruptionParameters,
    strengths: Sequence[float],
    *,
    images: torch.Tensor,
    labels: torch.Tensor,
    indices: NDArray[np.int64],
) -> Iterator[Perturbed]:
    """Yield the images under the corruption `context.key` (see `tasks.perturbations.contract` for the contract).

    Args:
        context: with `corrupted` and `key` set.
        parameters: unused; the severities asked for are `strengths`.
        strengths: (S,) severities, whole numbers 1 to 5.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        indices: (N,) rows of the full test split, which name the corrupted images.

    Yields:
        Batches of float32 images in [0, 1].

    Raises:
        PerturbationError: the context has no corrupted images, or they are not uint8 pixels of the images' shape.
    """
    if context.corrupted is None:
        raise PerturbationError(
            f"Corrupting failed for {context.key!r}: expected a source of corrupted images, got none. "
            "Name one for this dataset in the sweep YAML, or leave its corruptions out."
        )
    for strength, severity in enumerate(strengths):
        for batch in context.slices(len(images)):
            pixels = context.corrupted(context.key, int(severity), indices[batch])
            expected = (batch.stop - batch.start, *images.shape[1:])
            if pixels.shape != expected or pixels.dtype != np.uint8:
                raise PerturbationError(
                    f"Corrupting failed for {context.key!r} at severity {int(severity)}: expected uint8 images of "
                    f"shape {expected}, got {pixels.dtype} {pixels.shape}. Check the files of this corruption."
                )
            # A copy: torch takes no read-only memory, which is what memory maps and Ray's object store hand out.
            shown = torch.from_numpy(np.array(pixels)).to(images.device)
            yield Perturbed(strength, positions_of(batch, images.device), to_float(shown))
