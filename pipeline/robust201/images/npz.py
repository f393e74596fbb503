"""NumPy arrays of custom images: one .npz file per split with the arrays `images` and `labels`, without pickles.

A split may also be a folder of generated images (`images.store`) with these arrays; their hashes are verified.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.arrays import read_npz
from robust201.core.errors import DatasetError, one_line
from robust201.core.records import MAX_CLASSES, Split
from robust201.images.checks import (
    LabelledImages,
    as_labels,
    check_count,
    check_labels,
    check_pixel_range,
    move_channels_first,
)
from robust201.images.specs import DatasetSpec
from robust201.images.store import ArrayFolder

_ARRAYS = ("images", "labels")


def find_npz(spec: DatasetSpec, root: Path, split: Split) -> Path | None:
    """Return `root` if it is an .npz file, otherwise the split's .npz file or folder of arrays in `root`, or None."""
    if root.is_file():
        return root if root.suffix == ".npz" else None
    if (root / f"{split}.npz").is_file():
        return root / f"{split}.npz"
    return root / split if (root / split / "images.npy").is_file() else None


def load_npz(spec: DatasetSpec, path: Path, split: Split, *, verify: bool) -> LabelledImages:
    """Load images from NumPy arrays, in their order; `verify` checks the number of images.

    Raises:
        DatasetError: the file is damaged or contains pickles, an array is missing or has the wrong type or shape, or a
            label is out of range.
    """
    arrays = _read_arrays(path)
    images = _check_images(path, arrays["images"], spec)
    labels = as_labels(path, arrays["labels"], len(images))
    if verify:
        check_count(path, len(images), spec, split)
    check_labels(path, labels, spec.n_classes or MAX_CLASSES)
    return LabelledImages(images, labels)


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        if path.is_dir():
            return {name: np.array(ArrayFolder(path).read(name)) for name in _ARRAYS}
        return read_npz(path, _ARRAYS)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"Reading images failed for {path}: expected the arrays `images` and `labels`, got a file that cannot be "
            f"read ({one_line(error)}). Write it with numpy.savez(file, images=…, labels=…), or copy it again."
        ) from error


def _check_images(path: Path, array: NDArray[Any], spec: DatasetSpec) -> NDArray[np.uint8]:
    images = move_channels_first(path, array)
    n_channels, size = spec.channels, spec.image_size or images.shape[2]
    has_expected_shape = images.shape[1:] == (n_channels, size, size)
    if images.dtype != np.uint8 or not has_expected_shape:
        remedy = (
            "Convert pixels in [0, 1] with (255 * images).round().astype(numpy.uint8)."
            if images.dtype.kind == "f" and has_expected_shape
            else "Convert the images, or correct the image size and the number of channels of the dataset."
        )
        raise DatasetError(
            f"Reading images failed for {path}: expected uint8 images (N, {size}, {size}, {n_channels}) or (N, "
            f"{n_channels}, {size}, {size}), got {array.dtype} {array.shape}. {remedy}"
        )
    check_pixel_range(path, images)
    return np.ascontiguousarray(images)
