"""Forward pass and input gradient of an inference network's blocks: cells and residual reductions.

A block maps a `Value` to a `Value`: a feature map before its ReLU (raw), after it (rectified), or both, depending on
what the next block reads. The forward pass can save ReLU outputs on a tape for the backward pass, which computes
gradients of inputs only, never of weights.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional

from robust201.networks.nb201.compiled.folding import ConstantMaps, fold_block, merge
from robust201.networks.nb201.compiled.kernels import (
    AveragePooling,
    Convolution,
    StridedGradient,
    StridedPooling,
    mask_gradient,
    transpose_kernel,
)
from robust201.networks.nb201.compiled.program import CellProgram, Node

Tape = dict[int, torch.Tensor]
"""ReLU outputs by node, which the forward pass of a block saves for the backward pass."""


class NeededForms(NamedTuple):
    """The forms of a feature map that are read: raw (before the ReLU), rectified (after it), or both."""

    raw: bool
    rectified: bool


class Value:
    """A feature map (B, C, H, W), raw and rectified, in channels_last. A form is absent if nothing reads it."""

    def __init__(self, raw: torch.Tensor | None, rectified: torch.Tensor | None) -> None:
        # Nothing reads an absent form.
        self.raw, self.rectified = cast("torch.Tensor", raw), cast("torch.Tensor", rectified)
        self.any_form = self.rectified if raw is None else raw

    @classmethod
    def of(cls, raw: torch.Tensor, needed_forms: NeededForms) -> "Value":
        """Return the needed forms of a raw map."""
        return cls(raw if needed_forms.raw else None, functional.relu(raw) if needed_forms.rectified else None)


class _Sum:
    """A sum of feature maps; `is_owned` is true if additions may overwrite its memory."""

    def __init__(self, total: torch.Tensor | None = None, *, is_owned: bool = False) -> None:
        self.partial_sum = total
        self.is_owned = is_owned

    @property
    def total(self) -> torch.Tensor:
        """The sum, which must have at least one term."""
        return cast("torch.Tensor", self.partial_sum)

    def replace(self, total: torch.Tensor) -> None:
        self.partial_sum, self.is_owned = total, True

    def add(self, x: torch.Tensor, *, times: int = 1) -> None:
        if self.partial_sum is None:
            self.partial_sum, self.is_owned = (x, False) if times == 1 else (x * times, True)
        elif self.is_owned:
            self.partial_sum.add_(x, alpha=times)
        else:
            self.replace(torch.add(self.partial_sum, x, alpha=times))


@dataclass(frozen=True)
class NodeKernels:
    """Kernels of a node's terms, each with its source node.

    Attributes:
        index: number of the node.
        needed_forms: forms of the node that are read.
        poolings: source and kernel of each pooling.
        skips: source of each skip connection, and the number of times that the source is added.
        convolutions: source and kernel of each convolution of the source's ReLU.
        gradients: source of each convolution, and the convolution that computes its input gradient.
    """

    index: int
    needed_forms: NeededForms
    poolings: list[tuple[int, AveragePooling]]
    skips: list[tuple[int, int]]
    convolutions: list[tuple[int, Convolution]]
    gradients: list[tuple[int, Convolution]]


def _compute_node(node: NodeKernels, values: dict[int, Value], constants: ConstantMaps) -> Value:
    """Sum a node's terms."""
    # Terms without a convolution come first, so that convolutions can add them in the same pass.
    total = _Sum()
    for source, pooling in node.poolings:
        pooled = pooling(values[source].raw)
        if total.partial_sum is None:
            total.replace(pooled)
        else:
            total.add(pooled)
    for source, times in node.skips:
        total.add(values[source].raw, times=times)
    if node.index in constants:
        like = values[0].any_form
        total.add(constants.map_of(node.index, like).expand(len(like), -1, -1, -1))
    for position, (source, convolution) in enumerate(node.convolutions, start=1):
        # The last convolution can apply the ReLU, unless the raw sum is also read.
        rectify = position == len(node.convolutions) and not node.needed_forms.raw
        total.replace(
            convolution(values[source].rectified, add=total.partial_sum, in_place=total.is_owned, rectify=rectify)
        )
        if rectify:
            return Value(None, total.total)
    return Value.of(total.total, node.needed_forms)


