"""What the attacks draw at random: the sources, and the production one.

Production draws are named by what they are for, and every value follows from its name alone. So a
result does not depend on batches, order or workers, nor on which other images, epsilons and architectures are there;
and since drawing happens on the CPU, the CPU and CUDA draw the same. Attacks on thousands of networks draw the same
numbers, so what was drawn is kept.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.core.noise import generator

ImageShape = tuple[int, int, int]
"""Channels C, height H, width W."""


class Window(NamedTuple):
    """One proposal of Square: a square of pixels and the direction in which each channel moves.

    Attributes:
        row: first row.
        column: first column.
        side: rows and columns.
        signs: (C, 1, 1) float32 in {-1, 1}, on the CPU.
    """

    row: int
    column: int
    side: int
    signs: torch.Tensor


class Swap(NamedTuple):
    """One proposal of Square in an L2 or L1 ball: what lies in one window goes to another.

    Attributes:
        row: first row of the window that it goes to.
        column: first column of it.
        other_row: first row of the window that it comes from.
        other_column: first column of it.
        side: rows and columns of both.
        is_turned: whether the pattern's halves lie side by side.
        signs: (B, C, 1, 1) float32 in {-1, 1}, of each image and channel, on the CPU.
    """

    row: int
    column: int
    other_row: int
    other_column: int
    side: int
    is_turned: bool
    signs: torch.Tensor

    def of(self, piece: slice, device: torch.device) -> "Swap":
        """Keep the signs of some images, on a device."""
        return self._replace(signs=self.signs[piece].to(device))

    def window(self) -> tuple[slice, slice, slice, slice]:
        """Where it goes to in a batch of images."""
        return _window_at(self.row, self.column, self.side)

    def other_window(self) -> tuple[slice, slice, slice, slice]:
        """Where it comes from."""
        return _window_at(self.other_row, self.other_column, self.side)


def _window_at(row: int, column: int, side: int) -> tuple[slice, slice, slice, slice]:
    return slice(None), slice(None), slice(row, row + side), slice(column, column + side)


class Draws(Protocol):
    """A source of the random numbers of one key's attack."""

    def of_key(self, key: str) -> "Draws":
        """Give the source of another key: an attack that consists of several draws for each what it draws alone."""
        ...

    def uniforms(self, restart: int, images: NDArray[np.int64], shape: ImageShape) -> torch.Tensor:
        """Draw the start of PGD and APGD.

        Args:
            restart: number of the restart.
            images: (B,) rows of the split, repeated where a batch holds an image at several epsilons.
            shape: of an image.

        Returns:
            (B, C, H, W) float32 uniform in [0, 1).
        """
        ...

    def normals(self, restart: int, images: NDArray[np.int64], n_values: int) -> torch.Tensor:
        """Draw directions: the start of PGD in an L2 ball, projections of a Jacobian.

        Args:
            restart: number of the restart or projection.
            images: (B,) rows of the split, possibly repeated.
            n_values: values per image.

        Returns:
            (B, n_values) float32, standard normal.
        """
        ...

    def stripes(self, restart: int, images: NDArray[np.int64], shape: ImageShape) -> torch.Tensor:
        """Draw the start of Square: a sign for each channel and column.

        Args:
            restart: number of the restart.
            images: (B,) rows of the split, possibly repeated.
            shape: of an image.

        Returns:
            (B, C, 1, W) float32 in {-1, 1}.
        """
        ...

    def windows(self, restart: int, first: int, sides: Sequence[int], shape: ImageShape) -> list[Window]:
        """Draw consecutive proposals of Square, which all images share.

        A window's first row is drawn below H - side, as in AutoAttack: squares never reach the last row or column.

        Args:
            restart: number of the restart.
            first: number of the first query.
            sides: side of the square in each query.
            shape: of an image.

        Returns:
            One window a side.
        """
        ...

    def tiles(
        self, restart: int, images: NDArray[np.int64], n_tiles: int, channels: int
    ) -> tuple[list[bool], torch.Tensor]:
        """Draw the start of Square in an L2 or L1 ball.

        Args:
            restart: number of the restart.
            images: (B,) rows of the split, possibly repeated.
            n_tiles: patterns that an image is tiled with.
            channels: of an image.

        Returns:
            Whether each pattern is turned, which all images share, and (n_tiles, B, C, 1, 1) float32 in {-1, 1}.
        """
        ...

    def swaps(
        self, restart: int, first: int, images: NDArray[np.int64], sides: Sequence[int], shape: ImageShape
    ) -> list[Swap]:
        """Draw consecutive proposals of Square in an L2 or L1 ball; all images share the windows, not the signs.

        Args:
            restart: number of the restart.
            first: number of the first query.
            images: (B,) rows of the split, possibly repeated.
            sides: side of the windows in each query.
            shape: of an image.
        """
        ...


