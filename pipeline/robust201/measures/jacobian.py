"""Frobenius norm of the Jacobian of the logits with respect to the input.

Source: Hoffman, Roberts and Yaida, "Robust Learning with Jacobian Regularization", 2019. Random projections follow
their equation 9: for logits z and a direction v that is uniform on the unit sphere in R^C, the expectation of C times
the squared norm of the gradient of v·z is the squared Frobenius norm. Jung, Lukasik and Keuper (ICLR 2023, section 4.1)
use half of the mean squared norm over images (docs/protocol/measures.md).
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.context import Context, Request, to_float
from robust201.attacks.random_numbers import RandomNumbers
from robust201.measures.trainable import copy_in_mode, equal_batches, gradients, normalise, seeded_pass
from robust201.networks.classifier import network_logits
from robust201.tasks.measures import JacobianParameters


def measure(context: Context, parameters: JacobianParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure the network on all images of a request.

    Returns:
        The selected columns. `squared_norm`: mean over images of the squared Frobenius norm. `squared_norm_sd`:
        standard deviation over images of the squared norm, or of its estimate if projections are random. `norm`: mean
        over images of the square root of the squared norm or its estimate. In training mode, an image's squared norm
        includes the derivatives of all logits of its batch with respect to the image.
    """
    n_images = len(request.images)
    if parameters.mode == "training":
        batches = equal_batches(parameters, n_images, context.key)
        squared_norms = _training_squared_norms(context, parameters, request, batches)
    else:
        squared_norms = [_squared_norms(context, parameters, request, batch) for _, batch in context.batches(n_images)]
    squares = np.concatenate([batch.cpu().numpy() for batch in squared_norms])
    columns = {"squared_norm": squares.mean(), "squared_norm_sd": squares.std(), "norm": np.sqrt(squares).mean()}
    return {name: np.array(columns[name]) for name in parameters.selected_columns}


def _training_squared_norms(
    context: Context, parameters: JacobianParameters, request: Request, batches: Sequence[slice]
) -> list[torch.Tensor]:
    """Return the squared norms (B,) float64 of each batch in training mode.

    They are computed as in the code of Hoffman, Roberts and Yaida, which differentiates the batch's sum of v·z with
    respect to every image. The directions of the batch's images are independent. In expectation, the cross terms
    therefore vanish, and the squared derivatives of all images' logits add up.
    """
    squared_norms = []
    n_classes, random_numbers = context.classifier.n_classes, RandomNumbers(context.seed, context.key)
    with torch.inference_mode(mode=False), torch.enable_grad():
        network = copy_in_mode(context.classifier, parameters.mode).requires_grad_(requires_grad=False)
        for batch in batches:
            leaf = normalise(context.classifier, to_float(request.images[batch])).requires_grad_()
            with seeded_pass(context, parameters, batch.start):
                logits = network_logits(network, leaf)
            total = torch.zeros(len(leaf), dtype=torch.float64, device=leaf.device)
            for projection in range(cast("int", parameters.projections)):
                directions = _directions(random_numbers, projection, request.indices[batch], n_classes, leaf.device)
                (gradient,) = gradients((logits * directions).sum(), [leaf], keep_graph=True)
                if parameters.input == "pixels":
                    gradient = gradient / context.classifier.std
                total += gradient.double().flatten(1).square().sum(dim=1)
            squared_norms.append(total * (n_classes / cast("int", parameters.projections)))
    return squared_norms


def _directions(
    random_numbers: RandomNumbers, projection: int, indices: NDArray[np.int64], n_classes: int, device: torch.device
) -> torch.Tensor:
    """Return directions (B, C) of unit length, uniform on the sphere."""
    directions = random_numbers.normals(projection, indices, n_classes).to(device)
    unit: torch.Tensor = directions / directions.norm(dim=1, keepdim=True)
    return unit


def _squared_norms(context: Context, parameters: JacobianParameters, request: Request, batch: slice) -> torch.Tensor:
    """Return the squared norms (B,) float64 of one batch."""
    pixels = to_float(request.images[batch])
    n_classes = context.classifier.n_classes
    total = torch.zeros(len(pixels), dtype=torch.float64, device=pixels.device)
    if parameters.projections == "exact":
        for class_index in range(n_classes):
            directions = torch.eye(n_classes, device=pixels.device)[class_index].expand(len(pixels), -1)
            total += _squared_gradient_norms(context, parameters, pixels, directions)
        return total
    random_numbers = RandomNumbers(context.seed, context.key)
    for projection in range(parameters.projections):
        directions = _directions(random_numbers, projection, request.indices[batch], n_classes, pixels.device)
        total += _squared_gradient_norms(context, parameters, pixels, directions)
    return total * (n_classes / parameters.projections)


def _squared_gradient_norms(
    context: Context, parameters: JacobianParameters, pixels: torch.Tensor, directions: torch.Tensor
) -> torch.Tensor:
    """Return the squared norm (B,) of the gradient of v·z for each image's logits z and direction v."""

    def project(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        return (logits * directions[rows]).sum(dim=1)

    _, _, gradient = context.attacked_model.value_and_gradient(pixels, project)
    if parameters.input == "normalised":
        gradient = gradient * context.classifier.std  # pixels = mean + std × input of the network
    return gradient.double().flatten(1).square().sum(dim=1)
