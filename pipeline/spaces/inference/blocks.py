"""The blocks of an inference network: cell and residual reduction, forward and input gradient.

A block takes and gives a `Value`: a feature map as it is, after its ReLU, or both, whichever the reader needs. Going
forward it can note on a tape what the way back needs, the ReLU's outputs; the gradient then flows back through the
inputs only, and no weight's gradient is ever formed.
"""

from typing import NamedTuple, Protocol

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
from pipeline.spaces.inference.program import CellProgram, Node, Term

Tape = dict[int, torch.Tensor]
"""What one block's way back needs: node to ReLU output."""


class Needs(NamedTuple):
    """Which forms of a feature map are read."""

    raw: bool
    rectified: bool


class Value(NamedTuple):
    """A feature map (B, C, H, W) float32, channels_last: as it is and after its ReLU; None where nobody reads it."""

    raw: torch.Tensor | None
    rectified: torch.Tensor | None

    @classmethod
    def of(cls, raw: torch.Tensor, needs: Needs) -> "Value":
        """Make the forms that are needed."""
        return cls(raw if needs.raw else None, functional.relu(raw) if needs.rectified else None)


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


class _Summand:
    """The kernels of one term of a node."""

    def __init__(self, term: Term, layers: nn.ModuleList, channels: int, device: torch.device) -> None:
        self.source = term.source
        self.skips = term.skips
        self.pooling = AveragePooling(channels, term.pools, device=device) if term.pools else None
        self.convolution: Convolution | None = None
        self.gradient: Convolution | None = None
        if term.convolutions:
            weight, bias = merge(fold_block(layers[edge]) for edge in term.convolutions)
            self.convolution = Convolution(weight, bias, device=device)
            self.gradient = Convolution(transposed(weight), None, device=device)


class _Accumulator:
    """A sum that knows whether it may write into the memory it holds."""

    def __init__(self) -> None:
        self.total: torch.Tensor | None = None
        self.own = False

    def put(self, total: torch.Tensor, *, own: bool = True) -> None:
        """Replace the sum; `own` says that nobody else reads its memory."""
        self.total, self.own = total, own

    def add(self, x: torch.Tensor, *, times: int = 1, own: bool = False) -> None:
        """Add a multiple of a tensor; `own` says that nobody else reads its memory."""
        if self.total is None:
            self.put(x if times == 1 else x * times, own=own or times != 1)
        elif self.own:
            self.total.add_(x, alpha=times)
        else:
            self.put(torch.add(self.total, x, alpha=times))


class CellBlock:
    """A cell, run by its program.

    Args:
        program: the cell's program; its output is an inner node.
        layers: the plain cell's six edge modules.
        channels: width of the cell.
        device: where to compute.
        output: which forms of the output are read.
    """

    def __init__(
        self, program: CellProgram, layers: nn.ModuleList, channels: int, *, device: torch.device, output: Needs
    ) -> None:
        self.needs = Needs(program.reads_raw(0), program.reads_rectified(0))
        assert program.output, "a cell that passes its input on, or a constant, is no block"
        self._output = program.output
        self._constants = ConstantMaps(program, layers, channels)
        self._nodes: list[tuple[int, list[_Summand], Needs]] = []
        for node in program.nodes:
            summands = [_Summand(term, layers, channels, device) for term in node.terms]
            self._nodes.append((node.index, summands, _forms(program, node, output)))

    def forward(self, value: Value, tape: Tape | None) -> Value:
        """Compute the nodes in order (see `Block`)."""
        values = {0: value}
        for index, summands, needs in self._nodes:
            values[index] = self._compute(index, summands, needs, values)
        if tape is not None:
            tape.update({node: known.rectified for node, known in values.items() if known.rectified is not None})
        return values[self._output]

    def _compute(self, index: int, summands: list[_Summand], needs: Needs, values: dict[int, Value]) -> Value:
        total = _Accumulator()
        for summand in summands:
            raw = values[summand.source].raw
            if summand.pooling is not None:
                assert raw is not None
                total.add(summand.pooling(raw), own=True)
        for summand in summands:
            raw = values[summand.source].raw
            if summand.skips:
                assert raw is not None
                total.add(raw, times=summand.skips)
        if index in self._constants:
            known = next(form for form in values[summands[0].source] if form is not None)
            constant = self._constants.of(index, known)
            total.add(constant.expand(len(known), -1, -1, -1))
        convolutions = [(s.convolution, values[s.source].rectified) for s in summands if s.convolution is not None]
        for position, (convolution, rectified) in enumerate(convolutions):
            assert rectified is not None
            if position == len(convolutions) - 1 and not needs.raw:
                return Value(None, convolution(rectified, add=total.total, in_place=total.own, rectify=True))
            total.put(convolution(rectified, add=total.total, in_place=total.own))
        assert total.total is not None
        return Value.of(total.total, needs)

    def backward(self, gradient: torch.Tensor, tape: Tape) -> torch.Tensor:
        """Go through the nodes in reverse order (see `Block`)."""
        linear = {0: _Accumulator()} | {index: _Accumulator() for index, _, _ in self._nodes}
        rectified: dict[int, torch.Tensor] = {}
        linear[self._output].put(gradient)
        for index, summands, _ in reversed(self._nodes):
            arrived = _join(linear[index], rectified.get(index), tape.get(index))
            for summand in summands:
                source = summand.source
                if summand.gradient is not None:
                    known = rectified.get(source)
                    rectified[source] = summand.gradient(arrived, add=known, in_place=known is not None)
                if summand.pooling is not None:
                    onto = linear[source]
                    onto.put(summand.pooling.backward(arrived, add=onto.total, in_place=onto.own))
                if summand.skips:
                    linear[source].add(arrived, times=summand.skips)
        return _join(linear[0], rectified.get(0), tape.get(0))


def _forms(program: CellProgram, node: Node, output: Needs) -> Needs:
    """Which forms of a node are read, inside the cell or behind it."""
    is_output = node.index == program.output
    return Needs(
        program.reads_raw(node.index) or (is_output and output.raw),
        program.reads_rectified(node.index) or (is_output and output.rectified),
    )


def _join(linear: _Accumulator, through_relu: torch.Tensor | None, rectified: torch.Tensor | None) -> torch.Tensor:
    """Add what reached a node past its ReLU and through it."""
    if through_relu is None:
        assert linear.total is not None
        return linear.total
    assert rectified is not None
    masked = mask_gradient(through_relu, rectified)
    return masked if linear.total is None else masked.add_(linear.total)


class ReductionBlock:
    """The residual reduction: halves the image, doubles the channels.

    Args:
        block: the plain block.
        device: where to compute.
        output: which forms of the output are read.
    """

    def __init__(self, block: nn.Module, *, device: torch.device, output: Needs) -> None:
        self.needs = Needs(raw=True, rectified=True)
        self._output = output
        first, second = fold_block(block.conv_a), fold_block(block.conv_b)  # type: ignore[arg-type]
        down = block.downsample[1].weight.detach().double()  # type: ignore[index, union-attr, operator]
        self._first = Convolution(*first, device=device, stride=2)
        self._second = Convolution(*second, device=device)
        self._halving = Halving(down.shape[1], device=device)
        self._down = Convolution(down, None, device=device)
        self._first_gradient = StridedGradient(first[0], device=device)
        self._second_gradient = Convolution(transposed(second[0]), None, device=device)
        self._down_gradient = Convolution(transposed(down) / 4, None, device=device)

    def forward(self, value: Value, tape: Tape | None) -> Value:
        """Compute both branches (see `Block`)."""
        assert value.raw is not None and value.rectified is not None
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
