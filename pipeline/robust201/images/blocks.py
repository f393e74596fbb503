"""On-disk store of computed images, in blocks of one batch each.

`<folder>/<start>-<stop>-<16 hex digits of the SHA-256>.npy` has the images [start, stop), (n, 3, H, W) float32 in
[0, 1]. Files are immutable, so an interrupted computation resumes with the missing blocks.
"""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robust201.core.arrays import read_npy
from robust201.core.errors import DatasetError, one_line
from robust201.core.files import atomic_write, sha256_of

_HASH_DIGITS = 16


class BlockStore:
    """Blocks of `block_size` images of `n_images`; the folder is created on the first write."""

    def __init__(self, folder: Path, n_images: int, block_size: int) -> None:
        self.folder = folder
        self.ranges = [(start, min(start + block_size, n_images)) for start in range(0, n_images, block_size)]

    def find_missing(self) -> list[tuple[int, int]]:
        """Return the ranges [start, stop) of images without a block."""
        existing_names = {path.name.rpartition("-")[0] for path in self.folder.glob("*.npy")}
        return [block for block in self.ranges if _block_name(*block) not in existing_names]

    def write(self, start: int, pixels: NDArray[np.float32]) -> None:
        """Write the block of images that starts at position `start`; `pixels` is (n, 3, H, W) float32."""
        stream = io.BytesIO()
        np.save(stream, np.ascontiguousarray(pixels), allow_pickle=False)
        content = stream.getvalue()
        digest = hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]
        with atomic_write(self.folder / f"{_block_name(start, start + len(pixels))}-{digest}.npy") as file:
            file.write(content)

    def read(self) -> Iterator[NDArray[np.float32]]:
        """Yield the images of each block in order.

        Raises:
            DatasetError: a block is missing or damaged.
        """
        for start, stop in self.ranges:
            paths = sorted(self.folder.glob(f"{_block_name(start, stop)}-*.npy"))
            if not paths:
                raise DatasetError(
                    f"Reading images failed for {self.folder / _block_name(start, stop)}: the block is missing. Run "
                    "the command again to create it."
                )
            yield _read_block(paths[0], stop - start)


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
            f"Reading images failed for {path}: expected the SHA-256 in its name and {count} float32 images, got {got}."
            " The file is damaged. Delete it; the next run creates it again."
        )
    return array


def _block_name(start: int, stop: int) -> str:
    return f"{start:06d}-{stop:06d}"
