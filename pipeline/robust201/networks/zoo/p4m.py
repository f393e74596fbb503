"""Convolutions and residual networks equivariant to the group p4m: translations, quarter turns and reflections.

Source: Cohen and Welling, "Group Equivariant Convolutional Networks", ICML 2016. A feature map on the group is stored
as (B, 8 C, H, W); the eight orientations of a channel are adjacent. Orientation ``4 m + r`` means: reflect if m = 1,
then rotate by r quarter turns. Each forward pass expands the kernel to an ordinary kernel, and applies it with one
`conv2d`.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from robust201.networks.zoo import scale_count
from robust201.networks.zoo.resnet import ResNet

ORIENTATIONS = 8


def orient(maps: torch.Tensor, orientation: int) -> torch.Tensor:
    """Apply an orientation to the last two axes, which must have equal length."""
    reflection, turns = divmod(orientation, 4)
    return torch.rot90(maps.flip(-1) if reflection else maps, turns, (-2, -1))


def relative_orientation(base: int, orientation: int) -> int:
    """Return base⁻¹ · orientation, the orientation relative to `base`."""
    (base_reflection, base_turns), (reflection, turns) = divmod(base, 4), divmod(orientation, 4)
    # A reflection reverses the direction of the following rotation.
    difference = base_turns - turns if base_reflection else turns - base_turns
    return 4 * (base_reflection ^ reflection) + difference % 4


def expand_lifting_kernels(weight: torch.Tensor) -> torch.Tensor:
    """Expand kernels (O, I, k, k) on the plane to (8 O, I, k, k): each kernel in all eight orientations."""
    return torch.stack([orient(weight, orientation) for orientation in range(ORIENTATIONS)], dim=1).flatten(0, 1)


def expand_group_kernels(weight: torch.Tensor) -> torch.Tensor:
    """Expand kernels (O, 8 I, k, k) on the group to (8 O, 8 I, k, k).

    The kernel from input orientation t to output orientation s is s · weight[s⁻¹ t].
    """
    kernels = torch.unflatten(weight, 1, (-1, ORIENTATIONS))
    kernels_by_target = []
    for target in range(ORIENTATIONS):
        oriented_kernels = orient(kernels, target).unbind(2)
        kernels_by_target.append(
            torch.stack(
                [oriented_kernels[relative_orientation(target, source)] for source in range(ORIENTATIONS)], dim=2
            )
        )
    return torch.stack(kernels_by_target, dim=1).flatten(2, 3).flatten(0, 1)


class P4mConvolution(nn.Conv2d):
    """A convolution of maps on the group, without bias: (B, 8 I, H, W) to (B, 8 O, H', W').

    ``weight`` is (O, 8 I, k, k). With stride 2, the convolution is equivariant only for odd H and W; for even sizes, a
    rotation changes which pixels are sampled.
    """

    def __init__(self, c_in: int, c_out: int, kernel_size: int, stride: int) -> None:
        super().__init__(ORIENTATIONS * c_in, c_out, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, expand_group_kernels(self.weight), stride=self.stride, padding=self.padding)


class P4mLifting(nn.Conv2d):
    """A convolution from the plane to the group, without bias: (B, I, H, W) to (B, 8 O, H', W')."""

    def __init__(self, c_in: int, c_out: int, kernel_size: int, stride: int) -> None:
        super().__init__(c_in, c_out, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, expand_lifting_kernels(self.weight), stride=self.stride, padding=self.padding)


class P4mBatchNorm(nn.BatchNorm2d):
    """BatchNorm with one mean, variance, scale and shift for the eight orientations of a channel: (B, 8 C, H, W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Stack the eight orientations of a channel into one map, (B, C, 8 H, W).
        stacked = torch.unflatten(x, 1, (-1, ORIENTATIONS)).flatten(2, 3)
        return torch.unflatten(super().forward(stacked), 2, (ORIENTATIONS, -1)).flatten(1, 2)


def build_group_resnet(width: int, n_classes: int, *, blocks: Sequence[int]) -> ResNet:
    """Build a residual network of basic blocks whose first stage has `width` channels of eight orientations each.

    As in the code of Wang and Horne's report on robust features (2020), there is no pooling over orientations. The
    features are therefore equivariant, but the logits are not invariant. The published widths are from the same code.
    """
    return ResNet(
        blocks,
        n_classes,
        widths=[scale_count(published, width, 23) for published in (23, 45, 91, 181)],
        stem_convolution=P4mLifting,
        convolution=P4mConvolution,
        norm=P4mBatchNorm,
        maps_per_channel=ORIENTATIONS,
    )
