"""Conversion of a network's blocks to a list of operations for native.c, forward and backward.

Maps in the list are virtual: every operation writes new ones. `arena.py` assigns memory to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict, Unpack, cast

import torch

from robust201.spaces.nasbench201.compiled import native
from robust201.spaces.nasbench201.compiled.blocks import Block, CellBlock, Needs, NodeKernels, ReductionBlock
from robust201.spaces.nasbench201.compiled.kernels import Convolution

_LANES = native.LANES

PIXELS, FEATURES, FEATURES_GRADIENT, PIXELS_GRADIENT = range(4)
"""Numbers of the caller's tensors among the externals; constants follow."""

N_CALLERS = 4


@dataclass(eq=False)
class Map:
    """A feature map of one image, (height, width, channels) with a border of zeros.

    Attributes:
        external: number of the caller's tensor; None for a map in the arena.
        row, pixel, plane: floats from one row, pixel or channel to the next.
    """

    height: int
    width: int
    channels: int
    external: int | None = None
    row: int = 0
    pixel: int = 0
    plane: int = 1

    def __post_init__(self) -> None:
        self.pixel = self.pixel or self.channels
        self.row = self.row or self.pixel * (self.width + (2 if self.external is None else 0))

    @property
    def first(self) -> int:
        """Number of floats before the first pixel."""
        return self.row + self.pixel if self.external is None else 0

    @property
    def floats(self) -> int:
        return self.row * (self.height + 2)


@dataclass
class MapView:
    """First pixel of an operation in a map, and the step between its pixels."""

    map: Map
    y: int = 0
    x: int = 0
    step: int = 1


class Outputs(TypedDict, total=False):
    """Destinations of an operation's sum, raw and rectified."""

    raw: MapView | None
    rectified: MapView | None


class Masks(TypedDict, total=False):
    """ReLU output that masks an operation's sum, and the map that is added afterwards."""

    tape: MapView | None
    past: MapView | None


class Ends(Outputs, Masks, total=False):
    """Final steps of an operation on its sum, in order: add, mask, add, write."""

    add: MapView | None


@dataclass
class Operation:
    """One operation (see native.c); height and width are those of its output."""

    kind: int
    height: int
    width: int
    outputs: int
    sources: list[MapView]
    inputs: int = 0
    step: int = 1
    taps: list[tuple[int, int]] = field(default_factory=list)
    plane: int = 0
    n_pools: int = 0
    scaled: int = 0
    add: MapView | None = None
    tape: MapView | None = None
    past: MapView | None = None
    raw: MapView | None = None
    rectified: MapView | None = None
    weights: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    factors: list[float] = field(default_factory=list)

    def reads(self) -> list[Map]:
        return [view.map for view in (*self.sources, self.add, self.tape, self.past) if view]

    def writes(self) -> list[Map]:
        return [view.map for view in (self.raw, self.rectified) if view]


class Forms:
    """A feature map in the needed forms, raw and rectified."""

    def __init__(self, like: tuple[int, int, int], needs: Needs, raw: Map | None = None) -> None:
        self.shape = like
        self._raw = (raw or Map(*like)) if needs.raw else None
        self._rectified = Map(*like) if needs.rectified else None

    @property
    def raw(self) -> Map:
        return cast("Map", self._raw)

    @property
    def rectified(self) -> Map:
        return cast("Map", self._rectified)

    @property
    def ends(self) -> "Outputs":
        return {
            "raw": None if self._raw is None else MapView(self._raw),
            "rectified": None if self._rectified is None else MapView(self._rectified),
        }


class _Gradient:
    """The gradient of a node's raw form; `owned` is as in `blocks._Sum`, because it affects a rounding."""

    def __init__(self, total: Map | None = None, *, owned: bool = False) -> None:
        self.total = total
        self.owned = owned


@dataclass
class _LastConvolution:
    """The latest convolution towards a node's ReLU, appended once it is known whether it also masks.

    Attributes:
        source: the gradient to convolve.
        added: sum of the earlier convolutions, if any.
    """

    kernel: Convolution
    source: Map
    added: Map | None