class CellBlock:
    """A cell, executed according to its program. `output_forms` are the forms of its output that are read."""

    def __init__(
        self,
        program: CellProgram,
        layers: nn.ModuleList,
        channels: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        output_forms: NeededForms,
    ) -> None:
        self.needed_forms = NeededForms(program.reads_raw(0), program.reads_rectified(0))
        self.output_node = program.nodes[-1].index
        self.constants = ConstantMaps(program, layers, channels)
        self.nodes = [
            _build_node(node, layers, channels, device, dtype, _needed_forms(program, node, output_forms))
            for node in program.nodes
        ]

    def forward(self, value: Value, tape: Tape | None) -> Value:
        values = {0: value}
        for node in self.nodes:
            values[node.index] = _compute_node(node, values, self.constants)
        if tape is not None:
            tape.update({source: values[source].rectified for node in self.nodes for source, _ in node.convolutions})
        return values[self.output_node]

    def backward(self, gradient: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Return the gradient of the input, given the gradient of the raw output, which may be overwritten."""
        raw_gradients = {0: _Sum()} | {node.index: _Sum() for node in self.nodes}
        relu_gradients: dict[int, torch.Tensor] = {}
        raw_gradients[self.output_node].replace(gradient)
        for node in reversed(self.nodes):
            node_gradient = _join_gradients(
                raw_gradients[node.index], relu_gradients.get(node.index), tape.get(node.index)
            )
            for source, kernel in node.gradients:
                previous = relu_gradients.get(source)
                relu_gradients[source] = kernel(node_gradient.total, add=previous, in_place=previous is not None)
            # The backward pass of pooling scales the border, in place if the gradient is not read afterwards.
            may_overwrite = node_gradient.is_owned and len(node.poolings) == 1 and not node.skips
            for source, pooling in node.poolings:
                source_gradient = raw_gradients[source]
                source_gradient.replace(
                    pooling.backward(
                        node_gradient.total,
                        overwrite=may_overwrite,
                        add=source_gradient.partial_sum,
                        in_place=source_gradient.is_owned,
                    )
                )
            for source, times in node.skips:
                raw_gradients[source].add(node_gradient.total, times=times)
        return _join_gradients(raw_gradients[0], relu_gradients.get(0), tape.get(0)).total


def _build_node(
    node: Node,
    layers: nn.ModuleList,
    channels: int,
    device: torch.device,
    dtype: torch.dtype,
    needed_forms: NeededForms,
) -> NodeKernels:
    """Fold and merge the weights of a node's terms into kernels."""
    convolutions = [
        (term.source, *merge(fold_block(layers[edge]) for edge in term.convolutions))
        for term in node.terms
        if term.convolutions
    ]
    return NodeKernels(
        node.index,
        needed_forms,
        [
            (term.source, AveragePooling(channels, term.pools, device=device, dtype=dtype))
            for term in node.terms
            if term.pools
        ],
        [(term.source, term.skips) for term in node.terms if term.skips],
        [(source, Convolution(weight, bias, device=device, dtype=dtype)) for source, weight, bias in convolutions],
        [
            (source, Convolution(transpose_kernel(weight), None, device=device, dtype=dtype))
            for source, weight, _ in convolutions
        ],
    )


def _needed_forms(program: CellProgram, node: Node, output_forms: NeededForms) -> NeededForms:
    """Return the forms of a node that are read inside the cell or after it."""
    is_output = node.index == program.output_node
    return NeededForms(
        program.reads_raw(node.index) or (is_output and output_forms.raw),
        program.reads_rectified(node.index) or (is_output and output_forms.rectified),
    )


def _join_gradients(raw_gradient: _Sum, relu_gradient: torch.Tensor | None, rectified: torch.Tensor | None) -> _Sum:
    """Add a node's gradients through its raw form and through its ReLU, whose output is `rectified`."""
    if relu_gradient is None or rectified is None:
        return raw_gradient
    joined = _Sum(mask_gradient(relu_gradient, rectified), is_owned=True)
    if raw_gradient.partial_sum is not None:
        joined.add(raw_gradient.partial_sum)
    return joined


class ReductionBlock:
    """The residual reduction, which halves the image and doubles the channels."""

    def __init__(
        self, block: nn.Module, *, device: torch.device, dtype: torch.dtype, output_forms: NeededForms
    ) -> None:
        self.needed_forms = NeededForms(raw=True, rectified=True)
        self.output_forms = output_forms
        first = fold_block(cast("nn.Module", block.conv_a))
        second = fold_block(cast("nn.Module", block.conv_b))
        down = cast("nn.Conv2d", cast("nn.Sequential", block.downsample)[1]).weight.detach().double()
        self.first = Convolution(*first, device=device, dtype=dtype, stride=2)
        self.second = Convolution(*second, device=device, dtype=dtype)
        self.strided_pooling = StridedPooling(down.shape[1], device=device, dtype=dtype)
        self.down = Convolution(down, None, device=device, dtype=dtype)
        self._first_gradient = StridedGradient(first[0], device=device, dtype=dtype)
        self._second_gradient = Convolution(transpose_kernel(second[0]), None, device=device, dtype=dtype)
        self._down_gradient = Convolution(transpose_kernel(down) / 4, None, device=device, dtype=dtype)

    @property
    def gradients(self) -> tuple[Convolution, torch.Tensor, Convolution]:
        """Backward kernels: of the second convolution, of the first (its weight (O, I, 3, 3)), and of the shortcut."""
        return self._second_gradient, self._first_gradient.weight, self._down_gradient

    def forward(self, value: Value, tape: Tape | None) -> Value:
        hidden = self.first(value.rectified, rectify=True)
        shortcut = self.down(self.strided_pooling(value.raw))
        if tape is not None:
            tape.update({0: value.rectified, 1: hidden})
        rectify = not self.output_forms.raw
        result = self.second(hidden, add=shortcut, in_place=True, rectify=rectify)
        return Value(None, result) if rectify else Value.of(result, self.output_forms)

    def backward(self, gradient: torch.Tensor, tape: Tape) -> torch.Tensor:
        hidden = mask_gradient(self._second_gradient(gradient), tape[1])
        total = mask_gradient(self._first_gradient(hidden), tape[0])
        return total.add_(self.strided_pooling.backward(self._down_gradient(gradient)))


Block = CellBlock | ReductionBlock
