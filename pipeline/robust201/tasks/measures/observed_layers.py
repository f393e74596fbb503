"""Observation of a forward pass: outputs of layers, signs of the inputs of ReLUs, and the last feature map."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

Layer = nn.Conv2d | nn.Linear

_RELUS = frozenset({functional.relu, functional.relu_, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_})


def layers_of(network: nn.Module) -> list[Layer]:
    """Return the convolutions and linear layers, whose weights the published proxies use."""
    return [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


class _FunctionObserver(TorchFunctionMode):
    """Intercepts all torch functions, to observe ReLUs (modules and function calls) and the last feature map."""

    def __init__(self, observed: "Observations") -> None:
        super().__init__()
        self._observed = observed

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if func in _RELUS:
            self._observed.add_signs(args[0])
        output = func(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor) and output.ndim == 4 and output.shape[2:].numel() > 1:
            self._observed.last_map = output
        return output


class Observations:
    """Observations of one forward pass of B images.

    Attributes:
        layer_outputs: (layer, its output) in order of calls.
        agreements: (B, B) float64, for each pair of images, the number of inputs of ReLUs that have the same sign; None
            without ReLUs.
        variances: for each BatchNorm, the mean over channels of its input's variance over images and positions.
        last_map: the last four-dimensional result with more than one position, which is the last feature map.
    """

    def __init__(self) -> None:
        self.layer_outputs: list[tuple[Layer, torch.Tensor]] = []
        self.agreements: torch.Tensor | None = None
        self.variances: list[torch.Tensor] = []
        self.last_map: torch.Tensor | None = None

    def add_signs(self, relu_input: torch.Tensor) -> None:
        """Record the signs of the inputs of a ReLU."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            is_positive = (relu_input > 0).flatten(1).float()
            agreements = (is_positive @ is_positive.T).double() + ((1 - is_positive) @ (1 - is_positive).T).double()
            self.agreements = agreements if self.agreements is None else self.agreements + agreements


@contextmanager
def observe(network: nn.Module) -> Iterator[Observations]:
    """Yield an object that collects observations of the next forward pass of a network."""
    observed = Observations()

    def record_output(layer: Layer, _inputs: Any, output: torch.Tensor) -> None:
        observed.layer_outputs.append((layer, output))

    def record_variance(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        with torch.no_grad():
            axes = [axis for axis in range(inputs[0].ndim) if axis != 1]
            observed.variances.append(inputs[0].var(dim=axes, correction=0).mean())

    hooks = [layer.register_forward_hook(record_output) for layer in layers_of(network)]
    batch_norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    hooks += [batch_norm.register_forward_pre_hook(record_variance) for batch_norm in batch_norms]
    try:
        with _FunctionObserver(observed):
            yield observed
    finally:
        for hook in hooks:
            hook.remove()


def skip_batch_norm(network: nn.Module) -> None:
    """Make every BatchNorm return its input; the network must be a copy."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.register_forward_hook(lambda _module, inputs, _output: inputs[0])


def make_absolute(network: nn.Module) -> None:
    """Replace all weights by their absolute values; the network must be a copy."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.abs_()
