"""Convolution weights with BatchNorm folded in, and the maps of constant nodes. All in float64.

BatchNorm in evaluation mode is y = (x - m) * g + b with g = weight / sqrt(variance + eps), so it folds into the
convolution before it. Folding in float64 and rounding once, to the dtype of the kernels, keeps the error of a folded
weight within half a unit in the last place.
"""

from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from robust201.spaces.nasbench201.cells import EDGES, constant_nodes, parse
from robust201.spaces.nasbench201.compiled.program import CellProgram


def batch_norm_affine(batch_norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale (C,) and shift (C,), float64, of a BatchNorm in evaluation mode."""
    mean, variance = cast("torch.Tensor", batch_norm.running_mean), cast("torch.Tensor", batch_norm.running_var)
    # With NumPy, which rounds correctly: PyTorch uses MKL's square root, whose last bit depends on the processor.
    deviation = torch.from_numpy(np.sqrt((variance.double() + batch_norm.eps).cpu().numpy())).to(variance.device)
    scale = batch_norm.weight.detach().double() / deviation
    return scale, batch_norm.bias.detach().double() - mean.double() * scale


def fold(convolution: nn.Conv2d, batch_norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """Fold a BatchNorm into the preceding convolution without bias: weight (O, I, k, k) and bias (O,), float64."""
    scale, shift = batch_norm_affine(batch_norm)
    return convolution.weight.detach().double() * scale.view(-1, 1, 1, 1), shift


def fold_block(block: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Fold a block of ReLU, convolution and BatchNorm, except the ReLU; see `fold`."""
    _, convolution, batch_norm = block.op  # type: ignore[misc]
    return fold(convolution, batch_norm)


def merge(folded: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge convolutions (O, I, k, k), k odd, of the same input and their biases (O,) into one.

    Smaller kernels are zero-padded around their centre to the largest size.
    """
    weights, biases = zip(*folded, strict=True)
    size = max(weight.shape[-1] for weight in weights)
    padded = [functional.pad(weight, [(size - weight.shape[-1]) // 2] * 4) for weight in weights]
    return torch.stack(padded).sum(dim=0), torch.stack(biases).sum(dim=0)


def round_once(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float64 to the nearest float32 or bfloat16, ties to even.

    PyTorch converts float64 to bfloat16 via float32, and so rounds twice: 1 + 2**-8 + 2**-30 becomes the tie 1 + 2**-8
    and then 1, although 1 + 2**-7 is nearer. Nonzero absolute values below 2**-126 are rounded twice here, too.
    """
    if dtype is not torch.bfloat16:
        return x.to(dtype)
    # bfloat16 has 7 of float64's 52 stored bits. Adding just under half a unit of the last kept bit, or exactly half if
    # that bit is odd, carries into it exactly when rounding up; after truncation, the conversion is exact.
    dropped = 52 - 7
    bits = x.contiguous().view(torch.int64)
    carried = bits + (2 ** (dropped - 1) - 1) + ((bits >> dropped) & 1)
    rounded: torch.Tensor = ((carried >> dropped) << dropped).view(torch.float64)
    return rounded.to(torch.bfloat16)


class ConstantMaps:
    """Outputs of the constant edges of a cell: maps that depend only on the weights and the image size.

    A node with only `none` edges is zero, but a convolution's BatchNorm shifts zeros, a 3x3 convolution of the shifted
    zeros is affected by the zero padding at the border, and so on. The maps are computed as in the plain cell.
    """

    def __init__(self, program: CellProgram, layers: nn.ModuleList, channels: int) -> None:
        self._operations = parse(program.spec)
        self._channels = channels
        self._edges = {node.index: node.constants for node in program.nodes if node.constants}
        # An edge into a live node depends on all edges into its source, so keep every convolution of a constant node.
        constant = constant_nodes(program.spec) if self._edges else frozenset()
        self._folded = {
            edge: fold_block(layers[edge])
            for edge, (source, _) in enumerate(EDGES)
            if source in constant and self._operations[edge].startswith("nor_conv")
        }
        self._maps: dict[tuple[int, int, int], torch.Tensor] = {}

    def __contains__(self, node: int) -> bool:
        return node in self._edges

    def of(self, node: int, like: torch.Tensor) -> torch.Tensor:
        """Return the sum of a node's constant edges, (1, C, H, W), channels_last, with size, type and device of `like`.

        Type and device are the same in all calls.
        """
        height, width = like.shape[2:]
        key = (node, height, width)
        if key not in self._maps:
            total = torch.stack([self._edge(edge, height, width) for edge in self._edges[node]]).sum(dim=0)
            rounded = round_once(total, like.dtype).to(like.device)
            self._maps[key] = rounded.contiguous(memory_format=torch.channels_last)
        return self._maps[key]

    def _edge(self, edge: int, height: int, width: int) -> torch.Tensor:
        value = self._node(EDGES[edge][0], height, width)
        operation = self._operations[edge]
        if operation == "skip_connect":
            return value
        if operation == "avg_pool_3x3":
            return functional.avg_pool2d(value, 3, 1, 1, count_include_pad=False)
        weight, bias = self._folded[edge]
        return functional.conv2d(functional.relu(value), weight, bias, padding=weight.shape[-1] // 2)

    def _node(self, node: int, height: int, width: int) -> torch.Tensor:
        device = next((weight.device for weight, _ in self._folded.values()), torch.device("cpu"))
        value = torch.zeros(1, self._channels, height, width, dtype=torch.float64, device=device)
        for edge, (_, target) in enumerate(EDGES):
            if target == node and self._operations[edge] != "none":
                value = value + self._edge(edge, height, width)
        return value
