"""The zoo as a `Space`: networks by name and width, adapted to 32x32 images."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from robust201.core.errors import ArchitectureError, did_you_mean
from robust201.core.records import ArchitectureId
from robust201.networks.space import Space

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ZooNetwork:
    """A network in `NETWORKS`.

    Attributes:
        builder: ``module.name``, a module of this folder and its function or class of (width, n_classes, **options).
        width: the published width, which is the default.
        options: further arguments of the function.
        requires_32x32: whether images must have 32x32 pixels.
        width_divisor: CPUs without AVX-512 can train the network only if the width is a multiple of this number.
    """

    builder: str
    width: int
    options: Mapping[str, Any] = field(default_factory=dict)
    requires_32x32: bool = False
    width_divisor: int = 1

    def build(self, width: int, n_classes: int) -> "nn.Module":
        """Build the network with initial weights."""
        module, _, name = self.builder.partition(".")
        build: Callable[..., nn.Module] = getattr(import_module(f"{__package__}.{module}"), name)
        return build(width, n_classes, **self.options)


_BLOCKS_18: Mapping[str, Any] = {"blocks": (2, 2, 2, 2)}
_BLOCKS_34: Mapping[str, Any] = {"blocks": (3, 4, 6, 3)}

NETWORKS: dict[str, ZooNetwork] = {
    "resnet18": ZooNetwork("resnet.build_resnet", 64, _BLOCKS_18),
    "resnet34": ZooNetwork("resnet.build_resnet", 64, _BLOCKS_34),
    "resnet50": ZooNetwork("resnet.build_resnet", 64, {**_BLOCKS_34, "has_bottlenecks": True}),
    "vgg16": ZooNetwork("fixed_size.build_vgg16", 64, requires_32x32=True),
    "stn-resnet18": ZooNetwork("transformers.build_stn_resnet", 64, _BLOCKS_18, requires_32x32=True, width_divisor=8),
    "stn-resnet34": ZooNetwork("transformers.build_stn_resnet", 64, _BLOCKS_34, requires_32x32=True, width_divisor=8),
    "ptn-resnet18": ZooNetwork("transformers.build_ptn_resnet", 64, _BLOCKS_18, width_divisor=8),
    "ptn-resnet34": ZooNetwork("transformers.build_ptn_resnet", 64, _BLOCKS_34, width_divisor=8),
    "lenet5": ZooNetwork("fixed_size.build_lenet5", 6, requires_32x32=True),
    "fc7500": ZooNetwork("fixed_size.FullyConnected", 7500, requires_32x32=True),
}
"""The networks of the zoo, by name."""

EVALUATED = ("resnet18",)
"""Networks in the selection ``evaluated``. This tuple must not change, so that existing sweeps do not grow."""

_NAME_WITH_WIDTH = re.compile(r"(.+)-w([1-9][0-9]{0,4})")


class Zoo(Space):
    """The networks in `NETWORKS`, by name; ``NAME-w8`` is a network with width 8.

    The width is the number of channels of the first stage (resnet, stn, ptn, vgg) or the first convolution
    (lenet5), or the number of hidden units (fc7500). All other numbers of channels and hidden units are scaled in
    proportion and rounded up; depth and kernel sizes do not change.
    """

    name = "zoo"
    channels_last = True
    """Residual networks are 1.1 to 1.3 times as fast on a CPU in this memory format."""

    def select(self, selection: str | Sequence[int | str]) -> tuple[str, ...]:
        """Resolve names (see `Space`). Networks are in the order of `NETWORKS`; the published width comes first."""
        if selection == "evaluated":
            return EVALUATED
        selected = {_parse(name) for name in self._split_names(selection)}
        positions = {name: position for position, name in enumerate(NETWORKS)}

        def sort_key(network: tuple[str, int]) -> tuple[int, int]:
            name, width = network
            return positions[name], 0 if width == NETWORKS[name].width else width

        ordered = sorted(selected, key=sort_key)
        return tuple(name if width == NETWORKS[name].width else f"{name}-w{width}" for name, width in ordered)

    def macs(self, architecture: ArchitectureId, *, n_classes: int, image_size: int) -> float:
        """Return the multiply-accumulates of convolutions and matrix products (see `Space`), which needs torch.

        Raises:
            ArchitectureError: the network supports only 32x32 pixels.
        """
        name, width = _parse(architecture)
        if NETWORKS[name].requires_32x32 and image_size != 32:
            raise ArchitectureError(
                f"Planning failed for {architecture}: its linear layers need images of 32x32 pixels, not "
                f"{image_size}x{image_size}. Remove the network from this sweep, or choose other images."
            )
        return _count_macs(name, width, n_classes, image_size)

    def check_training_without_avx512(self, architecture: ArchitectureId) -> None:
        """Reject widths for which oneDNN's AVX2 kernels corrupt memory (see `Space` and docs/zoo.md)."""
        name, width = _parse(architecture)
        divisor = NETWORKS[name].width_divisor
        if width % divisor:
            raise ArchitectureError(
                f"Training failed for {architecture}: on a CPU without AVX-512, PyTorch corrupts memory unless the "
                f"width is a multiple of {divisor}, and this width is {width}. Train {name}-w"
                f"{-(-width // divisor) * divisor}, or use a GPU or a CPU with AVX-512."
            )

    def build(self, architecture: ArchitectureId, *, n_classes: int) -> "nn.Module":
        name, width = _parse(architecture)
        return NETWORKS[name].build(width, n_classes)


def _parse(name: int | str) -> tuple[str, int]:
    if name in NETWORKS:
        return str(name), NETWORKS[str(name)].width
    match = _NAME_WITH_WIDTH.fullmatch(str(name))
    if match and match[1] in NETWORKS:
        return match[1], int(match[2])
    suffix = f"-w{match[2]}" if match else ""
    raise ArchitectureError(
        f"Looking up an architecture failed for {name!r}: it is not a network of the zoo. Networks are "
        f"{', '.join(NETWORKS)}, optionally with a width from 1 to 99999, such as resnet18-w8."
        f"{did_you_mean(str(name), [network_name + suffix for network_name in NETWORKS])}"
    )


@cache
def _count_macs(name: str, width: int, n_classes: int, image_size: int) -> int:
    """Count the multiply-accumulates of a pass on the meta device, which computes only shapes."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = NETWORKS[name].build(width, n_classes).eval()
        network(torch.zeros(1, 3, image_size, image_size))
    return int(counter.get_total_flops()) // 2
