"""Forward and backward passes of a compiled network with the native library."""

import ctypes
from collections.abc import Callable, Sequence

import torch

from robust201.networks.nb201.compiled.arena import Runner, run_in_threads, split_for_threads
from robust201.networks.nb201.compiled.blocks import Block, NeededForms, ReductionBlock
from robust201.networks.nb201.compiled.kernels import Convolution
from robust201.networks.nb201.compiled.lowering import (
    FEATURES,
    FEATURES_GRADIENT,
    PIXELS,
    PIXELS_GRADIENT,
    Map,
    OperationList,
)
from robust201.networks.nb201.compiled.native_search import NativeSearch, SharedSearchState
from robust201.networks.nb201.compiled.patches import MIN_SAVED_PASSES, MIN_SAVING, Patches, find_best_depth

N_FORWARD_IMAGES = 8
"""Number of images per thread that run through all stages of a forward pass before the next images begin."""

N_GRADIENT_IMAGES = 16
"""Number of images per thread in a pass with a gradient. It is small, so that ReLU outputs stay in the CPU cache until
the backward pass."""

SIDE_MULTIPLE = 16
"""Height and width of images must be multiples of this."""

_CHANNELS_LAST = torch.channels_last


class NativeNetwork:
    """Stem and blocks of a network, run by the native library.

    Args:
        blocks: the blocks in order.
        stem: the first convolution.
        stem_forms: forms of the stem's output that the first block reads.
        stem_gradient: convolution that computes the stem's input gradient.
        mean: (1, 3, 1, 1), the mean that is subtracted from pixels.
        channels: channels of the first stage, which must be 16, because native.c supports convolutions of 16, 32 and 64
            channels.
        library: result of `native.open_library`.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        stem: Convolution,
        stem_forms: NeededForms,
        stem_gradient: Convolution,
        mean: torch.Tensor,
        channels: int,
        library: ctypes.CDLL,
    ) -> None:
        self._library = library
        self._blocks, self._stem, self._stem_forms = blocks, stem, stem_forms
        self._stem_gradient, self._channels = stem_gradient, channels
        self._mean = mean.flatten().contiguous()
        self._runners: dict[tuple[int, int, bool], tuple[Runner, int]] = {}
        self._arenas: dict[tuple[Runner, int], torch.Tensor] = {}
        self._searches: dict[tuple[int, int, int, int], SharedSearchState] = {}
        self._best_depths: dict[tuple[int, int], tuple[int, float]] = {}

    @staticmethod
    def supports(pixels: torch.Tensor) -> bool:
        """Return whether images of this size are supported."""
        return pixels.shape[2] % SIDE_MULTIPLE == 0 and pixels.shape[3] % SIDE_MULTIPLE == 0

    @staticmethod
    def max_gradient_images() -> int:
        """Return the maximum number of images in a pass with a gradient."""
        return N_GRADIENT_IMAGES * torch.get_num_threads()

    def forward(self, pixels: torch.Tensor, *, keep: bool) -> torch.Tensor:
        """Return the last block's output (B, 4 * channels, H / 4, W / 4), channels_last, for pixels (B, 3, H, W).

        With `keep`, the maps that `backward` reads are kept; there may be at most `max_gradient_images` images.
        """
        height, width = pixels.shape[2:]
        features = self._make_features(pixels)
        runner, n_forward_segments = self._prepare_runner(height, width, gradient=keep)
        self._run(runner, slice(0, n_forward_segments), [pixels.contiguous(), features, None, None])
        return features

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the pixels, given the gradient of the output of the last `forward` with `keep`."""
        n_images, _, height, width = gradient.shape
        runner, n_forward_segments = self._prepare_runner(4 * height, 4 * width, gradient=True)
        pixel_gradient = torch.empty(n_images, 3, 4 * height, 4 * width)
        self._run(runner, slice(n_forward_segments, None), [None, None, gradient, pixel_gradient])
        return pixel_gradient

    def choose_search_depth(self, sides: Sequence[int], height: int, width: int) -> int:
        """Return the number of leading blocks that should compute only patches in a search; 0 for full passes.

        `sides` contains the side length of the window in each upcoming query.
        """
        if not sides or height != width:
            return 0
        key = max(sides), height
        if key not in self._best_depths:
            operation_list = OperationList()
            block_ends = self._list_forward(operation_list, height, width)
            self._best_depths[key] = find_best_depth(operation_list.operations, block_ends, *key)
        depth, saving = self._best_depths[key]
        return depth if saving >= MIN_SAVING and saving * len(sides) >= MIN_SAVED_PASSES else 0

    def search(
        self, pixels: torch.Tensor, depth: int, classify: Callable[[torch.Tensor], torch.Tensor], max_images: int
    ) -> NativeSearch:
        """Start a search in which the first `depth` blocks compute only patches.

        `classify` maps the last block's output to logits. `max_images` is the maximum number of images of any search.
        """
        height, width = pixels.shape[2:]
        n_threads = torch.get_num_threads()
        key = (height, width, depth, n_threads)
        if key not in self._searches:
            operation_list = OperationList()
            block_ends = self._list_forward(operation_list, height, width, depth)
            patches = Patches(operation_list.operations, block_ends[depth - 1])
            max_thread_images = -(-max_images // n_threads)
            runner = Runner(operation_list, max_images=max_thread_images, library=self._library, patches=patches)
            self._searches[key] = SharedSearchState(runner, patches)
        return NativeSearch(self._searches[key], pixels, self._make_features(pixels), classify)

    def _make_features(self, pixels: torch.Tensor) -> torch.Tensor:
        n_images, _, height, width = pixels.shape
        return torch.empty(n_images, 4 * self._channels, height // 4, width // 4, memory_format=_CHANNELS_LAST)

    def _run(self, runner: Runner, segments: slice, external_tensors: list[torch.Tensor | None]) -> None:
        n_images = max(len(tensor) for tensor in external_tensors if tensor is not None)

        def run(thread: int, images: slice) -> None:
            if (runner, thread) not in self._arenas:
                self._arenas[runner, thread] = runner.make_arena()
            thread_tensors = [None if tensor is None else tensor[images] for tensor in external_tensors]
            runner.run(segments, self._arenas[runner, thread], images.stop - images.start, thread_tensors)

        run_in_threads(run, split_for_threads(n_images))

    def _prepare_runner(self, height: int, width: int, *, gradient: bool) -> tuple[Runner, int]:
        """Return the runner for images of this size, and the number of segments of its forward pass."""
        key = (height, width, gradient)
        if key not in self._runners:
            operation_list, n_forward_segments = self._list_operations(height, width, gradient=gradient)
            max_images = N_GRADIENT_IMAGES if gradient else N_FORWARD_IMAGES
            self._runners[key] = (
                Runner(operation_list, max_images=max_images, library=self._library),
                n_forward_segments,
            )
        return self._runners[key]

    def _list_operations(self, height: int, width: int, *, gradient: bool) -> tuple[OperationList, int]:
        """Return the operations, and the number of segments of the forward pass."""
        operation_list = OperationList()
        self._list_forward(operation_list, height, width)
        n_forward_segments = len(operation_list.segments)
        if gradient:
            feature_shape = (height // 4, width // 4, 4 * self._channels)
            operation_list.begin_segment(feature_shape[0])
            output_gradient = operation_list.add_output_gradient(Map(*feature_shape, external_number=FEATURES_GRADIENT))
            for block in reversed(self._blocks):
                if isinstance(block, ReductionBlock):
                    operation_list.begin_segment(2 * output_gradient.height)
                output_gradient = operation_list.backward(block, output_gradient)
            pixel_gradient = _make_pixel_map(PIXELS_GRADIENT, height, width)
            operation_list.add_stem_gradient(output_gradient, self._stem_gradient, pixel_gradient)
        return operation_list, n_forward_segments

    def _list_forward(self, operation_list: OperationList, height: int, width: int, depth: int = 0) -> list[int]:
        """Append stem and blocks; return the number of operations up to the end of each block.

        The stem and the first `depth` blocks are one segment.
        """
        operation_list.begin_segment(height // 4 if depth else height)
        pixels = _make_pixel_map(PIXELS, height, width)
        value = operation_list.add_stem(pixels, self._mean, self._stem, self._stem_forms)
        feature_shape = (height // 4, width // 4, 4 * self._channels)
        block_ends = []
        for position, block in enumerate(self._blocks):
            output_map = Map(*feature_shape, external_number=FEATURES) if position == len(self._blocks) - 1 else None
            value = operation_list.forward(block, value, output_map)
            block_ends.append(len(operation_list.operations))
            if position == depth - 1 or (position >= depth and isinstance(block, ReductionBlock)):
                operation_list.begin_segment(value.shape[0])
        return block_ends


def _make_pixel_map(external_number: int, height: int, width: int) -> Map:
    strides = {"row_stride": width, "pixel_stride": 1, "channel_stride": height * width}
    return Map(height, width, 3, external_number=external_number, **strides)
