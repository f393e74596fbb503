"""The blocks of an inference network: cell and residual reduction, forward and input gradient.

A block takes and gives a `Value`: a feature map as it is, after its ReLU, or both, whichever the reader needs. Going
forward it can note on a tape what the way back needs, the ReLU's outputs; the gradient then flows back through the
inputs only, and no weight's gradient is ever formed.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import nn
from torch.nn import functional

from robust201.spaces.nasbench201.compiled.folding import ConstantMaps, fold_block, merge
from robust201.spaces.nasbench201.compiled.kernels import (
    AveragePooling,
    Convolution,
    Halving,
    StridedGradient,
    mask_gradient,
    transposed,
)
from robust201.spaces.nasbench201.compiled.program import CellProgram, Node

Tape = dict[int, torch.Tensor]
"""What one block's way back needs: node to ReLU output."""


class Needs(NamedTuple):
    """Which forms of a feature map are read."""

    raw: bool
    rectified: bool


class Value:
    """A feature map (B, C, H, W) float32 or bfloat16, channels_last, as it is and after its ReLU; None where unread."""

    def __init__(self, raw: torch.Tensor | None, rectified: torch.Tensor | None) -> None:
        self._raw = raw
        self._rectified = rectified

    @classmethod
    def of(cls, raw: torch.Tensor, needs: Needs) -> "Value":
        """Make the forms that are needed of a map as it is."""
        return cls(raw if needs.raw else None, functional.relu(raw) if needs.rectified else None)

    @property
    def raw(self) -> torch.Tensor:
        """The map as it is; only where `Needs` announced it."""
        return cast("torch.Tensor", self._raw)

    @property
    def rectified(self) -> torch.Tensor:
        return cast("torch.Tensor", self._rectified)

    @property
    def any_form(self) -> torch.Tensor:
        return self.rectified if self._raw is None else self._raw


class _Sum:
    """A sum of feature maps that knows whether it may write into the memory it holds."""

    def __init__(self, total: torch.Tensor | None = None, *, own: bool = False) -> None:
        self.start = total
        self.own = own

    @property
    def total(self) -> torch.Tensor:
        return cast("torch.Tensor", self.start)

    def put(self, total: torch.Tensor) -> None:
        self.start, self.own = total, True

    def add(self, x: torch.Tensor, *, times: int = 1) -> None:
        if self.start is None:
            self.start, self.own = (x, False) if times == 1 else (x * times, True)
        elif self.own:
            self.start.add_(x, alpha=times)
        else:
            self.put(torch.add(self.start, x, alpha=times))


@dataclass(frozen=True)
class NodeKernels:
    """A node's terms with their weights, each with the node it reads.

    Attributes:
        index: number of the node.
        needs: which forms of it are read.
        poolings: source and kernel of each pooling.
        skips: source of each skip connection, and how many times it is added.
        convolutions: source and kernel of each convolution of the source's ReLU.
        gradients: source and input gradient of each convolution.
    """

    index: int
    needs: Needs
    poolings: list[tuple[int, AveragePooling]]
    skips: list[tuple[int, int]]
    convolutions: list[tuple[int, Convolution]]
    gradients: list[tuple[int, Convolution]]


class MapReader:
    """How the terms of a node read whole feature maps; `local` reads windows of them."""

    def __init__(self, values: dict[int, Value], constants: ConstantMaps) -> None:
        self._values = values
        self._constants = constants

    def pool(self, source: int, pooling: AveragePooling) -> torch.Tensor:
        """Pool a node's value into memory of its own."""
        return pooling(self._values[source].raw)

    def raw(self, source: int) -> torch.Tensor:
        """Return a node's value as it is; others may read it too."""
        return self._values[source].raw

    def constant(self, node: int) -> torch.Tensor | None:
        """Return what constant edges bring to a node; None for nothing."""
        if node not in self._constants:
            return None
        shape = self._values[0].any_form
        return self._constants.of(node, shape).expand(len(shape), -1, -1, -1)

    def convolve(
        self, source: int, convolution: Convolution, *, add: torch.Tensor | None, in_place: bool, rectify: bool
    ) -> torch.Tensor:
        """Convolve a node's ReLU (see `Convolution`)."""
        return convolution(self._values[source].rectified, add=add, in_place=in_place, rectify=rectify)


def compute_node(node: NodeKernels, reader: MapReader) -> Value:
    """Sum a node's terms, in one order whatever part of the maps is read, so that it gives the same bits."""
    # What costs a pass of its own comes first, so that the convolutions can add it in their own passes.
    total = _Sum()
    for source, pooling in node.poolings:
        if total.start is None:
            total.put(reader.pool(source, pooling))
        else:
            total.add(reader.pool(source, pooling))
    for source, times in node.skips:
        total.add(reader.raw(source), times=times)
    constant = reader.constant(node.index)
    if constant is not None:
        total.add(constant)
    for position, (source, convolution) in enumerate(node.convolutions, start=1):
        # The last convolution can apply the ReLU, unless the sum is read without it too.
        rectify = position == len(node.convolutions) and not node.needs.raw
        total.put(reader.convolve(source, convolution, add=total.start, in_place=total.own, rectify=rectify))
        if rectify:
            return Value(None, total.total)
    return Value.of(total.total, node.needs)


