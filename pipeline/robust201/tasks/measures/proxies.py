"""Zero-cost proxies: scores of an untrained network, computed from one batch of images.

Each function names its source; docs/protocol.md describes the choices of the published implementations, and where they
disagree. All proxies share one copy of the network and one forward pass, except Zen and SynFlow, which replace the
weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from robust201.models.classifier import Classifier, network_logits
from robust201.tasks.attack_kit.context import Context, Request, to_float
from robust201.tasks.measures.observed_layers import (
    Layer,
    Observations,
    layers_of,
    make_absolute,
    observe,
    skip_batch_norm,
)
from robust201.tasks.measures.parameters import PROXIES, ProxyParameters
from robust201.tasks.measures.trainable import gradients, normalised, normals, trainable_copy

_EPSILON = 1e-5
"""Constant that the published code of jacov and EPE-NAS adds before taking logarithms and reciprocals."""

_MIXING_WEIGHT = 0.01
"""Weight of the second image in Zen's perturbed image."""

_MIN_DISTANCE = torch.finfo(torch.float32).tiny
"""Value that replaces a distance of 0 before Zen takes the logarithm of the distance."""


def measure(context: Context, parameters: ProxyParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure the network on the first images of a request, in a single pass that determines BatchNorm's statistics.

    Returns:
        One number per proxy.
    """
    classifier = context.classifier
    pixels, labels = to_float(request.images[: parameters.images]), request.labels[: parameters.images].clone()
    # Seed the random numbers of layers that use them in training mode, such as dropout.
    with torch.inference_mode(mode=False), torch.enable_grad(), context.seeded(0):
        network = trainable_copy(classifier, training=True)
        scores = {"params": _count_parameters(network), "l2_norm": l2_norm(layers_of(network))}
        inputs = normalised(classifier, pixels).requires_grad_()
        with observe(network) as observed:
            logits = network_logits(network, inputs)
        scores["flops"] = _count_macs(observed, len(pixels))
        (jacobian,) = gradients(logits.sum(), [inputs], keep_graph=True)
        scores |= _gradient_proxies(layers_of(network), observed, functional.cross_entropy(logits, labels))
        jacobians = jacobian.detach().flatten(1).double().cpu().numpy()
        scores["jacov"] = jacov(jacobians)
        scores["epe_nas"] = epe_nas(jacobians, labels.cpu().numpy(), logits.shape[1])
        scores["nwot"] = nwot(observed.agreements)
        del observed, logits, jacobian  # frees the graph
        scores["synflow"] = synflow(classifier, pixels.shape[1:])
        scores["zen"] = _zen(context, pixels.shape)
    return {name: np.array(float(scores[name])) for name in PROXIES}


def _count_parameters(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def _count_macs(observed: Observations, n_images: int) -> int:
    """Return multiply-accumulates per image of convolutions and linear layers, with biases, as in NAS-Bench-201."""
    total = 0
    for layer, output in observed.layer_outputs:
        total += output.numel() // n_images * (layer.weight[0].numel() + (layer.bias is not None))
    return total


def l2_norm(layers: Sequence[Layer]) -> float:
    """Return the sum of the norms of the layers' weights."""
    return _total([layer.weight.norm() for layer in layers])


def _gradient_proxies(layers: Sequence[Layer], observed: Observations, loss: torch.Tensor) -> dict[str, float]:
    """Return the proxies that follow from the gradient of the loss.

    Sources: grad_norm and plain: Abdelfattah et al., "Zero-Cost Proxies for Lightweight NAS", ICLR 2021. SNIP: Lee,
    Ajanthan and Torr, ICLR 2019. GraSP: Wang, Zhang and Grosse, ICLR 2020. Fisher: Turner et al., "BlockSwap", ICLR
    2020, and Theis et al., 2018.
    """
    weights = [layer.weight for layer in layers]
    outputs = [output for _, output in observed.layer_outputs]
    all_gradients = gradients(loss, [*weights, *outputs], differentiable=True)
    weight_gradients = all_gradients[: len(weights)]
    output_gradients = [gradient.detach() for gradient in all_gradients[len(weights) :]]
    detached_gradients = [gradient.detach() for gradient in weight_gradients]
    # The gradient of g · c with respect to the weights, where c is a constant copy of their gradient g, is the product
    # of the Hessian and g.
    squares = [
        (gradient * constant).sum() for gradient, constant in zip(weight_gradients, detached_gradients, strict=True)
    ]
    hessian_products = gradients(torch.stack(squares).sum(), weights) if weights else []
    with torch.no_grad():
        products = [weight * gradient for weight, gradient in zip(weights, detached_gradients, strict=True)]
        return {
            "grad_norm": _total([gradient.norm() for gradient in detached_gradients]),
            "plain": _total([product.sum() for product in products]),
            "snip": _total([product.abs().sum() for product in products]),
            "grasp": _total(
                [-(weight * product).sum() for weight, product in zip(weights, hessian_products, strict=True)]
            ),
            "fisher": _total(
                [
                    _fisher(layer, output, gradient)
                    for (layer, output), gradient in zip(observed.layer_outputs, output_gradients, strict=True)
                ]
            ),
        }


def _fisher(layer: Layer, output: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return half the sum over channels of the mean squared saliency, times the number of weights per channel."""
    saliency = (output * gradient).flatten(2).sum(dim=2) if output.ndim > 2 else output * gradient
    return 0.5 * saliency.square().mean(dim=0).sum() * layer.weight[0].numel()


def _total(scalars: Sequence[torch.Tensor]) -> float:
    """Return the sum of scalars on a device, and transfer only the sum."""
    return float(torch.stack([scalar.detach().double() for scalar in scalars]).sum()) if scalars else 0.0


def jacov(jacobians: NDArray[np.float64]) -> float:
    """Score how differently the sum of the logits responds to the images, from gradients (B, D).

    The score is computed from the eigenvalues of the gradients' correlations.

    Source: Mellor et al., "Neural Architecture Search without Training", first version, 2020.
    """
    eigenvalues = np.linalg.eigvalsh(_correlations(jacobians)) + _EPSILON
    return -float((np.log(eigenvalues) + 1 / eigenvalues).sum())


def epe_nas(jacobians: NDArray[np.float64], labels: NDArray[np.int64], n_classes: int) -> float:
    """Score the correlations between gradients (B, D) of the sum of the logits for images of the same class.

    Source: Lopes, Alirezazadeh and Alexandre, "EPE-NAS", 2021. For more than 100 classes, the score is computed from
    the differences between the scores of classes.
    """
    scores = []
    for label in np.unique(labels):
        correlations = _correlations(jacobians[labels == label])
        score = float(np.log(np.abs(correlations) + _EPSILON).sum())
        if n_classes <= 100:
            scores.append(score)
        elif len(correlations) > 1:  # the published code also skips classes with a single image
            scores.append(score / len(correlations))
    if n_classes <= 100:
        return float(np.abs(scores).sum())
    return float(np.abs(np.subtract.outer(scores, scores)).sum() / max(1, len(scores)))


def _correlations(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return correlations of rows (B, D). Constant rows have correlation 1 with each other and 0 with other rows."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    unit = np.divide(centred, norms, out=np.zeros_like(centred), where=norms > 0)
    is_constant = norms[:, 0] == 0
    return np.asarray(unit @ unit.T + np.outer(is_constant, is_constant))


def nwot(agreements: torch.Tensor | None) -> float:
    """Return the log-determinant of the (B, B) counts of ReLU units that agree between two images; 0 without a ReLU.

    Source: Mellor et al., "Neural Architecture Search without Training", ICML 2021. Eigenvalues below 1 are
    replaced by 1, so that the result is finite even if the matrix is singular.
    """
    if agreements is None:
        return 0.0
    return float(np.log(np.maximum(np.linalg.eigvalsh(agreements.cpu().numpy()), 1)).sum())


def synflow(classifier: Classifier, shape: Sequence[int]) -> float:
    """Return the sum over weights of |w · dR/dw|; R is the sum of the logits for an image of ones and absolute weights.

    Source: Tanaka et al., "Pruning neural networks without any data by iteratively conserving synaptic flow", NeurIPS
    2020; in float64, without BatchNorm.
    """
    network = trainable_copy(classifier).double()
    skip_batch_norm(network)
    make_absolute(network)
    weights = [layer.weight for layer in layers_of(network)]
    image_of_ones = torch.ones(1, *shape, dtype=torch.float64, device=classifier.device)
    weight_gradients = gradients(network_logits(network, image_of_ones).sum(), weights)
    return _total([(weight * gradient).abs().sum() for weight, gradient in zip(weights, weight_gradients, strict=True)])


def _zen(context: Context, shape: torch.Size) -> float:
    """Return Zen's score of a copy of the network with Gaussian weights, for Gaussian images."""
    network = trainable_copy(context.classifier, training=True)
    layers = layers_of(network)
    sizes = [layer.weight.numel() for layer in layers]
    random_weights = normals(context, "weights", (sum(sizes),))
    with torch.no_grad():
        for layer, layer_weights in zip(layers, torch.split(random_weights, sizes), strict=True):
            layer.weight.copy_(layer_weights.view_as(layer.weight))
            if layer.bias is not None:
                layer.bias.zero_()
        for module in network.modules():
            if isinstance(module, _BatchNorm) and module.affine:
                module.weight.fill_(1)
                module.bias.zero_()
    return zen(network, normals(context, "images", shape), normals(context, "mixed in", shape))


def zen(network: nn.Module, images: torch.Tensor, second_images: torch.Tensor) -> float:
    """Return the logarithm of the last feature map's change, plus the logarithms of BatchNorm's standard deviations.

    Source: Lin et al., "Zen-NAS: A Zero-Shot NAS for High-Performance Image Recognition", ICCV 2021. For a network
    without feature maps, the logits are used instead. Without BatchNorm, nothing is added.

    Args:
        network: network in training mode with Gaussian weights; BatchNorm's running statistics change.
        images: (B, 3, H, W), Gaussian.
        second_images: (B, 3, H, W), Gaussian; times `_MIXING_WEIGHT`, it is added to the images.
    """
    with torch.no_grad():
        with observe(network) as observed:
            logits = network_logits(network, images)
        with observe(network) as observed_perturbed:
            perturbed_logits = network_logits(network, images + _MIXING_WEIGHT * second_images)
        last_map, perturbed_last_map = observed.last_map, observed_perturbed.last_map
        if last_map is None or perturbed_last_map is None:
            last_map, perturbed_last_map = logits, perturbed_logits
        distance = (perturbed_last_map - last_map).double().abs().flatten(1).sum(dim=1).mean()
        # A variance of zero means that all inputs of a BatchNorm are equal, so it does not scale them.
        deviations = [torch.where(variance > 0, variance, 1).double().sqrt().log() for variance in observed.variances]
        return _total([distance.clamp_min(_MIN_DISTANCE).log(), *deviations])
