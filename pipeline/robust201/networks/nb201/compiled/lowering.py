"""Convert a network's blocks to a list of operations for native.c, for the forward and the backward pass.

Operations write to new maps, except that several add up the gradient of a strided convolution in one map. `arena`
assigns memory to the maps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict, Unpack, cast

import torch

from robust201.networks.nb201.compiled import native
from robust201.networks.nb201.compiled.blocks import Block, CellBlock, NeededForms, NodeKernels, ReductionBlock
from robust201.networks.nb201.compiled.kernels import Convolution

_LANES = native.LANES

PIXELS, FEATURES, FEATURES_GRADIENT, PIXELS_GRADIENT = range(4)
"""Indices of the caller's tensors among the external tensors (all tensors outside the arena). Sums of constant
edges (`folding.ConstantMaps`) have higher indices."""

N_CALLER_TENSORS = 4


@dataclass(eq=False)
class Map:
    """A feature map of one image, (height, width, channels). A map in the arena has a border of zeros.

    Attributes:
        external_number: index of an external tensor (`PIXELS` etc.); None for a map in the arena.
        row_stride, pixel_stride, channel_stride: number of floats between neighbouring rows, pixels and channels. By
            default, maps are channels-last and have no gaps.
    """

    height: int
    width: int
    channels: int
    external_number: int | None = None
    row_stride: int = 0
    pixel_stride: int = 0
    channel_stride: int = 1

    def __post_init__(self) -> None:
        self.pixel_stride = self.pixel_stride or self.channels
        self.row_stride = self.row_stride or self.pixel_stride * (
            self.width + (2 if self.external_number is None else 0)
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    @property
    def size(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def first_pixel(self) -> int:
        """Number of floats before the first pixel."""
        return self.row_stride + self.pixel_stride if self.external_number is None else 0

    @property
    def n_floats(self) -> int:
        """Number of floats, including the border."""
        return self.row_stride * (self.height + 2)


@dataclass
class MapView:
    """Pixels of a map that an operation uses: every `step`-th row and column, starting with row `y` and column `x`."""

    map: Map
    y: int = 0
    x: int = 0
    step: int = 1


class Outputs(TypedDict, total=False):
    """Maps to which an operation writes its sum, before (raw) and after the ReLU (rectified)."""

    raw: MapView | None
    rectified: MapView | None


class Masks(TypedDict, total=False):
    """ReLU output that masks an operation's sum (`tape`), and a map that is then added (`add_after_mask`)."""

    tape: MapView | None
    add_after_mask: MapView | None


class FinalSteps(Outputs, Masks, total=False):
    """Steps after an operation's sum, in this order: add `add`, mask with `tape`, add `add_after_mask`, and write."""

    add: MapView | None


@dataclass
class Operation:
    """One operation of native.c.

    Attributes:
        kind: the operation, such as `native.CONVOLVE`.
        height, width, output_channels: shape of the output.
        sources: the maps that are read.
        input_channels, step, taps: for a convolution, the number of input channels, the stride, and the (y, x) offset
            of the input pixel that each weight multiplies.
        channel_stride: number of floats between the colours of an image.
        n_pools: number of leading sources that are pooled before they are added.
        border_scaling: for a sum, 1 if pooled border pixels are scaled up, else 0. For `native.SCALE`, the first step
            of pooling's backward pass, 2 if rows and columns are scaled in turn, which rounds corners twice; else 1.
        add, tape, add_after_mask, raw, rectified: see `FinalSteps`.
        weights, bias: parameters of a convolution. For `native.LOAD`, `bias` is the mean that is subtracted.
        factors: for a sum, the factor of each source.
    """

    kind: int
    height: int
    width: int
    output_channels: int
    sources: list[MapView]
    input_channels: int = 0
    step: int = 1
    taps: list[tuple[int, int]] = field(default_factory=list)
    channel_stride: int = 0
    n_pools: int = 0
    border_scaling: int = 0
    add: MapView | None = None
    tape: MapView | None = None
    add_after_mask: MapView | None = None
    raw: MapView | None = None
    rectified: MapView | None = None
    weights: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    factors: list[float] = field(default_factory=list)

    def read_maps(self) -> list[Map]:
        """Return the maps that the operation reads."""
        return [view.map for view in (*self.sources, self.add, self.tape, self.add_after_mask) if view]

    def written_maps(self) -> list[Map]:
        """Return the maps that the operation writes."""
        return [view.map for view in (self.raw, self.rectified) if view]

    def maps(self) -> list[Map]:
        """Return the maps that the operation reads or writes."""
        return self.read_maps() + self.written_maps()


