"""Patches: the regions of feature maps that a window of the image can change (see `native_search`).

In each query, a search such as the Square attack changes one window of each image. Leading blocks compute only patches;
all later blocks, in which patches would save nothing, compute whole maps.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from robust201.networks.nb201.compiled import native
from robust201.networks.nb201.compiled.lowering import Map, Operation

MIN_SAVED_PASSES = 3.0
"""Minimum estimated number of full passes that a search must save, since its start costs more than one pass."""

MIN_SAVING = 0.25
"""Minimum estimated saving per query, as a fraction of a full pass. This margin covers CPU cache misses, which the
estimate ignores."""

# Relative costs (docs/internals/engine.md). A persistent map costs main-memory traffic, because it is backed up,
# written and restored.
_PERSISTENT_COST, _CONVOLUTION_COSTS, _POOLING_COST, _ADDITION_COST = 5.0, {1: 3.0, 9: 20.0}, 2.0, 1.0


class Region(NamedTuple):
    """Rows [top, bottom) and columns [left, right) of a feature map."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.bottom - self.top, self.right - self.left

    def spread(self, reach: int, height: int, width: int) -> "Region":
        """Return the region of the output of a kernel with half-width `reach` that this region affects."""
        rows = max(self.top - reach, 0), min(self.bottom + reach, height)
        return Region(*rows, max(self.left - reach, 0), min(self.right + reach, width))

    def spread_with_stride_2(self, height: int, width: int) -> "Region":
        """Return the part of the output of a 3x3 kernel with stride 2 and padding 1 that this region affects.

        `height` and `width` are the size of the output. Output pixel o depends on input pixels 2o - 1 to 2o + 1.
        """
        return Region(self.top // 2, min(self.bottom // 2 + 1, height), self.left // 2, min(self.right // 2 + 1, width))

    def halve(self) -> "Region":
        """Return the part of the output of a 2x2 kernel with stride 2 that this region affects."""
        return Region(self.top // 2, (self.bottom + 1) // 2, self.left // 2, (self.right + 1) // 2)


def union(regions: list[Region]) -> Region:
    """Return the smallest region that contains one or more given regions."""
    tops, bottoms, lefts, rights = zip(*regions, strict=True)
    return Region(min(tops), max(bottoms), min(lefts), max(rights))


class Patches:
    """The patches of a forward pass.

    Args:
        operations: operations of the pass.
        n_operations: number of leading operations that compute only patches.

    Attributes:
        operations: the leading operations.
        persistent_maps: maps whose values are kept between queries, because they are read outside of patches.
    """

    def __init__(self, operations: Sequence[Operation], n_operations: int) -> None:
        self.operations = operations[:n_operations]
        self._producers = {
            feature_map: number
            for number, operation in enumerate(self.operations)
            for feature_map in operation.written_maps()
        }
        # For each operation: the number of each operation whose output it reads, and the reach (how many pixels it
        # reads on each side of a pixel).
        self._reads = [[*self._find_reads(operation)] for operation in self.operations]
        self.persistent_maps = self._find_persistent_maps(operations[n_operations:])
        self._persistent_counts = [
            sum(feature_map in self.persistent_maps for feature_map in operation.written_maps())
            for operation in self.operations
        ]

    def _find_reads(self, operation: Operation) -> list[tuple[int, int]]:
        reads = []
        for position, view in enumerate(operation.sources):
            if operation.kind == native.CONVOLVE:
                reach = max(abs(shift) for tap in operation.taps for shift in tap)
            else:
                reach = int(position < operation.n_pools)
            if view.map in self._producers:
                reads.append((self._producers[view.map], reach))
        if operation.add is not None and operation.add.map in self._producers:
            reads.append((self._producers[operation.add.map], 0))
        return reads

    def _find_persistent_maps(self, later_operations: Sequence[Operation]) -> frozenset[Map]:
        read_maps = {feature_map for operation in later_operations for feature_map in operation.read_maps()}
        # For each operation: the first operation whose output always changes in the same region.
        same_region_as: list[int] = []
        for number, (operation, reads) in enumerate(zip(self.operations, self._reads, strict=True)):
            source_regions = {same_region_as[source] for source, _ in reads}
            has_own_region = _halves_size(operation) or len(source_regions) != 1 or any(reach for _, reach in reads)
            same_region_as.append(number if has_own_region else source_regions.pop())
            if has_own_region:
                read_maps.update(operation.read_maps())
        written_to_caller = {feature_map for feature_map in self._producers if feature_map.external_number is not None}
        return frozenset(read_maps & self._producers.keys() | written_to_caller)

    def regions(self, window: Region) -> list[Region]:
        """Return, for each operation, the region of its output that a window of the image changes."""
        regions: list[Region] = []
        for operation, reads in zip(self.operations, self._reads, strict=True):
            size = operation.height, operation.width
            if not reads:
                regions.append(window)
            elif _halves_size(operation):
                ((source, reach),) = reads
                regions.append(regions[source].spread_with_stride_2(*size) if reach else regions[source].halve())
            else:
                regions.append(union([regions[source].spread(reach, *size) for source, reach in reads]))
        return regions

    def count_backup_floats(self, regions: Sequence[Region]) -> int:
        """Return the number of floats per image that are backed up before these regions are overwritten."""
        return sum(
            region.size[0] * region.size[1] * operation.output_channels * n_persistent
            for region, operation, n_persistent in zip(regions, self.operations, self._persistent_counts, strict=True)
        )

    def savings(self, side: int, size: int) -> list[float]:
        """Estimate, for each operation, the saving per query if this and all earlier operations compute only patches.

        A saving is a fraction of a full pass. `side` and `size` are the side lengths of the window and the image.
        """
        # A window's row and column are independent with the same distribution, so the mean area is the square of the
        # mean height.
        starts = range(max(1, size - side))
        regions_by_start = [self.regions(Region(start, start + side, start, start + side)) for start in starts]
        costs = [_estimate_cost(operation) for operation in self.operations]
        savings = []
        for number, (operation, cost) in enumerate(zip(self.operations, costs, strict=True)):
            mean_height = sum(regions[number].size[0] for regions in regions_by_start) / len(starts)
            patch_cost = cost + _PERSISTENT_COST * self._persistent_counts[number]
            savings.append(cost - (mean_height / operation.height) ** 2 * patch_cost)
        return [saving / sum(costs) for saving in accumulate(savings)]


def find_best_depth(
    operations: Sequence[Operation], block_ends: Sequence[int], side: int, size: int
) -> tuple[int, float]:
    """Return the number of leading blocks that should compute only patches, and the saving per query.

    The saving is a fraction of a full pass. If no saving is positive, the number is 0.

    Args:
        operations: operations of a forward pass.
        block_ends: number of operations up to the end of each block.
        side: side length of the window.
        size: height and width of the images.
    """
    savings = Patches(operations, len(operations)).savings(side, size)
    depths_and_savings = [(depth, savings[end - 1]) for depth, end in enumerate(block_ends, start=1)]
    return max([(0, 0.0), *depths_and_savings], key=lambda candidate: candidate[1])


def _halves_size(operation: Operation) -> bool:
    return operation.kind == native.HALVE or operation.step == 2


def _estimate_cost(operation: Operation) -> float:
    n_additions = len(operation.sources) - operation.n_pools + (operation.add is not None)
    if operation.kind != native.CONVOLVE:
        return _POOLING_COST * operation.n_pools + _ADDITION_COST * n_additions
    # `_CONVOLUTION_COSTS` are for equal numbers of input and output channels.
    return _CONVOLUTION_COSTS[len(operation.taps)] * operation.input_channels / operation.output_channels
