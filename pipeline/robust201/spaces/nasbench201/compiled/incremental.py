"""Incremental forward pass: when one window of an image changes, recompute only the activations that it affects.

A pass caches the feature maps of the accepted images. A proposal's patch of each map is computed from the previous
layer's patch and the cached activations around it, with the same kernels in the same order as the full map. Patches of
accepted proposals are written to the cache. Nothing accumulates across proposals, so rounding errors do not grow. From
the first block whose patch would cover most of the map, full maps are computed (`IncrementalKernels.depth`).
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

MAX_FRACTION = 0.65
"""With PyTorch, blocks whose patches cover more than this fraction of their output, on average over the windows,
compute full maps: extracting patches costs about as much as it saves (docs/internals/engine.md)."""

MIN_SAVED_PASSES = 3.0
"""Full passes that an incremental search must save by estimate; filling the cache alone costs more than one."""

MIN_SAVING = 0.3
"""With the native library, minimum estimated saving per query, as a fraction of a full pass; the estimate ignores CPU
cache misses."""

# Relative costs with the native library; a cached map is saved, written and restored in main memory
# (docs/internals/engine.md).
_CACHED_COST, _CONVOLUTION_COSTS, _POOLING_COST, _SKIP_COST, _REDUCTION_COST = 5.0, (3.0, 20.0), 2.0, 1.0, 30.0

MIN_IMAGE_SIZE = 8
"""Smallest height and width for which the last stage's maps have at least two rows and columns, as required by
`AveragePooling`."""

_CHANNELS_LAST = torch.channels_last


_BORDER = Region(-1, -1, -1, -1)
"""Position of a padded map's first pixel."""


class Patch(NamedTuple):
    """The region of a feature map that a proposal changes, and its new values (B, C, h, w) in the needed forms."""

    region: Region
    value: Value


class CachedMap:
    """One form of a feature map: the accepted values with a border of zeros, overlaid with a proposal's patch.

    `accepted` is (B, C, H, W), or None if only the patch is read.
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
        """Overlay the map with a proposal's patch, which replaces the previous one."""
        self._region, self._patch = region, patch

    def read(self, region: Region) -> torch.Tensor:
        """Return the proposal's values in a region that contains the patch: (B, C, h, w), channels_last."""
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
        """Write the patch into the cached map for some images, (n,) int64."""
        if self._padded is not None and self._patch is not None:
            rows, columns = self._region.within(_BORDER)
            self._padded[images, :, rows, columns] = self._patch[images]


