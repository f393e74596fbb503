"""Largest eigenvalue of the loss's Hessian with respect to the weights.

Jung, Lukasik and Keuper (ICLR 2023, section 5.1) computed it with GradVis (Chatzimichailidis et al., "GradVis:
Visualization and Second Order Analysis of Optimization Surfaces during the Training of Deep Neural Networks", 2019),
which adds up the Hessians of batches without dividing by their number (docs/protocol.md).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from robust201.models.classifier import answer_of
from robust201.tasks.attack_kit.context import Context, Request, to_float
from robust201.tasks.measures.lanczos import largest_eigenvalues
from robust201.tasks.measures.parameters import HessianWeightsParameters
from robust201.tasks.measures.trainable import gradients, normalised, pieces, trainable_copy, uniforms


def measure(context: Context, parameters: HessianWeightsParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure all images of a request.

    Returns:
        `largest`: eigenvalue of the Hessian of the mean cross-entropy over the images. `largest_summed`: of the sum
        over batches of each batch's mean, which is that many times as large.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        network = trainable_copy(context.classifier)
        weights = list(network.parameters())
        sizes = [weight.numel() for weight in weights]
        n_images = len(request.images)

        def apply(vectors: torch.Tensor) -> torch.Tensor:
            parts = [part.view_as(weight) for part, weight in zip(torch.split(vectors[0], sizes), weights, strict=True)]
            total = torch.zeros_like(vectors, dtype=torch.float64)
            for piece in pieces(context.classifier, n_images):
                shown = normalised(context.classifier, to_float(request.images[piece]))
                labels = request.labels[piece].clone()
                loss = functional.cross_entropy(answer_of(network, shown), labels, reduction="sum") / n_images
                first = gradients(loss, weights, create=True)
                along = torch.stack([(one * part).sum() for one, part in zip(first, parts, strict=True)]).sum()
                total += torch.cat([one.flatten() for one in gradients(along, weights)])
            return total

        start = torch.from_numpy(uniforms(context, "start", sum(sizes)) - 0.5)[None].to(context.classifier.device)
        (largest,) = largest_eigenvalues(
            apply, start, steps=parameters.steps, tolerance=parameters.tolerance, name=context.key
        )
    n_batches = -(-n_images // parameters.batch)
    return {"largest": np.array(largest), "largest_summed": np.array(largest * n_batches)}
