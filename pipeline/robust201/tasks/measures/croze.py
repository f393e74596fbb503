"""CRoZe: how alike a network and one perturbed to its detriment are in features, weights and gradients.

Source: Ha, Jang and Hwang, "Generalizable Lightweight Proxy for Robust NAS against Diverse Perturbations", NeurIPS
2023, and its code; where the two differ, see docs/protocol.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from robust201.models.classifier import Classifier, answer_of
from robust201.tasks.attack_kit.context import Context, Request, to_float
from robust201.tasks.measures.observed_layers import Layer, layers_of, make_absolute, observe, skip_batch_norm
from robust201.tasks.measures.parameters import CrozeParameters
from robust201.tasks.measures.trainable import gradients, mean_loss, normalised, trainable_copy


def measure(context: Context, parameters: CrozeParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure the first images of a request, all in one pass.

    Returns:
        `score`: sum over layers of the product of the three similarities.
    """
    classifier = context.classifier
    images = to_float(request.images[: parameters.images]).double()
    labels = request.labels[: parameters.images].clone()
    with torch.inference_mode(mode=False), torch.enable_grad(), context.draws(0):
        clean, perturbed = _double_copy(classifier), _double_copy(classifier)
        shown = normalised(classifier, images)
        _perturb_weights(perturbed, shown, labels, parameters.weight_step)
        moved = normalised(classifier, _perturb_images(classifier, perturbed, images, labels, parameters.image_step))
        sides = [_features_and_gradients(network, at, labels) for network, at in ((clean, shown), (perturbed, moved))]
        scores = [
            _score(pair, features, of_weights)
            for pair, features, of_weights in zip(
                zip(layers_of(clean), layers_of(perturbed), strict=True),
                zip(sides[0][0], sides[1][0], strict=True),
                zip(sides[0][1], sides[1][1], strict=True),
                strict=True,
            )
        ]
        return {"score": np.array(float(torch.stack(scores).sum()) if scores else 0.0)}


def _double_copy(classifier: Classifier) -> nn.Module:
    network = trainable_copy(classifier, training=True).double()
    skip_batch_norm(network)
    make_absolute(network)
    return network


def _perturb_weights(network: nn.Module, shown: torch.Tensor, labels: torch.Tensor, step: float) -> None:
    """Take one step up the loss in each layer's weights, of a length relative to their norm."""
    weights = [layer.weight for layer in layers_of(network)]
    found = gradients(mean_loss(network, shown, labels), weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, found, strict=True):
            length = gradient.norm()
            factor = torch.where(length > 0, step * weight.norm() / length, 0.0)
            weight.add_(factor * gradient)


def _perturb_images(
    classifier: Classifier, network: nn.Module, images: torch.Tensor, labels: torch.Tensor, step: float
) -> torch.Tensor:
    """Take one step down the loss in the images' pixels, by the sign of the gradient: as published."""
    leaf = images.clone().requires_grad_()
    (found,) = gradients(mean_loss(network, normalised(classifier, leaf), labels), [leaf])
    return (images - step * found.sign()).clamp(0, 1)


def _features_and_gradients(
    network: nn.Module, shown: torch.Tensor, labels: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Each layer's last output (B, …), and the loss's gradient with respect to its weights."""
    layers = layers_of(network)
    with observe(network) as observed:
        logits = answer_of(network, shown)
    found = gradients(functional.cross_entropy(logits, labels), [layer.weight for layer in layers])
    outputs = dict(observed.maps)
    return [outputs[layer].detach() if layer in outputs else logits.new_zeros(1) for layer in layers], found


def _score(
    layers: Sequence[Layer], features: Sequence[torch.Tensor], of_weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Product of the similarities of a layer."""
    with torch.no_grad():
        weights = [layer.weight for layer in layers]
        of_layer = (1 + functional.cosine_similarity(weights[0], weights[1], dim=0)).sum()
        of_features = (1 + functional.cosine_similarity(features[0], features[1], dim=0)).sum()
        of_gradients = functional.cosine_similarity(of_weights[0], of_weights[1], dim=0).abs().sum()
        return (of_layer * of_features * of_gradients).abs()
