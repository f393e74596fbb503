"""Logits of images of which only one window has changed: the window's receptive field is computed, the rest is kept.

A pass keeps the feature maps of the accepted images. A proposal's patch of each map is computed from the patch before
and the kept pixels around it, by the same kernels in the same order as the whole map; patches enter the kept maps where
a proposal is accepted. Nothing is added up over proposals, so no rounding error grows. From the block on whose patches
would cover most of the map, whole maps are computed (`LocalKernels.depth`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch

from robust201.spaces.nasbench201.compiled.blocks import (
    Block,
    CellBlock,
    MapReader,
    Needs,
    NodeKernels,
    ReductionBlock,
    Value,
    compute_node,
)
from robust201.spaces.nasbench201.compiled.kernels import AveragePooling, Convolution
from robust201.spaces.nasbench201.compiled.regions import Region, union

MAX_SHARE = 0.65
"""By PyTorch, blocks whose patches cover more than this share of their output, on average over the windows, compute
whole maps: cutting patches out costs about what is left to gain (docs/internals/engine.md)."""

WORTHWHILE_PASSES = 3.0
"""Whole passes that a search must save on paper to be local: keeping the maps costs more than one to begin with."""

LEAST_SAVING = 0.3
"""By the native library, share of a pass that a query must save on paper: maps in no cache cost more than counted."""

# Relative costs by the native library: a kept map is noted, written and put back, far from the cache
# (docs/internals/engine.md).
_KEPT_COST, _CONVOLUTION_COSTS, _POOLING_COST, _SKIP_COST, _REDUCTION_COST = 5.0, (3.0, 20.0), 2.0, 1.0, 30.0

SMALLEST_IMAGE = 8
"""Height and width in pixels from which on the last stage's maps have two rows and columns (see `AveragePooling`)."""

_CHANNELS_LAST = torch.channels_last


_BORDER = Region(-1, -1, -1, -1)
"""Where a padded map's first pixel lies."""


class Patch(NamedTuple):
    """The part of a feature map that a proposal changes: where it lies, and (B, C, h, w) in the forms that are read."""

    region: Region
    value: Value


class KeptMap:
    """One form of a feature map: as accepted, with a border of zeros, and a proposal's patch over it.

    `accepted` is (B, C, H, W); None where nobody reads beyond the patch.
    """

    def __init__(self, accepted: torch.Tensor | None) -> None:
        self._padded: torch.Tensor | None = None
        if accepted is not None:
            n_images, channels, height, width = accepted.shape
            self._padded = torch.empty(
                n_images, channels, height + 2, width + 2, memory_format=_CHANNELS_LAST, device=accepted.device
            ).zero_()
            self._padded[:, :, 1:-1, 1:-1] = accepted
        self._region = Region(0, 0, 0, 0)
        self._patch: torch.Tensor | None = None

    def propose(self, region: Region, patch: torch.Tensor | None) -> None:
        """Put a proposal's patch over the map, in place of the one before."""
        self._region, self._patch = region, patch

    def read(self, region: Region) -> torch.Tensor:
        """Return the proposal's pixels of a region that holds the patch: (B, C, h, w), channels_last."""
        patch = cast("torch.Tensor", self._patch)
        if region == self._region:
            return patch
        padded = cast("torch.Tensor", self._padded)
        rows, columns = region.around(0).within(_BORDER)
        pixels = torch.empty(*padded.shape[:2], *region.size, memory_format=_CHANNELS_LAST, device=padded.device)
        pixels.copy_(padded[:, :, rows, columns])
        rows, columns = self._region.within(region)
        pixels[:, :, rows, columns] = patch
        return pixels

    def accept(self, images: torch.Tensor) -> None:
        """Write the patch into the kept map of some images: (n,) int64."""
        if self._padded is not None and self._patch is not None:
            rows, columns = self._region.within(_BORDER)
            self._padded[images, :, rows, columns] = self._patch[images]