@dataclass
class _SavedForward:
    """ReLU outputs by node, and shape of the input, for a block's backward pass."""

    tape: dict[int, Map]
    height: int
    width: int
    channels: int


def fits(blocks: Sequence[Block], *convolutions: Convolution) -> bool:
    """Return whether the structures of native.c can represent these blocks and further convolutions."""
    cells = [block for block in blocks if isinstance(block, CellBlock)]
    nodes = [(block, node) for block in cells for node in block.nodes]
    n_constants = sum(node.index in block.constants for block, node in nodes)
    sources = (len(node.poolings) + len(node.skips) + (node.index in block.constants) for block, node in nodes)
    inner = (kernel for _, node in nodes for _, kernel in (*node.convolutions, *node.gradients))
    taps = (kernel.parameters[0][0, 0].numel() for kernel in (*convolutions, *inner))
    return (
        N_CALLERS + n_constants <= native.N_EXTERNALS
        and max(sources, default=0) <= native.MAX_SOURCES
        and max(taps, default=0) <= native.MAX_TAPS
    )


class OperationList:
    """Operations in execution order, split into segments; each segment runs on one group of images after another."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.segments: list[tuple[int, int]] = []  # first operation, height of the maps
        self.constants: list[torch.Tensor] = []  # externals after the caller's (see `External`)
        self._saved: list[_SavedForward] = []

    def begin(self, height: int) -> None:
        self.segments.append((len(self.operations), height))

    # --- operations ---------------------------------------------------------------------------------------------------

    def _convolve(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        source: Map,
        taps: list[tuple[int, int]],
        size: tuple[int, int],
        step: int = 1,
        **ends: Unpack[Ends],
    ) -> None:
        """Append a convolution, (outputs, inputs, taps), with an output of a given size."""
        n_outputs, n_inputs, n_taps = weight.shape
        n_blocks = -(-n_outputs // _LANES)
        padded = weight.new_zeros(n_blocks * _LANES, n_inputs, n_taps)
        padded[:n_outputs] = weight
        packed = padded.view(n_blocks, _LANES, n_inputs, n_taps).permute(0, 3, 2, 1).contiguous()
        self.operations.append(
            Operation(
                native.CONVOLVE,
                *size,
                n_blocks * _LANES,
                [MapView(source)],
                inputs=n_inputs,
                step=step,
                taps=taps,
                weights=packed,
                bias=bias,
                **ends,
            )
        )

    def _apply(
        self, convolution: Convolution, source: Map, size: tuple[int, int], step: int = 1, **ends: Unpack[Ends]
    ) -> None:
        weight, bias, padding = convolution.parameters
        side = weight.shape[-1]
        taps = [(y - padding, x - padding) for y in range(side) for x in range(side)]
        self._convolve(weight.flatten(2), bias, source, taps, size, step, **ends)

    def _sum(
        self,
        shape: tuple[int, int, int],
        pools: Sequence[tuple[Map, float]],
        others: Sequence[tuple[Map, float]],
        *,
        border: bool,
        **ends: Unpack[Ends],
    ) -> None:
        sources = [*pools, *others]
        self.operations.append(
            Operation(
                native.SUM,
                *shape,
                [MapView(source) for source, _ in sources],
                n_pools=len(pools),
                scaled=int(border),
                factors=[factor for _, factor in sources],
                **ends,
            )
        )

    # --- forward ------------------------------------------------------------------------------------------------------

    def enter(self, pixels: Map, mean: torch.Tensor, stem: Convolution, needs: Needs) -> Forms:
        """Append the operations from the pixels to the first block."""
        height, width = pixels.height, pixels.width
        centred = Map(height, width, 3)
        self.operations.append(
            Operation(
                native.LOAD, height, width, 3, [MapView(pixels)], plane=pixels.plane, bias=mean, raw=MapView(centred)
            )
        )
        value = Forms((height, width, stem.parameters[0].shape[0]), needs)
        self._apply(stem, centred, (height, width), **value.ends)
        return value

    def forward(self, block: Block, value: Forms, onto: Map | None) -> Forms:
        """Append a block; its raw output is written `onto` a map, if given."""
        if isinstance(block, ReductionBlock):
            return self._reduce(block, value, onto)
        return self._cell(block, value, onto)

    def _cell(self, block: CellBlock, value: Forms, onto: Map | None) -> Forms:
        shape = value.shape
        values = {0: value}
        for node in block.nodes:
            result = Forms(shape, node.needs, onto if node.index == block.output else None)
            self._node(node, values, self._constant(block, node, shape), result, shape)
            values[node.index] = result
        tape = {source: values[source].rectified for node in block.nodes for source, _ in node.convolutions}
        self._saved.append(_SavedForward(tape, *shape))
        return values[block.output]

    def _constant(self, block: CellBlock, node: NodeKernels, shape: tuple[int, int, int]) -> Map | None:
        if node.index not in block.constants:
            return None
        height, width, channels = shape
        constant = block.constants.of(node.index, torch.empty(1, channels, height, width))
        self.constants.append(constant)
        return Map(*shape, external=N_CALLERS + len(self.constants) - 1)

    def _node(
        self,
        node: NodeKernels,
        values: dict[int, Forms],
        constant: Map | None,
        result: Forms,
        shape: tuple[int, int, int],
    ) -> None:
        """Append a node's sum, in the order of `blocks.compute_node`."""
        pools = [(values[source].raw, pooling.weight) for source, pooling in node.poolings]
        others = [(values[source].raw, float(times)) for source, times in node.skips]
        if constant is not None:
            others.append((constant, 1.0))
        total: MapView | None = None
        if not node.convolutions:
            self._sum(shape, pools, others, border=True, **result.ends)
        elif not pools and len(others) == 1 and others[0][1] == 1:
            total = MapView(others[0][0])
        elif pools or others:
            total = MapView(Map(*shape))
            self._sum(shape, pools, others, border=True, raw=total)
        for position, (source, convolution) in enumerate(node.convolutions, start=1):
            rectified = values[source].rectified
            if position == len(node.convolutions):
                self._apply(convolution, rectified, shape[:2], add=total, **result.ends)
            else:
                partial = MapView(Map(*shape))
                self._apply(convolution, rectified, shape[:2], add=total, raw=partial)
                total = partial

    def _reduce(self, block: ReductionBlock, value: Forms, onto: Map | None) -> Forms:
        raw, rectified = value.raw, value.rectified
        half = raw.height // 2, raw.width // 2
        shape = (*half, 2 * raw.channels)
        hidden, small, shortcut = Map(*shape), Map(*half, raw.channels), Map(*shape)
        self._apply(block.first, rectified, half, 2, rectified=MapView(hidden))
        self.operations.append(Operation(native.HALVE, *half, raw.channels, [MapView(raw)], raw=MapView(small)))
        self._apply(block.down, small, half, raw=MapView(shortcut))
        result = Forms(shape, block.output, onto)
        self._apply(block.second, hidden, half, add=MapView(shortcut), **result.ends)
        self._saved.append(_SavedForward({0: rectified, 1: hidden}, raw.height, raw.width, raw.channels))
        return result

    # --- backward -----------------------------------------------------------------------------------------------------

    def start_back(self, gradient: Map) -> Map:
        """Append a copy, with a border, of the gradient of the last block's output."""
        shape = (gradient.height, gradient.width, gradient.channels)
        bordered = Map(*shape)
        self._sum(shape, [], [(gradient, 1.0)], border=False, raw=MapView(bordered))
        return bordered

    def backward(self, block: Block, gradient: Map) -> Map:
        """Append the backward pass of the last appended block that does not have one yet."""
        saved = self._saved.pop()
        if isinstance(block, ReductionBlock):
            return self._reduce_back(block, gradient, saved)
        return self._cell_back(block, gradient, saved)

    def _cell_back(self, block: CellBlock, gradient: Map, saved: _SavedForward) -> Map:
        shape = (gradient.height, gradient.width, gradient.channels)
        past = {0: _Gradient()} | {node.index: _Gradient() for node in block.nodes}
        through: dict[int, _LastConvolution] = {}
        past[block.output] = _Gradient(gradient, owned=True)
        for node in reversed(block.nodes):
            node_gradient = self._join(past[node.index], through.get(node.index), saved.tape.get(node.index))
            total = cast("Map", node_gradient.total)
            for source, kernel in node.gradients:
                earlier = through.get(source)
                through[source] = _LastConvolution(
                    kernel, total, None if earlier is None else self._apply_last(earlier)
                )
            if node.poolings:
                in_place = node_gradient.owned and len(node.poolings) == 1 and not node.skips
                scaled = Map(*shape)
                self.operations.append(
                    Operation(native.SCALE, *shape, [MapView(total)], scaled=2 if in_place else 1, raw=MapView(scaled))
                )
                for source, pooling in node.poolings:
                    previous, target = past[source].total, Map(*shape)
                    others = [(previous, 1.0)] if previous else []
                    self._sum(shape, [(scaled, pooling.weight)], others, border=False, raw=MapView(target))
                    past[source] = _Gradient(target, owned=True)
            for source, times in node.skips:
                previous = past[source].total
                if previous is None and times == 1:
                    past[source] = _Gradient(total)
                    continue
                target = Map(*shape)
                others = [*([(previous, 1.0)] if previous else []), (total, float(times))]
                self._sum(shape, [], others, border=False, raw=MapView(target))
                past[source] = _Gradient(target, owned=True)
        return cast("Map", self._join(past[0], through.get(0), saved.tape.get(0)).total)

    def _join(self, past: _Gradient, through: _LastConvolution | None, tape: Map | None) -> _Gradient:
        """Append the masking of a node's rectified gradient, and the addition of its raw gradient."""
        if through is None or tape is None:
            return past
        masks: Masks = {"tape": MapView(tape), "past": None if past.total is None else MapView(past.total)}
        return _Gradient(self._apply_last(through, **masks), owned=True)

    def _apply_last(self, last: _LastConvolution, **masks: Unpack[Masks]) -> Map:
        source, added = last.source, last.added
        onto = Map(source.height, source.width, source.channels)
        size, add = (source.height, source.width), None if added is None else MapView(added)
        self._apply(last.kernel, source, size, add=add, raw=MapView(onto), **masks)
        return onto

    def _reduce_back(self, block: ReductionBlock, gradient: Map, saved: _SavedForward) -> Map:
        tape, half = saved.tape, (gradient.height, gradient.width)
        hidden, down = Map(*half, gradient.channels), Map(*half, saved.channels)
        second, first, shortcut = block.gradients
        self._apply(second, gradient, half, tape=MapView(tape[1]), raw=MapView(hidden))
        self._apply(shortcut, gradient, half, raw=MapView(down))
        onto = Map(saved.height, saved.width, saved.channels)
        # Input row 2i is multiplied by kernel row 1 for output row i, and row 2i + 1 by rows 0 and 2 for i + 1 and i;
        # columns likewise. oneDNN sums each column of the kernel first, and then the column sums.
        kernel_rows = (((1, 0),), ((0, 1), (2, 0)))
        for odd_row, rows in enumerate(kernel_rows):
            for odd_column, columns in enumerate(kernel_rows):
                view = MapView(onto, odd_row, odd_column, 2)
                masks: Masks = {"tape": MapView(tape[0], odd_row, odd_column, 2), "past": MapView(down)}
                for column, x in columns:
                    is_last = column == columns[-1][0]
                    self._convolve(
                        torch.stack([first[:, :, row, column].t() for row, _ in rows], dim=2),
                        None,
                        hidden,
                        [(y, x) for _, y in rows],
                        half,
                        add=None if column == columns[0][0] else view,
                        raw=view,
                        **(masks if is_last else Masks()),
                    )
        return onto

    def leave(self, gradient: Map, stem_gradient: Convolution, onto: Map) -> None:
        """Append the operations from the gradient of the stem's output to that of the pixels."""
        half = gradient.height // 2, gradient.width // 2
        blocks = Map(*half, _LANES)
        self._apply(stem_gradient, gradient, half, 2, raw=MapView(blocks))
        self.operations.append(
            Operation(
                native.SHUFFLE,
                onto.height,
                onto.width,
                onto.channels,
                [MapView(blocks)],
                plane=onto.plane,
                raw=MapView(onto),
            )
        )