class MapForms:
    """A feature map, with one `Map` for each form that is read (raw, rectified, or both)."""

    def __init__(self, shape: tuple[int, int, int], needed_forms: NeededForms, raw: Map | None = None) -> None:
        self.shape = shape
        # Nothing reads an absent form.
        self.raw = cast("Map", (raw or Map(*shape)) if needed_forms.raw else None)
        self.rectified = cast("Map", Map(*shape) if needed_forms.rectified else None)
        self.outputs: Outputs = {
            "raw": MapView(self.raw) if needed_forms.raw else None,
            "rectified": MapView(self.rectified) if needed_forms.rectified else None,
        }


class _Gradient(NamedTuple):
    """The gradient of a node's raw form. `is_owned` must be the same as in `blocks._Sum`, for equal rounding."""

    total: Map | None = None
    is_owned: bool = False


class _PendingConvolution(NamedTuple):
    """The latest convolution (of `source`) that contributes to the gradient of a node's ReLU.

    It is appended to the list once it is known whether another convolution follows, because only the last one applies
    the mask. `earlier_sum` is the sum of the earlier convolutions.
    """

    kernel: Convolution
    source: Map
    earlier_sum: Map | None


class _SavedForward(NamedTuple):
    """Data for a block's backward pass: ReLU outputs by node, and the shape of the input."""

    tape: dict[int, Map]
    shape: tuple[int, int, int]


def fits_structures(blocks: Sequence[Block]) -> bool:
    """Return whether the structures of native.c can represent these blocks.

    Every cell has few enough sources and taps, but a network of many cells may have too many constant maps.
    """
    cells = [block for block in blocks if isinstance(block, CellBlock)]
    n_constants = sum(node.index in block.constants for block in cells for node in block.nodes)
    return N_CALLER_TENSORS + n_constants <= native.MAX_EXTERNALS


