"""Zero-cost proxies: numbers about an untrained network, from one batch of images.

Sources are with each function; what the published implementations choose, and where they disagree, is in
docs/protocol.md. All proxies share one copy of the network and one forward pass, except Zen and SynFlow, which replace
the weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from robust201.models.classifier import Classifier, answer_of
from robust201.tasks.attack_kit.context import Context, Request, to_float
from robust201.tasks.measures.observed_layers import Layer, Observed, layers_of, make_absolute, observe, skip_batch_norm
from robust201.tasks.measures.parameters import PROXIES, ProxyParameters
from robust201.tasks.measures.trainable import gradients, normalised, normals, trainable_copy

_SMALL = 1e-5
"""What the published code of jacov and EPE-NAS adds before it takes logarithms and reciprocals."""

_MIXED_IN = 0.01
"""Share of the second image in Zen's perturbed one."""

_SMALLEST = torch.finfo(torch.float32).tiny
"""Stands for zero in Zen's logarithm of a distance."""


def measure(context: Context, parameters: ProxyParameters, request: Request) -> Mapping[str, NDArray[Any]]:
    """Measure the first images of a request, all in one pass: BatchNorm takes its statistics from them.

    Returns:
        A number per proxy.
    """
    classifier = context.classifier
    pixels, labels = to_float(request.images[: parameters.images]), request.labels[: parameters.images].clone()
    # The draws are those of networks that draw in training mode, such as dropout.
    with torch.inference_mode(mode=False), torch.enable_grad(), context.draws(0):
        network = trainable_copy(classifier, training=True)
        values = {"params": _count_parameters(network), "l2_norm": l2_norm(layers_of(network))}
        shown = normalised(classifier, pixels).requires_grad_()
        with observe(network) as observed:
            logits = answer_of(network, shown)
        values["flops"] = _count_macs(observed, len(pixels))
        (jacobian,) = gradients(logits.sum(), [shown], keep=True)
        values |= _of_gradients(layers_of(network), observed, functional.cross_entropy(logits, labels))
        jacobians = jacobian.detach().flatten(1).double().cpu().numpy()
        values["jacov"] = jacov(jacobians)
        values["epe_nas"] = epe_nas(jacobians, labels.cpu().numpy(), logits.shape[1])
        values["nwot"] = nwot(observed.agreements)
        del observed, logits, jacobian  # and with them the graph
        values["synflow"] = synflow(classifier, pixels.shape[1:])
        values["zen"] = _zen(context, pixels.shape)
    return {name: np.array(float(values[name])) for name in PROXIES}


