"""The narrow residual network with 32 layers from studies of adversarial training on CIFAR-10.

Sources: He, Zhang, Ren and Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016; Engstrom et al., "Exploring
the Landscape of Spatial Robustness", ICML 2019. The published model of the second paper defines further details: leaky
ReLUs, shortcuts, initial weights, TensorFlow's padding (`SAME`), and the standardisation of each image. Wang and
Horne's report on robust features (2020) calls the network ResNet-34, but it has 31 convolutions and one linear layer.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

SLOPE = 0.1
"""Slope of the leaky ReLUs below zero."""


def _norm(channels: int) -> nn.BatchNorm2d:
    # TensorFlow's default epsilon. Its decay of 0.9 is PyTorch's momentum of 0.1.
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.1)


def _activate(x: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu(x, SLOPE)


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
    """Residual unit: two 3x3 convolutions, each after BatchNorm and ReLU.

    Args:
        activates_shortcut: whether the shortcut starts after the first BatchNorm and ReLU.
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
    """The narrow residual network: stages of pre-activation units, and a linear layer.

    With three stages of five units (16, 32 and 64 channels) and ten classes, there are 464,154 parameters.

    The initial weights of convolutions are normal with variance 2 / (9 * output channels). The linear layer's initial
    weights are uniform with variance 1 / inputs, and its bias is 0.
    """

    def __init__(self, widths: Sequence[int], n_units: int, n_classes: int) -> None:
        super().__init__()
        self.n_stages = len(widths)
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        c_in = widths[0]
        for stage, width in enumerate(widths, start=1):
            units = []
            for unit in range(n_units):
                stride = 2 if stage > 1 and unit == 0 else 1
                units.append(_Unit(c_in, width, stride, activates_shortcut=stage == 1 and unit == 0))
                c_in = width
            self.add_module(f"stage{stage}", nn.Sequential(*units))
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
        for stage in range(1, self.n_stages + 1):
            x = self.get_submodule(f"stage{stage}")(x)
        x = _activate(self.bn(x)).to(self.linear.weight.dtype)
        logits: torch.Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


def build_narrow_resnet(width: int, n_classes: int) -> NarrowResNet:
    """Build a network with five units per stage, whose first stage has `width` channels."""
    return NarrowResNet((width, 2 * width, 4 * width), 5, n_classes)
