"""Copies of a network whose weights can be differentiated, and what measures show them."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from robust201.core.errors import EvaluationError
from robust201.core.noise import generator
from robust201.models.classifier import Classifier, answer_of
from robust201.tasks.attack_kit.context import Context
from robust201.tasks.measures.parameters import DerivativeParameters, Mode

_AT_ONCE = {"cpu": 64, "cuda": 256}
"""Images whose graph is kept at once, by kind of device: second derivatives take some 40 MB per image of the published
networks."""


def trainable_copy(classifier: Classifier, *, training: bool = False) -> nn.Module:
    """Copy a network so that whatever is done to it leaves the classifier alone.

    Args:
        classifier: the network under test.
        training: whether BatchNorm takes its statistics from the batch.

    Returns:
        The network without its normalisation, in float32; no operation works in place, so maps can be observed.
    """
    network = copy.deepcopy(classifier.network).float()
    for module in network.modules():
        if getattr(module, "inplace", False):
            vars(module)["inplace"] = False
    return network.requires_grad_().train(training)


def copy_in_mode(classifier: Classifier, mode: Mode) -> nn.Module:
    """Copy a network (see `trainable_copy`) in a mode, such that no pass through it leaves a trace.

    In training mode the copy is what ``train()`` makes of a network, but its BatchNorm keeps its running statistics as
    they are. They decide no number there, so results are the same.
    """
    network = trainable_copy(classifier, training=mode == "training")
    for module in network.modules() if mode == "training" else ():
        if isinstance(module, _BatchNorm):
            module.track_running_stats = False
    return network


def equal_batches(parameters: DerivativeParameters, n_images: int, name: str) -> list[slice]:
    """Divide images into batches of equal size: the whole, where there are fewer than a batch has.

    Raises:
        EvaluationError: the last batch would be smaller.
    """
    size = min(parameters.batch, n_images)
    if n_images % size:
        raise EvaluationError(
            f"Dividing images into batches failed for {name}: {n_images} images are not a multiple of batch ({size}). "
            f"Give {n_images // size * size} images, or set another batch."
        )
    return [slice(first, first + size) for first in range(0, n_images, size)]


@contextmanager
def seeded_pass(context: Context, parameters: DerivativeParameters, first: int) -> Iterator[None]:
    """Seed what a network draws in training mode, such as dropout: the same in every pass over a batch of images.

    Args:
        context: surroundings of the measure.
        parameters: its parameters.
        first: position of the batch's first image.
    """
    if parameters.mode == "evaluation":
        yield
        return
    with context.draws(first // parameters.batch):
        yield


def normalised(classifier: Classifier, pixels: torch.Tensor) -> torch.Tensor:
    """Give (B, 3, H, W) float32 in [0, 1] as the network is shown it."""
    return (pixels - classifier.mean) / classifier.std


def mean_loss(network: nn.Module, shown: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of normalised images."""
    return functional.cross_entropy(answer_of(network, shown), labels)


def gradients(
    value: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    vector: torch.Tensor | None = None,
    *,
    keep: bool = False,
    create: bool = False,
) -> list[torch.Tensor]:
    """Differentiate; zeros with respect to what the value does not depend on.

    Args:
        value: a number, or of any shape with a `vector` to multiply from the left.
        inputs: with respect to what.
        vector: of the value's shape.
        keep: keep the graph, to differentiate it again.
        create: let the gradients be differentiated; it keeps the graph.
    """
    if not value.requires_grad or not inputs:
        return [torch.zeros_like(one) for one in inputs]
    return list(
        torch.autograd.grad(
            value, list(inputs), vector, retain_graph=keep or create, create_graph=create, materialize_grads=True
        )
    )


def pieces(classifier: Classifier, n_images: int, start: int = 0) -> Iterator[slice]:
    """Cut images, from a position on, into what second derivatives are taken of at once.

    In evaluation mode it affects only rounding; in training mode a batch must stay whole.
    """
    step = _AT_ONCE.get(classifier.device.type, 64)
    step = min(step, classifier.micro_batch or step)
    for first in range(start, start + n_images, step):
        yield slice(first, min(first + step, start + n_images))


def uniforms(context: Context, name: str, n_values: int) -> NDArray[Any]:
    """Draw (n_values,) float64 in (0, 1), named by the sweep's seed, the key and a name."""
    words = generator(context.seed, context.key, name).bit_generator.random_raw(n_values)
    values: NDArray[Any] = ((words >> 11) + 0.5) * 2.0**-53
    return values


def normals(context: Context, name: str, shape: Sequence[int]) -> torch.Tensor:
    """Draw standard normal values of a shape, float32 on the classifier's device (see `uniforms`)."""
    n_values = torch.Size(shape).numel()
    return torch.from_numpy(ndtri(uniforms(context, name, n_values))).float().view(*shape).to(context.classifier.device)
