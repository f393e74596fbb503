"""Fold BatchNorm into convolution weights, and compute the maps of constant edges, both in float64.

BatchNorm in evaluation mode is y = (x - m) * g + b with g = weight / sqrt(variance + eps), so it can be folded into the
preceding convolution. Weights are folded in float64 and rounded once to the dtype of the kernels, so that the error of
a folded weight is at most half a unit in the last place.
"""

from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from robust201.networks.nb201.cells import EDGES, constant_nodes, parse
from robust201.networks.nb201.compiled.program import CellProgram


def batch_norm_affine(batch_norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale (C,) and shift (C,), float64, of a BatchNorm in evaluation mode."""
    mean, variance = cast("torch.Tensor", batch_norm.running_mean), cast("torch.Tensor", batch_norm.running_var)
    # Use NumPy's square root, which rounds correctly. PyTorch calls MKL, whose last bit depends on the processor.
    deviation = torch.from_numpy(np.sqrt((variance.double() + batch_norm.eps).cpu().numpy())).to(variance.device)
    scale = batch_norm.weight.detach().double() / deviation
    return scale, batch_norm.bias.detach().double() - mean.double() * scale


def fold(convolution: nn.Conv2d, batch_norm: nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """Fold a BatchNorm into a convolution without bias; return weight (O, I, k, k) and bias (O,), float64."""
    scale, shift = batch_norm_affine(batch_norm)
    return convolution.weight.detach().double() * scale.view(-1, 1, 1, 1), shift


def fold_block(block: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Fold the convolution and BatchNorm of a block that starts with a ReLU (see `fold`)."""
    _, convolution, batch_norm = block.op  # type: ignore[misc]
    return fold(convolution, batch_norm)


def merge(folded: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge convolutions of the same input into one convolution; weights are (O, I, k, k) with odd k, biases (O,).

    Smaller kernels are padded with zeros on all sides to the largest size.
    """
    weights, biases = zip(*folded, strict=True)
    max_kernel_size = max(weight.shape[-1] for weight in weights)
    padded = [functional.pad(weight, [(max_kernel_size - weight.shape[-1]) // 2] * 4) for weight in weights]
    return torch.stack(padded).sum(dim=0), torch.stack(biases).sum(dim=0)


def round_once(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float64 to the nearest float32 or bfloat16, ties to even.

    PyTorch converts float64 to bfloat16 via float32, and therefore rounds twice: 1 + 2**-8 + 2**-30 becomes the tie 1 +
    2**-8, and then 1, although 1 + 2**-7 is nearer. This function, too, rounds nonzero absolute values below 2**-126
    twice.
    """
    if dtype is not torch.bfloat16:
        return x.to(dtype)
    # bfloat16 keeps 7 of float64's 52 fraction bits. Adding half a unit of the last kept bit (slightly less if that bit
    # is 0) carries into it if and only if the value must be rounded up. After truncation, the conversion is exact.
    n_dropped_bits = 52 - 7
    bits = x.contiguous().view(torch.int64)
    carried_bits = bits + (2 ** (n_dropped_bits - 1) - 1) + ((bits >> n_dropped_bits) & 1)
    rounded: torch.Tensor = ((carried_bits >> n_dropped_bits) << n_dropped_bits).view(torch.float64)
    return rounded.to(torch.bfloat16)


class ConstantMaps:
    """Outputs of a cell's constant edges, which depend only on the weights and the image size.

    A node with only `none` edges is zero. But the BatchNorm after a convolution shifts zeros, and the zero padding of a
    following 3x3 convolution affects the border of the shifted map. The maps are computed as in the uncompiled cell.
    """

    def __init__(self, program: CellProgram, layers: nn.ModuleList, channels: int) -> None:
        self._operations = parse(program.spec)
        self._channels = channels
        self._edges = {node.index: node.constants for node in program.nodes if node.constants}
        # A constant edge depends on all edges into its source, so fold the convolutions on all edges from constant
        # nodes.
        constant_indices = constant_nodes(program.spec) if self._edges else frozenset()
        self._folded = {
            edge: fold_block(layers[edge])
            for edge, (source, _) in enumerate(EDGES)
            if source in constant_indices and self._operations[edge].startswith("nor_conv")
        }
        self._maps: dict[tuple[int, int, int], torch.Tensor] = {}

    def __contains__(self, node: int) -> bool:
        return node in self._edges

    def map_of(self, node: int, like: torch.Tensor) -> torch.Tensor:
        """Return the sum of a node's constant edges, (1, C, H, W), with size, dtype and device of `like`.

        All calls must have the same dtype and device, because maps are cached by size.
        """
        height, width = like.shape[2:]
        key = (node, height, width)
        if key not in self._maps:
            total = torch.stack([self._edge_map(edge, height, width) for edge in self._edges[node]]).sum(dim=0)
            rounded = round_once(total, like.dtype).to(like.device)
            self._maps[key] = rounded.contiguous(memory_format=torch.channels_last)
        return self._maps[key]

    def _edge_map(self, edge: int, height: int, width: int) -> torch.Tensor:
        source_map = self._node_map(EDGES[edge][0], height, width)
        operation = self._operations[edge]
        if operation == "skip_connect":
            return source_map
        if operation == "avg_pool_3x3":
            return functional.avg_pool2d(source_map, 3, 1, 1, count_include_pad=False)
        weight, bias = self._folded[edge]
        return functional.conv2d(functional.relu(source_map), weight, bias, padding=weight.shape[-1] // 2)

    def _node_map(self, node: int, height: int, width: int) -> torch.Tensor:
        device = next((weight.device for weight, _ in self._folded.values()), torch.device("cpu"))
        node_map = torch.zeros(1, self._channels, height, width, dtype=torch.float64, device=device)
        for edge, (_, target) in enumerate(EDGES):
            if target == node and self._operations[edge] != "none":
                node_map = node_map + self._edge_map(edge, height, width)
        return node_map