class CellBlock:
    """A cell, run by its program, one of whose nodes is its output; `output` says which forms of it are read."""

    def __init__(
        self,
        program: CellProgram,
        layers: nn.ModuleList,
        channels: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        output: Needs,
    ) -> None:
        self.needs = Needs(program.reads_raw(0), program.reads_rectified(0))
        self.output = program.nodes[-1].index
        self.constants = ConstantMaps(program, layers, channels)
        self.nodes = [
            _load_node(node, layers, channels, device, dtype, _forms(program, node, output)) for node in program.nodes
        ]

    def forward(self, value: Value, tape: Tape | None) -> Value:
        values = self.compute(value)
        if tape is not None:
            tape.update({source: values[source].rectified for node in self.nodes for source, _ in node.convolutions})
        return values[self.output]

    def compute(self, value: Value) -> dict[int, Value]:
        """Compute the nodes in order; the input is node 0."""
        values = {0: value}
        for node in self.nodes:
            values[node.index] = compute_node(node, MapReader(values, self.constants))
        return values

    def backward(self, gradient: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Map the gradient of the output, as it is, to that of the input. `gradient` may be overwritten."""
        past_relu = {0: _Sum()} | {node.index: _Sum() for node in self.nodes}
        through_relu: dict[int, torch.Tensor] = {}
        past_relu[self.output].put(gradient)
        for node in reversed(self.nodes):
            arrived = _join(past_relu[node.index], through_relu.get(node.index), tape.get(node.index))
            for source, kernel in node.gradients:
                known = through_relu.get(source)
                through_relu[source] = kernel(arrived.total, add=known, in_place=known is not None)
            # Pooling's way back scales the border; in place where nobody reads the gradient afterwards.
            consume = arrived.own and len(node.poolings) == 1 and not node.skips
            for source, pooling in node.poolings:
                onto = past_relu[source]
                onto.put(pooling.backward(arrived.total, consume=consume, add=onto.start, in_place=onto.own))
            for source, times in node.skips:
                past_relu[source].add(arrived.total, times=times)
        return _join(past_relu[0], through_relu.get(0), tape.get(0)).total


def _load_node(
    node: Node, layers: nn.ModuleList, channels: int, device: torch.device, dtype: torch.dtype, needs: Needs
) -> NodeKernels:
    """Fold and merge the weights of a node's terms."""
    merged = [
        (term.source, *merge(fold_block(layers[edge]) for edge in term.convolutions))
        for term in node.terms
        if term.convolutions
    ]
    return NodeKernels(
        node.index,
        needs,
        [
            (term.source, AveragePooling(channels, term.pools, device=device, dtype=dtype))
            for term in node.terms
            if term.pools
        ],
        [(term.source, term.skips) for term in node.terms if term.skips],
        [(source, Convolution(weight, bias, device=device, dtype=dtype)) for source, weight, bias in merged],
        [(source, Convolution(transposed(weight), None, device=device, dtype=dtype)) for source, weight, _ in merged],
    )


def _forms(program: CellProgram, node: Node, output: Needs) -> Needs:
    """Which forms of a node are read, inside the cell or behind it."""
    is_output = node.index == program.output
    return Needs(
        program.reads_raw(node.index) or (is_output and output.raw),
        program.reads_rectified(node.index) or (is_output and output.rectified),
    )


def _join(past_relu: _Sum, through_relu: torch.Tensor | None, rectified: torch.Tensor | None) -> _Sum:
    """Add the gradients that reached a node past its ReLU and through it."""
    if through_relu is None or rectified is None:
        return past_relu
    joined = _Sum(mask_gradient(through_relu, rectified), own=True)
    if past_relu.start is not None:
        joined.add(past_relu.start)
    return joined


class ReductionBlock:
    """The residual reduction: halves the image, doubles the channels."""

    def __init__(self, block: nn.Module, *, device: torch.device, dtype: torch.dtype, output: Needs) -> None:
        self.needs = Needs(raw=True, rectified=True)
        self.output = output
        first = fold_block(cast("nn.Module", block.conv_a))
        second = fold_block(cast("nn.Module", block.conv_b))
        down = cast("nn.Conv2d", cast("nn.Sequential", block.downsample)[1]).weight.detach().double()
        self.first = Convolution(*first, device=device, dtype=dtype, stride=2)
        self.second = Convolution(*second, device=device, dtype=dtype)
        self.halving = Halving(down.shape[1], device=device, dtype=dtype)
        self.down = Convolution(down, None, device=device, dtype=dtype)
        self._first_gradient = StridedGradient(first[0], device=device, dtype=dtype)
        self._second_gradient = Convolution(transposed(second[0]), None, device=device, dtype=dtype)
        self._down_gradient = Convolution(transposed(down) / 4, None, device=device, dtype=dtype)

    @property
    def gradients(self) -> tuple[Convolution, torch.Tensor, Convolution]:
        """What the way back takes: the second convolution's, the first one's weight (O, I, 3, 3), the shortcut's."""
        return self._second_gradient, self._first_gradient.weight, self._down_gradient

    def forward(self, value: Value, tape: Tape | None) -> Value:
        hidden = self.first(value.rectified, rectify=True)
        shortcut = self.down(self.halving(value.raw))
        if tape is not None:
            tape.update({0: value.rectified, 1: hidden})
        rectify = not self.output.raw
        result = self.second(hidden, add=shortcut, in_place=True, rectify=rectify)
        return Value(None, result) if rectify else Value.of(result, self.output)

    def backward(self, gradient: torch.Tensor, tape: Tape) -> torch.Tensor:
        hidden = mask_gradient(self._second_gradient(gradient), tape[1])
        total = mask_gradient(self._first_gradient(hidden), tape[0])
        return total.add_(self.halving.backward(self._down_gradient(gradient)))


Block = CellBlock | ReductionBlock
