"""Incremental forward pass: if one window of an image changes, recompute only the affected activations.

In each query, a search such as the Square attack proposes a new window for each image, and then accepts or rejects it.
A pass caches the feature maps of the accepted images. For a proposal, the changed patch of each map is computed from
the previous layer's patch and the cached activations around it, with the same kernels in the same order as for a full
map. Patches of accepted proposals are written to the cache. Therefore, rounding errors do not accumulate across
proposals. From the first block whose patch would cover most of the map, full maps are computed (see
`IncrementalKernels.choose_depth`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch

from robust201.spaces.nasbench201.compiled.blocks import (
    Block,
    CellBlock,
    MapReader,
    NeededForms,
    NodeKernels,
    ReductionBlock,
    Value,
    compute_node,
)
from robust201.spaces.nasbench201.compiled.kernels import AveragePooling, Convolution
from robust201.spaces.nasbench201.compiled.regions import Region, union

MAX_FRACTION = 0.65
"""Without the native library, maximum fraction of a block's output that a patch may cover, as a mean over window
positions. Above it, the block computes full maps, because extracting patches would cost about as much as it saves
(docs/internals/engine.md)."""

MIN_SAVED_PASSES = 3.0
"""Minimum estimated number of full passes that an incremental search must save. Filling the cache costs more than one
pass."""

MIN_SAVING = 0.3
"""Minimum estimated saving per query with the native library, as a fraction of a full pass. This margin covers CPU
cache misses, which the estimate ignores."""

# Relative costs with the native library (docs/internals/engine.md). The two costs of convolutions are for kernel sizes
# 1 and 3. A cached map costs main-memory traffic, because it is saved, written and restored.
_CACHED_COST, _CONVOLUTION_COSTS, _POOLING_COST, _SKIP_COST, _REDUCTION_COST = 5.0, (3.0, 20.0), 2.0, 1.0, 30.0

MIN_IMAGE_SIZE = 8
"""Minimum height and width of images. In the last stage, `AveragePooling` needs maps with at least two rows and
columns."""

_CHANNELS_LAST = torch.channels_last


_PADDED_ORIGIN = Region(-1, -1, -1, -1)
"""Region whose top left pixel is the first pixel of a map with a border of one pixel."""


class Patch(NamedTuple):
    """The region of a feature map that a proposal changes, and its new values (B, C, h, w)."""

    region: Region
    value: Value


class CachedMap:
    """One form (raw or rectified) of a feature map: accepted values with a border of zeros, and a proposal's patch.

    `accepted` is (B, C, H, W), or None if no pixel outside the patch is read.
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
        """Replace the patch by a new proposal's patch."""
        self._region, self._patch = region, patch

    def read(self, region: Region) -> torch.Tensor:
        """Return the proposed values (B, C, h, w) in a region that contains the patch; channels_last."""
        patch = cast("torch.Tensor", self._patch)
        if region == self._region:
            return patch
        padded = cast("torch.Tensor", self._padded)
        rows, columns = region.slices_within(_PADDED_ORIGIN)
        pixels = torch.empty(*padded.shape[:2], *region.size, memory_format=_CHANNELS_LAST, device=padded.device)
        pixels.copy_(padded[:, :, rows, columns])
        rows, columns = self._region.slices_within(region)
        pixels[:, :, rows, columns] = patch
        return pixels

    def accept(self, images: torch.Tensor) -> None:
        """Write the patch to the cached map for the images with these indices, (n,) int64."""
        if self._padded is not None and self._patch is not None:
            rows, columns = self._region.slices_within(_PADDED_ORIGIN)
            self._padded[images, :, rows, columns] = self._patch[images]


class CachedValue:
    """A feature map in the forms that are read. Only `cached_forms` are cached: those read outside the patch."""

    def __init__(self, value: Value, cached_forms: NeededForms) -> None:
        self._raw = CachedMap(value.raw if cached_forms.raw else None)
        self._rectified = CachedMap(value.rectified if cached_forms.rectified else None)
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


