"""Files that choose test images by their positions, such as the images of `robust201.sampling`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.arrays import read_npy
from robust201.core.errors import DatasetError, one_line
from robust201.core.files import load_json
from robust201.core.records import ImageSet, image_hash


def select_file(images: ImageSet, path: Path) -> ImageSet:
    """Return the images of a full split whose positions a file lists, in ascending order.

    Args:
        images: all images of the split.
        path: a .npy file of integers, or a JSON file: a list of integers, or an object that has it as `images`.

    Raises:
        DatasetError: the file cannot be read, or its positions are not distinct integers in the range of the split.
    """
    rows = _read_positions(path, len(images))
    pixels, labels, indices = images.images[rows], images.labels[rows], images.indices[rows]
    return replace(images, images=pixels, labels=labels, indices=indices, sha256=image_hash(pixels, labels, indices))


def _read_positions(path: Path, n_images: int) -> NDArray[np.int64]:
    try:
        positions = read_npy(path) if path.suffix == ".npy" else _parse_list(load_json(path))
    except (OSError, ValueError) as error:
        raise _positions_error(path, n_images, one_line(error)) from error
    if positions.ndim != 1 or positions.dtype.kind not in "iu" or not len(positions):
        raise _positions_error(path, n_images, f"{positions.dtype} {positions.shape}")
    if positions.min() < 0 or positions.max() >= n_images:
        raise _positions_error(path, n_images, f"{positions.min()} to {positions.max()}")
    distinct, counts = np.unique(positions, return_counts=True)
    if len(distinct) < len(positions):
        raise _positions_error(path, n_images, f"{distinct[counts > 1][0]} twice")
    return distinct.astype(np.int64)


def _parse_list(content: Any) -> NDArray[Any]:
    positions = content.get("images") if isinstance(content, dict) else content
    if not isinstance(positions, list) or not all(type(position) is int for position in positions):
        raise ValueError("a JSON file without a list of integers")
    return np.array(positions, dtype=np.int64)


def _positions_error(path: Path, n_images: int, got: str) -> DatasetError:
    return DatasetError(
        f"Choosing images failed for {path}: expected distinct positions of test images, 0 to {n_images - 1:,}, got "
        f"{got}. Correct the file."
    )
