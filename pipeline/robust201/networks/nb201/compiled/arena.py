"""Allocate memory for a list of operations (see `lowering`), and run the list.

Operations read and write maps (feature maps). The list of operations is divided into segments, each of which runs on a
few images at a time. Maps that a later segment reads, and persistent maps (see `patches`), are kept for all images of
a run. Every other map reuses, if possible, the memory of a map of the same shape that is no longer read, whose border
of zeros need not be written again. Each thread has its own memory, an arena.
"""

import ctypes
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from robust201.networks.nb201.compiled import native
from robust201.networks.nb201.compiled.lowering import Map, MapView, Operation, OperationList
from robust201.networks.nb201.compiled.patches import Patches, Region

_CACHE_LINE = 16  # floats
_NO_VIEW = native.ViewStruct(-1, 0, 0, 0)

GROUP_IMAGES = {32: 1, 16: 2, 8: 4}
"""Number of images that run together through a segment, by height of the segment's maps; 1 for other heights. It is
small, so that maps stay in a core's cache, but larger than 1 where the weights are larger than the maps."""


class Runner:
    """A list of operations for which memory has been allocated.

    Args:
        operation_list: the operations.
        max_images: maximum number of images that run through all segments before the next images begin.
        library: result of `native.open_library`.
        patches: operations that `run_regions` runs; None if it is not called.
    """

    def __init__(
        self,
        operation_list: OperationList,
        *,
        max_images: int,
        library: ctypes.CDLL,
        patches: Patches | None = None,
    ) -> None:
        self.max_images = max_images
        self._library = library
        patches = patches or Patches(operation_list.operations, 0)
        self._n_region_operations = len(patches.operations)
        self._constants = operation_list.constants
        self._tensors = [
            tensor
            for operation in operation_list.operations
            for tensor in (operation.weights, operation.bias)
            if tensor is not None
        ]
        starts = [start for start, _ in operation_list.segments]
        stops = [*starts[1:], len(operation_list.operations)]
        groups = [min(max_images, GROUP_IMAGES.get(height, 1)) for _, height in operation_list.segments]
        self._segments = (native.SegmentStruct * len(starts))(
            *(native.SegmentStruct(*bounds) for bounds in zip(starts, stops, groups, strict=True))
        )
        buffers, buffer_numbers, self._arena_floats = _allocate(
            operation_list.operations, list(self._segments), max_images, patches.persistent_maps
        )
        self._buffers = (native.BufferStruct * len(buffers))(*buffers)
        self._operations = (native.OperationStruct * len(operation_list.operations))(
            *(_pack(operation, buffer_numbers) for operation in operation_list.operations)
        )

    def make_arena(self) -> torch.Tensor:
        """Return the memory that one thread needs, filled with zeros."""
        return torch.zeros(self._arena_floats)

    def run(
        self, segments: slice, arena: torch.Tensor, n_images: int, external_tensors: Sequence[torch.Tensor | None]
    ) -> None:
        """Run segments on the caller's tensors, which have one row per image.

        Tensors are in the order of their numbers, `lowering.PIXELS`, `lowering.FEATURES` etc. Tensors that the segments
        do not use may be None.
        """
        start, stop, _ = segments.indices(len(self._segments))
        self._library.robust201_run(
            ctypes.addressof(self._operations),
            ctypes.addressof(self._segments) + start * ctypes.sizeof(native.SegmentStruct),
            stop - start,
            ctypes.addressof(self._buffers),
            *self._pack_externals(external_tensors),
            arena.data_ptr(),
            n_images,
            self.max_images,
        )

    def run_regions(
        self,
        regions: Sequence[Region],
        arena: torch.Tensor,
        saved_values: torch.Tensor,
        n_images: int,
        external_tensors: Sequence[torch.Tensor | None],
        *,
        rejected: torch.Tensor | None = None,
    ) -> None:
        """Recompute one region for each operation in `patches`, and save overwritten values of persistent maps.

        `saved_values`, (n, floats per image), is the memory for the overwritten values. If `rejected`, (n,) bool, is
        given, nothing is computed, and the saved values of the rejected images are restored.
        """
        region_structs = (native.RegionStruct * len(regions))(
            *(native.RegionStruct(region.top, region.left, *region.size) for region in regions)
        )
        self._library.robust201_run_regions(
            ctypes.addressof(self._operations),
            region_structs,
            self._n_region_operations,
            ctypes.addressof(self._buffers),
            *self._pack_externals(external_tensors),
            arena.data_ptr(),
            saved_values.data_ptr(),
            saved_values.stride(0),
            None if rejected is None else rejected.data_ptr(),
            n_images,
            self._segments[0].n_images,
        )

    def _pack_externals(
        self, external_tensors: Sequence[torch.Tensor | None]
    ) -> tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_int64]]:
        pointers = (ctypes.c_void_p * native.MAX_EXTERNALS)()
        strides = (ctypes.c_int64 * native.MAX_EXTERNALS)()
        for number, tensor in enumerate([*external_tensors, *self._constants]):
            if tensor is not None:
                pointers[number] = tensor.data_ptr()
                strides[number] = tensor.stride(0) if number < len(external_tensors) else 0
        return pointers, strides