def _count_parameters(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def _count_macs(observed: Observed, n_images: int) -> int:
    """Multiply-accumulates of convolutions and linear layers per image, biases included, as NAS-Bench-201 counts."""
    total = 0
    for layer, output in observed.maps:
        total += output.numel() // n_images * (layer.weight[0].numel() + (layer.bias is not None))
    return total


def l2_norm(layers: Sequence[Layer]) -> float:
    """Sum over layers of the norm of the weights."""
    return _total([layer.weight.norm() for layer in layers])


def _of_gradients(layers: Sequence[Layer], observed: Observed, loss: torch.Tensor) -> dict[str, float]:
    """All proxies of the gradient of the loss.

    Sources: grad_norm and plain: Abdelfattah et al., "Zero-Cost Proxies for Lightweight NAS", ICLR 2021. SNIP: Lee,
    Ajanthan and Torr, ICLR 2019. GraSP: Wang, Zhang and Grosse, ICLR 2020. Fisher: Turner et al., "BlockSwap", ICLR
    2020, and Theis et al., 2018.
    """
    weights = [layer.weight for layer in layers]
    maps = [output for _, output in observed.maps]
    found = gradients(loss, [*weights, *maps], create=True)
    first, of_maps = found[: len(weights)], [one.detach() for one in found[len(weights) :]]
    detached = [one.detach() for one in first]
    with_itself = [(one * constant).sum() for one, constant in zip(first, detached, strict=True)]
    second = gradients(torch.stack(with_itself).sum(), weights) if weights else []
    with torch.no_grad():
        products = [weight * one for weight, one in zip(weights, detached, strict=True)]
        return {
            "grad_norm": _total([one.norm() for one in detached]),
            "plain": _total([product.sum() for product in products]),
            "snip": _total([product.abs().sum() for product in products]),
            "grasp": _total([-(weight * one).sum() for weight, one in zip(weights, second, strict=True)]),
            "fisher": _total(
                [_fisher(layer, output, one) for (layer, output), one in zip(observed.maps, of_maps, strict=True)]
            ),
        }


def _fisher(layer: Layer, output: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Half the mean over images of a channel's squared saliency, as often as the channel has weights."""
    saliency = (output * gradient).flatten(2).sum(dim=2) if output.ndim > 2 else output * gradient
    return 0.5 * saliency.square().mean(dim=0).sum() * layer.weight[0].numel()


def _total(values: Sequence[torch.Tensor]) -> float:
    """Add up numbers on a device, and wait for the sum alone."""
    return float(torch.stack([value.detach().double() for value in values]).sum()) if values else 0.0


def jacov(jacobians: NDArray[np.float64]) -> float:
    """Score how differently images (B, D) move the sum of the logits, by eigenvalues of their correlations.

    Source: Mellor et al., "Neural Architecture Search without Training", first version, 2020.
    """
    eigenvalues = np.linalg.eigvalsh(_correlations(jacobians)) + _SMALL
    return -float((np.log(eigenvalues) + 1 / eigenvalues).sum())


def epe_nas(jacobians: NDArray[np.float64], labels: NDArray[np.int64], n_classes: int) -> float:
    """Score the correlations within classes of the gradients (B, D) of the sum of the logits.

    Source: Lopes, Alirezazadeh and Alexandre, "EPE-NAS", 2021; beyond 100 classes it compares classes with each other.
    """
    scores = []
    for label in np.unique(labels):
        correlations = _correlations(jacobians[labels == label])
        score = float(np.log(np.abs(correlations) + _SMALL).sum())
        if n_classes <= 100:
            scores.append(score)
        elif len(correlations) > 1:  # the published code fails on single images there, and leaves them out
            scores.append(score / len(correlations))
    if n_classes <= 100:
        return float(np.abs(scores).sum())
    return float(np.abs(np.subtract.outer(scores, scores)).sum() / max(1, len(scores)))


def _correlations(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Correlate rows (B, D). Constant ones, which have no correlation, are like each other and like no other row."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    unit = np.divide(centred, norms, out=np.zeros_like(centred), where=norms > 0)
    is_constant = norms[:, 0] == 0
    return np.asarray(unit @ unit.T + np.outer(is_constant, is_constant))


def nwot(agreements: torch.Tensor | None) -> float:
    """Log-determinant of the matrix (B, B) of units whose ReLU two images switch alike; 0 without a ReLU.

    Source: Mellor et al., "Neural Architecture Search without Training", ICML 2021. A matrix of whole numbers has
    determinant 0, which has no logarithm, or of absolute value 1 and more: eigenvalues below 1 count as 1.
    """
    if agreements is None:
        return 0.0
    return float(np.log(np.maximum(np.linalg.eigvalsh(agreements.cpu().numpy()), 1)).sum())


def synflow(classifier: Classifier, shape: Sequence[int]) -> float:
    """Sum over weights of |w · dR/dw|, R the sum of the logits of an image of ones by absolute weights.

    Source: Tanaka et al., "Pruning neural networks without any data by iteratively conserving synaptic flow", NeurIPS
    2020; in float64, without BatchNorm.
    """
    network = trainable_copy(classifier).double()
    skip_batch_norm(network)
    make_absolute(network)
    weights = [layer.weight for layer in layers_of(network)]
    ones = torch.ones(1, *shape, dtype=torch.float64, device=classifier.device)
    found = gradients(answer_of(network, ones).sum(), weights)
    return _total([(weight * one).abs().sum() for weight, one in zip(weights, found, strict=True)])


def _zen(context: Context, shape: torch.Size) -> float:
    network = trainable_copy(context.classifier, training=True)
    layers = layers_of(network)
    sizes = [layer.weight.numel() for layer in layers]
    drawn = normals(context, "weights", (sum(sizes),))
    with torch.no_grad():
        for layer, values in zip(layers, torch.split(drawn, sizes), strict=True):
            layer.weight.copy_(values.view_as(layer.weight))
            if layer.bias is not None:
                layer.bias.zero_()
        for module in network.modules():
            if isinstance(module, _BatchNorm) and module.affine:
                module.weight.fill_(1)
                module.bias.zero_()
    return zen(network, normals(context, "images", shape), normals(context, "mixed in", shape))


def zen(network: nn.Module, images: torch.Tensor, mixed_in: torch.Tensor) -> float:
    """Logarithm of how far the last feature map moves, plus those of the deviations that BatchNorm divided by.

    Source: Lin et al., "Zen-NAS: A Zero-Shot NAS for High-Performance Image Recognition", ICCV 2021. A network without
    feature maps is judged by its logits; without BatchNorm nothing is added.

    Args:
        network: in training mode, with Gaussian weights; changed, as BatchNorm keeps running statistics.
        images: (B, 3, H, W), Gaussian.
        mixed_in: (B, 3, H, W), Gaussian.
    """
    with torch.no_grad():
        with observe(network) as observed:
            logits = answer_of(network, images)
        with observe(network) as moved:
            moved_logits = answer_of(network, images + _MIXED_IN * mixed_in)
        before, after = observed.last_map, moved.last_map
        if before is None or after is None:
            before, after = logits, moved_logits
        distance = (after - before).double().abs().flatten(1).sum(dim=1).mean()
        # Behind a dead edge there is nothing that BatchNorm could have scaled.
        deviations = [torch.where(variance > 0, variance, 1).double().sqrt().log() for variance in observed.variances]
        return _total([distance.clamp_min(_SMALLEST).log(), *deviations])
