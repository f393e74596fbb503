"""Incremental forward pass with native.c: leading blocks recompute only the regions that a window affects.

A search such as Square Attack proposes a new window for each image, and accepts or rejects it. The recomputed regions
(patches) overwrite the maps of the accepted images. Overwritten values are saved, and restored if the proposal is
rejected. Therefore, rounding errors do not accumulate across proposals.
"""

import weakref
from collections.abc import Callable

import torch

from robust201.networks.nb201.compiled.arena import Runner, run_in_threads, split_for_threads
from robust201.networks.nb201.compiled.patches import Patches, Region

_TILE = 4
"""Minimum number of columns that a convolution computes together. Patch widths are rounded up to multiples of it."""


class SharedSearchState:
    """State shared by searches with the same network, image size and number of blocks computed only in patches."""

    def __init__(self, runner: Runner, patches: Patches) -> None:
        self.runner = runner
        self.patches = patches
        self.free_arenas: list[torch.Tensor] = []

    def take_arena(self) -> torch.Tensor:
        """Return a free arena, or a new one."""
        return self.free_arenas.pop() if self.free_arenas else self.runner.make_arena()


class NativeSearch:
    """A search that evaluates proposals (see `networks.model.WindowSearch`).

    Args:
        shared: state shared by the network's searches.
        pixels: (B, 3, H, W) float32, the accepted images; they are copied.
        features: (B, channels, H / 4, W / 4), channels_last; memory for the last block's output.
        classify: maps the last block's output to logits (B, classes).
    """

    def __init__(
        self,
        shared: SharedSearchState,
        pixels: torch.Tensor,
        features: torch.Tensor,
        classify: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._shared, self._classify = shared, classify
        self._pixels, self._features = pixels.clone(memory_format=torch.contiguous_format), features
        self._images_by_thread = split_for_threads(len(pixels))
        self._arenas = [shared.take_arena() for _ in self._images_by_thread]
        # Creating an arena takes longer than the first pass, so a finished search returns its arenas for reuse.
        weakref.finalize(self, shared.free_arenas.extend, self._arenas)
        self._saved_values = torch.empty(len(pixels), 0)
        self._proposal: tuple[Region, list[Region], torch.Tensor] | None = None
        self._run(slice(None), range(len(pixels)))

    def logits(self, row: int, column: int, window: torch.Tensor) -> torch.Tensor:
        if self._proposal is not None:
            self.accept(torch.zeros(len(self._proposal[2]), dtype=torch.bool))
        region = Region(row, row + window.shape[2], column, column + window.shape[3])
        patches = self._shared.patches
        regions = [
            _widen_to_tiles(patch, operation.width)
            for patch, operation in zip(patches.regions(region), patches.operations, strict=True)
        ]
        n_floats = patches.count_backup_floats(regions)
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
        return self._pixels[:n_images, :, region.top : region.bottom, region.left : region.right]

    def _run(self, segments: slice, images: range) -> None:
        def run(thread: int, thread_images: slice) -> None:
            n_images = min(thread_images.stop, images.stop) - thread_images.start
            if n_images > 0:
                external_tensors = [self._pixels[thread_images], self._features[thread_images], None, None]
                self._shared.runner.run(segments, self._arenas[thread], n_images, external_tensors)

        run_in_threads(run, self._images_by_thread)

    def _run_regions(self, regions: list[Region], n_images: int, rejected: torch.Tensor | None) -> None:
        def run(thread: int, thread_images: slice) -> None:
            n_thread_images = min(thread_images.stop, n_images) - thread_images.start
            if n_thread_images > 0:
                self._shared.runner.run_regions(
                    regions,
                    self._arenas[thread],
                    self._saved_values[thread_images],
                    n_thread_images,
                    [self._pixels[thread_images], self._features[thread_images], None, None],
                    rejected=None if rejected is None else rejected[thread_images],
                )

        run_in_threads(run, self._images_by_thread)


def _widen_to_tiles(region: Region, width: int) -> Region:
    """Widen a region to a multiple of the tile width, at most to the width of the map."""
    new_width = min(-(-region.size[1] // _TILE) * _TILE, width)
    left = min(region.left, width - new_width)
    return region._replace(left=left, right=left + new_width)
