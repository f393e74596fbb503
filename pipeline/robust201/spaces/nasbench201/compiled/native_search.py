"""Incremental forward pass with native.c. If one window changes, only the affected region of each map is recomputed.

A search such as Square Attack proposes a new window for each image, and accepts or rejects it. The recomputed regions
(patches) overwrite the maps of the accepted images. Overwritten values are saved, and restored if the proposal is
rejected. Therefore, rounding errors do not accumulate across proposals.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from robust201.spaces.nasbench201.compiled import native
from robust201.spaces.nasbench201.compiled.arena import RegionExecution, Runner, run_in_threads, split_for_threads
from robust201.spaces.nasbench201.compiled.lowering import Map, Operation, OperationList
from robust201.spaces.nasbench201.compiled.regions import Region, union

_TILE = 4
"""Minimum number of columns that a convolution computes together. Patch widths are rounded up to a multiple of it."""


@dataclass(frozen=True)
class _RegionRule:
    """Properties of an operation that determine which region of its output changes if regions of its inputs change.

    Attributes:
        reads: (index, reach) of each operation whose output is read; the reach is the number of pixels that are read on
            each side of a pixel.
        halves: whether the operation halves the image.
        height, width, output_channels: shape of the output.
        n_persistent_maps: number of output maps that the search keeps between queries.
    """

    reads: tuple[tuple[int, int], ...]
    halves: bool
    height: int
    width: int
    output_channels: int
    n_persistent_maps: int


class SearchRunner:
    """State of all searches with the same network, image size and number of blocks that compute only patches."""

    def __init__(self, runner: Runner, operation_list: OperationList, region_execution: RegionExecution) -> None:
        self.runner = runner
        self.free_arenas: list[torch.Tensor] = []
        operations = operation_list.operations[: region_execution.n_operations]
        producers = _find_producers(operations)
        self._region_rules = [_region_rule_of(operation, producers, region_execution.maps) for operation in operations]

    def changed_regions(self, window: Region) -> list[Region]:
        """Return, for each operation that computes only patches, the region that a window affects, in whole tiles."""
        regions: list[Region] = []
        for rule in self._region_rules:
            size = rule.height, rule.width
            if not rule.reads:
                regions.append(window)
            elif rule.halves:
                ((source, reach),) = rule.reads
                input_region = regions[source]
                regions.append(input_region.spread_with_stride_2(*size) if reach else _halve(input_region))
            else:
                regions.append(union([regions[source].spread(reach, *size) for source, reach in rule.reads]))
        return [_widen_to_tiles(region, rule.width) for region, rule in zip(regions, self._region_rules, strict=True)]

    def count_saved_floats(self, regions: list[Region]) -> int:
        """Return the number of floats per image that are saved before these regions are overwritten."""
        return sum(
            region.size[0] * region.size[1] * rule.output_channels * rule.n_persistent_maps
            for region, rule in zip(regions, self._region_rules, strict=True)
        )

    def take_arena(self) -> torch.Tensor:
        """Return a free arena, or a new one."""
        return self.free_arenas.pop() if self.free_arenas else self.runner.make_arena()


class NativeSearch:
    """A search that evaluates proposals (see `models.model.WindowSearch`).

    Args:
        runner: state shared by the network's searches.
        pixels: (B, 3, H, W) float32, the accepted images; they are copied.
        features: (B, channels, H / 4, W / 4), channels_last; memory for the last block's output.
        classify: maps the last block's output to logits (B, classes).
    """

    def __init__(
        self,
        runner: SearchRunner,
        pixels: torch.Tensor,
        features: torch.Tensor,
        classify: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._runner, self._classify = runner, classify
        self._pixels, self._features = pixels.clone(memory_format=torch.contiguous_format), features
        self._images_by_thread = split_for_threads(len(pixels))
        self._arenas = [runner.take_arena() for _ in self._images_by_thread]
        # Creating an arena takes longer than the first pass, so a finished search returns its arenas for reuse.
        weakref.finalize(self, runner.free_arenas.extend, self._arenas)
        self._saved_values = torch.empty(len(pixels), 0)
        self._proposal: tuple[Region, list[Region], torch.Tensor] | None = None
        self._run(slice(None), range(len(pixels)))

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        if self._proposal is not None:
            self.accept(torch.zeros(len(self._proposal[2]), dtype=torch.bool))
        region = Region(row, row + window.shape[2], column, column + window.shape[3])
        regions = self._runner.changed_regions(region)
        n_floats = self._runner.count_saved_floats(regions)
        if self._saved_values.shape[1] < n_floats:
            self._saved_values = torch.empty(len(self._pixels), n_floats)
        pixels = self._window_pixels(region, len(window))
        self._proposal = region, regions, pixels.clone()
        pixels.copy_(window)
        with torch.inference_mode():
            self._run_regions(regions, len(window), None)
            self._run(slice(1, None), range(len(window)))
            logits = self._classify(self._features)
        # Create the result outside inference mode, so that callers may write to it.
        return torch.empty(len(window), logits.shape[1]).copy_(logits[: len(window)])

    def accept(self, accepted: torch.Tensor) -> None:
        if self._proposal is None:
            return
        region, regions, saved_pixels = self._proposal
        self._proposal = None
        rejected = ~accepted
        if not bool(rejected.any()):
            return
        pixels = self._window_pixels(region, len(saved_pixels))
        pixels[rejected] = saved_pixels[rejected]
        self._run_regions(regions, len(saved_pixels), rejected)

    def _window_pixels(self, region: Region, n_images: int) -> torch.Tensor:
        rows, columns = region.slices_within(Region(0, 0, 0, 0))
        return self._pixels[:n_images, :, rows, columns]

    def _run(self, segments: slice, images: range) -> None:
        def run(thread: int, thread_images: slice) -> None:
            n_images = min(thread_images.stop, images.stop) - thread_images.start
            if n_images > 0:
                external_tensors = [self._pixels[thread_images], self._features[thread_images], None, None]
                self._runner.runner.run(segments, self._arenas[thread], n_images, external_tensors)

        run_in_threads(run, self._images_by_thread)

    def _run_regions(self, regions: list[Region], n_images: int, rejected: torch.Tensor | None) -> None:
        def run(thread: int, thread_images: slice) -> None:
            n_thread_images = min(thread_images.stop, n_images) - thread_images.start
            if n_thread_images > 0:
                self._runner.runner.run_regions(
                    regions,
                    self._arenas[thread],
                    self._saved_values[thread_images],
                    n_thread_images,
                    [self._pixels[thread_images], self._features[thread_images], None, None],
                    rejected=None if rejected is None else rejected[thread_images],
                )

        run_in_threads(run, self._images_by_thread)


def make_region_execution(operation_list: OperationList, n_operations: int) -> RegionExecution:
    """Let the first `n_operations` operations run on regions; keep maps that are read outside the recomputed region."""
    operations = operation_list.operations[:n_operations]
    producers = _find_producers(operations)
    # For each operation: the first operation that always changes the same region.
    same_region_as: list[int] = []
    persistent_maps = {
        feature_map
        for operation in operation_list.operations[n_operations:]
        for feature_map in operation.read_maps()
        if feature_map in producers
    }
    for position, operation in enumerate(operations):
        rule = _region_rule_of(operation, producers, frozenset())
        source_regions = {same_region_as[source] for source, _ in rule.reads}
        # Otherwise, the operation always changes the same region as the operations whose outputs it reads.
        has_own_region = rule.halves or len(source_regions) != 1 or any(reach for _, reach in rule.reads)
        same_region_as.append(position if has_own_region else source_regions.pop())
        if has_own_region:
            persistent_maps.update(feature_map for feature_map in operation.read_maps() if feature_map in producers)
        persistent_maps.update(
            feature_map for feature_map in operation.written_maps() if feature_map.external_number is not None
        )
    return RegionExecution(n_operations, frozenset(persistent_maps))


def _find_producers(operations: list[Operation]) -> dict[Map, int]:
    return {
        feature_map: number for number, operation in enumerate(operations) for feature_map in operation.written_maps()
    }


def _region_rule_of(operation: Operation, producers: dict[Map, int], persistent_maps: frozenset[Map]) -> _RegionRule:
    reads = []
    for position, view in enumerate(operation.sources):
        if operation.kind == native.CONVOLVE:
            reach = max(abs(shift) for tap in operation.taps for shift in tap)
        else:
            reach = int(position < operation.n_pools)
        if view.map in producers:
            reads.append((producers[view.map], reach))
    if operation.add is not None and operation.add.map in producers:
        reads.append((producers[operation.add.map], 0))
    return _RegionRule(
        tuple(reads),
        operation.kind == native.HALVE or operation.step == 2,
        operation.height,
        operation.width,
        operation.output_channels,
        sum(feature_map in persistent_maps for feature_map in operation.written_maps()),
    )


def _halve(region: Region) -> Region:
    return Region(region.top // 2, (region.bottom + 1) // 2, region.left // 2, (region.right + 1) // 2)


def _widen_to_tiles(region: Region, width: int) -> Region:
    """Widen a region to a multiple of the tile width, at most to the width of the map."""
    new_width = min(-(-region.size[1] // _TILE) * _TILE, width)
    left = min(region.left, width - new_width)
    return region._replace(left=left, right=left + new_width)
