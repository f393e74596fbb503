"""Incremental forward pass with native.c: when one window changes, recompute only the affected part of each map.

Patches are computed in place, in the maps of the accepted images; the overwritten values are saved, and restored if the
proposal is rejected. Nothing accumulates across proposals, so rounding errors do not grow.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from robust201.spaces.nasbench201.compiled import native
from robust201.spaces.nasbench201.compiled.arena import PersistentMaps, Runner, in_threads, split_for_threads
from robust201.spaces.nasbench201.compiled.lowering import Map, Operation, OperationList
from robust201.spaces.nasbench201.compiled.regions import Region, union

_TILE = 4
"""Minimum number of columns that convolutions compute together; patch widths are rounded up to a multiple of it."""


@dataclass(frozen=True)
class _Step:
    """Information to find the region of an operation's result that changes.

    Attributes:
        reads: operations whose results it reads, each with the number of pixels that it reads on each side of a pixel.
        halves: whether it halves the image.
        height, width, outputs: shape of its result.
        n_maps: number of its result maps that are kept.
    """

    reads: tuple[tuple[int, int], ...]
    halves: bool
    height: int
    width: int
    outputs: int
    n_maps: int


class SearchRunner:
    """State shared by the searches of one network, image size and depth."""

    def __init__(self, runner: Runner, listing: OperationList, persistent: PersistentMaps) -> None:
        self.runner = runner
        self.free: list[torch.Tensor] = []
        operations = listing.operations[: persistent.n_operations]
        makers = _makers(operations)
        self._steps = [_step_of(operation, makers, persistent.maps) for operation in operations]

    def regions(self, window: Region) -> list[Region]:
        """Return the region of each leading operation's result that a window affects, slightly widened."""
        changed: list[Region] = []
        for step in self._steps:
            size = step.height, step.width
            if not step.reads:
                changed.append(window)
            elif step.halves:
                ((source, reach),) = step.reads
                before = changed[source]
                changed.append(before.spread_by_two(*size) if reach else _halved(before))
            else:
                changed.append(union([changed[source].spread(reach, *size) for source, reach in step.reads]))
        return [_widened(region, step.width) for region, step in zip(changed, self._steps, strict=True)]

    def floats(self, regions: list[Region]) -> int:
        """Return the number of floats to save per image."""
        return sum(
            region.size[0] * region.size[1] * step.outputs * step.n_maps
            for region, step in zip(regions, self._steps, strict=True)
        )

    def take_arena(self) -> torch.Tensor:
        return self.free.pop() if self.free else self.runner.make_arena()


class NativeSearch:
    """Evaluates proposals (see `models.model.WindowSearch`).

    Args:
        runner: shared state of the network.
        pixels: (B, 3, H, W) float32, the accepted images; they are copied.
        features: (B, 4C, H / 4, W / 4), channels_last, memory for the last block's output.
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
        self._parts = split_for_threads(len(pixels))
        self._arenas = [runner.take_arena() for _ in self._parts]
        # Creating an arena would cost more than the first pass, so a finished search returns it for reuse.
        weakref.finalize(self, runner.free.extend, self._arenas)
        self._log = torch.empty(len(pixels), 0)
        self._proposal: tuple[Region, list[Region], torch.Tensor] | None = None
        self._run(slice(None), range(len(pixels)))

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        if self._proposal is not None:
            self.accept(torch.zeros(len(self._proposal[2]), dtype=torch.bool))
        region = Region(row, row + window.shape[2], column, column + window.shape[3])
        regions = self._runner.regions(region)
        floats = self._runner.floats(regions)
        if self._log.shape[1] < floats:
            self._log = torch.empty(len(self._pixels), floats)
        pixels = self._window(region, len(window))
        self._proposal = region, regions, pixels.clone()
        pixels.copy_(window)
        with torch.inference_mode():
            self._run_regions(regions, len(window), None)
            self._run(slice(1, None), range(len(window)))
            logits = self._classify(self._features)
        # Created outside inference mode, so that callers may write into it.
        return torch.empty(len(window), logits.shape[1]).copy_(logits[: len(window)])

    def accept(self, accepted: torch.Tensor) -> None:
        if self._proposal is None:
            return
        region, regions, before = self._proposal
        self._proposal = None
        rejected = ~accepted
        if not bool(rejected.any()):
            return
        pixels = self._window(region, len(before))
        pixels[rejected] = before[rejected]
        self._run_regions(regions, len(before), rejected)

    def _window(self, region: Region, n_images: int) -> torch.Tensor:
        rows, columns = region.within(Region(0, 0, 0, 0))
        return self._pixels[:n_images, :, rows, columns]

    def _run(self, segments: slice, images: range) -> None:
        def run(number: int, part: slice) -> None:
            n_images = min(part.stop, images.stop) - part.start
            if n_images > 0:
                outside = [self._pixels[part], self._features[part], None, None]
                self._runner.runner.run(segments, self._arenas[number], n_images, outside)

        in_threads(run, self._parts)

    def _run_regions(self, regions: list[Region], n_images: int, back: torch.Tensor | None) -> None:
        def run(number: int, part: slice) -> None:
            n_here = min(part.stop, n_images) - part.start
            if n_here > 0:
                self._runner.runner.run_regions(
                    regions,
                    self._arenas[number],
                    self._log[part],
                    n_here,
                    [self._pixels[part], self._features[part], None, None],
                    back=None if back is None else back[part],
                )

        in_threads(run, self._parts)


def find_persistent_maps(listing: OperationList, n_operations: int) -> PersistentMaps:
    """Return the maps of the leading operations that must be kept because more than the computed region is read."""
    operations = listing.operations[:n_operations]
    makers = _makers(operations)
    # Operations with the same number in this list always change the same region.
    same: list[int] = []
    kept = {read for operation in listing.operations[n_operations:] for read in operation.reads() if read in makers}
    for number, operation in enumerate(operations):
        step = _step_of(operation, makers, frozenset())
        before = {same[source] for source, _ in step.reads}
        is_dilated = step.halves or len(before) != 1 or any(reach for _, reach in step.reads)
        same.append(number if is_dilated else before.pop())
        if is_dilated:
            kept.update(read for read in operation.reads() if read in makers)
        kept.update(written for written in operation.writes() if written.external is not None)
    return PersistentMaps(n_operations, frozenset(kept))


def _makers(operations: list[Operation]) -> dict[Map, int]:
    return {written: number for number, operation in enumerate(operations) for written in operation.writes()}


def _step_of(operation: Operation, makers: dict[Map, int], kept: frozenset[Map]) -> _Step:
    reads = []
    for number, view in enumerate(operation.sources):
        if operation.kind == native.CONVOLVE:
            reach = max(abs(shift) for tap in operation.taps for shift in tap)
        else:
            reach = int(number < operation.n_pools)
        if view.map in makers:
            reads.append((makers[view.map], reach))
    if operation.add is not None and operation.add.map in makers:
        reads.append((makers[operation.add.map], 0))
    return _Step(
        tuple(reads),
        operation.kind == native.HALVE or operation.step == 2,
        operation.height,
        operation.width,
        operation.outputs,
        sum(written in kept for written in operation.writes()),
    )


def _halved(region: Region) -> Region:
    return Region(region.top // 2, (region.bottom + 1) // 2, region.left // 2, (region.right + 1) // 2)


def _widened(region: Region, width: int) -> Region:
    """Widen a region to a multiple of the tile width, but not beyond the map."""
    new_width = min(-(-region.size[1] // _TILE) * _TILE, width)
    left = min(region.left, width - new_width)
    return region._replace(left=left, right=left + new_width)