class CachedValue:
    """A feature map in the forms that are read; a form is cached if more than the patch is read."""

    def __init__(self, value: Value, cached: Needs) -> None:
        self._raw = CachedMap(value.raw if cached.raw else None)
        self._rectified = CachedMap(value.rectified if cached.rectified else None)
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
    """Reads the parts of a cell's maps that determine one region."""

    def __init__(self, values: dict[int, CachedValue], region: Region, constants: dict[int, torch.Tensor]) -> None:
        self._cached = values
        self._region = region
        self._maps = constants

    def pool(self, source: int, pooling: AveragePooling) -> torch.Tensor:
        value = self._cached[source]
        return pooling.pool_part(value.raw(self._region.around(1)), self._region.edges(value.height, value.width))

    def raw(self, source: int) -> torch.Tensor:
        return self._cached[source].raw(self._region)

    def constant(self, node: int) -> torch.Tensor | None:
        if node not in self._maps:
            return None
        rows, columns = self._region.within(Region(0, 0, 0, 0))
        return self._maps[node][:, :, rows, columns]

    def convolve(
        self, source: int, convolution: Convolution, *, add: torch.Tensor | None, in_place: bool, rectify: bool
    ) -> torch.Tensor:
        pixels = self._cached[source].rectified(self._region.around(convolution.reach))
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
        self.inputs = {node.index: _inputs(node) for node in block.nodes}
        self.cached = self._find_cached()

    def _find_cached(self) -> dict[int, Needs]:
        """Return, per node, the forms that must be cached because more than the patch is read."""
        dilation = {0: 0}
        for node in self.nodes:
            dilation[node.index] = max(dilation[source] + reach for source, reach in self.inputs[node.index])
        cached = dict.fromkeys(dilation, Needs(raw=False, rectified=False))
        for node in self.nodes:
            for source, _ in node.poolings:
                cached[source] = cached[source]._replace(raw=True)
            for source, _ in node.skips:
                if dilation[source] < dilation[node.index]:
                    cached[source] = cached[source]._replace(raw=True)
            for source, convolution in node.convolutions:
                if convolution.reach or dilation[source] < dilation[node.index]:
                    cached[source] = cached[source]._replace(rectified=True)
        return cached

    def spread(self, region: Region, height: int, width: int) -> Region:
        """Return the output region affected by a change in an input region; height and width are the input's."""
        regions = {0: region}
        for node in self.nodes:
            reads = self.inputs[node.index]
            regions[node.index] = union([regions[source].spread(reach, height, width) for source, reach in reads])
        return regions[self.block.output]

    def cost(self) -> tuple[float, float]:
        """Return the native library's estimated costs of a full pass and of caching it, in arbitrary units."""
        full_cost = 0.0
        for node in self.nodes:
            full_cost += _POOLING_COST * len(node.poolings) + _SKIP_COST * len(node.skips)
            full_cost += sum(_CONVOLUTION_COSTS[convolution.reach] for _, convolution in node.convolutions)
        return full_cost, _CACHED_COST * sum(needs.raw + needs.rectified for needs in self.cached.values())

    def start(self, value: Value) -> tuple["_IncrementalCell", Value]:
        """Compute the output on full maps, and cache the maps that later patches read."""
        values = self.block.compute(value)
        like = value.any_form
        constants = {
            node.index: self.block.constants.of(node.index, like).expand(len(like), -1, -1, -1)
            for node in self.nodes
            if node.index in self.block.constants
        }
        return _IncrementalCell(self, values, constants), values[self.block.output]


def _inputs(node: NodeKernels) -> list[tuple[int, int]]:
    """Return the source nodes of a node, each with the number of pixels that it reads on each side of a pixel."""
    return [
        *((source, 1) for source, _ in node.poolings),
        *((source, 0) for source, _ in node.skips),
        *((source, convolution.reach) for source, convolution in node.convolutions),
    ]


class _IncrementalCell:
    def __init__(self, kernels: _CellKernels, values: dict[int, Value], constants: dict[int, torch.Tensor]) -> None:
        self._kernels = kernels
        self._values = {node: CachedValue(value, kernels.cached[node]) for node, value in values.items()}
        self._constants = constants

    def forward(self, patch: Patch) -> Patch:
        kernels, values = self._kernels, self._values
        values[0].propose(patch)
        height, width = values[0].height, values[0].width
        for node in kernels.nodes:
            reads = kernels.inputs[node.index]
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
        return _REDUCTION_COST, 3 * _CACHED_COST

    def start(self, value: Value) -> tuple["_IncrementalReduction", Value]:
        hidden = self.block.first(value.rectified, rectify=True)
        return _IncrementalReduction(self, value, hidden), self.block.forward(value, None)


class _IncrementalReduction:
    def __init__(self, kernels: _ReductionKernels, value: Value, hidden: torch.Tensor) -> None:
        self._kernels = kernels
        self._input = CachedValue(value, Needs(raw=True, rectified=True))
        self._hidden = CachedMap(hidden)
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