class KeptValue:
    """A feature map in the forms that are read, kept where somebody reads more than the patch."""

    def __init__(self, value: Value, keep: Needs) -> None:
        self._raw = KeptMap(value.raw if keep.raw else None)
        self._rectified = KeptMap(value.rectified if keep.rectified else None)
        self.height, self.width = value.any_form.shape[2:]
        self.region = Region(0, 0, 0, 0)

    def propose(self, patch: Patch) -> None:
        self.region = patch.region
        self._raw.propose(patch.region, patch.value.raw)
        self._rectified.propose(patch.region, patch.value.rectified)

    def raw(self, region: Region) -> torch.Tensor:
        return self._raw.read(region)

    def rectified(self, region: Region) -> torch.Tensor:
        return self._rectified.read(region)

    def accept(self, images: torch.Tensor) -> None:
        self._raw.accept(images)
        self._rectified.accept(images)


class _Window(MapReader):
    """Reads the part of a cell's maps that gives one region."""

    def __init__(self, values: dict[int, KeptValue], region: Region, constants: dict[int, torch.Tensor]) -> None:
        self._kept = values
        self._region = region
        self._maps = constants

    def pool(self, source: int, pooling: AveragePooling) -> torch.Tensor:
        value = self._kept[source]
        return pooling.pool_part(value.raw(self._region.around(1)), self._region.edges(value.height, value.width))

    def raw(self, source: int) -> torch.Tensor:
        return self._kept[source].raw(self._region)

    def constant(self, node: int) -> torch.Tensor | None:
        if node not in self._maps:
            return None
        rows, columns = self._region.within(Region(0, 0, 0, 0))
        return self._maps[node][:, :, rows, columns]

    def convolve(
        self, source: int, convolution: Convolution, *, add: torch.Tensor | None, in_place: bool, rectify: bool
    ) -> torch.Tensor:
        pixels = self._kept[source].rectified(self._region.around(convolution.reach))
        return convolution(pixels, add=add, in_place=in_place, rectify=rectify)


class _CellKernels:
    def __init__(self, block: CellBlock) -> None:
        self.block = block
        self.nodes = [
            replace(
                node,
                poolings=[(source, pooling.unpadded()) for source, pooling in node.poolings],
                convolutions=[(source, convolution.unpadded()) for source, convolution in node.convolutions],
            )
            for node in block.nodes
        ]
        self.reads = {node.index: _reads(node) for node in block.nodes}
        self.keeps = self._find_kept()

    def _find_kept(self) -> dict[int, Needs]:
        """Find the nodes of which somebody reads more than the patch, in which form."""
        spread = {0: 0}
        for node in self.nodes:
            spread[node.index] = max(spread[source] + reach for source, reach in self.reads[node.index])
        keeps = dict.fromkeys(spread, Needs(raw=False, rectified=False))
        for node in self.nodes:
            for source, _ in node.poolings:
                keeps[source] = keeps[source]._replace(raw=True)
            for source, _ in node.skips:
                if spread[source] < spread[node.index]:
                    keeps[source] = keeps[source]._replace(raw=True)
            for source, convolution in node.convolutions:
                if convolution.reach or spread[source] < spread[node.index]:
                    keeps[source] = keeps[source]._replace(rectified=True)
        return keeps

    def spread(self, region: Region, height: int, width: int) -> Region:
        """Where the output changes, if the input, of this height and width, changes in a region."""
        regions = {0: region}
        for node in self.nodes:
            reads = self.reads[node.index]
            regions[node.index] = union([regions[source].spread(reach, height, width) for source, reach in reads])
        return regions[self.block.output]

    def cost(self) -> tuple[float, float]:
        """Estimate what the native library takes for whole maps, and for keeping as much: arbitrary units."""
        whole = 0.0
        for node in self.nodes:
            whole += _POOLING_COST * len(node.poolings) + _SKIP_COST * len(node.skips)
            whole += sum(_CONVOLUTION_COSTS[convolution.reach] for _, convolution in node.convolutions)
        return whole, _KEPT_COST * sum(needs.raw + needs.rectified for needs in self.keeps.values())

    def start(self, value: Value) -> tuple["_LocalCell", Value]:
        """Keep what the cell reads of whole maps, and compute its output."""
        values = self.block.compute(value)
        like = value.any_form
        constants = {
            node.index: self.block.constants.of(node.index, like).expand(len(like), -1, -1, -1)
            for node in self.nodes
            if node.index in self.block.constants
        }
        return _LocalCell(self, values, constants), values[self.block.output]


