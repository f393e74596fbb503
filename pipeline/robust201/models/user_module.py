"""Temporary use of a user's module as a classifier: it is checked, and its state is restored afterwards."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from robust201.core.errors import ConfigError, NetworkError, RobustWarning
from robust201.core.records import NO_NORMALISATION, Normalisation
from robust201.models.classifier import Classifier
from robust201.models.network_check import check_network

_HALF = (torch.float16, torch.bfloat16)


@contextmanager
def as_classifier(
    model: nn.Module,
    pixels: torch.Tensor,
    *,
    normalisation: Normalisation | None = None,
    n_classes: int | None = None,
    device: torch.device | str | None = None,
    batch_size: int | None = None,
    randomised: bool = False,
) -> Iterator[Classifier]:
    """Freeze a module in evaluation mode, and check its outputs for some images.

    In the block, the arithmetic is float32 and gradients are available, whatever the caller's `torch.autocast`, TF32
    switches, `torch.no_grad` or `torch.inference_mode`. Only a module whose parameters all have another floating-point
    dtype computes in that dtype (see `Classifier`). The module's modes, `requires_grad` flags and device are always
    restored.

    Args:
        model: maps (B, 3, H, W) float32, normalised with `normalisation` or else in [0, 1], to logits (B, C) or
            (features, logits). A `Classifier` keeps its normalisation.
        pixels: (B, channels, H, W) float32 in [0, 1], images for the check.
        normalisation: per-channel mean and standard deviation.
        n_classes: number of classes C; None takes that of the outputs.
        device: device to compute on, to which a module is copied if needed; None uses the module's device. A module
            with tensors created in inference mode is copied, too, because such tensors have no gradients.
        batch_size: maximum number of images per pass.
        randomised: whether outputs may differ between passes.

    Yields:
        The classifier.

    Raises:
        ConfigError: not a module, an unavailable device, or a second normalisation.
        NetworkError: the module has no values yet, fails, or its outputs are not logits, not finite or not repeatable.

    Warns:
        RobustWarning: the module computes in half precision.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"Reading the model failed: expected a torch.nn.Module, got {type(model).__name__}. Wrap it in a module."
        )
    _reject_uninitialised(model)
    module_device = _device_of(model)
    device = module_device if device is None else choose_given_device(device)
    with ExitStack() as stack:
        stack.enter_context(_plain_float32(device))
        if device != module_device or any(tensor.is_inference() for tensor in _tensors_of(model)):
            model = copy.deepcopy(model).to(device)
        stack.enter_context(_restored(model))
        classifier = _wrap(model, normalisation, device, pixels.shape[1])
        classifier.eval().requires_grad_(requires_grad=False)
        classifier.micro_batch = classifier.micro_batch or batch_size
        classifier.n_classes = check_network(
            classifier, pixels.to(device), name=type(model).__name__, n_classes=n_classes, randomised=randomised
        )
        yield classifier


def choose_given_device(device: torch.device | str) -> torch.device:
    """Return an available device.

    Raises:
        ConfigError: the device is not available.
    """
    try:
        chosen = torch.device(device)
        torch.ones(1, device=chosen).item()  # fails on `meta`, which computes only shapes
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Choosing a device failed for {str(device)!r}: expected one that PyTorch can use, got "
            f"{str(error).splitlines()[0].rstrip('.')}. Name another, such as cpu."
        ) from error
    # `cuda` means the current CUDA device; a tensor has its index.
    return torch.empty(0, device=chosen).device


def _reject_uninitialised(model: nn.Module) -> None:
    """Reject a module with tensors without values: of lazy layers not called yet, or on the meta device."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        got = "one without a shape (a lazy layer)" if is_lazy(tensor) else "one on the meta device"
        if is_lazy(tensor) or tensor.is_meta:
            raise NetworkError(
                f"Reading the model failed for {type(model).__name__}: expected parameters with values, got {got}: "
                f"{name}. Call a lazy module once, or load weights into it, before you pass it."
            )


def _tensors_of(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _dtype_of(model: nn.Module) -> torch.dtype:
    """Return the floating-point dtype of all parameters; float32 if there are several or none."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _device_of(model: nn.Module) -> torch.device:
    tensors = _tensors_of(model)
    return tensors[0].device if tensors else torch.device("cpu")


@contextmanager
def _plain_float32(device: torch.device) -> Iterator[None]:
    """Disable the caller's contexts and settings that affect arithmetic and gradients."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        for device_type in sorted({"cpu", device.type}):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        # First, because PyTorch rejects reading the older switch while this one contradicts it.
        for operation in _operations_with_precision():
            stack.callback(setattr, operation, "fp32_precision", operation.fp32_precision)
            operation.fp32_precision = "ieee"
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        if device.type == "cuda":
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False))
        yield


def _operations_with_precision() -> list[Any]:
    """Return PyTorch's operations that have a setting `fp32_precision`; none before PyTorch 2.9."""
    owners = ((torch.backends.cuda, "matmul"), *((torch.backends.mkldnn, name) for name in ("matmul", "conv", "rnn")))
    operations = (getattr(owner, name, None) for owner, name in owners)
    return [operation for operation in operations if hasattr(operation, "fp32_precision")]


def _wrap(model: nn.Module, normalisation: Normalisation | None, device: torch.device, channels: int) -> Classifier:
    n_normalised = len(normalisation.mean) if normalisation is not None else channels
    if isinstance(model, Classifier):
        n_normalised = model.mean.shape[1]
    if n_normalised != channels:
        # Broadcasting would silently turn grey images into three channels.
        raise ConfigError(
            f"Reading the model failed for {type(model).__name__}: expected images of {n_normalised} channels, as its "
            f"normalisation has, got {channels}. Give images or a normalisation of as many channels as the network "
            "takes."
        )
    if not isinstance(model, Classifier):
        dtype = _dtype_of(model)
        if dtype in _HALF:
            warnings.warn(
                f"{type(model).__name__} computes in {str(dtype).removeprefix('torch.')}, and so do its gradients. "
                "Small gradients vanish, so attacks may look weak and accuracies too high. Evaluate "
                "model.float(), too.",
                RobustWarning,
                stacklevel=2,
            )
        return Classifier(model, normalisation or NO_NORMALISATION.of_channels(channels), 0, device=device, dtype=dtype)
    if normalisation is not None:
        raise ConfigError(
            "Reading the model failed for its normalisation: expected none, since a model of load_model normalises by "
            "itself, got one. Leave it out."
        )
    return copy.copy(model)  # shares all tensors, but has its own batch size and number of classes


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    gradient_flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, requires_grad in gradient_flags:
            parameter.requires_grad_(requires_grad)
