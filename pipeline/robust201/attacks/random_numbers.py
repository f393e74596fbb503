"""Random numbers of measures, and of attacks in the fused engine (see `Context.seeded` for other attacks).

Each random number is a function of the seed, the attack's key (its name, such as `pgd`), the run, and the image or
query. A result therefore does not depend on batches, order or workers, nor on which other images, epsilons and
architectures are evaluated. The numbers are drawn on the CPU, so attacks on CPU and CUDA use the same ones. They
are cached, because attacks on thousands of networks reuse them.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.noise import generator

ImageShape = tuple[int, int, int]
"""(channels C, height H, width W)."""


class Window(NamedTuple):
    """One proposal of Square in an Linf ball: a square of pixels, and the sign of the change in each channel.

    Attributes:
        row: first row.
        column: first column.
        side: number of rows and columns.
        signs: (C, 1, 1) float32 in {-1, 1}, on the CPU.
    """

    row: int
    column: int
    side: int
    signs: torch.Tensor


class WindowMove(NamedTuple):
    """One proposal of Square in an L2 or L1 ball, which sets one window of the perturbation to 0 and changes another.

    Attributes:
        window: index in a batch of images, for the window to which a pattern is added.
        source_window: index of the window that is set to 0.
        side: number of rows and columns of both windows.
        is_turned: whether the halves of the added pattern lie side by side instead of one above the other.
        signs: (B, C, 1, 1) float32 in {-1, 1}, signs of the pattern per image and channel, on the CPU.
    """

    window: tuple[slice, ...]
    source_window: tuple[slice, ...]
    side: int
    is_turned: bool
    signs: torch.Tensor

    @classmethod
    def of(cls, rows_and_columns: Sequence[int], side: int, is_turned: bool, signs: torch.Tensor) -> "WindowMove":
        """Return a proposal, from the first row and column of the destination and of the source."""
        row, column, source_row, source_column = (slice(first, first + side) for first in rows_and_columns)
        images = (slice(None), slice(None))
        return cls((*images, row, column), (*images, source_row, source_column), side, is_turned, signs)


class RandomNumbers:
    """Counter-based random numbers (Philox) of one key.

    In the methods, `run` is the number of the run (or of a Jacobian's projection), and `indices` are (B,) positions of
    the images in the dataset's full split, repeated if a batch contains an image at several epsilons.
    """

    def __init__(self, seed: int, key: str) -> None:
        self._seed_and_key = (seed, key)

    def for_key(self, key: str) -> "RandomNumbers":
        """Return the source for another key, so that an attack uses the same numbers alone and in an ensemble."""
        return RandomNumbers(self._seed_and_key[0], key)

    def uniforms(self, run: int, indices: NDArray[np.int64], shape: ImageShape) -> torch.Tensor:
        """Draw numbers for starting points in an Linf ball: (B, C, H, W) float32 in [0, 1), multiples of 2**-24."""
        uniforms = _gather(_uniform_block, (*self._seed_and_key, "start", run), int(np.prod(shape)), indices)
        return torch.from_numpy(uniforms).view(len(indices), *shape)

    def normals(self, run: int, indices: NDArray[np.int64], n_values: int) -> torch.Tensor:
        """Draw standard normal numbers, for starts in L2 and L1 balls and for directions: (B, n_values) float32."""
        return torch.from_numpy(_gather(_normal_block, (*self._seed_and_key, "normal", run), n_values, indices))

    def stripes(self, run: int, indices: NDArray[np.int64], shape: ImageShape) -> torch.Tensor:
        """Draw Square's starting points in an Linf ball, a sign per channel and column: (B, C, 1, W) float32."""
        channels, _, width = shape
        signs = _gather(_sign_block, (*self._seed_and_key, "stripes", run), channels * width, indices)
        return torch.from_numpy(signs).view(len(indices), channels, 1, width).float()

    def windows(self, run: int, first_query: int, sides: Sequence[int], shape: ImageShape) -> list[Window]:
        """Draw consecutive proposals of Square in an Linf ball, shared by all images: one window per side.

        If side < H, the first row is at most H - side - 1, as in AutoAttack, so squares never contain the last row; the
        same holds for columns.
        """
        channels, height, width = shape
        windows = []
        for query, side in enumerate(sides, start=first_query):
            row_word, column_word, signs = _draw_window(*self._seed_and_key, run, query, channels)
            # This is floor(u * n) for u = word / 2**32 and n = length - side, in fixed-point arithmetic of 64 bits.
            row, column = row_word * (height - side) >> 32, column_word * (width - side) >> 32
            windows.append(Window(row, column, side, signs))
        return windows

    def tiles(
        self, run: int, indices: NDArray[np.int64], n_tiles: int, channels: int
    ) -> tuple[list[bool], torch.Tensor]:
        """Draw Square's starting points in an L2 or L1 ball, which consist of `n_tiles` patterns.

        Returns:
            Whether each pattern is turned (see `WindowMove`), which is the same for all images, and the signs
            (n_tiles, B, C, 1, 1) float32 in {-1, 1} of the patterns.
        """
        values = _gather(_sign_block, (*self._seed_and_key, "tiles", run), n_tiles * channels, indices)
        signs = torch.from_numpy(values).view(len(indices), n_tiles, channels, 1, 1).float().transpose(0, 1)
        words = _draw_words(-(-n_tiles // 64), *self._seed_and_key, "turned", run)
        is_turned = np.unpackbits(words.view(np.uint8), bitorder="little")[:n_tiles].astype(bool).tolist()
        return is_turned, signs

    def window_moves(
        self, run: int, first_query: int, indices: NDArray[np.int64], sides: Sequence[int], shape: ImageShape
    ) -> list[WindowMove]:
        """Draw consecutive proposals of Square in an L2 or L1 ball, one per side.

        All images share the windows, but not the signs.
        """
        channels, height, width = shape
        n_images = -(-(int(indices.max(initial=0)) + 1) // _SIGN_BLOCK_IMAGES) * _SIGN_BLOCK_IMAGES
        bit_indices = indices[:, None] * channels + np.arange(channels)
        window_moves = []
        for query, side in enumerate(sides, start=first_query):
            window_words, is_turned, packed = _draw_window_move(*self._seed_and_key, run, query, channels, n_images)
            first_rows_and_columns = [
                word * (length - side) >> 32 for word, length in zip(window_words, (height, width) * 2, strict=True)
            ]
            bits = packed[bit_indices >> 3] >> (bit_indices & 7).astype(np.uint8) & 1
            signs = torch.from_numpy(2 * bits.astype(np.float32) - 1).view(-1, channels, 1, 1)
            window_moves.append(WindowMove.of(first_rows_and_columns, side, is_turned, signs))
        return window_moves


_MAX_BLOCK_IMAGES = 64
"""Maximum number of images per block. Random numbers are drawn and cached for blocks of consecutive images."""

_MAX_BLOCK_VALUES = _MAX_BLOCK_IMAGES * 3 * 32 * 32
"""Maximum number of values per block, unless a single image has more: blocks of large images have fewer images."""

_MAX_CACHED_BLOCKS = 320
"""Maximum number of cached blocks per distribution, which take up to 240 MiB for images up to 256x256. PGD and APGD
together use 314 blocks for 10,000 images of 32x32 pixels, in the same order for every network, so a smaller cache would
never hit."""

_Stream = tuple[int, str, str, int]
"""Seed, key, purpose of the numbers, and run."""

_DrawBlock = Callable[[_Stream, int, int], NDArray[Any]]
"""(stream, number of values per image, number of the block) → (images, values)."""


def _draw_words(n_words: int, seed: int, *names: str | int) -> NDArray[np.uint64]:
    # Use raw words, since NumPy guarantees the streams of its bit generators, but not of its distributions.
    words: NDArray[np.uint64] = generator(seed, *names).bit_generator.random_raw(n_words).astype("<u8")
    return words


def _draw_block(stream: _Stream, n_words: int, n_values: int, block: int) -> NDArray[np.uint64]:
    """Draw (images, n_words) 64-bit words for the images of one block."""
    size = _block_size(n_values)
    return np.stack([_draw_words(n_words, *stream, block * size + i) for i in range(size)])


def _block_size(n_values: int) -> int:
    """Return the number of images per block, which does not affect the drawn numbers."""
    return min(_MAX_BLOCK_IMAGES, max(1, _MAX_BLOCK_VALUES // max(1, n_values)))


@functools.lru_cache(maxsize=_MAX_CACHED_BLOCKS)
def _uniform_block(stream: _Stream, n_values: int, block: int) -> NDArray[np.float32]:
    words = _draw_block(stream, -(-n_values // 2), n_values, block)
    bits = words.view("<u4")[:, :n_values] >> np.uint32(8)
    uniforms: NDArray[np.float32] = np.multiply(bits, np.float32(2**-24), dtype=np.float32)
    return uniforms


@functools.lru_cache(maxsize=_MAX_CACHED_BLOCKS)
def _normal_block(stream: _Stream, n_values: int, block: int) -> NDArray[np.float32]:
    """Draw normals as quantiles of uniforms in (0, 1)."""
    from scipy.special import ndtri  # the import takes a third of a second, and most attacks do not need it

    words = _draw_block(stream, n_values, n_values, block)
    normals: NDArray[np.float32] = ndtri(((words >> np.uint64(11)) + 0.5) * 2.0**-53).astype(np.float32)
    return normals


@functools.lru_cache(maxsize=_MAX_CACHED_BLOCKS)
def _sign_block(stream: _Stream, n_values: int, block: int) -> NDArray[np.int8]:
    words = _draw_block(stream, -(-n_values // 64), n_values, block)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :n_values]
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)


_SIGN_BLOCK_IMAGES = 1024
"""A query's signs are drawn for the images 0 to n - 1, where n is a multiple of this number."""


@functools.lru_cache(maxsize=2**13)
def _draw_window_move(
    seed: int, key: str, run: int, query: int, channels: int, n_images: int
) -> tuple[tuple[int, ...], bool, NDArray[np.uint8]]:
    """Draw four 32-bit integers, whether the pattern is turned, and (n_images, channels) sign bits.

    The sign bits stay packed, with the lowest bit first: 4 kB for 10,000 images, and 32 MB for all cached queries.
    """
    n_bits = n_images * channels
    # More images take more numbers of the same stream, so an image's bits do not depend on the other images.
    words = _draw_words(3 + -(-n_bits // 64), seed, key, "swap", run, query)
    window_words = tuple(int(word) for word in words[:2].view("<u4"))
    return window_words, bool(words[2] & np.uint64(1)), words[3:].view(np.uint8)


@functools.lru_cache(maxsize=2**16)
def _draw_window(seed: int, key: str, run: int, query: int, channels: int) -> tuple[int, int, torch.Tensor]:
    """Draw two 32-bit integers and a sign per channel."""
    position_word, sign_word = map(int, _draw_words(2, seed, key, "window", run, query))
    signs = [1.0 if sign_word >> channel & 1 else -1.0 for channel in range(channels)]
    return position_word & 0xFFFFFFFF, position_word >> 32, torch.tensor(signs).view(channels, 1, 1)


def _gather(draw_block: _DrawBlock, stream: _Stream, n_values: int, indices: NDArray[np.int64]) -> NDArray[Any]:
    """Return the random numbers (B, n_values) of images, from the cached blocks that contain them."""
    size = _block_size(n_values)
    blocks, block_of_image = np.unique(indices // size, return_inverse=True)
    # Random numbers of a single image larger than a block are not cached, since they would fill the memory.
    draw_block = draw_block if n_values <= _MAX_BLOCK_VALUES else inspect.unwrap(draw_block)
    block_values = [draw_block(stream, n_values, int(block)) for block in blocks]
    values = np.empty((len(indices), n_values), block_values[0].dtype if block_values else np.float32)
    for i, block in enumerate(block_values):
        is_in_block = block_of_image == i
        values[is_in_block] = block[indices[is_in_block] % size]
    return values
