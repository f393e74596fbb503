"""Use a user's module as a classifier: check the module first, and restore its state afterwards."""

import copy
import hashlib
import inspect
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from robust201.core.errors import ConfigError, NetworkError, warn_caller
from robust201.core.records import NO_NORMALISATION, ImageSet, Normalisation
from robust201.networks.batch_sizes import BatchSizes
from robust201.networks.classifier import Classifier
from robust201.networks.device import available_device, worker_settings
from robust201.networks.network_check import CheckedImages, NetworkGuard, check_network, named_tensors

_EVALUATION_LOCK = threading.RLock()
"""Lock held by the thread that is evaluating a module."""


@contextmanager
def as_classifier(
    model: nn.Module,
    images: ImageSet,
    *,
    normalisation: Normalisation | None = None,
    n_classes: int | None = None,
    device: torch.device | str | None = None,
    batch_size: int | None = None,
    name: str | None = None,
) -> Iterator[Classifier]:
    """Freeze a module in evaluation mode, check its outputs for some images, and yield it as a classifier.

    Evaluations in several threads of a process run one after the other, because torch's settings and random state
    belong to the process, and threads may share a module.

    In the `with` block, the arithmetic is float32, algorithms are deterministic and gradients are available, even if
    the caller uses `torch.autocast`, TF32, `torch.no_grad` or `torch.inference_mode`. Only a module whose
    floating-point parameters all have one other dtype computes in that dtype (see `Classifier`). The module's modes,
    `requires_grad` flags and device are always restored.

    Args:
        model: module that maps images (B, channels, H, W) float32 to logits (B, C). A `Classifier` uses its own
            normalisation.
        images: images for the check, which uses some of them.
        normalisation: per-channel mean and standard deviation; None if the module takes images in [0, 1].
        n_classes: number of classes C; None uses the number of outputs.
        device: device to compute on, to which the module is copied if necessary; None uses the module's device. A
            module with tensors created in inference mode is also copied, because such tensors have no gradients.
        batch_size: maximum number of images per pass.
        name: the network's name in messages; None means its class.

    Yields:
        The classifier.

    Raises:
        ConfigError: `model` is not a module, the device is not available, `normalisation` is set for a `Classifier`,
            or the normalisation and the images differ in channels.
        NetworkError: the module has tensors without values or no evaluation mode, or see `check_network`.

    Warns:
        RobustWarning: the module computes in half precision, or see `check_network`.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"Reading the model failed: expected a torch.nn.Module, got {type(model).__name__}. Pass the network "
            "itself, not a function or class that creates it, or wrap it in a module."
        )
    _check_module(model)
    module_device = next((tensor.device for _, tensor in named_tensors(model)), torch.device("cpu"))
    device = module_device if device is None else available_device(device)
    with ExitStack() as stack:
        stack.enter_context(_EVALUATION_LOCK)
        stack.enter_context(worker_settings(device))
        if device != module_device or any(tensor.is_inference() for _, tensor in named_tensors(model)):
            model = copy.deepcopy(model).to(device)
        stack.callback(NetworkGuard(model).restore)
        name = name or type(model).__name__
        classifier = _wrap_as_classifier(model, normalisation, device, images.images.shape[1], name)
        classifier.eval().requires_grad_(requires_grad=False)
        classifier.batch_sizes = BatchSizes.on(device, limit=batch_size)
        checked_images = CheckedImages.of(images, device)
        classifier.n_classes, classifier.notices = check_network(
            classifier, checked_images, name=name, n_classes=n_classes
        )
        yield classifier


def hash_network(network: nn.Module, normalisation: Normalisation) -> str:
    """Return the SHA-256 of a network's code, settings, parameters, buffers and normalisation.

    The code consists of the methods of its classes outside PyTorch. Settings are attributes that are numbers, text or
    tuples of these. Functions that the methods call are not included.
    """
    digest = hashlib.sha256(repr(normalisation).encode())
    for name, module in network.named_modules():
        settings = sorted(item for item in vars(module).items() if item[0] != "training" and _is_simple(item[1]))
        digest.update(f"{name} {type(module).__qualname__} {settings!r}\n".encode())
    classes = dict.fromkeys(cls for module in network.modules() for cls in type(module).__mro__)
    for function in (function for cls in classes for function in vars(cls).values() if inspect.isfunction(function)):
        if function.__module__ and function.__module__.partition(".")[0] != "torch":
            digest.update(_source_of(function).encode())
    for name, tensor in named_tensors(network):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _is_simple(value: object) -> bool:
    return isinstance(value, int | float | str) or (isinstance(value, tuple) and all(map(_is_simple, value)))


def _source_of(function: FunctionType) -> str:
    """Return a function's source, or its bytecode if there is no source, such as for code typed into a shell."""
    try:
        return inspect.getsource(function)
    except OSError:
        return function.__code__.co_code.hex()


def _check_module(model: nn.Module) -> None:
    """Check that a module has an evaluation mode, and that its tensors have values."""
    problem = next(
        (f"{name} has no values" for name, tensor in named_tensors(model) if is_lazy(tensor) or tensor.is_meta), ""
    )
    # `torch.jit.freeze` removes modes, and `torch.export` replaces `train`.
    if any(not hasattr(module, "training") or "train" in vars(module) for module in model.modules()):
        problem = "it has no evaluation mode"
    if problem:
        raise NetworkError(
            f"Reading the model failed for {type(model).__name__}: {problem}. Call a lazy module once or load weights, "
            "and pass a module before torch.jit.freeze or torch.export, not its result."
        )


def _dtype_of(model: nn.Module) -> torch.dtype:
    """Return the floating-point dtype of all parameters; float32 if there are several dtypes or no such parameters."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _wrap_as_classifier(
    model: nn.Module, normalisation: Normalisation | None, device: torch.device, channels: int, name: str
) -> Classifier:
    """Return a classifier of the module; if the module is a `Classifier`, a copy that shares its tensors."""
    if isinstance(model, Classifier) and normalisation is not None:
        raise ConfigError(
            "Reading arguments failed for normalisation: a model from load_model already has its own normalisation. "
            "Remove the argument."
        )
    n_means = model.mean.shape[1] if isinstance(model, Classifier) else channels
    if normalisation is not None:
        n_means = len(normalisation.mean)
    if n_means != channels:
        # Broadcasting would silently turn grey images into three channels.
        raise ConfigError(
            f"Reading the model failed for {type(model).__name__}: the normalisation has {n_means} channels, but "
            f"the images have {channels}. Both need as many channels as the network's input."
        )
    if isinstance(model, Classifier):
        return copy.copy(model)  # the copy shares all tensors, but not the batch size and number of classes
    dtype = _dtype_of(model)
    if dtype in {torch.float16, torch.bfloat16}:
        warn_caller(
            f"{name} computes in {str(dtype).removeprefix('torch.')}, and so do its gradients. Small gradients vanish, "
            "so attacks may look weak and accuracies too high. Evaluate model.float(), too."
        )
    return Classifier(model, normalisation or NO_NORMALISATION.of_channels(channels), 0, device=device, dtype=dtype)