class IncrementalKernels:
    """A network's kernels for parts of images, and the depth up to which they pay off."""

    def __init__(self, stem: Convolution, stem_needs: Needs, blocks: Sequence[Block], *, native: bool = False) -> None:
        self._native = native
        self.whole_stem = stem
        self.stem = stem.unpadded()
        self.stem_needs = stem_needs
        self.whole_blocks = blocks
        self.blocks = [
            _CellKernels(block) if isinstance(block, CellBlock) else _ReductionKernels(block) for block in blocks
        ]
        self._savings: dict[tuple[int, int], tuple[int, float]] = {}

    def depth(self, sides: Sequence[int], height: int, width: int) -> int:
        """Return how many leading blocks should compute only patches; 0 if full passes are cheaper.

        `sides` has the side of the window in each upcoming query.
        """
        if not sides or height != width or height < MIN_IMAGE_SIZE:
            return 0
        window = max(sides), height
        if window not in self._savings:
            self._savings[window] = self._find_saving(*window)
        depth, saving = self._savings[window]
        if self._native and saving < MIN_SAVING:
            return 0
        return depth if saving * len(sides) >= MIN_SAVED_PASSES else 0

    def _find_saving(self, side: int, size: int) -> tuple[int, float]:
        """Return the best depth for a window, and the fraction of a pass that it saves.

        With PyTorch, all blocks are assumed to cost the same.
        """
        fractions = self._fractions(side, size)
        saving, best = 0.0, (0, 0.0)
        costs = [kernels.cost() for kernels in self.blocks] if self._native else [(1.0, 0.0)] * len(self.blocks)
        for depth, (fraction, (full_cost, cache_cost)) in enumerate(zip(fractions, costs, strict=True), start=1):
            if fraction > MAX_FRACTION and not self._native:
                break
            saving += (full_cost - fraction * (full_cost + cache_cost)) / sum(cost for cost, _ in costs)
            best = max(best, (depth, saving), key=lambda candidate: candidate[1])
        return best

    def _fractions(self, side: int, size: int) -> Iterator[float]:
        """Yield the fraction of each block's output that a window changes."""
        # Rows and columns are independent with the same distribution, so the mean area is the mean height squared.
        n_starts = max(1, size - side)
        regions = [Region(start, start + side, start, start + side).spread(1, size, size) for start in range(n_starts)]
        for kernels in self.blocks:
            regions = [kernels.spread(region, size, size) for region in regions]
            if isinstance(kernels, _ReductionKernels):
                size //= 2
            yield (sum(region.size[0] for region in regions) / n_starts / size) ** 2


class IncrementalPass:
    """Logits of images that differ from accepted ones in one window.

    Args:
        centred: (B, 3, H, W) float32, the accepted images minus the network's mean; channels_last.
        mean: (1, 3, 1, 1), the mean.
    """

    def __init__(
        self,
        kernels: IncrementalKernels,
        centred: torch.Tensor,
        mean: torch.Tensor,
        depth: int,
        classify: Callable[[Value], torch.Tensor],
    ) -> None:
        self._kernels = kernels
        self._classify = classify
        self._mean = mean
        self._pixels = CachedMap(centred)
        self._shape = centred.shape
        value = Value.of(kernels.whole_stem(centred), kernels.stem_needs)
        self._blocks: list[_IncrementalCell | _IncrementalReduction] = []
        for block in kernels.blocks[:depth]:
            local, value = block.start(value)
            self._blocks.append(local)
        self._rest = kernels.whole_blocks[depth:]
        self._needs = self._rest[0].needs if self._rest else Needs(raw=True, rectified=False)
        self._boundary = CachedValue(value, self._needs)

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            patch = self._patch_of_stem(row, column, window)
            for local in self._blocks:
                patch = local.forward(patch)
            self._boundary.propose(patch)
            full_region = Region(0, self._boundary.height, 0, self._boundary.width)
            value = Value(
                self._boundary.raw(full_region) if self._needs.raw else None,
                self._boundary.rectified(full_region) if self._needs.rectified else None,
            )
            for block in self._rest:
                value = block.forward(value, None)
            logits = self._classify(value)
        # Created outside inference mode, so that callers may write into it.
        return torch.empty(len(window), logits.shape[1]).copy_(logits[: len(window)])

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
            self._boundary.accept(images)