class _RegionReader(MapReader):
    """Computes the terms of a node in one region, from the cached maps of a cell."""

    def __init__(self, values: dict[int, CachedValue], region: Region, constants: dict[int, torch.Tensor]) -> None:
        self._values_by_node = values
        self._region = region
        self._constant_maps = constants

    def pool(self, source: int, pooling: AveragePooling) -> torch.Tensor:
        source_value = self._values_by_node[source]
        return pooling.pool_part(
            source_value.raw(self._region.dilate(1)),
            self._region.border_sides(source_value.height, source_value.width),
        )

    def raw(self, source: int) -> torch.Tensor:
        return self._values_by_node[source].raw(self._region)

    def constant(self, node: int) -> torch.Tensor | None:
        if node not in self._constant_maps:
            return None
        rows, columns = self._region.slices_within(Region(0, 0, 0, 0))
        return self._constant_maps[node][:, :, rows, columns]

    def convolve(
        self, source: int, convolution: Convolution, *, add: torch.Tensor | None, in_place: bool, rectify: bool
    ) -> torch.Tensor:
        pixels = self._values_by_node[source].rectified(self._region.dilate(convolution.reach))
        return convolution(pixels, add=add, in_place=in_place, rectify=rectify)


class _CellKernels:
    def __init__(self, block: CellBlock) -> None:
        self.block = block
        self.nodes = [
            replace(
                node,
                poolings=[(source, pooling.copy_without_padding()) for source, pooling in node.poolings],
                convolutions=[
                    (source, convolution.copy_without_padding()) for source, convolution in node.convolutions
                ],
            )
            for node in block.nodes
        ]
        self.sources = {node.index: _sources_with_reach(node) for node in block.nodes}
        self.cached_forms = self._find_cached_forms()

    def _find_cached_forms(self) -> dict[int, NeededForms]:
        """Return, by node, the forms that must be cached because pixels outside the patch are read."""
        dilations = {0: 0}
        for node in self.nodes:
            dilations[node.index] = max(dilations[source] + reach for source, reach in self.sources[node.index])
        cached_forms = dict.fromkeys(dilations, NeededForms(raw=False, rectified=False))
        for node in self.nodes:
            for source, _ in node.poolings:
                cached_forms[source] = cached_forms[source]._replace(raw=True)
            for source, _ in node.skips:
                if dilations[source] < dilations[node.index]:
                    cached_forms[source] = cached_forms[source]._replace(raw=True)
            for source, convolution in node.convolutions:
                if convolution.reach or dilations[source] < dilations[node.index]:
                    cached_forms[source] = cached_forms[source]._replace(rectified=True)
        return cached_forms

    def spread(self, region: Region, height: int, width: int) -> Region:
        """Return the output region that a change in an input region affects, for maps of this height and width."""
        regions = {0: region}
        for node in self.nodes:
            sources = self.sources[node.index]
            regions[node.index] = union([regions[source].spread(reach, height, width) for source, reach in sources])
        return regions[self.block.output_node]

    def cost(self) -> tuple[float, float]:
        """Return the estimated relative costs of a full pass, and of caching its maps, with the native library."""
        full_cost = 0.0
        for node in self.nodes:
            full_cost += _POOLING_COST * len(node.poolings) + _SKIP_COST * len(node.skips)
            full_cost += sum(_CONVOLUTION_COSTS[convolution.reach] for _, convolution in node.convolutions)
        return full_cost, _CACHED_COST * sum(forms.raw + forms.rectified for forms in self.cached_forms.values())

    def start(self, value: Value) -> tuple["_IncrementalCell", Value]:
        """Compute full maps. Return a cell that caches the maps that later patches read, and the output."""
        values = self.block.compute(value)
        like = value.any_form
        constants = {
            node.index: self.block.constants.map_of(node.index, like).expand(len(like), -1, -1, -1)
            for node in self.nodes
            if node.index in self.block.constants
        }
        return _IncrementalCell(self, values, constants), values[self.block.output_node]


def _sources_with_reach(node: NodeKernels) -> list[tuple[int, int]]:
    """Return a node's source nodes, each with the number of pixels that are read on each side of a pixel (reach)."""
    return [
        *((source, 1) for source, _ in node.poolings),
        *((source, 0) for source, _ in node.skips),
        *((source, convolution.reach) for source, convolution in node.convolutions),
    ]