def _reads(node: NodeKernels) -> list[tuple[int, int]]:
    """List the nodes that a node reads, and how many pixels to each side of a pixel it sees of them."""
    return [
        *((source, 1) for source, _ in node.poolings),
        *((source, 0) for source, _ in node.skips),
        *((source, convolution.reach) for source, convolution in node.convolutions),
    ]


class _LocalCell:
    def __init__(self, kernels: _CellKernels, values: dict[int, Value], constants: dict[int, torch.Tensor]) -> None:
        self._kernels = kernels
        self._values = {node: KeptValue(value, kernels.keeps[node]) for node, value in values.items()}
        self._constants = constants

    def forward(self, patch: Patch) -> Patch:
        kernels, values = self._kernels, self._values
        values[0].propose(patch)
        height, width = values[0].height, values[0].width
        for node in kernels.nodes:
            reads = kernels.reads[node.index]
            region = union([values[source].region.spread(reach, height, width) for source, reach in reads])
            patch = Patch(region, compute_node(node, _Window(values, region, self._constants)))
            values[node.index].propose(patch)
        return patch

    def accept(self, images: torch.Tensor) -> None:
        for value in self._values.values():
            value.accept(images)


class _ReductionKernels:
    def __init__(self, block: ReductionBlock) -> None:
        self.block = block
        self.first = block.first.unpadded()
        self.second = block.second.unpadded()

    def spread(self, region: Region, height: int, width: int) -> Region:
        half = height // 2, width // 2
        return region.spread_by_two(*half).spread(1, *half)

    @staticmethod
    def cost() -> tuple[float, float]:
        return _REDUCTION_COST, 3 * _KEPT_COST

    def start(self, value: Value) -> tuple["_LocalReduction", Value]:
        hidden = self.block.first(value.rectified, rectify=True)
        return _LocalReduction(self, value, hidden), self.block.forward(value, None)


class _LocalReduction:
    def __init__(self, kernels: _ReductionKernels, value: Value, hidden: torch.Tensor) -> None:
        self._kernels = kernels
        self._input = KeptValue(value, Needs(raw=True, rectified=True))
        self._hidden = KeptMap(hidden)
        self._half = hidden.shape[2:]

    def forward(self, patch: Patch) -> Patch:
        kernels, block = self._kernels, self._kernels.block
        self._input.propose(patch)
        region = patch.region.spread_by_two(*self._half)
        hidden = kernels.first(self._input.rectified(region.doubled(before=1)), rectify=True)
        self._hidden.propose(region, hidden)
        region = region.spread(1, *self._half)
        shortcut = block.down(block.halving(self._input.raw(region.doubled())))
        rectify = not block.output.raw
        result = kernels.second(self._hidden.read(region.around(1)), add=shortcut, in_place=True, rectify=rectify)
        return Patch(region, Value(None, result) if rectify else Value.of(result, block.output))

    def accept(self, images: torch.Tensor) -> None:
        self._input.accept(images)
        self._hidden.accept(images)


