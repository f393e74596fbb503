"""Residual networks in the form for CIFAR: a 3x3 stem with stride 1, no max-pooling, four stages of basic blocks.

Source: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, with the stem that is usual
for 32x32 images. Names of the state_dict: ``conv1``, ``bn1``, ``layer<stage>.<block>.conv1|bn1|conv2|bn2``, where the
shape changes ``layer<stage>.<block>.shortcut.0|1``, and ``linear``.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages."""


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network of basic blocks; (2, 2, 2, 2) is ResNet-18, with 11,173,962 parameters at ten classes."""

    def __init__(self, blocks: Sequence[int], n_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        c_in = WIDTHS[0]
        for stage, (width, count) in enumerate(zip(WIDTHS, blocks, strict=True), start=1):
            stage_blocks = []
            for block in range(count):
                stage_blocks.append(_BasicBlock(c_in, width, 2 if stage > 1 and block == 0 else 1))
                c_in = width
            self.add_module(f"layer{stage}", nn.Sequential(*stage_blocks))
        self.linear = nn.Linear(WIDTHS[-1], n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classify normalised images: (B, 3, H, W) to (B, n_classes)."""
        x = functional.relu(self.bn1(self.conv1(x)))
        for stage in range(1, len(WIDTHS) + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: torch.Tensor = self.linear(x.float().mean(dim=(2, 3)))
        return logits
