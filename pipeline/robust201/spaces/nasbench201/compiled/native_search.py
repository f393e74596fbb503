"""Logits of images of which only one window has changed, by native.c: the part of each map that sees it is computed.

Patches are computed in place, in the maps of the accepted images; what they cover is noted, and put back where the
proposal is not accepted. Nothing is added up over proposals, so no rounding error grows.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch

from robust201.spaces.nasbench201.compiled import native
from robust201.spaces.nasbench201.compiled.arena import Held, Runner, in_threads, shares
from robust201.spaces.nasbench201.compiled.lowering import Map, Operation, OperationList
from robust201.spaces.nasbench201.compiled.regions import Region, union

_TILE = 4
"""Columns that convolutions compute together at the least: patches are made as wide as a multiple of it."""


@dataclass(frozen=True)
class _Step:
    """Where an operation's result changes.

    Attributes:
        reads: operations whose results it reads, and how many pixels to each side of a pixel it sees of them.
        halves: whether it halves the image.
        height: width: outputs: n_maps: of what it gives, and how many such maps stay.
    """

    reads: tuple[tuple[int, int], ...]
    halves: bool
    height: int
    width: int
    outputs: int
    n_maps: int


class SearchRunner:
    """What the searches of one network, of one size and depth, share."""

    def __init__(self, runner: Runner, listing: OperationList, held: Held) -> None:
        self.runner = runner
        self.free: list[torch.Tensor] = []
        operations = listing.operations[: held.n_operations]
        makers = _makers(operations)
        self._steps = [_step_of(operation, makers, held.maps) for operation in operations]

    def regions(self, window: Region) -> list[Region]:
        """Find which part of each held operation's result changes with a window of the pixels, a little widened."""
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
        """Count what is noted of an image."""
        return sum(
            region.size[0] * region.size[1] * step.outputs * step.n_maps
            for region, step in zip(regions, self._steps, strict=True)
        )

    def take_arena(self) -> torch.Tensor:
        return self.free.pop() if self.free else self.runner.make_arena()


class NativeSearch:
    """Answers proposals (see `models.model.WindowSearch`).

    Args:
        runner: of the network.
        pixels: (B, 3, H, W) float32, the accepted images; they are copied.
        features: (B, 4C, H / 4, W / 4), channels_last, for the last block's output.
        classify: maps that to logits (B, classes).
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
        self._parts = shares(len(pixels))
        self._arenas = [runner.take_arena() for _ in self._parts]
        # Making an arena anew would cost more than the first pass; a search gives it back when it is left.
        weakref.finalize(self, runner.free.extend, self._arenas)
        self._log = torch.empty(len(pixels), 0)
        self._proposal: tuple[Region, list[Region], torch.Tensor] | None = None
        self._run(slice(None), range(len(pixels)))

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        if self._proposal is not None:
            self.accept(torch.zeros(len(self._proposal[2]), dtype=torch.bool))
        place = Region(row, row + window.shape[2], column, column + window.shape[3])
        regions = self._runner.regions(place)
        floats = self._runner.floats(regions)
        if self._log.shape[1] < floats:
            self._log = torch.empty(len(self._pixels), floats)
        pixels = self._window(place, len(window))
        self._proposal = place, regions, pixels.clone()
        pixels.copy_(window)
        with torch.inference_mode():
            self._run_regions(regions, len(window), None)
            self._run(slice(1, None), range(len(window)))
            found = self._classify(self._features)
        # Made outside of inference mode, so that callers may write into them.
        return torch.empty(len(window), found.shape[1]).copy_(found[: len(window)])

    def accept(self, accepted: torch.Tensor) -> None:
        if self._proposal is None:
            return
        place, regions, before = self._proposal
        self._proposal = None
        rejected = ~accepted
        if not bool(rejected.any()):
            return
        pixels = self._window(place, len(before))
        pixels[rejected] = before[rejected]
        self._run_regions(regions, len(before), rejected)

    def _window(self, place: Region, n_images: int) -> torch.Tensor:
        rows, columns = place.within(Region(0, 0, 0, 0))
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


def held_of(listing: OperationList, n_operations: int) -> Held:
    """Find the maps of which the first operations or later ones read more than has just been computed."""
    operations = listing.operations[:n_operations]
    makers = _makers(operations)
    # Operations with the same number always change the same region.
    same: list[int] = []
    stay = {read for operation in listing.operations[n_operations:] for read in operation.reads() if read in makers}
    for number, operation in enumerate(operations):
        step = _step_of(operation, makers, frozenset())
        before = {same[source] for source, _ in step.reads}
        spreads = step.halves or len(before) != 1 or any(reach for _, reach in step.reads)
        same.append(number if spreads else before.pop())
        if spreads:
            stay.update(read for read in operation.reads() if read in makers)
        stay.update(written for written in operation.writes() if written.external is not None)
    return Held(n_operations, frozenset(stay))


def _makers(operations: list[Operation]) -> dict[Map, int]:
    return {written: number for number, operation in enumerate(operations) for written in operation.writes()}


def _step_of(operation: Operation, makers: dict[Map, int], stay: frozenset[Map]) -> _Step:
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
        sum(written in stay for written in operation.writes()),
    )


def _halved(region: Region) -> Region:
    return Region(region.top // 2, (region.bottom + 1) // 2, region.left // 2, (region.right + 1) // 2)


def _widened(region: Region, width: int) -> Region:
    """Add columns up to a multiple of a tile's, as far as the map has them."""
    wanted = min(-(-region.size[1] // _TILE) * _TILE, width)
    left = min(region.left, width - wanted)
    return region._replace(left=left, right=left + wanted)
