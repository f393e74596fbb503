"""Adversarial images of a source network on disk, in blocks: made once, then shown to every other network.

Layout: `<folder>/<strength>-<first position>-<one past the last>-<16 hex digits of its SHA-256>.npy`, each
(n, 3, H, W) float32 in [0, 1]. Blocks are cut at fixed places, so that a run that was interrupted goes on with those
that are missing, and files are never changed.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robust201.core.arrays import read_npy
from robust201.core.errors import DatasetError, one_line
from robust201.core.files import atomic_write, sha256_of

BLOCK_IMAGES = 250
"""Images in a block, rounded up to whole batches of draws."""

_DIGITS = 16


class AdversarialStore:
    """Adversarial images of a selection of test images.

    Args:
        folder: of one source, attack and selection of images; need not exist yet.
        indices: (N,) int64, rows of the full test split in the selection, ascending.
        batch_size: images that share draws, which no block divides.
        block_images: images in a block, rounded up to whole batches.
    """

    def __init__(
        self, folder: Path, indices: NDArray[np.int64], batch_size: int, block_images: int = BLOCK_IMAGES
    ) -> None:
        self.folder = folder
        self._indices = indices
        self._step = batch_size * -(-block_images // batch_size)
        self._blocks: dict[tuple[float, int], NDArray[np.float32]] = {}

    def missing(self, strengths: Sequence[float]) -> Iterator[tuple[tuple[float, ...], int, int]]:
        """List the blocks that are not there: strengths, first position, one past the last."""
        there = {path.name.rpartition("-")[0] for path in self.folder.glob("*.npy")}
        for start in range(0, len(self._indices), self._step):
            stop = self._stop(start)
            lacking = tuple(strength for strength in strengths if _stem(strength, start, stop) not in there)
            if lacking:
                yield lacking, start, stop

    def write(self, strength: float, start: int, pixels: NDArray[np.float32]) -> None:
        """Write the block that begins at a position: (n, 3, H, W) float32."""
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(pixels), allow_pickle=False)
        content = stream.getvalue()
        digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
        with atomic_write(self.folder / f"{_stem(strength, start, start + len(pixels))}-{digest}.npy") as file:
            file.write(content)

    def __call__(self, strength: float, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Read the images of some rows of the full test split, (n,) int64, all of them in the selection.

        Raises:
            DatasetError: a block is missing or damaged.
        """
        positions = np.searchsorted(self._indices, rows)
        starts = positions // self._step * self._step
        images = np.empty((len(rows), *self._block(strength, int(starts[0])).shape[1:]), np.float32)
        for start in np.unique(starts).tolist():
            images[starts == start] = self._block(strength, start)[positions[starts == start] - start]
        return images

    def _stop(self, start: int) -> int:
        return min(start + self._step, len(self._indices))

    def _block(self, strength: float, start: int) -> NDArray[np.float32]:
        """Map a block, whose hash is compared once a process."""
        if (strength, start) not in self._blocks:
            stem = _stem(strength, start, self._stop(start))
            found = sorted(self.folder.glob(f"{stem}-*.npy"))
            if not found:
                raise DatasetError(
                    f"Reading adversarial images failed for {self.folder / stem}: expected a file, got none. "
                    "Start the run again, which makes it."
                )
            self._blocks[strength, start] = _read_block(found[0], self._stop(start) - start)
        return self._blocks[strength, start]


def _read_block(path: Path, count: int) -> NDArray[np.float32]:
    """Map a block of so many images; a `DatasetError` says that it is damaged."""
    try:
        digest = sha256_of(path)[:_DIGITS]
        array = read_npy(path, mapped=True)
        sound = path.stem.endswith(f"-{digest}") and array.dtype == np.float32 and array.ndim == 4
        got = f"{digest} and {array.dtype} {array.shape}"
    except (OSError, ValueError) as error:
        sound, got = False, one_line(error)
    if not sound or len(array) != count:
        raise DatasetError(
            f"Reading adversarial images failed for {path}: expected the SHA-256 that its name ends with and {count} "
            f"images as float32, got {got}. It is damaged: delete it, and the next run makes it again."
        )
    return array


def _stem(strength: float, start: int, stop: int) -> str:
    return f"{strength!r}-{start:06d}-{stop:06d}"
