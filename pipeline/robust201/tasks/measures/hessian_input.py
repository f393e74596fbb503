"""Largest eigenvalue of the loss's Hessian with respect to the input, image by image.

Source: Jung, Lukasik and Keuper (ICLR 2023, section 5.1), whose text names this Hessian (docs/protocol.md).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from robust201.models.classifier import answer_of
from robust201.tasks.attack_kit.context import Context, Request, to_float
from robust201.tasks.attack_kit.draws import CounterDraws
from robust201.tasks.measures.lanczos import largest_eigenvalues
from robust201.tasks.measures.parameters import HessianInputParameters
from robust201.tasks.measures.trainable import gradients, normalised, pieces, trainable_copy


def measure(context: Context, parameters: HessianInputParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure all images of a request.

    Returns:
        `largest`: mean over images of the largest eigenvalue of the Hessian of an image's cross-entropy.
        `largest_sd`: its standard deviation over images.
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        network = trainable_copy(context.classifier).requires_grad_(requires_grad=False)
        found = [
            _largest(context, parameters, request, piece, network)
            for piece in pieces(context.classifier, len(request.images))
        ]
    values = np.concatenate(found)
    return {"largest": np.array(values.mean()), "largest_sd": np.array(values.std())}


def _largest(
    context: Context, parameters: HessianInputParameters, request: Request, piece: slice, network: nn.Module
) -> NDArray[np.float64]:
    """Eigenvalues (B,) of a piece; in evaluation mode an image's logits do not depend on the others."""
    pixels = to_float(request.images[piece])
    is_normalised = parameters.input == "normalised"
    leaf = (normalised(context.classifier, pixels) if is_normalised else pixels).requires_grad_()
    shown = leaf if is_normalised else normalised(context.classifier, leaf)
    loss = functional.cross_entropy(answer_of(network, shown), request.labels[piece].clone(), reduction="sum")
    (first,) = gradients(loss, [leaf], create=True)

    def apply(vectors: torch.Tensor) -> torch.Tensor:
        (second,) = gradients(first, [leaf], vectors.view_as(leaf), keep=True)
        return second.flatten(1)

    n_values = pixels[0].numel()
    start = CounterDraws(context.seed, context.key).normals(0, request.indices[piece], n_values)
    return largest_eigenvalues(
        apply,
        start.double().to(pixels.device),
        steps=parameters.steps,
        tolerance=parameters.tolerance,
        name=context.key,
    )
