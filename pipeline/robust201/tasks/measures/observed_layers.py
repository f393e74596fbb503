"""What a network computes on its way to the logits: maps of layers, signs before ReLUs, the last feature map."""

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
    """List the convolutions and linear layers, whose weights the published proxies look at."""
    return [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


class _Watch(TorchFunctionMode):
    """Sees every function of torch, so that a ReLU counts whether it is a module or a call."""

    def __init__(self, observed: "Observed") -> None:
        super().__init__()
        self._observed = observed

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        if func in _RELUS:
            self._observed.add_signs(args[0])
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.ndim == 4 and found.shape[2:].numel() > 1:
            self._observed.last_map = found
        return found


class Observed:
    """What one forward pass of B images leaves behind.

    Attributes:
        maps: (layer, its output) in order of calls.
        agreements: (B, B) float64, units before ReLUs whose signs two images share, positive or not; None without ReLU.
        variances: of each input of a BatchNorm, the mean over channels of the variance over images and positions.
        last_map: the last result of four dimensions with more than one position: what is pooled at the end.
    """

    def __init__(self) -> None:
        self.maps: list[tuple[Layer, torch.Tensor]] = []
        self.agreements: torch.Tensor | None = None
        self.variances: list[torch.Tensor] = []
        self.last_map: torch.Tensor | None = None

    def add_signs(self, before: torch.Tensor) -> None:
        """Add the units before a ReLU."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            codes = (before > 0).flatten(1).float()
            shared = (codes @ codes.T).double() + ((1 - codes) @ (1 - codes).T).double()
            self.agreements = shared if self.agreements is None else self.agreements + shared


@contextmanager
def observe(network: nn.Module) -> Iterator[Observed]:
    """Observe the next forward pass of a network."""
    observed = Observed()

    def keep_map(layer: Layer, _given: Any, output: torch.Tensor) -> None:
        observed.maps.append((layer, output))

    def keep_variance(_module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        with torch.no_grad():
            others = [axis for axis in range(given[0].ndim) if axis != 1]
            observed.variances.append(given[0].var(dim=others, correction=0).mean())

    hooks = [layer.register_forward_hook(keep_map) for layer in layers_of(network)]
    hooks += [m.register_forward_pre_hook(keep_variance) for m in network.modules() if isinstance(m, _BatchNorm)]
    try:
        with _Watch(observed):
            yield observed
    finally:
        for hook in hooks:
            hook.remove()


def skip_batch_norm(network: nn.Module) -> None:
    """Let every BatchNorm pass on what it is given; the network must be a copy."""
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.register_forward_hook(lambda _module, given, _output: given[0])


def make_absolute(network: nn.Module) -> None:
    """Replace all weights by their absolute values; the network must be a copy."""
    with torch.no_grad():
        for weight in network.parameters():
            weight.abs_()
