"""Largest eigenvalue of the loss's Hessian with respect to the weights.

Jung, Lukasik and Keuper (ICLR 2023, section 4.1) computed it with GradVis (Chatzimichailidis et al., "GradVis:
Visualization and Second Order Analysis of Optimization Surfaces during the Training of Deep Neural Networks", 2019),
which adds up the Hessians of batches without dividing by their number (docs/protocol/measures.md).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from robust201.attacks.context import Context, Request, to_float
from robust201.core.noise import generator
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
from robust201.tasks.measures import HessianWeightsParameters


def measure(context: Context, parameters: HessianWeightsParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure the network on all images of a request.

    Returns:
        The selected columns. `largest`: largest eigenvalue of the Hessian of the mean cross-entropy over the images; in
        training mode, each batch has its own BatchNorm statistics. `largest_summed`: `largest` times the number of
        batches, which is the eigenvalue for the sum of the batches' mean losses. `batch_largest`: mean over batches of
        the largest eigenvalue of the Hessian of the batch's mean cross-entropy; `batch_largest_sd`: standard deviation
        over batches.
    """
    n_images = len(request.images)
    columns = parameters.selected_columns
    values: dict[str, float] = {}
    has_batch_columns = any(name.startswith("batch_") for name in columns)
    needs_batches = has_batch_columns or parameters.mode == "training"
    batches = equal_batches(parameters, n_images, context.key) if needs_batches else []
    with torch.inference_mode(mode=False), torch.enable_grad():
        network = copy_in_mode(context.classifier, parameters.mode)
        if "largest" in columns or "largest_summed" in columns:
            largest = _largest_eigenvalue(context, parameters, request, network, slice(0, n_images))
            values |= {"largest": largest, "largest_summed": largest * -(-n_images // parameters.batch)}
        if has_batch_columns:
            batch_eigenvalues = [_largest_eigenvalue(context, parameters, request, network, batch) for batch in batches]
            values |= {
                "batch_largest": float(np.mean(batch_eigenvalues)),
                "batch_largest_sd": float(np.std(batch_eigenvalues)),
            }
    return {name: np.array(values[name]) for name in columns}


def _largest_eigenvalue(
    context: Context,
    parameters: HessianWeightsParameters,
    request: Request,
    network: nn.Module,
    images: slice,
) -> float:
    """Return the largest eigenvalue of the Hessian of the mean cross-entropy over images."""
    weights = list(network.parameters())
    sizes = [weight.numel() for weight in weights]
    n_images = images.stop - images.start
    slices_of_passes = pass_slices(context, parameters, images)

    def apply(vectors: torch.Tensor) -> torch.Tensor:
        directions = [
            direction.view_as(weight) for direction, weight in zip(torch.split(vectors[0], sizes), weights, strict=True)
        ]
        total = torch.zeros_like(vectors, dtype=torch.float64)
        for pass_slice in slices_of_passes:
            inputs = normalise(context.classifier, to_float(request.images[pass_slice]))
            labels = request.labels[pass_slice].clone()
            with seeded_pass(context, parameters, pass_slice.start):
                logits = network_logits(network, inputs)
            loss = functional.cross_entropy(logits, labels, reduction="sum") / n_images
            first_derivatives = gradients(loss, weights, differentiable=True)
            products = [
                (gradient * direction).sum() for gradient, direction in zip(first_derivatives, directions, strict=True)
            ]
            second_derivatives = gradients(torch.stack(products).sum(), weights)
            total += torch.cat([gradient.flatten() for gradient in second_derivatives])
        return total

    words = generator(context.seed, context.key, "start").bit_generator.random_raw(sum(sizes))
    start = torch.from_numpy(((words >> 11) + 0.5) * 2.0**-53 - 0.5)[None].to(context.classifier.device)
    (largest,) = largest_eigenvalues(
        apply, start, steps=parameters.steps, tolerance=parameters.tolerance, name=context.key
    )
    return float(largest)