class OperationList:
    """Operations in execution order, divided into segments. A segment runs on a few images at a time."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.segments: list[tuple[int, int]] = []  # (index of the first operation, height of the maps)
        self.constants: list[torch.Tensor] = []  # external tensors that follow the caller's tensors
        self._saved: list[_SavedForward] = []

    def begin_segment(self, height: int) -> None:
        """Start a segment whose maps have this height."""
        self.segments.append((len(self.operations), height))

    # --- operations ---------------------------------------------------------------------------------------------------

    def _append_taps(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        source: Map,
        taps: list[tuple[int, int]],
        size: tuple[int, int],
        step: int = 1,
        **final_steps: Unpack[FinalSteps],
    ) -> None:
        """Append a convolution with weight (output channels, input channels, taps) and an output of this size."""
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
                input_channels=n_inputs,
                step=step,
                taps=taps,
                weights=packed,
                bias=bias,
                **final_steps,
            )
        )

    def _append_convolution(
        self,
        convolution: Convolution,
        source: Map,
        size: tuple[int, int],
        step: int = 1,
        **final_steps: Unpack[FinalSteps],
    ) -> None:
        weight, bias, padding = convolution.parameters
        kernel_size = weight.shape[-1]
        taps = [(y - padding, x - padding) for y in range(kernel_size) for x in range(kernel_size)]
        self._append_taps(weight.flatten(2), bias, source, taps, size, step, **final_steps)

    def _append_sum(
        self,
        shape: tuple[int, int, int],
        pools: Sequence[tuple[Map, float]],
        addends: Sequence[tuple[Map, float]],
        *,
        scales_border: bool,
        **final_steps: Unpack[FinalSteps],
    ) -> None:
        sources = [*pools, *addends]
        self.operations.append(
            Operation(
                native.SUM,
                *shape,
                [MapView(source) for source, _ in sources],
                n_pools=len(pools),
                border_scaling=int(scales_border),
                factors=[factor for _, factor in sources],
                **final_steps,
            )
        )

    def _append_map_sum(
        self, shape: tuple[int, int, int], pools: Sequence[tuple[Map, float]], addends: Sequence[tuple[Map, float]]
    ) -> Map:
        """Append a sum of gradients, and return its new map."""
        total = Map(*shape)
        self._append_sum(shape, pools, addends, scales_border=False, raw=MapView(total))
        return total

    # --- forward ------------------------------------------------------------------------------------------------------

    def add_stem(self, pixels: Map, mean: torch.Tensor, stem: Convolution, needed_forms: NeededForms) -> MapForms:
        """Append the operations before the first block: subtraction of the mean, and the stem."""
        centred = Map(*pixels.shape)
        self.operations.append(
            Operation(
                native.LOAD,
                *pixels.shape,
                [MapView(pixels)],
                channel_stride=pixels.channel_stride,
                bias=mean,
                raw=MapView(centred),
            )
        )
        value = MapForms((*pixels.size, stem.parameters[0].shape[0]), needed_forms)
        self._append_convolution(stem, centred, pixels.size, **value.outputs)
        return value

    def forward(self, block: Block, value: MapForms, output_map: Map | None) -> MapForms:
        """Append a block, which writes its raw output to `output_map`, or to a new map if `output_map` is None."""
        if isinstance(block, ReductionBlock):
            return self._forward_reduction(block, value, output_map)
        return self._forward_cell(block, value, output_map)

    def _forward_cell(self, block: CellBlock, value: MapForms, output_map: Map | None) -> MapForms:
        shape = value.shape
        values = {0: value}
        for node in block.nodes:
            node_forms = MapForms(shape, node.needed_forms, output_map if node.index == block.output_node else None)
            self._append_node(node, values, self._append_constant(block, node, shape), node_forms, shape)
            values[node.index] = node_forms
        relu_outputs = {source: values[source].rectified for node in block.nodes for source, _ in node.convolutions}
        self._saved.append(_SavedForward(relu_outputs, shape))
        return values[block.output_node]

    def _append_constant(self, block: CellBlock, node: NodeKernels, shape: tuple[int, int, int]) -> Map | None:
        if node.index not in block.constants:
            return None
        height, width, channels = shape
        constant = block.constants.map_of(node.index, torch.empty(1, channels, height, width))
        self.constants.append(constant)
        return Map(*shape, external_number=N_CALLER_TENSORS + len(self.constants) - 1)

    def _append_node(
        self,
        node: NodeKernels,
        values: dict[int, MapForms],
        constant: Map | None,
        node_forms: MapForms,
        shape: tuple[int, int, int],
    ) -> None:
        """Append a node's sum, in the order of `blocks._compute_node`."""
        pools = [(values[source].raw, pooling.weight) for source, pooling in node.poolings]
        addends = [(values[source].raw, float(times)) for source, times in node.skips]
        if constant is not None:
            addends.append((constant, 1.0))
        total: MapView | None = None
        if not node.convolutions:
            self._append_sum(shape, pools, addends, scales_border=True, **node_forms.outputs)
        elif not pools and len(addends) == 1 and addends[0][1] == 1:
            total = MapView(addends[0][0])
        elif pools or addends:
            total = MapView(Map(*shape))
            self._append_sum(shape, pools, addends, scales_border=True, raw=total)
        for position, (source, convolution) in enumerate(node.convolutions, start=1):
            rectified = values[source].rectified
            if position == len(node.convolutions):
                self._append_convolution(convolution, rectified, shape[:2], add=total, **node_forms.outputs)
            else:
                partial_sum = MapView(Map(*shape))
                self._append_convolution(convolution, rectified, shape[:2], add=total, raw=partial_sum)
                total = partial_sum

    def _forward_reduction(self, block: ReductionBlock, value: MapForms, output_map: Map | None) -> MapForms:
        raw, rectified = value.raw, value.rectified
        half_size = raw.height // 2, raw.width // 2
        shape = (*half_size, 2 * raw.channels)
        hidden, halved, shortcut = Map(*shape), Map(*half_size, raw.channels), Map(*shape)
        self._append_convolution(block.first, rectified, half_size, 2, rectified=MapView(hidden))
        self.operations.append(Operation(native.HALVE, *half_size, raw.channels, [MapView(raw)], raw=MapView(halved)))
        self._append_convolution(block.down, halved, half_size, raw=MapView(shortcut))
        output_forms = MapForms(shape, block.output_forms, output_map)
        self._append_convolution(block.second, hidden, half_size, add=MapView(shortcut), **output_forms.outputs)
        self._saved.append(_SavedForward({0: rectified, 1: hidden}, value.shape))
        return output_forms

    # --- backward -----------------------------------------------------------------------------------------------------

    def add_output_gradient(self, gradient: Map) -> Map:
        """Append an operation that copies the gradient of the last block's output to a map with a border."""
        return self._append_map_sum(gradient.shape, [], [(gradient, 1.0)])

    def backward(self, block: Block, gradient: Map) -> Map:
        """Append the backward pass of the last block whose backward pass has not been appended yet."""
        saved = self._saved.pop()
        if isinstance(block, ReductionBlock):
            return self._backward_reduction(block, gradient, saved)
        return self._backward_cell(block, gradient, saved)

    def _backward_cell(self, block: CellBlock, gradient: Map, saved: _SavedForward) -> Map:
        shape = gradient.shape
        raw_gradients = {0: _Gradient()} | {node.index: _Gradient() for node in block.nodes}
        pending_convolutions: dict[int, _PendingConvolution] = {}
        raw_gradients[block.output_node] = _Gradient(gradient, is_owned=True)
        for node in reversed(block.nodes):
            gradient_of_node = self._append_node_gradient(
                raw_gradients[node.index], pending_convolutions.get(node.index), saved.tape.get(node.index)
            )
            total = cast("Map", gradient_of_node.total)
            for source, kernel in node.gradients:
                earlier = pending_convolutions.get(source)
                pending_convolutions[source] = _PendingConvolution(
                    kernel, total, None if earlier is None else self._append_pending_convolution(earlier)
                )
            if node.poolings:
                in_place = gradient_of_node.is_owned and len(node.poolings) == 1 and not node.skips
                scaled_gradient = Map(*shape)
                self.operations.append(
                    Operation(
                        native.SCALE,
                        *shape,
                        [MapView(total)],
                        border_scaling=2 if in_place else 1,
                        raw=MapView(scaled_gradient),
                    )
                )
                for source, pooling in node.poolings:
                    previous = raw_gradients[source].total
                    addends = [(previous, 1.0)] if previous else []
                    new_gradient = self._append_map_sum(shape, [(scaled_gradient, pooling.weight)], addends)
                    raw_gradients[source] = _Gradient(new_gradient, is_owned=True)
            for source, times in node.skips:
                previous = raw_gradients[source].total
                if previous is None and times == 1:
                    raw_gradients[source] = _Gradient(total)
                    continue
                addends = [*([(previous, 1.0)] if previous else []), (total, float(times))]
                raw_gradients[source] = _Gradient(self._append_map_sum(shape, [], addends), is_owned=True)
        return cast(
            "Map", self._append_node_gradient(raw_gradients[0], pending_convolutions.get(0), saved.tape.get(0)).total
        )

    def _append_node_gradient(
        self, raw_gradient: _Gradient, pending_convolution: _PendingConvolution | None, tape: Map | None
    ) -> _Gradient:
        """Append the sum of a node's two gradients: through its ReLU (masked), and through its raw form."""
        if pending_convolution is None or tape is None:
            return raw_gradient
        masks: Masks = {
            "tape": MapView(tape),
            "add_after_mask": None if raw_gradient.total is None else MapView(raw_gradient.total),
        }
        return _Gradient(self._append_pending_convolution(pending_convolution, **masks), is_owned=True)

    def _append_pending_convolution(self, pending: _PendingConvolution, **masks: Unpack[Masks]) -> Map:
        kernel, source, earlier_sum = pending
        gradient_map = Map(*source.shape)
        add = None if earlier_sum is None else MapView(earlier_sum)
        self._append_convolution(kernel, source, source.size, add=add, raw=MapView(gradient_map), **masks)
        return gradient_map

    def _backward_reduction(self, block: ReductionBlock, gradient: Map, saved: _SavedForward) -> Map:
        relu_outputs, half_size = saved.tape, gradient.size
        hidden, down = Map(*half_size, gradient.channels), Map(*half_size, saved.shape[2])
        second, first, shortcut = block.gradients
        self._append_convolution(second, gradient, half_size, tape=MapView(relu_outputs[1]), raw=MapView(hidden))
        self._append_convolution(shortcut, gradient, half_size, raw=MapView(down))
        input_gradient = Map(*saved.shape)
        # Input row 2i is multiplied by kernel row 1 for output row i; input row 2i + 1 by kernel rows 0 and 2 for
        # output rows i + 1 and i. The same holds for columns. Like oneDNN, sum over each kernel column before adding
        # columns.
        # Pairs of a kernel row and the offset of its output row from i, first for even input rows, then for odd ones.
        kernel_rows = (((1, 0),), ((0, 1), (2, 0)))
        for odd_row, rows in enumerate(kernel_rows):
            for odd_column, columns in enumerate(kernel_rows):
                view = MapView(input_gradient, odd_row, odd_column, 2)
                masks: Masks = {
                    "tape": MapView(relu_outputs[0], odd_row, odd_column, 2),
                    "add_after_mask": MapView(down),
                }
                for column, x in columns:
                    is_last = column == columns[-1][0]
                    self._append_taps(
                        torch.stack([first[:, :, row, column].t() for row, _ in rows], dim=2),
                        None,
                        hidden,
                        [(y, x) for _, y in rows],
                        half_size,
                        add=None if column == columns[0][0] else view,
                        raw=view,
                        **(masks if is_last else Masks()),
                    )
        return input_gradient

    def add_stem_gradient(self, gradient: Map, stem_gradient: Convolution, pixel_gradient: Map) -> None:
        """Append the operations that compute the gradient of the pixels from the gradient of the stem's output."""
        half_size = gradient.height // 2, gradient.width // 2
        blocks = Map(*half_size, _LANES)
        self._append_convolution(stem_gradient, gradient, half_size, 2, raw=MapView(blocks))
        self.operations.append(
            Operation(
                native.SHUFFLE,
                *pixel_gradient.shape,
                [MapView(blocks)],
                channel_stride=pixel_gradient.channel_stride,
                raw=MapView(pixel_gradient),
            )
        )
