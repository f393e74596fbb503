"""CRoZe: similarity of features, weights and gradients between a network and an adversarially perturbed copy.

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

from robust201.models.classifier import Classifier, network_logits
from robust201.tasks.attack_kit.context import Context, Request, to_float
from robust201.tasks.measures.observed_layers import Layer, layers_of, make_absolute, observe, skip_batch_norm
from robust201.tasks.measures.parameters import CrozeParameters
from robust201.tasks.measures.trainable import gradients, mean_loss, normalised, trainable_copy


def measure(context: Context, parameters: CrozeParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure a network on the first images of a request.

    Returns:
        `score`: sum over layers of the product of the three similarities.
    """
    classifier = context.classifier
    images = to_float(request.images[: parameters.images]).double()
    labels = request.labels[: parameters.images].clone()
    with torch.inference_mode(mode=False), torch.enable_grad(), context.seeded(0):
        clean, perturbed = _proxy_network(classifier), _proxy_network(classifier)
        inputs = normalised(classifier, images)
        _perturb_weights(perturbed, inputs, labels, parameters.weight_step)
        pixels = _perturb_images(classifier, perturbed, images, labels, parameters.image_step)
        perturbed_inputs = normalised(classifier, pixels)
        clean_features, clean_gradients = _features_and_gradients(clean, inputs, labels)
        features, weight_gradients = _features_and_gradients(perturbed, perturbed_inputs, labels)
        scores = [
            _score(layer_pair, feature_pair, gradient_pair)
            for layer_pair, feature_pair, gradient_pair in zip(
                zip(layers_of(clean), layers_of(perturbed), strict=True),
                zip(clean_features, features, strict=True),
                zip(clean_gradients, weight_gradients, strict=True),
                strict=True,
            )
        ]
        return {"score": np.array(float(torch.stack(scores).sum()) if scores else 0.0)}


def _proxy_network(classifier: Classifier) -> nn.Module:
    """Return a float64 copy of a network, with absolute weights and without BatchNorm."""
    network = trainable_copy(classifier, training=True).double()
    skip_batch_norm(network)
    make_absolute(network)
    return network


def _perturb_weights(network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, relative_step: float) -> None:
    """Move each layer's weights one step along the loss's gradient; the step is relative to their norm."""
    weights = [layer.weight for layer in layers_of(network)]
    weight_gradients = gradients(mean_loss(network, inputs, labels), weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, weight_gradients, strict=True):
            gradient_norm = gradient.norm()
            factor = torch.where(gradient_norm > 0, relative_step * weight.norm() / gradient_norm, 0.0)
            weight.add_(factor * gradient)


def _perturb_images(
    classifier: Classifier, network: nn.Module, images: torch.Tensor, labels: torch.Tensor, step_size: float
) -> torch.Tensor:
    """Move pixels by one step against the sign of the loss's gradient, as the published code does."""
    leaf = images.clone().requires_grad_()
    (gradient,) = gradients(mean_loss(network, normalised(classifier, leaf), labels), [leaf])
    return (images - step_size * gradient.sign()).clamp(0, 1)


def _features_and_gradients(
    network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return each layer's last output (B, …), and the loss's gradient with respect to its weights."""
    layers = layers_of(network)
    with observe(network) as observed:
        logits = network_logits(network, inputs)
    loss = functional.cross_entropy(logits, labels)
    weight_gradients = gradients(loss, [layer.weight for layer in layers])
    outputs = dict(observed.layer_outputs)
    features = [outputs[layer].detach() if layer in outputs else logits.new_zeros(1) for layer in layers]
    return features, weight_gradients


def _score(
    layers: Sequence[Layer], features: Sequence[torch.Tensor], weight_gradients: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Return the product of a layer's three similarities."""
    with torch.no_grad():
        weights = [layer.weight for layer in layers]
        weight_similarity = (1 + functional.cosine_similarity(weights[0], weights[1], dim=0)).sum()
        feature_similarity = (1 + functional.cosine_similarity(features[0], features[1], dim=0)).sum()
        gradient_similarity = functional.cosine_similarity(weight_gradients[0], weight_gradients[1], dim=0).abs().sum()
        return (weight_similarity * feature_similarity * gradient_similarity).abs()
