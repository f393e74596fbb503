"""Memory for a list of operations, and running it.

What a later segment reads is kept for every image of a run; everything else shares the memory of maps of its shape
that nobody reads any more, so that the borders stay zero. Each thread has an arena of its own.
"""

import ctypes
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from robust201.spaces.nasbench201.compiled import native
from robust201.spaces.nasbench201.compiled.lowering import Map, MapView, Operation, OperationList
from robust201.spaces.nasbench201.compiled.regions import Region

_CACHE_LINE = 16  # floats
_NONE = native.ViewStruct(-1, 0, 0, 0)

IMAGES_IN_TURN = {32: 1, 16: 2, 8: 4}
"""Height of a segment's maps to the images that each of its operations runs on before the next one does: few, so that
their maps stay in a core's cache; more than one, where weights are larger than maps."""


class Held(NamedTuple):
    """What a search needs: how many operations, from the first on, it runs on parts of maps, and the maps that stay."""

    n_operations: int
    maps: frozenset[Map]


class Runner:
    """A listing with memory.

    Args:
        listing: the operations.
        at_once: images that a run takes from its first segment to its last.
        library: what `native.load_library` gives.
        held: for `run_regions`.
    """

    def __init__(self, listing: OperationList, *, at_once: int, library: ctypes.CDLL, held: Held | None = None) -> None:
        self.at_once = at_once
        self._library = library
        self._held = Held(0, frozenset()) if held is None else held
        self._constants = listing.constants
        self._tensors = [tensor for o in listing.operations for tensor in (o.weights, o.bias) if tensor is not None]
        firsts = [first for first, _ in listing.segments]
        stops = [*firsts[1:], len(listing.operations)]
        groups = [min(at_once, IMAGES_IN_TURN.get(height, 1)) for _, height in listing.segments]
        self._segments = (native.SegmentStruct * len(firsts))(
            *(native.SegmentStruct(*row) for row in zip(firsts, stops, groups, strict=True))
        )
        buffers, numbers, self._arena_floats = _place(
            listing.operations, list(self._segments), at_once, self._held.maps
        )
        self._buffers = (native.BufferStruct * len(buffers))(*buffers)
        self._operations = (native.OperationStruct * len(listing.operations))(
            *(_pack(operation, numbers) for operation in listing.operations)
        )

    def make_arena(self) -> torch.Tensor:
        return torch.zeros(self._arena_floats)

    def run(self, segments: slice, arena: torch.Tensor, n_images: int, outside: Sequence[torch.Tensor | None]) -> None:
        """Run some segments on the caller's tensors (`lowering.PIXELS` and so on), one row per image."""
        start, stop, _ = segments.indices(len(self._segments))
        self._library.robust201_run(
            ctypes.addressof(self._operations),
            ctypes.addressof(self._segments) + start * ctypes.sizeof(native.SegmentStruct),
            stop - start,
            ctypes.addressof(self._buffers),
            *self._externals(outside),
            arena.data_ptr(),
            n_images,
            self.at_once,
        )

    def run_regions(
        self,
        regions: Sequence[Region],
        arena: torch.Tensor,
        log: torch.Tensor,
        n_images: int,
        outside: Sequence[torch.Tensor | None],
        *,
        back: torch.Tensor | None = None,
    ) -> None:
        """Give a region of each held operation's maps anew, and note in `log` what was in those that stay.

        With `back`, (n,) bool, put back what was there, for those images.
        """
        packed = (native.RegionStruct * len(regions))(*(native.RegionStruct(r.top, r.left, *r.size) for r in regions))
        self._library.robust201_run_regions(
            ctypes.addressof(self._operations),
            packed,
            self._held.n_operations,
            ctypes.addressof(self._buffers),
            *self._externals(outside),
            arena.data_ptr(),
            log.data_ptr(),
            log.stride(0),
            None if back is None else back.data_ptr(),
            n_images,
            self._segments[0].group,
        )

    def _externals(
        self, outside: Sequence[torch.Tensor | None]
    ) -> tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_int64]]:
        pointers = (ctypes.c_void_p * native.N_EXTERNALS)()
        strides = (ctypes.c_int64 * native.N_EXTERNALS)()
        for number, tensor in enumerate([*outside, *self._constants]):
            if tensor is not None:
                pointers[number] = tensor.data_ptr()
                strides[number] = tensor.stride(0) if number < len(outside) else 0
        return pointers, strides


