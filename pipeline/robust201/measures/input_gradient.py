"""Norm of the loss's gradient with respect to the pixels, and the fraction of images on which it vanishes.

Source: Carlini et al., "On Evaluating Adversarial Robustness" (2019, section 4): where the loss saturates, gradients
are exactly zero in floating point, and attacks that follow them stay at their starting points.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.context import Context, Request, to_float
from robust201.tasks.measures import InputGradientParameters


def measure(context: Context, _parameters: InputGradientParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure the network on all images of a request.

    Returns:
        `norm`: mean over images of the L2 norm of the gradient of the cross-entropy with respect to the pixels, which
        lie in [0, 1]. `zero_share`: fraction of the images whose gradient is exactly 0 at every pixel.
    """
    norms, is_zero = [], []
    for _, batch in context.batches(len(request.images)):
        _, _, gradient = context.attacked_model.loss_and_gradient(
            to_float(request.images[batch]), request.labels[batch]
        )
        flat_gradients = gradient.double().flatten(1)
        norms.append(flat_gradients.norm(dim=1))
        is_zero.append((flat_gradients == 0).all(dim=1))
    columns = {"norm": torch.cat(norms), "zero_share": torch.cat(is_zero)}
    return {name: np.array(values.cpu().numpy().mean()) for name, values in columns.items()}
