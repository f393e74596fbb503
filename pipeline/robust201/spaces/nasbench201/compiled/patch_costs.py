"""Choice of the number of blocks that a search recomputes only in patches (see `native_search`).

In each query, a search such as the Square attack changes one window of each image. A patch is the part of a feature map
that the window can change. From the first block whose patch would cover most of the map, whole maps are computed.
"""

from collections.abc import Iterator, Sequence

from robust201.spaces.nasbench201.compiled.blocks import Block, CellBlock, NeededForms, NodeKernels
from robust201.spaces.nasbench201.compiled.regions import Region, union

MIN_SAVED_PASSES = 3.0
"""Minimum estimated number of full passes that a search must save. Filling the cache costs more than one pass."""

MIN_SAVING = 0.3
"""Minimum estimated saving per query, as a fraction of a full pass. This margin covers CPU cache misses, which the
estimate ignores."""

# Relative costs (docs/internals/engine.md). The two costs of convolutions are for kernel sizes 1 and 3. A cached map
# costs main-memory traffic, because it is saved, written and restored.
_CACHED_COST, _CONVOLUTION_COSTS, _POOLING_COST, _SKIP_COST, _REDUCTION_COST = 5.0, (3.0, 20.0), 2.0, 1.0, 30.0

MIN_IMAGE_SIZE = 8
"""Minimum height and width of images."""


class _CellPatches:
    """Patches of a cell: the region that a change affects, and relative costs."""

    def __init__(self, block: CellBlock) -> None:
        self._block = block
        self._sources = {node.index: _sources_with_reach(node) for node in block.nodes}

    def spread(self, region: Region, height: int, width: int) -> Region:
        """Return the output region that a change in an input region affects, for maps of this height and width."""
        regions = {0: region}
        for node, sources in self._sources.items():
            regions[node] = union([regions[source].spread(reach, height, width) for source, reach in sources])
        return regions[self._block.output_node]

    def cost(self) -> tuple[float, float]:
        """Return the estimated relative costs of a full pass, and of caching its maps."""
        full_cost = 0.0
        for node in self._block.nodes:
            full_cost += _POOLING_COST * len(node.poolings) + _SKIP_COST * len(node.skips)
            full_cost += sum(_CONVOLUTION_COSTS[convolution.reach] for _, convolution in node.convolutions)
        return full_cost, _CACHED_COST * sum(forms.raw + forms.rectified for forms in self._find_cached_forms())

    def _find_cached_forms(self) -> Iterator[NeededForms]:
        """Yield, for each node, the forms that must be cached because pixels outside the patch are read."""
        dilations = {0: 0}
        for index, sources in self._sources.items():
            dilations[index] = max(dilations[source] + reach for source, reach in sources)
        cached_forms = dict.fromkeys(dilations, NeededForms(raw=False, rectified=False))
        for node in self._block.nodes:
            for source, _ in node.poolings:
                cached_forms[source] = cached_forms[source]._replace(raw=True)
            for source, _ in node.skips:
                if dilations[source] < dilations[node.index]:
                    cached_forms[source] = cached_forms[source]._replace(raw=True)
            for source, convolution in node.convolutions:
                if convolution.reach or dilations[source] < dilations[node.index]:
                    cached_forms[source] = cached_forms[source]._replace(rectified=True)
        yield from cached_forms.values()


def _sources_with_reach(node: NodeKernels) -> list[tuple[int, int]]:
    """Return a node's source nodes, each with the number of pixels that are read on each side of a pixel (reach)."""
    return [
        *((source, 1) for source, _ in node.poolings),
        *((source, 0) for source, _ in node.skips),
        *((source, convolution.reach) for source, convolution in node.convolutions),
    ]


class _ReductionPatches:
    """Patches of a residual reduction, which halves the image."""

    @staticmethod
    def spread(region: Region, height: int, width: int) -> Region:
        half_size = height // 2, width // 2
        return region.spread_with_stride_2(*half_size).spread(1, *half_size)

    @staticmethod
    def cost() -> tuple[float, float]:
        return _REDUCTION_COST, 3 * _CACHED_COST


class PatchCosts:
    """Estimates, for a network's blocks, the number of leading blocks in which patches are faster than full maps."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = [_CellPatches(block) if isinstance(block, CellBlock) else _ReductionPatches() for block in blocks]
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
        return depth if saving >= MIN_SAVING and saving * len(sides) >= MIN_SAVED_PASSES else 0

    def _find_best_depth(self, side: int, size: int) -> tuple[int, float]:
        """Return the depth with the largest saving, and the saving as a fraction of a full pass.

        `side` is the side length of the window, and `size` that of the image.
        """
        saving, best = 0.0, (0, 0.0)
        costs = [block.cost() for block in self.blocks]
        for depth, (fraction, (full_cost, cache_cost)) in enumerate(
            zip(self._patch_fractions(side, size), costs, strict=True), start=1
        ):
            saving += (full_cost - fraction * (full_cost + cache_cost)) / sum(cost for cost, _ in costs)
            best = max(best, (depth, saving), key=lambda candidate: candidate[1])
        return best

    def _patch_fractions(self, side: int, size: int) -> Iterator[float]:
        """Yield, for each block, the fraction of its output that a window changes, as a mean over window positions."""
        # A window's row and column are independent with the same distribution, so the mean area is the square of the
        # mean height.
        n_starts = max(1, size - side)
        regions = [Region(start, start + side, start, start + side).spread(1, size, size) for start in range(n_starts)]
        for block in self.blocks:
            regions = [block.spread(region, size, size) for region in regions]
            if isinstance(block, _ReductionPatches):
                size //= 2
            yield (sum(region.size[0] for region in regions) / n_starts / size) ** 2