def _place(
    operations: list[Operation], segments: Sequence[native.SegmentStruct], at_once: int, held: frozenset[Map]
) -> tuple[list[native.BufferStruct], dict[Map, int], int]:
    """Give every map a buffer: buffers, their numbers, floats of the arena."""
    segment_of = [number for number, segment in enumerate(segments) for _ in range(segment.first, segment.stop)]
    first_write: dict[Map, int] = {}
    last_use: dict[Map, int] = {}
    for position, operation in enumerate(operations):
        for written in operation.writes():
            first_write.setdefault(written, position)
        for used in (*operation.reads(), *operation.writes()):
            last_use[used] = position
    buffers: list[native.BufferStruct] = []
    numbers: dict[Map, int] = {}
    free: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    offset = 0
    for position, operation in enumerate(operations):
        for used in (*operation.reads(), *operation.writes()):
            if used in numbers:
                continue
            if used.external is not None:
                buffers.append(native.BufferStruct(used.external, 0, 0, 1))
                numbers[used] = len(buffers) - 1
                continue
            kept = used in held or segment_of[first_write[used]] != segment_of[last_use[used]]
            shape = (used.height, used.width, used.channels, segment_of[position])
            if not kept and free[shape]:
                numbers[used] = free[shape].pop()
                continue
            floats = math.ceil(used.floats / _CACHE_LINE) * _CACHE_LINE
            buffers.append(native.BufferStruct(-1, offset, floats, int(kept)))
            numbers[used] = len(buffers) - 1
            offset += floats * (at_once if kept else segments[segment_of[position]].group)
        for used in {*operation.reads(), *operation.writes()}:
            buffer = buffers[numbers[used]]
            if last_use[used] == position and buffer.external < 0 and not buffer.kept:
                free[used.height, used.width, used.channels, segment_of[position]].append(numbers[used])
    return buffers, numbers, offset


def _pack(operation: Operation, numbers: dict[Map, int]) -> native.OperationStruct:
    packed = native.OperationStruct()
    for name in ("kind", "height", "width", "inputs", "outputs", "step", "plane", "n_pools", "scaled"):
        setattr(packed, name, getattr(operation, name))
    packed.whole_height, packed.whole_width = operation.height, operation.width
    packed.n_taps, packed.n_sources = len(operation.taps), len(operation.sources)
    for number, view in enumerate(operation.sources):
        packed.sources[number] = _pack_view(view, numbers)
    if operation.taps:
        source = operation.sources[0].map
        for number, (y, x) in enumerate(operation.taps):
            packed.taps[number] = y * source.row + x * source.pixel
    for number, factor in enumerate(operation.factors):
        packed.factors[number] = factor
    for name in ("add", "tape", "past", "raw", "rectified"):
        view = getattr(operation, name)
        setattr(packed, name, _NONE if view is None else _pack_view(view, numbers))
    packed.weights = None if operation.weights is None else operation.weights.data_ptr()
    packed.bias = None if operation.bias is None else operation.bias.data_ptr()
    return packed


def _pack_view(view: MapView, numbers: dict[Map, int]) -> native.ViewStruct:
    source = view.map
    offset = source.first + view.y * source.row + view.x * source.pixel
    return native.ViewStruct(numbers[source], offset, view.step * source.row, view.step * source.pixel)


def shares(n_images: int) -> list[slice]:
    """Cut images into parts, one for each thread that torch has."""
    share = -(-n_images // torch.get_num_threads())
    return [slice(start, min(start + share, n_images)) for start in range(0, n_images, share)]


def in_threads(run: Callable[[int, slice], None], parts: list[slice]) -> None:
    """Call with each part and its number, one thread each."""
    if len(parts) == 1:
        run(0, parts[0])
        return
    pool = _pool(len(parts))
    for done in [pool.submit(run, number, part) for number, part in enumerate(parts)]:
        done.result()


@functools.cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="robust201")