def _allocate(
    operations: list[Operation], segments: Sequence[native.SegmentStruct], max_images: int, persistent: frozenset[Map]
) -> tuple[list[native.BufferStruct], dict[Map, int], int]:
    """Assign a buffer to each map; return the buffers, each map's buffer number, and the arena's size in floats."""
    segment_of = [number for number, segment in enumerate(segments) for _ in range(segment.first, segment.stop)]
    first_write: dict[Map, int] = {}
    last_use: dict[Map, int] = {}
    for position, operation in enumerate(operations):
        for feature_map in operation.written_maps():
            first_write.setdefault(feature_map, position)
        last_use |= dict.fromkeys(operation.maps(), position)
    buffers: list[native.BufferStruct] = []
    buffer_numbers: dict[Map, int] = {}
    free_buffers: dict[tuple[tuple[int, int, int], int], list[int]] = defaultdict(list)
    offset = 0
    for position, (operation, segment) in enumerate(zip(operations, segment_of, strict=True)):
        for feature_map in operation.maps():
            if feature_map in buffer_numbers:
                continue
            is_retained = feature_map in persistent or (
                segment_of[first_write.get(feature_map, position)] != segment_of[last_use[feature_map]]
            )
            if feature_map.external_number is not None:
                buffers.append(native.BufferStruct(feature_map.external_number, 0, 0, 1))
            elif not is_retained and free_buffers[feature_map.shape, segment]:
                buffer_numbers[feature_map] = free_buffers[feature_map.shape, segment].pop()
                continue
            else:
                n_floats = math.ceil(feature_map.n_floats / _CACHE_LINE) * _CACHE_LINE
                buffers.append(native.BufferStruct(-1, offset, n_floats, int(is_retained)))
                offset += n_floats * (max_images if is_retained else segments[segment].n_images)
            buffer_numbers[feature_map] = len(buffers) - 1
        for feature_map in {*operation.maps()}:
            number = buffer_numbers[feature_map]
            if last_use[feature_map] == position and not buffers[number].is_retained:
                free_buffers[feature_map.shape, segment].append(number)
    return buffers, buffer_numbers, offset


def _pack(operation: Operation, buffer_numbers: dict[Map, int]) -> native.OperationStruct:
    packed = native.OperationStruct()
    for integer_field in (
        *("kind", "height", "width", "input_channels", "output_channels"),
        *("step", "channel_stride", "n_pools", "border_scaling"),
    ):
        setattr(packed, integer_field, getattr(operation, integer_field))
    packed.map_height, packed.map_width = operation.height, operation.width
    packed.n_taps, packed.n_sources = len(operation.taps), len(operation.sources)
    for position, view in enumerate(operation.sources):
        packed.sources[position] = _pack_view(view, buffer_numbers)
    if operation.taps:
        source = operation.sources[0].map
        for position, (y, x) in enumerate(operation.taps):
            packed.taps[position] = y * source.row_stride + x * source.pixel_stride
    for position, factor in enumerate(operation.factors):
        packed.factors[position] = factor
    for view_field in ("add", "tape", "add_after_mask", "raw", "rectified"):  # see `lowering.FinalSteps`
        view = getattr(operation, view_field)
        setattr(packed, view_field, _NO_VIEW if view is None else _pack_view(view, buffer_numbers))
    packed.weights = None if operation.weights is None else operation.weights.data_ptr()
    packed.bias = None if operation.bias is None else operation.bias.data_ptr()
    return packed


def _pack_view(view: MapView, buffer_numbers: dict[Map, int]) -> native.ViewStruct:
    viewed_map = view.map
    offset = viewed_map.first_pixel + view.y * viewed_map.row_stride + view.x * viewed_map.pixel_stride
    return native.ViewStruct(
        buffer_numbers[viewed_map], offset, view.step * viewed_map.row_stride, view.step * viewed_map.pixel_stride
    )


def split_for_threads(n_images: int) -> list[slice]:
    """Divide images among the torch threads, and return each thread's slice."""
    n_per_thread = -(-n_images // torch.get_num_threads())
    return [slice(start, min(start + n_per_thread, n_images)) for start in range(0, n_images, n_per_thread)]


def run_in_threads(run: Callable[[int, slice], None], images_by_thread: list[slice]) -> None:
    """Call a function once per thread, in parallel, with the thread's number and the slice of its images."""
    if len(images_by_thread) == 1:
        run(0, images_by_thread[0])
        return
    pool = _pool(len(images_by_thread))
    for future in [pool.submit(run, thread, thread_images) for thread, thread_images in enumerate(images_by_thread)]:
        future.result()


@functools.cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="robust201")
