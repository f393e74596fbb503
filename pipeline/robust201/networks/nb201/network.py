"""The network of NAS-Bench-201: cells in a macro skeleton.

Source: Dong and Yang, "NAS-Bench-201", ICLR 2020, Fig. 1. The state_dict has the published names and shapes, so the
published checkpoints load with ``strict=True``. A test compares the outputs with a golden file of the published
modules' outputs.
"""

from collections.abc import Callable

import torch
from torch import nn

from robust201.networks.nb201.cells import EDGES, parse

_OUTPUT_NODE = 3


class _ReluConvBn(nn.Module):
    def __init__(self, c_in: int, c_out: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__()
        self.op = nn.Sequential(
            nn.ReLU(inplace=False),
            nn.Conv2d(c_in, c_out, kernel_size, stride=stride, padding=kernel_size // 2, bias=False),
            nn.BatchNorm2d(c_out),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.op(x)
        return output


class _Zero(nn.Module):
    """The operation `none`. It stays in the autograd graph, so that gradients through it are zero instead of None."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul(0.0)


class _AveragePool(nn.Module):
    """3x3 average pooling that excludes the padding from the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.op = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.op(x)
        return output


_EDGE_MODULES: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda _channels: _Zero(),
    "skip_connect": lambda _channels: nn.Identity(),
    "nor_conv_1x1": lambda channels: _ReluConvBn(channels, channels, 1),
    "nor_conv_3x3": lambda channels: _ReluConvBn(channels, channels, 3),
    "avg_pool_3x3": lambda _channels: _AveragePool(),
}


class _Cell(nn.Module):
    def __init__(self, operations: tuple[str, ...], channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_EDGE_MODULES[operation](channels) for operation in operations)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nodes = {0: x}
        # Terms are added in the published order, because float addition is not associative.
        for layer, (source, target) in zip(self.layers, EDGES, strict=True):
            term: torch.Tensor = layer(nodes[source])
            nodes[target] = nodes[target] + term if target in nodes else term
        return nodes[_OUTPUT_NODE]


class _ResidualReduction(nn.Module):
    """Residual block that halves the image and doubles the channels, without a ReLU after the sum."""

    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.conv_a = _ReluConvBn(c_in, c_out, 3, stride=2)
        self.conv_b = _ReluConvBn(c_out, c_out, 3)
        self.downsample = nn.Sequential(
            nn.AvgPool2d(2, stride=2, padding=0), nn.Conv2d(c_in, c_out, 1, stride=1, padding=0, bias=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual: torch.Tensor = self.downsample(x)
        block: torch.Tensor = self.conv_b(self.conv_a(x))
        return residual + block


class Network(nn.Module):
    """Copies of a cell in the macro skeleton.

    The first stage has `channels` channels, and each of three stages has `cells` cells. The published network has 16
    channels and 5 cells.
    """

    def __init__(self, spec: str, *, channels: int = 16, cells: int = 5, n_classes: int) -> None:
        super().__init__()
        operations = parse(spec)
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        blocks: list[nn.Module] = []
        for stage in range(3):
            width = channels * 2**stage
            if stage:
                blocks.append(_ResidualReduction(width // 2, width))
            blocks.extend(_Cell(operations, width) for _ in range(cells))
        self.cells = nn.ModuleList(blocks)
        self.lastact = nn.Sequential(nn.BatchNorm2d(4 * channels), nn.ReLU(inplace=True))
        self.global_pooling = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(4 * channels, n_classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features (B, 4C), which the published network returns in front of the logits.

        Images are (B, 3, H, W), normalised, in the dtype of the convolution weights (initially float32). Everything
        after the last cell is in the dtype of the classifier's weights.
        """
        x = self.stem(x)
        for block in self.cells:
            x = block(x)
        features: torch.Tensor = self.global_pooling(self.lastact(x.to(self.classifier.weight.dtype))).flatten(1)
        return features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, n_classes) of images (see `features`)."""
        logits: torch.Tensor = self.classifier(self.features(x))
        return logits