class LocalKernels:
    """A network's kernels for parts of images, and how far into the network they pay."""

    def __init__(
        self, stem: Convolution, stem_needs: Needs, blocks: Sequence[Block], *, by_library: bool = False
    ) -> None:
        self._by_library = by_library
        self.whole_stem = stem
        self.stem = stem.unpadded()
        self.stem_needs = stem_needs
        self.whole_blocks = blocks
        self.blocks = [
            _CellKernels(block) if isinstance(block, CellBlock) else _ReductionKernels(block) for block in blocks
        ]
        self._savings: dict[tuple[int, int], tuple[int, float]] = {}

    def depth(self, sides: Sequence[int], height: int, width: int) -> int:
        """Return how many blocks, from the first on, should compute patches only; 0 where whole passes are cheaper.

        `sides` are rows and columns of the window in each query to come.
        """
        if not sides or height != width or height < SMALLEST_IMAGE:
            return 0
        window = max(sides), height
        if window not in self._savings:
            self._savings[window] = self._find_saving(*window)
        depth, saving = self._savings[window]
        if self._by_library and saving < LEAST_SAVING:
            return 0
        return depth if saving * len(sides) >= WORTHWHILE_PASSES else 0

    def _find_saving(self, side: int, size: int) -> tuple[int, float]:
        """Find the depth for a window, and the share of a pass that is saved.

        By PyTorch, all blocks are taken to cost the same.
        """
        shares = self._shares(side, size)
        saving, best = 0.0, (0, 0.0)
        costs = [kernels.cost() for kernels in self.blocks] if self._by_library else [(1.0, 0.0)] * len(self.blocks)
        for depth, (share, (whole, kept)) in enumerate(zip(shares, costs, strict=True), start=1):
            if share > MAX_SHARE and not self._by_library:
                break
            saving += (whole - share * (whole + kept)) / sum(cost for cost, _ in costs)
            best = max(best, (depth, saving), key=lambda found: found[1])
        return best

    def _shares(self, side: int, size: int) -> Iterator[float]:
        """Find which share of each block's output a window changes."""
        # Rows and columns are drawn apart and alike, so the mean area is the square of the mean height.
        n_starts = max(1, size - side)
        regions = [Region(start, start + side, start, start + side).spread(1, size, size) for start in range(n_starts)]
        for kernels in self.blocks:
            regions = [kernels.spread(region, size, size) for region in regions]
            if isinstance(kernels, _ReductionKernels):
                size //= 2
            yield (sum(region.size[0] for region in regions) / n_starts / size) ** 2


class LocalPass:
    """Logits of images that differ from accepted ones in one window.

    Args:
        centred: (B, 3, H, W) float32, the accepted images minus the network's mean; channels_last.
        mean: (1, 3, 1, 1), that mean.
    """

    def __init__(
        self,
        kernels: LocalKernels,
        centred: torch.Tensor,
        mean: torch.Tensor,
        depth: int,
        classify: Callable[[Value], torch.Tensor],
    ) -> None:
        self._kernels = kernels
        self._classify = classify
        self._mean = mean
        self._pixels = KeptMap(centred)
        self._shape = centred.shape
        value = Value.of(kernels.whole_stem(centred), kernels.stem_needs)
        self._blocks: list[_LocalCell | _LocalReduction] = []
        for block in kernels.blocks[:depth]:
            local, value = block.start(value)
            self._blocks.append(local)
        self._rest = kernels.whole_blocks[depth:]
        self._needs = self._rest[0].needs if self._rest else Needs(raw=True, rectified=False)
        self._joint = KeptValue(value, self._needs)

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            patch = self._patch_of_stem(row, column, window)
            for local in self._blocks:
                patch = local.forward(patch)
            self._joint.propose(patch)
            whole = Region(0, self._joint.height, 0, self._joint.width)
            value = Value(
                self._joint.raw(whole) if self._needs.raw else None,
                self._joint.rectified(whole) if self._needs.rectified else None,
            )
            for block in self._rest:
                value = block.forward(value, None)
            found = self._classify(value)
        # Made outside of inference mode, so that callers may write into them.
        return torch.empty(len(window), found.shape[1]).copy_(found[: len(window)])

    def _patch_of_stem(self, row: int, column: int, window: torch.Tensor) -> Patch:
        n_images, _, height, width = self._shape
        n_rows, n_columns = window.shape[2:]
        centred = torch.empty(n_images, 3, n_rows, n_columns, memory_format=_CHANNELS_LAST).zero_()
        torch.sub(window, self._mean, out=centred[: len(window)])
        region = Region(row, row + n_rows, column, column + n_columns)
        self._pixels.propose(region, centred)
        region = region.spread(1, height, width)
        pixels, needs = self._pixels.read(region.around(1)), self._kernels.stem_needs
        if needs.raw:
            return Patch(region, Value.of(self._kernels.stem(pixels), needs))
        return Patch(region, Value(None, self._kernels.stem(pixels, rectify=True)))

    def accept(self, accepted: torch.Tensor) -> None:
        images = accepted.nonzero().flatten()
        if len(images) == 0:
            return
        with torch.inference_mode():
            self._pixels.accept(images)
            for local in self._blocks:
                local.accept(images)
            self._joint.accept(images)
