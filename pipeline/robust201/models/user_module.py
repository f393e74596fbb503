"""A module that somebody hands over, as a classifier for a while: checked first, and afterwards left as it was."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from robust201.core.errors import ConfigError, NetworkError, RobustWarning
from robust201.core.records import PIXELS_AS_THEY_ARE, Normalisation
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
    """Freeze a module in evaluation mode, and check what it answers to some images.

    Meanwhile the arithmetic is float32 and gradients are available, whatever the caller's `torch.autocast`, TF32
    switches, `torch.no_grad` or `torch.inference_mode`. Only a module whose parameters are all of another
    floating-point type computes in that type (see `Classifier`). The module's modes, gradients wanted and device
    are as before afterwards, whatever happens.

    Args:
        model: (B, 3, H, W) float32, normalised where `normalisation` says so, else in [0, 1], to logits (B, C) or
            (features, logits). A `Classifier` is taken with the normalisation that it has.
        pixels: (B, channels, H, W) float32 in [0, 1], what it is checked with.
        normalisation: per-channel mean and standard deviation.
        n_classes: number of classes C; None takes that of the answer.
        device: where to compute; a module that lies elsewhere is copied there. None computes where it lies. A module
            whose tensors were made in inference mode is copied, too, since it has no gradients.
        batch_size: maximum number of images per pass.
        randomised: whether outputs may differ between passes.

    Yields:
        The classifier.

    Raises:
        ConfigError: no module, a device that is not there, or a second normalisation.
        NetworkError: the module has no values yet, fails, or its answer is no logits, not finite, or another the second
            time.

    Warns:
        RobustWarning: the module computes in half precision.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"Reading the model failed: expected a torch.nn.Module, got {type(model).__name__}. Wrap it in a module."
        )
    _refuse_unfinished(model)
    there = _device_of(model)
    device = there if device is None else choose_given_device(device)
    with ExitStack() as stack:
        stack.enter_context(_plain_float32(device))
        if device != there or any(tensor.is_inference() for tensor in _tensors_of(model)):
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
    """Take a device by its name.

    Raises:
        ConfigError: there is no such device.
    """
    try:
        chosen = torch.device(device)
        torch.ones(1, device=chosen).item()  # `meta` computes shapes only
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"Choosing a device failed for {str(device)!r}: expected one that PyTorch can use, got "
            f"{str(error).splitlines()[0].rstrip('.')}. Name another, such as cpu."
        ) from error
    # `cuda` is the current one of them, and a tensor there says which.
    return torch.empty(0, device=chosen).device


def _refuse_unfinished(model: nn.Module) -> None:
    """Refuse a module with tensors that have no values: of lazy layers not called yet, or on the meta device."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        got = "one without a shape (a lazy layer)" if is_lazy(tensor) else "one on the meta device"
        if is_lazy(tensor) or tensor.is_meta:
            raise NetworkError(
                f"Reading the model failed for {type(model).__name__}: expected parameters with values, got {got}: "
                f"{name}. Call a lazy module once, or load weights into it, before you hand it over."
            )


def _tensors_of(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _dtype_of(model: nn.Module) -> torch.dtype:
    """Return the floating-point type of all parameters; float32 where there are several types, or none."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _device_of(model: nn.Module) -> torch.device:
    tensors = _tensors_of(model)
    return tensors[0].device if tensors else torch.device("cpu")


@contextmanager
def _plain_float32(device: torch.device) -> Iterator[None]:
    """Switch off what a caller's contexts and settings change about arithmetic and gradients."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        for kind in sorted({"cpu", device.type}):
            stack.enter_context(torch.autocast(kind, enabled=False))
        # First, since PyTorch does not read the older switch while this one contradicts it.
        for operation in _operations_with_precision():
            stack.callback(setattr, operation, "fp32_precision", operation.fp32_precision)
            operation.fp32_precision = "ieee"
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("highest")
        if device.type == "cuda":
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False))
        yield


def _operations_with_precision() -> list[Any]:
    """Return PyTorch's operations that have a switch `fp32_precision`; none before PyTorch 2.9."""
    owners = ((torch.backends.cuda, "matmul"), *((torch.backends.mkldnn, name) for name in ("matmul", "conv", "rnn")))
    operations = (getattr(owner, name, None) for owner, name in owners)
    return [operation for operation in operations if hasattr(operation, "fp32_precision")]


def _wrap(model: nn.Module, normalisation: Normalisation | None, device: torch.device, channels: int) -> Classifier:
    normalised = len(normalisation.mean) if normalisation is not None else channels
    if isinstance(model, Classifier):
        normalised = model.mean.shape[1]
    if normalised != channels:
        # Broadcasting would turn grey images into three channels without a word.
        raise ConfigError(
            f"Reading the model failed for {type(model).__name__}: expected images of {normalised} channels, as its "
            f"normalisation has, got {channels}. Give images or a normalisation of as many channels as the network "
            "takes."
        )
    if not isinstance(model, Classifier):
        dtype = _dtype_of(model)
        if dtype in _HALF:
            warnings.warn(
                f"{type(model).__name__} computes in {str(dtype).removeprefix('torch.')}, and so do its gradients. "
                "Small ones vanish, so attacks may look weak and accuracies come out too high. Evaluate it as "
                "model.float(), too.",
                RobustWarning,
                stacklevel=2,
            )
        return Classifier(
            model, normalisation or PIXELS_AS_THEY_ARE.of_channels(channels), 0, device=device, dtype=dtype
        )
    if normalisation is not None:
        raise ConfigError(
            "Reading the model failed for its normalisation: expected none, since a model of load_model normalises by "
            "itself, got one. Leave it out."
        )
    return copy.copy(model)  # shares every tensor; its batches and classes are its own


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, requires_grad in wanted:
            parameter.requires_grad_(requires_grad)
