"""On-disk store of a source network's adversarial images, which are created once and used to evaluate other networks.

The images are stored in blocks: `<folder>/<strength>-<start>-<stop>-<16 hex digits of the file's SHA-256>.npy` has the
images at the positions [start, stop) of the selection, (n, 3, H, W) float32 in [0, 1]. Block boundaries are fixed and
files are immutable, so an interrupted run resumes by writing the missing blocks.
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
"""Images per block, rounded up to whole batches."""

_HASH_DIGITS = 16


class AdversarialStore:
    """Adversarial images of a selection of test images.

    Args:
        folder: folder of one source, attack and selection of images; created on the first write.
        indices: (N,) int64, rows of the full test split in the selection, ascending.
        batch_size: batch size of the attack, on which its random numbers may depend; block sizes are multiples of it.
        block_images: images per block, rounded up to whole batches.
    """

    def __init__(
        self, folder: Path, indices: NDArray[np.int64], batch_size: int, block_images: int = BLOCK_IMAGES
    ) -> None:
        self.folder = folder
        self._indices = indices
        self._images_per_block = batch_size * -(-block_images // batch_size)
        self._blocks: dict[tuple[float, int], NDArray[np.float32]] = {}

    def find_missing_blocks(self, strengths: Sequence[float]) -> Iterator[tuple[tuple[float, ...], int, int]]:
        """Yield (strengths without a block, start, stop) for each range [start, stop) of positions with missing blocks.

        Positions are those of images in the selection.
        """
        existing_names = {path.name.rpartition("-")[0] for path in self.folder.glob("*.npy")}
        for start in range(0, len(self._indices), self._images_per_block):
            stop = self._block_stop(start)
            missing_strengths = tuple(
                strength for strength in strengths if _block_name(strength, start, stop) not in existing_names
            )
            if missing_strengths:
                yield missing_strengths, start, stop

    def write(self, strength: float, start: int, pixels: NDArray[np.float32]) -> None:
        """Write the block of images that starts at position `start`; `pixels` is (n, 3, H, W) float32."""
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(pixels), allow_pickle=False)
        content = stream.getvalue()
        digest = hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]
        with atomic_write(self.folder / f"{_block_name(strength, start, start + len(pixels))}-{digest}.npy") as file:
            file.write(content)

    def __call__(self, strength: float, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the adversarial images of `rows`, which are (n,) int64 row numbers in the full test split.

        All rows must be in the selection.

        Raises:
            DatasetError: a block is missing or damaged.
        """
        positions = np.searchsorted(self._indices, rows)
        starts = positions // self._images_per_block * self._images_per_block
        images = np.empty((len(rows), *self._open_block(strength, int(starts[0])).shape[1:]), np.float32)
        for start in np.unique(starts).tolist():
            images[starts == start] = self._open_block(strength, start)[positions[starts == start] - start]
        return images

    def _block_stop(self, start: int) -> int:
        return min(start + self._images_per_block, len(self._indices))

    def _open_block(self, strength: float, start: int) -> NDArray[np.float32]:
        """Memory-map a block, and check its hash once per process."""
        if (strength, start) not in self._blocks:
            block_name = _block_name(strength, start, self._block_stop(start))
            paths = sorted(self.folder.glob(f"{block_name}-*.npy"))
            if not paths:
                raise DatasetError(
                    f"Reading adversarial images failed for {self.folder / block_name}: the block is missing. "
                    "Start the run again to create it."
                )
            self._blocks[strength, start] = _read_block(paths[0], self._block_stop(start) - start)
        return self._blocks[strength, start]


def _read_block(path: Path, count: int) -> NDArray[np.float32]:
    """Memory-map a block of `count` images, or raise a DatasetError if it is damaged."""
    try:
        digest = sha256_of(path)[:_HASH_DIGITS]
        array = read_npy(path, mapped=True)
        is_valid = path.stem.endswith(f"-{digest}") and array.dtype == np.float32 and array.ndim == 4
        got = f"{digest} and {array.dtype} {array.shape}"
    except (OSError, ValueError) as error:
        is_valid, got = False, one_line(error)
    if not is_valid or len(array) != count:
        raise DatasetError(
            f"Reading adversarial images failed for {path}: expected the SHA-256 in its name and {count} "
            f"float32 images, got {got}. The file is damaged. Delete it; the next run creates it again."
        )
    return array


def _block_name(strength: float, start: int, stop: int) -> str:
    return f"{strength!r}-{start:06d}-{stop:06d}"
