"""The zoo as a `Space`: networks by name and width, adapted to 32x32 images."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from robust201.core.errors import ArchitectureError, ConfigError, did_you_mean
from robust201.core.records import ArchitectureId
from robust201.spaces.base import Space
from robust201.spaces.zoo import costs

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ZooNetwork:
    """A network in `NETWORKS`.

    Attributes:
        build: builds the network, given width and number of classes.
        macs: returns the multiply-accumulates of one image's forward pass, given width, number of classes and image
            size.
        width: the published width, which is the default.
        requires_32x32: whether images must have 32x32 pixels.
        width_divisor: CPUs without AVX-512 can train the network only if the width is a multiple of this number.
    """

    build: "Callable[[int, int], nn.Module]"
    macs: Callable[[int, int, int], int]
    width: int
    requires_32x32: bool = False
    width_divisor: int = 1


def scale_count(published: int, width: int, published_width: int) -> int:
    """Scale a published number of channels or units in proportion to the width, rounding up."""
    return -(-published * width // published_width)


def _resnet_widths(width: int) -> tuple[int, ...]:
    return (width, 2 * width, 4 * width, 8 * width)


def _resnet(blocks: Sequence[int], *, has_bottlenecks: bool = False, has_imagenet_stem: bool = False) -> ZooNetwork:
    def build(width: int, n_classes: int) -> "nn.Module":
        from robust201.spaces.zoo.resnet import ResNet

        return ResNet(
            blocks,
            n_classes,
            widths=_resnet_widths(width),
            has_bottlenecks=has_bottlenecks,
            has_imagenet_stem=has_imagenet_stem,
        )

    def macs(width: int, n_classes: int, size: int) -> int:
        return costs.resnet(
            blocks,
            _resnet_widths(width),
            n_classes,
            size,
            has_bottlenecks=has_bottlenecks,
            has_imagenet_stem=has_imagenet_stem,
        )

    return ZooNetwork(build, macs, 64)


def _group_resnet(blocks: Sequence[int]) -> ZooNetwork:
    def widths(width: int) -> tuple[int, ...]:
        return tuple(scale_count(published, width, 23) for published in (23, 45, 91, 181))

    def build(width: int, n_classes: int) -> "nn.Module":
        from robust201.spaces.zoo.p4m import GroupResNet

        return GroupResNet(blocks, n_classes, widths=widths(width))

    def macs(width: int, n_classes: int, size: int) -> int:
        return costs.resnet(blocks, [8 * channels for channels in widths(width)], n_classes, size)

    return ZooNetwork(build, macs, 23)


def _spatial_resnet(blocks: Sequence[int]) -> ZooNetwork:
    def build(width: int, n_classes: int) -> "nn.Module":
        from robust201.spaces.zoo.resnet import ResNet
        from robust201.spaces.zoo.transformers import SpatialTransformer, TransformedResNet

        transformer = SpatialTransformer(channels=scale_count(32, width, 64), hidden=scale_count(1024, width, 64))
        return TransformedResNet(transformer, ResNet(blocks, n_classes, widths=_resnet_widths(width)))

    def macs(width: int, n_classes: int, size: int) -> int:
        transformer = costs.spatial_transformer(scale_count(32, width, 64), scale_count(1024, width, 64))
        return transformer + costs.resnet(blocks, _resnet_widths(width), n_classes, size)

    return ZooNetwork(build, macs, 64, requires_32x32=True, width_divisor=8)


def _polar_resnet(blocks: Sequence[int]) -> ZooNetwork:
    def build(width: int, n_classes: int) -> "nn.Module":
        from robust201.spaces.zoo.resnet import ResNet
        from robust201.spaces.zoo.transformers import PolarTransformer, TransformedResNet

        transformer = PolarTransformer(filters=scale_count(32, width, 64))
        return TransformedResNet(transformer, ResNet(blocks, n_classes, widths=_resnet_widths(width)))

    def macs(width: int, n_classes: int, size: int) -> int:
        transformer = costs.polar_transformer(scale_count(32, width, 64), size)
        return transformer + costs.resnet(blocks, _resnet_widths(width), n_classes, size)

    return ZooNetwork(build, macs, 64, width_divisor=8)


def _narrow_resnet() -> ZooNetwork:
    n_units = 5  # residual units per stage

    def widths(width: int) -> tuple[int, ...]:
        return (width, 2 * width, 4 * width)

    def build(width: int, n_classes: int) -> "nn.Module":
        from robust201.spaces.zoo.narrow_resnet import NarrowResNet

        return NarrowResNet(widths(width), n_units, n_classes)

    def macs(width: int, n_classes: int, size: int) -> int:
        return costs.narrow_resnet(widths(width), n_units, n_classes, size)

    return ZooNetwork(build, macs, 16)


def _vgg16() -> ZooNetwork:
    def stages(width: int) -> list[tuple[int, int]]:
        return [(width, 2), (2 * width, 2), (4 * width, 3), (8 * width, 3), (8 * width, 3)]

    def build(width: int, n_classes: int) -> "nn.Module":
        from robust201.spaces.zoo.fixed_size import Vgg

        return Vgg(stages(width), n_classes)

    def macs(width: int, n_classes: int, _size: int) -> int:
        return costs.vgg(stages(width), n_classes)

    return ZooNetwork(build, macs, 64, requires_32x32=True)


def _lenet5() -> ZooNetwork:
    def sizes(width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        first, second, third, fourth = (scale_count(published, width, 6) for published in (6, 16, 120, 84))
        return (first, second), (third, fourth)

    def build(width: int, n_classes: int) -> "nn.Module":
        from robust201.spaces.zoo.fixed_size import LeNet5

        channels, hidden = sizes(width)
        return LeNet5(n_classes, channels=channels, hidden=hidden)

    def macs(width: int, n_classes: int, _size: int) -> int:
        return costs.lenet5(*sizes(width), n_classes)

    return ZooNetwork(build, macs, 6, requires_32x32=True)


def _fully_connected() -> ZooNetwork:
    def build(width: int, n_classes: int) -> "nn.Module":
        from robust201.spaces.zoo.fixed_size import FullyConnected

        return FullyConnected(n_classes, width=width)

    def macs(width: int, n_classes: int, _size: int) -> int:
        return (3 * 32 * 32 + n_classes) * width

    return ZooNetwork(build, macs, 7500, requires_32x32=True)


_BLOCKS_18, _BLOCKS_34 = (2, 2, 2, 2), (3, 4, 6, 3)

NETWORKS: dict[str, ZooNetwork] = {
    "resnet18": _resnet(_BLOCKS_18),
    "resnet34": _resnet(_BLOCKS_34),
    "resnet50": _resnet(_BLOCKS_34, has_bottlenecks=True),
    "resnet50-imagenet-stem": _resnet(_BLOCKS_34, has_bottlenecks=True, has_imagenet_stem=True),
    "resnet32-narrow": _narrow_resnet(),
    "vgg16": _vgg16(),
    "gresnet18": _group_resnet(_BLOCKS_18),
    "gresnet34": _group_resnet(_BLOCKS_34),
    "stn-resnet18": _spatial_resnet(_BLOCKS_18),
    "stn-resnet34": _spatial_resnet(_BLOCKS_34),
    "ptn-resnet18": _polar_resnet(_BLOCKS_18),
    "ptn-resnet34": _polar_resnet(_BLOCKS_34),
    "lenet5": _lenet5(),
    "fc7500": _fully_connected(),
}
"""The networks of the zoo, by name."""

EVALUATED = ("resnet18",)
"""Networks in the selection ``evaluated``. This tuple must not change, so that existing sweeps do not grow."""

_NAME_WITH_WIDTH = re.compile(r"(.+)-w([1-9][0-9]{0,4})")


class Zoo(Space):
    """The networks in `NETWORKS`, by name; ``NAME-w8`` is a network with width 8.

    The width is the number of channels of the first stage (resnet, gresnet, stn, ptn, vgg) or the first convolution
    (lenet5), or the number of hidden units (fc7500). All other numbers of channels and hidden units are scaled in
    proportion and rounded up; depth, kernel sizes and orientations do not change.
    """

    name = "zoo"
    channels_last = True
    """Residual networks are 1.1 to 1.3 times as fast on a CPU in this memory format."""

    def select(self, selection: str | Sequence[int | str]) -> tuple[str, ...]:
        """Resolve names (see `Space`). Networks have the order of `NETWORKS`, and the published width comes first."""
        if selection == "evaluated":
            return EVALUATED
        selected = {_parse(name) for name in self._split_names(selection)}
        if not selected:
            raise ConfigError(
                f"Selecting architectures failed for an empty list: list at least one of {', '.join(NETWORKS)}."
            )
        positions = {name: position for position, name in enumerate(NETWORKS)}

        def sort_key(network: tuple[str, int]) -> tuple[int, int]:
            name, width = network
            return positions[name], 0 if width == NETWORKS[name].width else width

        ordered = sorted(selected, key=sort_key)
        return tuple(name if width == NETWORKS[name].width else f"{name}-w{width}" for name, width in ordered)

    def macs(self, architecture: ArchitectureId, *, n_classes: int, image_size: int) -> float:
        """Return the exact number of multiply-accumulates (see `Space`).

        Raises:
            ArchitectureError: the network supports only 32x32 pixels.
        """
        name, width = _parse(architecture)
        if NETWORKS[name].requires_32x32 and image_size != 32:
            raise ArchitectureError(
                f"Planning failed for {architecture}: its linear layers need images of 32x32 pixels, not "
                f"{image_size}x{image_size}. Remove the network from this sweep, or choose other images."
            )
        return NETWORKS[name].macs(width, n_classes, image_size)

    def check_training_without_avx512(self, architecture: ArchitectureId) -> None:
        """Reject widths for which oneDNN's AVX2 kernels corrupt memory (see `Space` and docs/zoo.md)."""
        name, width = _parse(architecture)
        divisor = NETWORKS[name].width_divisor
        if width % divisor:
            raise ArchitectureError(
                f"Training failed for {architecture}: on a CPU without AVX-512, PyTorch corrupts memory unless the "
                f"width is a multiple of {divisor}, and this width is {width}. Train {name}-w"
                f"{scale_count(1, width, divisor) * divisor}, or use a GPU or a CPU with AVX-512."
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