class CounterDraws:
    """Draws that follow from (seed, key, restart) and the image's row or the number of the query (Philox).

    Start noise has the 24 bits of float32 in [0, 1).
    """

    def __init__(self, seed: int, key: str) -> None:
        self._names = (seed, key)

    def of_key(self, key: str) -> "CounterDraws":
        return CounterDraws(self._names[0], key)

    def uniforms(self, restart: int, images: NDArray[np.int64], shape: ImageShape) -> torch.Tensor:
        values = _gather(_uniform_block, (*self._names, restart, int(np.prod(shape))), images)
        return torch.from_numpy(values).view(len(images), *shape)

    def normals(self, restart: int, images: NDArray[np.int64], n_values: int) -> torch.Tensor:
        return torch.from_numpy(_gather(_normal_block, (*self._names, restart, n_values), images))

    def stripes(self, restart: int, images: NDArray[np.int64], shape: ImageShape) -> torch.Tensor:
        channels, _, width = shape
        values = _gather(_sign_block, (*self._names, restart, channels * width), images)
        return torch.from_numpy(values).view(len(images), channels, 1, width).float()

    def windows(self, restart: int, first: int, sides: Sequence[int], shape: ImageShape) -> list[Window]:
        channels, height, width = shape
        windows = []
        for query, side in enumerate(sides, start=first):
            row, column, signs = _proposal(*self._names, restart, query, channels)
            # Fixed point: floor(u * n) for u = row / 2**32, exact in 64 bits.
            windows.append(Window(row * (height - side) >> 32, column * (width - side) >> 32, side, signs))
        return windows

    def tiles(
        self, restart: int, images: NDArray[np.int64], n_tiles: int, channels: int
    ) -> tuple[list[bool], torch.Tensor]:
        values = _gather(_tile_block, (*self._names, restart, n_tiles * channels), images)
        signs = torch.from_numpy(values).view(len(images), n_tiles, channels, 1, 1).float().transpose(0, 1)
        words = generator(*self._names, "turned", restart).bit_generator.random_raw(-(-n_tiles // 64)).astype("<u8")
        turned = np.unpackbits(words.view(np.uint8), bitorder="little")[:n_tiles].astype(bool).tolist()
        return turned, signs

    def swaps(
        self, restart: int, first: int, images: NDArray[np.int64], sides: Sequence[int], shape: ImageShape
    ) -> list[Swap]:
        channels, height, width = shape
        n_images = -(-(int(images.max(initial=0)) + 1) // _SWAP_IMAGES) * _SWAP_IMAGES
        numbers = images[:, None] * channels + np.arange(channels)
        swaps = []
        for query, side in enumerate(sides, start=first):
            places, is_turned, packed = _swap(*self._names, restart, query, channels, n_images)
            row, column, other_row, other_column = (
                place * (length - side) >> 32 for place, length in zip(places, (height, width) * 2, strict=True)
            )
            bits = packed[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1
            signs = torch.from_numpy(2 * bits.astype(np.float32) - 1).view(-1, channels, 1, 1)
            swaps.append(Swap(row, column, other_row, other_column, side, is_turned, signs))
        return swaps


_BLOCK = 64
"""Images whose draws are kept together, at most."""

_BLOCK_VALUES = _BLOCK * 3 * 32 * 32
"""Values of a block, at most, unless a single image has more: large images have smaller blocks."""

_BLOCKS_KEPT = 320
"""Blocks kept: up to 240 MiB of start noise of images up to 256x256. PGD and APGD of a network after the other want
those of a test split of 10,000 32x32 images twice, 314 blocks, and keeping fewer than all of a cycle would keep none
that is asked for."""


def _block_size(n_values: int) -> int:
    """Return the number of images of a block; an image's draws do not depend on it."""
    return min(_BLOCK, max(1, _BLOCK_VALUES // max(1, n_values)))


_Block = Callable[[int, str, int, int, int], NDArray[Any]]


@functools.lru_cache(maxsize=_BLOCKS_KEPT)
def _uniform_block(seed: int, key: str, restart: int, n_values: int, block: int) -> NDArray[np.float32]:
    """Draw (images, n_values) uniforms for the images of a block."""
    n_words = -(-n_values // 2)
    words = np.empty((_block_size(n_values), n_words), dtype="<u8")
    for i in range(len(words)):
        # Raw words: NumPy keeps the streams of its bit generators for ever, those of its distributions not.
        words[i] = generator(seed, key, "start", restart, block * len(words) + i).bit_generator.random_raw(n_words)
    bits = words.view("<u4")[:, :n_values] >> np.uint32(8)
    uniforms: NDArray[np.float32] = np.multiply(bits, np.float32(2**-24), dtype=np.float32)
    return uniforms


@functools.lru_cache(maxsize=_BLOCKS_KEPT)
def _normal_block(seed: int, key: str, restart: int, n_values: int, block: int) -> NDArray[np.float32]:
    """Draw (images, n_values) normals for the images of a block: quantiles of uniforms that are never 0 or 1."""
    from scipy.special import ndtri  # takes a third of a second, and most attacks do not need it

    words = np.empty((_block_size(n_values), n_values), dtype="<u8")
    for i in range(len(words)):
        words[i] = generator(seed, key, "normal", restart, block * len(words) + i).bit_generator.random_raw(n_values)
    normals: NDArray[np.float32] = ndtri(((words >> np.uint64(11)) + 0.5) * 2.0**-53).astype(np.float32)
    return normals


@functools.lru_cache(maxsize=_BLOCKS_KEPT)
def _sign_block(seed: int, key: str, restart: int, n_values: int, block: int) -> NDArray[np.int8]:
    """Draw (images, n_values) signs for the images of a block."""
    n_words = -(-n_values // 64)
    words = np.empty((_block_size(n_values), n_words), dtype="<u8")
    for i in range(len(words)):
        words[i] = generator(seed, key, "stripes", restart, block * len(words) + i).bit_generator.random_raw(n_words)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :n_values]
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)


@functools.lru_cache(maxsize=_BLOCKS_KEPT)
def _tile_block(seed: int, key: str, restart: int, n_values: int, block: int) -> NDArray[np.int8]:
    """Draw (images, n_values) signs for the tilings of a block's images."""
    n_words = -(-n_values // 64)
    words = np.empty((_block_size(n_values), n_words), dtype="<u8")
    for i in range(len(words)):
        words[i] = generator(seed, key, "tiles", restart, block * len(words) + i).bit_generator.random_raw(n_words)
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :n_values]
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)


_SWAP_IMAGES = 1024
"""Images whose signs in a query are drawn together: rows of the split are rounded up to a multiple."""


@functools.lru_cache(maxsize=2**13)
def _swap(
    seed: int, key: str, restart: int, query: int, channels: int, n_images: int
) -> tuple[tuple[int, ...], bool, NDArray[np.uint8]]:
    """Draw four 32-bit integers, whether the pattern is turned, and (n_images, channels) bits, lowest first.

    The bits stay packed: 4 kB for 10,000 images, and 32 MB for as many queries as are kept.
    """
    n_bits = n_images * channels
    # More images draw more of the same stream, so an image's bits do not depend on which others there are.
    words = generator(seed, key, "swap", restart, query).bit_generator.random_raw(3 + -(-n_bits // 64)).astype("<u8")
    places = tuple(int(place) for place in words[:2].view("<u4"))
    return places, bool(words[2] & np.uint64(1)), words[3:].view(np.uint8)


@functools.lru_cache(maxsize=2**16)
def _proposal(seed: int, key: str, restart: int, query: int, channels: int) -> tuple[int, int, torch.Tensor]:
    """Draw two 32-bit integers, and a sign a channel."""
    place, signs = (int(word) for word in generator(seed, key, "window", restart, query).bit_generator.random_raw(2))
    directions = [1.0 if signs >> channel & 1 else -1.0 for channel in range(channels)]
    return place & 0xFFFFFFFF, place >> 32, torch.tensor(directions).view(channels, 1, 1)


def _gather(draw: _Block, names: tuple[int, str, int, int], images: NDArray[np.int64]) -> NDArray[Any]:
    """Collect the rows that belong to images from the blocks that hold them."""
    size = _block_size(names[-1])
    blocks, which = np.unique(images // size, return_inverse=True)
    # Draws of a single image larger than a block are not kept: they would fill the memory.
    draw = draw if names[-1] <= _BLOCK_VALUES else inspect.unwrap(draw)
    drawn = [draw(*names, int(block)) for block in blocks]
    values = np.empty((len(images), names[-1]), drawn[0].dtype if drawn else np.float32)
    for i, block in enumerate(drawn):
        here = which == i
        values[here] = block[images[here] % size]
    return values
