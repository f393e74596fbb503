"""Largest eigenvalue of the loss's Hessian with respect to the input, per image or per batch.

Source: the text of Jung, Lukasik and Keuper (ICLR 2023, section 4.1). The code that they cite computes the Hessian of
`hessian_weights` (docs/protocol/measures.md).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from robust201.attacks.context import Context, Request, to_float
from robust201.attacks.random_numbers import RandomNumbers
from robust201.measures.lanczos import largest_eigenvalues
from robust201.measures.trainable import (
    copy_in_mode,
    equal_batches,
    gradients,
    normalise,
    pass_slices,
    seeded_pass,
)
from robust201.networks.classifier import network_logits
from robust201.tasks.measures import InputHessianParameters


def measure(context: Context, parameters: InputHessianParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure the network on all images of a request, and return the selected columns.

    `largest`: mean over images of the largest eigenvalue of the Hessian of an image's cross-entropy; `largest_sd`:
    standard deviation of these eigenvalues over images. `batch_largest`: mean over batches of the largest eigenvalue of
    the Hessian of the batch's summed cross-entropy with respect to all its images. In evaluation mode, a batch's
    eigenvalue is the maximum over its images. `batch_largest_sd`: standard deviation over batches.
    """
    columns = parameters.selected_columns
    n_images = len(request.images)
    values: dict[str, float] = {}
    has_batch_columns = any(name.startswith("batch_") for name in columns)
    batches = equal_batches(parameters, n_images, context.key) if has_batch_columns else []
    with torch.inference_mode(mode=False), torch.enable_grad():
        network = copy_in_mode(context.classifier, parameters.mode).requires_grad_(requires_grad=False)
        if parameters.mode == "training":
            batch_eigenvalues = [_largest(context, parameters, request, batch, network) for batch in batches]
        else:
            passes = pass_slices(context, parameters, slice(0, n_images))
            eigenvalues = np.concatenate([_largest(context, parameters, request, batch, network) for batch in passes])
            values = {"largest": eigenvalues.mean(), "largest_sd": eigenvalues.std()}
            batch_eigenvalues = [eigenvalues[batch].max(keepdims=True) for batch in batches]
    if has_batch_columns:
        values |= {
            "batch_largest": float(np.mean(batch_eigenvalues)),
            "batch_largest_sd": float(np.std(batch_eigenvalues)),
        }
    return {name: np.array(values[name]) for name in columns}


def _largest(
    context: Context, parameters: InputHessianParameters, request: Request, batch: slice, network: nn.Module
) -> NDArray[np.float64]:
    """Return the largest eigenvalue per image (B,), or of the batch (1,) in training mode.

    In evaluation mode the Hessian of the summed loss has one block per image, so one product serves all images.
    """
    pixels = to_float(request.images[batch])
    is_normalised = parameters.input == "normalised"
    leaf = (normalise(context.classifier, pixels) if is_normalised else pixels).requires_grad_()
    inputs = leaf if is_normalised else normalise(context.classifier, leaf)
    with seeded_pass(context, parameters, batch.start):
        logits = network_logits(network, inputs)
    loss = functional.cross_entropy(logits, request.labels[batch].clone(), reduction="sum")
    (gradient,) = gradients(loss, [leaf], differentiable=True)
    n_blocks = 1 if parameters.mode == "training" else len(pixels)

    def apply(vectors: torch.Tensor) -> torch.Tensor:
        (product,) = gradients(gradient, [leaf], vectors.view_as(leaf), keep_graph=True)
        return product.reshape(n_blocks, -1)

    n_values = pixels[0].numel()
    random_numbers = RandomNumbers(context.seed, context.key)
    start = random_numbers.normals(run=0, indices=request.indices[batch], n_values=n_values)
    return largest_eigenvalues(
        apply,
        start.reshape(n_blocks, -1).double().to(pixels.device),
        steps=parameters.steps,
        tolerance=parameters.tolerance,
        name=context.key,
    )
