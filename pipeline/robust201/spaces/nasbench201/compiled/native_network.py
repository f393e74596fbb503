"""Passes of a compiled network with the native library."""

import ctypes
from collections.abc import Callable, Sequence

import torch

from robust201.spaces.nasbench201.compiled.arena import Runner, in_threads, split_for_threads
from robust201.spaces.nasbench201.compiled.blocks import Block, Needs, ReductionBlock
from robust201.spaces.nasbench201.compiled.kernels import Convolution
from robust201.spaces.nasbench201.compiled.lowering import (
    FEATURES,
    FEATURES_GRADIENT,
    PIXELS,
    PIXELS_GRADIENT,
    Map,
    OperationList,
)
from robust201.spaces.nasbench201.compiled.native_search import NativeSearch, SearchRunner, find_persistent_maps

FORWARD_IMAGES = 8
"""Images that a forward pass takes through all stages together."""

GRADIENT_IMAGES = 16
"""Images per pass with a gradient, so that their ReLU outputs stay in the cache until the backward pass."""

SIDE_MULTIPLE = 16

_CHANNELS_LAST = torch.channels_last


class NativeNetwork:
    """Stem and blocks of a network.

    Args:
        blocks: the blocks.
        stem_needs: forms of the stem's output that the first block reads.
        mean: (1, 3, 1, 1), to be subtracted from pixels.
        channels: channels of the first stage; must be 16, so that convolutions have 16, 32 or 64 inputs.
        library: result of `native.load_library`.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        stem: Convolution,
        stem_needs: Needs,
        stem_gradient: Convolution,
        mean: torch.Tensor,
        channels: int,
        library: ctypes.CDLL,
    ) -> None:
        self._library = library
        self._blocks, self._stem, self._stem_needs = blocks, stem, stem_needs
        self._stem_gradient, self._channels = stem_gradient, channels
        self._mean = mean.flatten().contiguous()
        self._runners: dict[tuple[int, int, bool], tuple[Runner, int]] = {}
        self._arenas: dict[tuple[Runner, int], torch.Tensor] = {}
        self._searches: dict[tuple[int, int, int, int], SearchRunner] = {}

    @staticmethod
    def supports(pixels: torch.Tensor) -> bool:
        """Return whether images of this size are supported."""
        return pixels.shape[2] % SIDE_MULTIPLE == 0 and pixels.shape[3] % SIDE_MULTIPLE == 0

    @staticmethod
    def gradient_images() -> int:
        return GRADIENT_IMAGES * torch.get_num_threads()

    def forward(self, pixels: torch.Tensor, *, keep: bool) -> torch.Tensor:
        """Return the last block's output, (B, 4C, H / 4, W / 4), channels_last, of pixels (B, 3, H, W).

        With `keep`, for at most `gradient_images`, keep the maps that `backward` reads.
        """
        height, width = pixels.shape[2:]
        features = self._features(pixels)
        runner, n_forward = self._runner(height, width, gradient=keep)
        self._run(runner, slice(0, n_forward), [pixels.contiguous(), features, None, None])
        return features

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the pixels, given that of the last `forward` with `keep`, channels_last."""
        n_images, _, height, width = gradient.shape
        runner, n_forward = self._runner(4 * height, 4 * width, gradient=True)
        onto_pixels = torch.empty(n_images, 3, 4 * height, 4 * width)
        self._run(runner, slice(n_forward, None), [None, None, gradient, onto_pixels])
        return onto_pixels

    def search(
        self, pixels: torch.Tensor, depth: int, classify: Callable[[torch.Tensor], torch.Tensor], at_most: int
    ) -> NativeSearch:
        """Start a search that computes patches in the first `depth` blocks, on at most `at_most` images.

        `classify` maps the last block's output to logits.
        """
        height, width = pixels.shape[2:]
        n_threads = torch.get_num_threads()
        key = (height, width, depth, n_threads)
        if key not in self._searches:
            listing = OperationList()
            persistent = find_persistent_maps(listing, self._list_forward(listing, height, width, depth))
            runner = Runner(listing, at_once=-(-at_most // n_threads), library=self._library, persistent=persistent)
            self._searches[key] = SearchRunner(runner, listing, persistent)
        return NativeSearch(self._searches[key], pixels, self._features(pixels), classify)

    def _features(self, pixels: torch.Tensor) -> torch.Tensor:
        n_images, _, height, width = pixels.shape
        return torch.empty(n_images, 4 * self._channels, height // 4, width // 4, memory_format=_CHANNELS_LAST)

    def _run(self, runner: Runner, segments: slice, outside: list[torch.Tensor | None]) -> None:
        n_images = max(len(tensor) for tensor in outside if tensor is not None)

        def run(thread: int, part: slice) -> None:
            if (runner, thread) not in self._arenas:
                self._arenas[runner, thread] = runner.make_arena()
            mine = [None if tensor is None else tensor[part] for tensor in outside]
            runner.run(segments, self._arenas[runner, thread], part.stop - part.start, mine)

        in_threads(run, split_for_threads(n_images))

    def _runner(self, height: int, width: int, *, gradient: bool) -> tuple[Runner, int]:
        key = (height, width, gradient)
        if key not in self._runners:
            listing, n_forward = self._list(height, width, gradient=gradient)
            at_once = GRADIENT_IMAGES if gradient else FORWARD_IMAGES
            self._runners[key] = Runner(listing, at_once=at_once, library=self._library), n_forward
        return self._runners[key]

    def _list(self, height: int, width: int, *, gradient: bool) -> tuple[OperationList, int]:
        """List the operations, and count the segments of the way forward."""
        listing = OperationList()
        self._list_forward(listing, height, width)
        n_forward = len(listing.segments)
        if gradient:
            shape = (height // 4, width // 4, 4 * self._channels)
            listing.begin(shape[0])
            total = listing.start_back(Map(*shape, external=FEATURES_GRADIENT))
            for block in reversed(self._blocks):
                if isinstance(block, ReductionBlock):
                    listing.begin(2 * total.height)
                total = listing.backward(block, total)
            onto = Map(height, width, 3, external=PIXELS_GRADIENT, row=width, pixel=1, plane=height * width)
            listing.leave(total, self._stem_gradient, onto)
        return listing, n_forward

    def _list_forward(self, listing: OperationList, height: int, width: int, depth: int = 0) -> int:
        """List stem and blocks; count the operations of stem and first `depth` blocks, which are one segment."""
        listing.begin(height // 4 if depth else height)
        image = Map(height, width, 3, external=PIXELS, row=width, pixel=1, plane=height * width)
        value = listing.enter(image, self._mean, self._stem, self._stem_needs)
        shape = (height // 4, width // 4, 4 * self._channels)
        n_first = 0
        for position, block in enumerate(self._blocks):
            onto = Map(*shape, external=FEATURES) if position == len(self._blocks) - 1 else None
            value = listing.forward(block, value, onto)
            if position == depth - 1:
                n_first = len(listing.operations)
            if position == depth - 1 or (position >= depth and isinstance(block, ReductionBlock)):
                listing.begin(value.shape[0])
        return n_first
