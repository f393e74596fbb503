"""Residual networks for CIFAR: a 3x3 stem with stride 1 and no max-pooling, and four stages of blocks.

Source: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, with the usual stem for 32x32
images. The state_dict has the names ``conv1``, ``bn1``, ``layer<stage>.<block>.conv1|bn1|conv2|bn2`` (in bottlenecks
also ``conv3|bn3``), ``layer<stage>.<block>.shortcut.0|1`` if the shape changes, and ``linear``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTHS = (64, 128, 256, 512)
"""Published channels of the four stages."""


def _convolution(c_in: int, c_out: int, kernel_size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)


class _Block(nn.Module):
    """Two 3x3 convolutions, added to a shortcut. The shortcut is a 1x1 convolution if the shape changes."""

    expansion = 1

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self._add_branch(c_in, width, stride)
        c_out = self.expansion * width
        self.shortcut = nn.Sequential()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(_convolution(c_in, c_out, 1, stride), nn.BatchNorm2d(c_out))

    def _add_branch(self, c_in: int, width: int, stride: int) -> None:
        self.conv1, self.bn1 = _convolution(c_in, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, 1), nn.BatchNorm2d(width)

    def _branch(self, x: torch.Tensor) -> torch.Tensor:
        branch_output: torch.Tensor = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return branch_output

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self._branch(x) + self.shortcut(x))


class _Bottleneck(_Block):
    """Three convolutions, 1x1, 3x3 (with the stride) and 1x1; the last has four times as many channels."""

    expansion = 4

    def _add_branch(self, c_in: int, width: int, stride: int) -> None:
        c_out = self.expansion * width
        self.conv1, self.bn1 = _convolution(c_in, width, 1, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _convolution(width, c_out, 1, 1), nn.BatchNorm2d(c_out)

    def _branch(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        branch_output: torch.Tensor = self.bn3(self.conv3(functional.relu(self.bn2(self.conv2(x)))))
        return branch_output


class ResNet(nn.Module):
    """A residual network. Blocks (2, 2, 2, 2) give ResNet-18, which has 11,173,962 parameters with ten classes.

    Args:
        blocks: number of blocks in each of the four stages.
        n_classes: number of classes.
        widths: channels of the stages, before a bottleneck's expansion.
        has_bottlenecks: whether blocks are bottlenecks, as in ResNet-50.
    """

    def __init__(
        self,
        blocks: Sequence[int],
        n_classes: int,
        *,
        widths: Sequence[int] = WIDTHS,
        has_bottlenecks: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = _convolution(3, widths[0], 3, 1)
        self.bn1 = nn.BatchNorm2d(widths[0])
        block_type = _Bottleneck if has_bottlenecks else _Block
        c_in = widths[0]
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True), start=1):
            stage_blocks = []
            for block in range(count):
                stride = 2 if stage > 1 and block == 0 else 1
                stage_blocks.append(block_type(c_in, width, stride))
                c_in = block_type.expansion * width
            self.add_module(f"layer{stage}", nn.Sequential(*stage_blocks))
        self.linear = nn.Linear(c_in, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        for stage in range(1, len(WIDTHS) + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: torch.Tensor = self.linear(x.to(self.linear.weight.dtype).mean(dim=(2, 3)))
        return logits


def build_resnet(width: int, n_classes: int, **options: Any) -> ResNet:
    """Build a residual network whose first stage has `width` channels; `options` are arguments of `ResNet`."""
    return ResNet(n_classes=n_classes, widths=(width, 2 * width, 4 * width, 8 * width), **options)