class _IncrementalCell:
    def __init__(self, kernels: _CellKernels, values: dict[int, Value], constants: dict[int, torch.Tensor]) -> None:
        self._kernels = kernels
        self._values = {node: CachedValue(value, kernels.cached_forms[node]) for node, value in values.items()}
        self._constants = constants

    def forward(self, patch: Patch) -> Patch:
        kernels, values = self._kernels, self._values
        values[0].propose(patch)
        height, width = values[0].height, values[0].width
        for node in kernels.nodes:
            sources = kernels.sources[node.index]
            region = union([values[source].region.spread(reach, height, width) for source, reach in sources])
            patch = Patch(region, compute_node(node, _RegionReader(values, region, self._constants)))
            values[node.index].propose(patch)
        return patch

    def accept(self, images: torch.Tensor) -> None:
        for value in self._values.values():
            value.accept(images)


class _ReductionKernels:
    def __init__(self, block: ReductionBlock) -> None:
        self.block = block
        self.first = block.first.copy_without_padding()
        self.second = block.second.copy_without_padding()

    def spread(self, region: Region, height: int, width: int) -> Region:
        half_size = height // 2, width // 2
        return region.spread_with_stride_2(*half_size).spread(1, *half_size)

    @staticmethod
    def cost() -> tuple[float, float]:
        return _REDUCTION_COST, 3 * _CACHED_COST

    def start(self, value: Value) -> tuple["_IncrementalReduction", Value]:
        hidden = self.block.first(value.rectified, rectify=True)
        return _IncrementalReduction(self, value, hidden), self.block.forward(value, None)


class _IncrementalReduction:
    def __init__(self, kernels: _ReductionKernels, value: Value, hidden: torch.Tensor) -> None:
        self._kernels = kernels
        self._input = CachedValue(value, NeededForms(raw=True, rectified=True))
        self._hidden = CachedMap(hidden)
        self._half_size = hidden.shape[2:]

    def forward(self, patch: Patch) -> Patch:
        kernels, block = self._kernels, self._kernels.block
        self._input.propose(patch)
        region = patch.region.spread_with_stride_2(*self._half_size)
        hidden = kernels.first(self._input.rectified(region.double(margin_before=1)), rectify=True)
        self._hidden.propose(region, hidden)
        region = region.spread(1, *self._half_size)
        shortcut = block.down(block.strided_pooling(self._input.raw(region.double())))
        rectify = not block.output_forms.raw
        output = kernels.second(self._hidden.read(region.dilate(1)), add=shortcut, in_place=True, rectify=rectify)
        return Patch(region, Value(None, output) if rectify else Value.of(output, block.output_forms))

    def accept(self, images: torch.Tensor) -> None:
        self._input.accept(images)
        self._hidden.accept(images)


class IncrementalKernels:
    """A network's kernels for patches, and the number of leading blocks in which patches are faster than full maps."""

    def __init__(
        self, stem: Convolution, stem_forms: NeededForms, blocks: Sequence[Block], *, uses_library: bool = False
    ) -> None:
        self._uses_library = uses_library
        self.full_stem = stem
        self.stem = stem.copy_without_padding()
        self.stem_forms = stem_forms
        self.full_blocks = blocks
        self.blocks = [
            _CellKernels(block) if isinstance(block, CellBlock) else _ReductionKernels(block) for block in blocks
        ]
        self._best_depths: dict[tuple[int, int], tuple[int, float]] = {}

    def choose_depth(self, sides: Sequence[int], height: int, width: int) -> int:
        """Return the number of leading blocks that should compute only patches; 0 if full passes are faster.

        `sides` contains the side length of the window in each upcoming query.
        """
        if not sides or height != width or height < MIN_IMAGE_SIZE:
            return 0
        side_and_size = max(sides), height
        if side_and_size not in self._best_depths:
            self._best_depths[side_and_size] = self._find_best_depth(*side_and_size)
        depth, saving = self._best_depths[side_and_size]
        if self._uses_library and saving < MIN_SAVING:
            return 0
        return depth if saving * len(sides) >= MIN_SAVED_PASSES else 0

    def _find_best_depth(self, side: int, size: int) -> tuple[int, float]:
        """Return the depth with the largest saving, and the saving as a fraction of a full pass.

        `side` is the side length of the window, and `size` that of the image. Without the native library, all blocks
        are assumed to cost the same.
        """
        patch_fractions = self._patch_fractions(side, size)
        saving, best = 0.0, (0, 0.0)
        costs = [kernels.cost() for kernels in self.blocks] if self._uses_library else [(1.0, 0.0)] * len(self.blocks)
        for depth, (fraction, (full_cost, cache_cost)) in enumerate(zip(patch_fractions, costs, strict=True), start=1):
            if fraction > MAX_FRACTION and not self._uses_library:
                break
            saving += (full_cost - fraction * (full_cost + cache_cost)) / sum(cost for cost, _ in costs)
            best = max(best, (depth, saving), key=lambda candidate: candidate[1])
        return best

    def _patch_fractions(self, side: int, size: int) -> Iterator[float]:
        """Yield, for each block, the fraction of its output that a window changes, as a mean over window positions."""
        # A window's row and column are independent with the same distribution, so the mean area is the square of the
        # mean height.
        n_starts = max(1, size - side)
        regions = [Region(start, start + side, start, start + side).spread(1, size, size) for start in range(n_starts)]
        for kernels in self.blocks:
            regions = [kernels.spread(region, size, size) for region in regions]
            if isinstance(kernels, _ReductionKernels):
                size //= 2
            yield (sum(region.size[0] for region in regions) / n_starts / size) ** 2


