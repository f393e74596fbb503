"""Memory allocation for a list of operations, and its execution.

Maps that a later segment reads are kept for every image of a run. All other maps reuse the memory of dead maps of the
same shape, so that borders stay zero. Each thread has its own arena.
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

GROUP_IMAGES = {32: 1, 16: 2, 8: 4}
"""Images per operation call, by height of a segment's maps: few, so that the maps stay in a core's cache, but more than
one if the weights are larger than the maps."""


class PersistentMaps(NamedTuple):
    """Number of leading operations that a search runs on regions, and the maps that it keeps."""

    n_operations: int
    maps: frozenset[Map]


class Runner:
    """A list of operations with memory.

    Args:
        listing: the operations.
        at_once: images that pass through all segments together.
        library: result of `native.load_library`.
        persistent: maps for `run_regions`.
    """

    def __init__(
        self, listing: OperationList, *, at_once: int, library: ctypes.CDLL, persistent: PersistentMaps | None = None
    ) -> None:
        self.at_once = at_once
        self._library = library
        self._persistent = PersistentMaps(0, frozenset()) if persistent is None else persistent
        self._constants = listing.constants
        self._tensors = [tensor for o in listing.operations for tensor in (o.weights, o.bias) if tensor is not None]
        firsts = [first for first, _ in listing.segments]
        stops = [*firsts[1:], len(listing.operations)]
        groups = [min(at_once, GROUP_IMAGES.get(height, 1)) for _, height in listing.segments]
        self._segments = (native.SegmentStruct * len(firsts))(
            *(native.SegmentStruct(*row) for row in zip(firsts, stops, groups, strict=True))
        )
        buffers, numbers, self._arena_floats = _allocate(
            listing.operations, list(self._segments), at_once, self._persistent.maps
        )
        self._buffers = (native.BufferStruct * len(buffers))(*buffers)
        self._operations = (native.OperationStruct * len(listing.operations))(
            *(_pack(operation, numbers) for operation in listing.operations)
        )

    def make_arena(self) -> torch.Tensor:
        return torch.zeros(self._arena_floats)

    def run(self, segments: slice, arena: torch.Tensor, n_images: int, outside: Sequence[torch.Tensor | None]) -> None:
        """Run segments on the caller's tensors (`lowering.PIXELS` etc.), with one row per image."""
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
        """Recompute a region of each leading operation's maps, and save the previous values of kept maps in `log`.

        With `back`, (n,) bool, restore the saved values for these images instead.
        """
        packed = (native.RegionStruct * len(regions))(*(native.RegionStruct(r.top, r.left, *r.size) for r in regions))
        self._library.robust201_run_regions(
            ctypes.addressof(self._operations),
            packed,
            self._persistent.n_operations,
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


def _allocate(
    operations: list[Operation], segments: Sequence[native.SegmentStruct], at_once: int, persistent: frozenset[Map]
) -> tuple[list[native.BufferStruct], dict[Map, int], int]:
    """Assign a buffer to every map: return the buffers, their numbers by map, and the floats of the arena."""
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
            is_kept = used in persistent or segment_of[first_write[used]] != segment_of[last_use[used]]
            shape = (used.height, used.width, used.channels, segment_of[position])
            if not is_kept and free[shape]:
                numbers[used] = free[shape].pop()
                continue
            floats = math.ceil(used.floats / _CACHE_LINE) * _CACHE_LINE
            buffers.append(native.BufferStruct(-1, offset, floats, int(is_kept)))
            numbers[used] = len(buffers) - 1
            offset += floats * (at_once if is_kept else segments[segment_of[position]].group)
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


def split_for_threads(n_images: int) -> list[slice]:
    """Split images into one part per torch thread."""
    n_per_part = -(-n_images // torch.get_num_threads())
    return [slice(start, min(start + n_per_part, n_images)) for start in range(0, n_images, n_per_part)]


def in_threads(run: Callable[[int, slice], None], parts: list[slice]) -> None:
    """Call a function with the number and slice of each part, in one thread per part."""
    if len(parts) == 1:
        run(0, parts[0])
        return
    pool = _pool(len(parts))
    for future in [pool.submit(run, number, part) for number, part in enumerate(parts)]:
        future.result()


@functools.cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="robust201")
