"""The blocks of an inference network: cell and residual reduction, forward and input gradient.

A block takes and gives a `Value`: a feature map as it is, after its ReLU, or both, whichever the reader needs. Going
forward it can note on a tape what the way back needs, the ReLU's outputs; the gradient then flows back through the
inputs only, and no weight's gradient is ever formed.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast

import torch
from torch import nn
from torch.nn import functional

from pipeline.spaces.inference.folding import ConstantMaps, fold_block, merge
from pipeline.spaces.inference.kernels import (
    AveragePooling,
    Convolution,
    Halving,
    StridedGradient,
    mask_gradient,
    transposed,
)
from pipeline.spaces.inference.program import CellProgram, Node

Tape = dict[int, torch.Tensor]
"""What one block's way back needs: node to ReLU output."""


class Needs(NamedTuple):
    """Which forms of a feature map are read."""

    raw: bool
    rectified: bool


class Value:
    """A feature map (B, C, H, W) float32 or bfloat16, channels_last, in the forms that are read.

    Args:
        raw: the map as it is; None where nobody reads it.
        rectified: its ReLU; None where nobody reads it.
    """

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
        """The map's ReLU; only where `Needs` announced it."""
        return cast("torch.Tensor", self._rectified)

    @property
    def any_form(self) -> torch.Tensor:
        """One of the forms, for its shape."""
        return self.rectified if self._raw is None else self._raw


class Block(Protocol):
    """A step of the network.

    Attributes:
        needs: which forms of its input the block reads.
    """

    needs: Needs

    def forward(self, value: Value, tape: Tape | None) -> Value:
        """Compute the block's output; with a tape, note what `backward` needs."""

    def backward(self, gradient: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Map the gradient of the output, as it is, to that of the input. `gradient` may be overwritten."""


class _Sum:
    """A sum of feature maps that knows whether it may write into the memory it holds.

    Args:
        total: what it starts with; None for nothing.
        own: whether nobody else reads the memory of `total`.
    """

    def __init__(self, total: torch.Tensor | None = None, *, own: bool = False) -> None:
        self.start = total
        self.own = own

    @property
    def total(self) -> torch.Tensor:
        """The sum so far, of something."""
        return cast("torch.Tensor", self.start)

    def put(self, total: torch.Tensor) -> None:
        """Replace the sum by a tensor of its own that has it inside."""
        self.start, self.own = total, True

    def add(self, x: torch.Tensor, *, times: int = 1) -> None:
        """Add a multiple of a tensor that others may read too."""
        if self.start is None:
            self.start, self.own = (x, False) if times == 1 else (x * times, True)
        elif self.own:
            self.start.add_(x, alpha=times)
        else:
            self.put(torch.add(self.start, x, alpha=times))


@dataclass(frozen=True)
class _NodeKernels:
    """A node's terms with their weights, each with the node it reads."""

    index: int
    needs: Needs
    poolings: list[tuple[int, AveragePooling]]
    skips: list[tuple[int, int]]
    convolutions: list[tuple[int, Convolution]]
    gradients: list[tuple[int, Convolution]]


class CellBlock:
    """A cell, run by its program.

    Args:
        program: the cell's program; its output is one of its nodes.
        layers: the plain cell's six edge modules.
        channels: width of the cell.
        device: where to compute.
        dtype: type of the feature maps.
        output: which forms of the output are read.
    """

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
        self._output = program.nodes[-1].index
        self._constants = ConstantMaps(program, layers, channels)
        self._nodes = [
            _load_node(node, layers, channels, device, dtype, _forms(program, node, output)) for node in program.nodes
        ]

    def forward(self, value: Value, tape: Tape | None) -> Value:
        """Compute the nodes in order (see `Block`)."""
        values = {0: value}
        for node in self._nodes:
            values[node.index] = self._compute(node, values)
            if tape is not None:
                tape.update({source: values[source].rectified for source, _ in node.convolutions})
        return values[self._output]

    def _compute(self, node: _NodeKernels, values: dict[int, Value]) -> Value:
        # What costs a pass of its own comes first, so that the convolutions can add it in their own passes.
        total = _Sum()
        for source, pooling in node.poolings:
            if total.start is None:
                total.put(pooling(values[source].raw))
            else:
                total.add(pooling(values[source].raw))
        for source, times in node.skips:
            total.add(values[source].raw, times=times)
        if node.index in self._constants:
            shape = values[0].any_form
            total.add(self._constants.of(node.index, shape).expand(len(shape), -1, -1, -1))
        for position, (source, convolution) in enumerate(node.convolutions, start=1):
            # The last convolution can apply the ReLU, unless the sum is read without it too.
            rectify = position == len(node.convolutions) and not node.needs.raw
            total.put(convolution(values[source].rectified, add=total.start, in_place=total.own, rectify=rectify))
            if rectify:
                return Value(None, total.total)
        return Value.of(total.total, node.needs)

    def backward(self, gradient: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Go through the nodes in reverse order (see `Block`)."""
        past_relu = {0: _Sum()} | {node.index: _Sum() for node in self._nodes}
        through_relu: dict[int, torch.Tensor] = {}
        past_relu[self._output].put(gradient)
        for node in reversed(self._nodes):
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
) -> _NodeKernels:
    """Fold and merge the weights of a node's terms."""
    merged = [
        (term.source, *merge(fold_block(layers[edge]) for edge in term.convolutions))
        for term in node.terms
        if term.convolutions
    ]
    return _NodeKernels(
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
    """The residual reduction: halves the image, doubles the channels.

    Args:
        block: the plain block.
        device: where to compute.
        dtype: type of the feature maps.
        output: which forms of the output are read.
    """

    def __init__(self, block: nn.Module, *, device: torch.device, dtype: torch.dtype, output: Needs) -> None:
        self.needs = Needs(raw=True, rectified=True)
        self._output = output
        first = fold_block(cast("nn.Module", block.conv_a))
        second = fold_block(cast("nn.Module", block.conv_b))
        down = cast("nn.Conv2d", cast("nn.Sequential", block.downsample)[1]).weight.detach().double()
        self._first = Convolution(*first, device=device, dtype=dtype, stride=2)
        self._second = Convolution(*second, device=device, dtype=dtype)
        self._halving = Halving(down.shape[1], device=device, dtype=dtype)
        self._down = Convolution(down, None, device=device, dtype=dtype)
        self._first_gradient = StridedGradient(first[0], device=device, dtype=dtype)
        self._second_gradient = Convolution(transposed(second[0]), None, device=device, dtype=dtype)
        self._down_gradient = Convolution(transposed(down) / 4, None, device=device, dtype=dtype)

    def forward(self, value: Value, tape: Tape | None) -> Value:
        """Compute both branches (see `Block`)."""
        hidden = self._first(value.rectified, rectify=True)
        shortcut = self._down(self._halving(value.raw))
        if tape is not None:
            tape.update({0: value.rectified, 1: hidden})
        rectify = not self._output.raw
        result = self._second(hidden, add=shortcut, in_place=True, rectify=rectify)
        return Value(None, result) if rectify else Value.of(result, self._output)

    def backward(self, gradient: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Go back through both branches (see `Block`)."""
        hidden = mask_gradient(self._second_gradient(gradient), tape[1])
        total = mask_gradient(self._first_gradient(hidden), tape[0])
        return total.add_(self._halving.backward(self._down_gradient(gradient)))
