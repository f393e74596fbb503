"""Networks of the study that are not in the zoo: `resnet32-narrow`, `gresnet18` and `gresnet34`.

``NAME-w2`` has width 2, the number of channels of the first stage. Sweeps use this file with `space: {file: …}`. The
networks use channels_last, as the zoo does.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

# --- the narrow network of question 1 ---------------------------------------------------------------------------------
# Sources: He, Zhang, Ren and Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016; Engstrom et al., "Exploring
# the Landscape of Spatial Robustness", ICML 2019. The published model of the second paper defines further details:
# leaky ReLUs, shortcuts, initial weights, TensorFlow's padding (`SAME`), and the standardisation of each image. Wang
# and Horne (2020) call the network ResNet-34, but it has 31 convolutions and one linear layer.


def _norm(channels: int) -> nn.BatchNorm2d:
    # TensorFlow's default epsilon. Its decay of 0.9 is PyTorch's momentum of 0.1.
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.1)


def _activate(x: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu(x, 0.1)


def standardise(images: torch.Tensor) -> torch.Tensor:
    """Scale each image (B, C, H, W) to mean 0 and standard deviation 1 over all its values.

    As in TensorFlow, the standard deviation is at least 1 / sqrt(C H W) in units of 1/255.
    """
    high_precision = images.to(torch.promote_types(images.dtype, torch.float32))
    dims = (1, 2, 3)
    min_deviation = 1 / (255 * math.sqrt(images[0].numel()))
    variance = high_precision.var(dim=dims, correction=0, keepdim=True).clamp_min(min_deviation**2)
    return ((high_precision - high_precision.mean(dim=dims, keepdim=True)) / variance.sqrt()).to(images.dtype)


class _Unit(nn.Module):
    """Residual unit: two 3x3 convolutions, each after BatchNorm and leaky ReLU.

    Args:
        activates_shortcut: whether the shortcut starts after the first BatchNorm and leaky ReLU.
    """

    def __init__(self, c_in: int, c_out: int, stride: int, *, activates_shortcut: bool) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = c_out - c_in
        self.activates_shortcut = activates_shortcut
        self.bn1 = _norm(c_in)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1 if stride == 1 else 0, bias=False)
        self.bn2 = _norm(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = _activate(self.bn1(x))
        shortcut = active if self.activates_shortcut else x
        if self.stride == 2:
            active = functional.pad(active, (0, 1, 0, 1))  # for even sizes, `SAME` pads only after the last pixel
            n_channels_before = self.new_channels // 2
            shortcut = functional.pad(
                functional.avg_pool2d(shortcut, 2),
                (0, 0, 0, 0, n_channels_before, self.new_channels - n_channels_before),
            )
        unit_output: torch.Tensor = self.conv2(_activate(self.bn2(self.conv1(active)))) + shortcut
        return unit_output


class NarrowResNet(nn.Module):
    """Three stages of five pre-activation units, and a linear layer: 464,154 parameters with width 16 and ten classes.

    The initial weights of convolutions are normal with variance 2 / (9 * output channels). The linear layer's initial
    weights are uniform with variance 1 / inputs, and its bias is 0.
    """

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        c_in = width
        for stage in (1, 2, 3):
            units = []
            for unit in range(5):
                stride = 2 if stage > 1 and unit == 0 else 1
                units.append(_Unit(c_in, width, stride, activates_shortcut=stage == 1 and unit == 0))
                c_in = width
            self.add_module(f"stage{stage}", nn.Sequential(*units))
            width *= 2
        self.bn = _norm(c_in)
        self.linear = nn.Linear(c_in, n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.uniform_(self.linear.weight, -math.sqrt(3 / c_in), math.sqrt(3 / c_in))
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (B, n_classes) of images (B, 3, H, W), with H and W multiples of 4."""
        x = self.conv1(standardise(x))
        for stage in (1, 2, 3):
            x = self.get_submodule(f"stage{stage}")(x)
        x = _activate(self.bn(x)).to(self.linear.weight.dtype)
        logits: torch.Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


# --- the equivariant networks of question 3 ---------------------------------------------------------------------------
# Convolutions equivariant to the group p4m: translations, quarter turns and reflections (Cohen and Welling, "Group
# Equivariant Convolutional Networks", ICML 2016). A feature map on the group is stored as (B, 8 C, H, W); the eight
# orientations of a channel are adjacent. Orientation 4 m + r means: reflect if m = 1, then rotate by r quarter turns.

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
        oriented = orient(kernels, target).unbind(2)
        by_source = [oriented[relative_orientation(target, source)] for source in range(ORIENTATIONS)]
        kernels_by_target.append(torch.stack(by_source, dim=2))
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
    """A 3x3 convolution from the plane to the group, without bias: (B, I, H, W) to (B, 8 O, H, W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, expand_lifting_kernels(self.weight), padding=1)


class P4mBatchNorm(nn.BatchNorm2d):
    """BatchNorm with one mean, variance, scale and shift for the eight orientations of a channel: (B, 8 C, H, W)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Stack the eight orientations of a channel into one map, (B, C, 8 H, W).
        stacked = torch.unflatten(x, 1, (-1, ORIENTATIONS)).flatten(2, 3)
        return torch.unflatten(super().forward(stacked), 2, (ORIENTATIONS, -1)).flatten(1, 2)


class _GroupBlock(nn.Module):
    """Two convolutions, added to a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = P4mConvolution(c_in, c_out, 3, stride), P4mBatchNorm(c_out)
        self.conv2, self.bn2 = P4mConvolution(c_out, c_out, 3, 1), P4mBatchNorm(c_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(P4mConvolution(c_in, c_out, 1, stride), P4mBatchNorm(c_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(branch + self.shortcut(x))


class GroupResNet(nn.Module):
    """A residual network of four stages with equivariant features (see `P4mConvolution`), but without invariant logits.

    As in Wang and Horne's code, there is no pooling over orientations, and the widths are 23, 45, 91 and 181 or, with
    another width, scaled in proportion and rounded up.
    """

    def __init__(self, width: int, blocks: Sequence[int], n_classes: int) -> None:
        super().__init__()
        widths = [-(-published * width // 23) for published in (23, 45, 91, 181)]
        self.conv1, self.bn1 = P4mLifting(3, width, 3, padding=1, bias=False), P4mBatchNorm(width)
        c_in = width
        for stage, (c_out, count) in enumerate(zip(widths, blocks, strict=True), start=1):
            stage_blocks = []
            for block in range(count):
                stage_blocks.append(_GroupBlock(c_in, c_out, 2 if stage > 1 and block == 0 else 1))
                c_in = c_out
            self.add_module(f"layer{stage}", nn.Sequential(*stage_blocks))
        self.linear = nn.Linear(ORIENTATIONS * c_in, n_classes)

    def stem(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.bn1(self.conv1(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for stage in (1, 2, 3, 4):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: torch.Tensor = self.linear(x.to(self.linear.weight.dtype).mean(dim=(2, 3)))
        return logits


BLOCKS = {"gresnet18": (2, 2, 2, 2), "gresnet34": (3, 4, 6, 3)}


def build(architecture: str, n_classes: int) -> nn.Module:
    """Return a network by name."""
    name, _, width = architecture.partition("-w")
    network: nn.Module
    if name == "resnet32-narrow":
        network = NarrowResNet(int(width or 16), n_classes)
    else:
        network = GroupResNet(int(width or 23), BLOCKS[name], n_classes)
    network.register_forward_pre_hook(lambda _, inputs: inputs[0].contiguous(memory_format=torch.channels_last))
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
