"""Frobenius norm of the Jacobian of the logits with respect to the input.

Source: Hoffman, Roberts and Yaida, "Robust Learning with Jacobian Regularization", 2019; with random projections as in
equation 9 there: for v uniform on the unit sphere of the C logits, C times the squared norm of the gradient of v·z has
the squared Frobenius norm as its mean. Jung, Lukasik and Keuper (ICLR 2023, section 5.1) use half of its mean over
images (docs/protocol.md).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks.attack_kit.context import Context, Request, to_float
from robust201.tasks.attack_kit.draws import CounterDraws
from robust201.tasks.measures.parameters import JacobianParameters


def measure(context: Context, parameters: JacobianParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure all images of a request.

    Returns:
        `squared_norm`: mean over images of the squared Frobenius norm. `squared_norm_sd`: its standard deviation over
        images, of the estimates where projections are drawn.
    """
    squares = np.concatenate(
        [
            _squared_norms(context, parameters, request, piece).cpu().numpy()
            for piece in context.slices(len(request.images))
        ]
    )
    return {"squared_norm": np.array(squares.mean()), "squared_norm_sd": np.array(squares.std())}


def _squared_norms(context: Context, parameters: JacobianParameters, request: Request, piece: slice) -> torch.Tensor:
    """Squared norms (B,) float64 of one batch."""
    pixels = to_float(request.images[piece])
    n_classes = context.classifier.n_classes
    total = torch.zeros(len(pixels), dtype=torch.float64, device=pixels.device)
    if parameters.projections == "exact":
        for number in range(n_classes):
            total += _gradient_squares(context, parameters, pixels, _one_logit(number, n_classes, pixels))
        return total
    draws = CounterDraws(context.seed, context.key)
    for projection in range(parameters.projections):
        directions = draws.normals(projection, request.indices[piece], n_classes).to(pixels.device)
        directions = directions / directions.norm(dim=1, keepdim=True)
        total += _gradient_squares(context, parameters, pixels, directions)
    return total * (n_classes / parameters.projections)


def _one_logit(number: int, n_classes: int, pixels: torch.Tensor) -> torch.Tensor:
    directions = torch.zeros(len(pixels), n_classes, device=pixels.device)
    directions[:, number] = 1
    return directions


def _gradient_squares(
    context: Context, parameters: JacobianParameters, pixels: torch.Tensor, directions: torch.Tensor
) -> torch.Tensor:
    """Squared norm (B,) of the gradient of each image's logits along its direction."""

    def along(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        return (logits * directions[rows]).sum(dim=1)

    _, _, gradient = context.attacked.value_and_gradient(pixels, along)
    if parameters.input == "normalised":
        gradient = gradient * context.classifier.std  # pixels = mean + std × what the network is shown
    return gradient.double().flatten(1).square().sum(dim=1)