class IncrementalPass:
    """Computes the logits of images that differ from a search's accepted images in one window.

    Args:
        centred: (B, 3, H, W) float32, the accepted images minus the network's mean; channels_last.
        mean: (1, 3, 1, 1), the mean that was subtracted.
        depth: number of leading blocks that compute only patches.
        classify: returns the logits, given the last block's output.
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
        value = Value.of(kernels.full_stem(centred), kernels.stem_forms)
        self._blocks: list[_IncrementalCell | _IncrementalReduction] = []
        for block in kernels.blocks[:depth]:
            incremental_block, value = block.start(value)
            self._blocks.append(incremental_block)
        self._full_blocks = kernels.full_blocks[depth:]
        # The boundary is the map between the blocks that compute patches and those that compute full maps.
        self._boundary_forms = (
            self._full_blocks[0].needed_forms if self._full_blocks else NeededForms(raw=True, rectified=False)
        )
        self._boundary = CachedValue(value, self._boundary_forms)

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            patch = self._compute_stem_patch(row, column, window)
            for block in self._blocks:
                patch = block.forward(patch)
            self._boundary.propose(patch)
            full_region = Region(0, self._boundary.height, 0, self._boundary.width)
            value = Value(
                self._boundary.raw(full_region) if self._boundary_forms.raw else None,
                self._boundary.rectified(full_region) if self._boundary_forms.rectified else None,
            )
            for full_block in self._full_blocks:
                value = full_block.forward(value, None)
            logits = self._classify(value)
        # Create the result outside inference mode, so that callers may write to it.
        return torch.empty(len(window), logits.shape[1]).copy_(logits[: len(window)])

    def _compute_stem_patch(self, row: int, column: int, window: torch.Tensor) -> Patch:
        n_images, _, height, width = self._shape
        n_rows, n_columns = window.shape[2:]
        centred = torch.empty(n_images, 3, n_rows, n_columns, memory_format=_CHANNELS_LAST).zero_()
        torch.sub(window, self._mean, out=centred[: len(window)])
        region = Region(row, row + n_rows, column, column + n_columns)
        self._pixels.propose(region, centred)
        region = region.spread(1, height, width)
        pixels, stem_forms = self._pixels.read(region.dilate(1)), self._kernels.stem_forms
        if stem_forms.raw:
            return Patch(region, Value.of(self._kernels.stem(pixels), stem_forms))
        return Patch(region, Value(None, self._kernels.stem(pixels, rectify=True)))

    def accept(self, accepted: torch.Tensor) -> None:
        images = accepted.nonzero().flatten()
        if len(images) == 0:
            return
        with torch.inference_mode():
            self._pixels.accept(images)
            for block in self._blocks:
                block.accept(images)
            self._boundary.accept(images)
