"""Helpers for measures with derivatives: differentiable copies of networks, normalisation, batches and gradients."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from robust201.attacks.context import Context, slices
from robust201.core.errors import EvaluationError
from robust201.networks.classifier import Classifier
from robust201.networks.device import is_gpu
from robust201.tasks.measures import DerivativeParameters, Mode

_CPU_PASS_IMAGES, _GPU_PASS_IMAGES = 64, 256
"""Number of images per pass on a CPU and on a GPU. A pass keeps its graph, and second derivatives take about 40 MB per
image for the published networks."""


def copy_in_mode(classifier: Classifier, mode: Mode) -> nn.Module:
    """Return a float32 copy of a classifier's network, without normalisation, in a mode and with trainable weights.

    Passes do not change the copy's state. In training mode the copy behaves as after ``train()``, except that BatchNorm
    does not update its running statistics, which do not affect results in this mode.
    """
    network = copy.deepcopy(classifier.network).float()
    for module in network.modules():
        if getattr(module, "inplace", False):
            vars(module)["inplace"] = False  # autograd rejects in-place changes of inputs that it differentiates
    network = network.requires_grad_().train(mode == "training")
    for module in network.modules() if mode == "training" else ():
        if isinstance(module, _BatchNorm):
            module.track_running_stats = False
    return network


def equal_batches(parameters: DerivativeParameters, n_images: int, name: str) -> list[slice]:
    """Split images into batches of `parameters.batch` images. If there are fewer images, they form one batch.

    Raises:
        EvaluationError: the last batch would be smaller.
    """
    size = min(parameters.batch, n_images)
    if n_images % size:
        raise EvaluationError(
            f"Splitting images into batches failed for {name}: {n_images} images are not a multiple of batch ({size}). "
            f"Set images to {n_images // size * size}, or change batch."
        )
    return list(slices(n_images, size))


@contextmanager
def seeded_pass(context: Context, parameters: DerivativeParameters, first_image: int) -> Iterator[None]:
    """In training mode, seed layers such as dropout, so that every pass over a batch uses the same random numbers."""
    if parameters.mode == "evaluation":
        yield
        return
    with context.seeded(first_image // parameters.batch):
        yield


def normalise(classifier: Classifier, pixels: torch.Tensor) -> torch.Tensor:
    """Normalise (B, C, H, W) float32 pixels in [0, 1] to inputs of the network."""
    return (pixels - classifier.mean) / classifier.std


def gradients(
    value: torch.Tensor,
    inputs: Sequence[torch.Tensor],
    vector: torch.Tensor | None = None,
    *,
    keep_graph: bool = False,
    differentiable: bool = False,
) -> list[torch.Tensor]:
    """Return the gradients of a value, with zeros for inputs that it does not depend on.

    Args:
        value: a scalar, or a tensor with the shape of `vector`.
        inputs: tensors to differentiate with respect to.
        vector: vector of the vector-Jacobian product.
        keep_graph: whether to keep the graph, to differentiate it again.
        differentiable: whether the gradients themselves can be differentiated; this also keeps the graph.
    """
    if not value.requires_grad or not inputs:
        return [torch.zeros_like(tensor) for tensor in inputs]
    return list(
        torch.autograd.grad(
            value,
            list(inputs),
            vector,
            retain_graph=keep_graph or differentiable,
            create_graph=differentiable,
            materialize_grads=True,
        )
    )


def pass_slices(context: Context, parameters: DerivativeParameters, images: slice) -> list[slice]:
    """Split images into slices whose second derivatives fit into memory; in training mode, into whole batches.

    In evaluation mode, the size affects only rounding.
    """
    if parameters.mode == "training":
        return list(slices(images.stop, parameters.batch, images.start))
    n_pass_images = _GPU_PASS_IMAGES if is_gpu(context.classifier.device) else _CPU_PASS_IMAGES
    n_pass_images = min(n_pass_images, context.classifier.batch_sizes.limit or n_pass_images)
    return list(slices(images.stop, n_pass_images, images.start))
