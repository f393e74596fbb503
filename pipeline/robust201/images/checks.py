"""The return type of loaders that decode whole splits, and checks shared by all loaders."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.records import Split
from robust201.images.specs import UNKNOWN_COUNT, DatasetSpec


class LabelledImages(NamedTuple):
    """Images (N, C, H, W) uint8 and labels (N,) int64 in file order."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def check_count(path: Path, count: int, spec: DatasetSpec, split: Split) -> None:
    """Check that the number of images is the size of the full split, if that size is known."""
    expected = spec.n_test if split == "test" else spec.n_train
    if expected not in {UNKNOWN_COUNT, count}:
        raise DatasetError(
            f"Verifying failed for {path}: expected the {expected:,} {split} images of {spec.name}, got {count:,}. "
            "The files are incomplete or belong to another dataset; fetch them again."
        )


def as_labels(source: Path | str, labels: NDArray[Any], n_images: int) -> NDArray[np.int64]:
    """Convert labels (N,) or (N, 1) of any integer type, one per image, to (N,) int64."""
    if labels.dtype.kind not in "iu" or labels.shape not in {(n_images,), (n_images, 1)}:
        is_one_hot = labels.ndim == 2 and labels.shape[1] > 1  # the argmax of a single column is always 0
        raise DatasetError(
            f"Reading labels failed for {source}: expected {n_images:,} integers, one per image, got {labels.dtype} of "
            f"shape {labels.shape}. Use the class number of each image, such as "
            f"`labels.{'argmax(axis=1)' if is_one_hot else 'astype(int)'}`."
        )
    return labels.reshape(-1).astype(np.int64)


def check_labels(source: Path | str, labels: NDArray[np.integer], n_classes: int, *, first: int = 0) -> None:
    """Check that every label is the number of a class; `first` is the number of the first class.

    Raises:
        DatasetError: a label is out of range; the message contains the first row with an invalid label.
    """
    invalid_rows = np.flatnonzero((labels < first) | (labels >= first + n_classes))
    if len(invalid_rows):
        raise DatasetError(
            f"Reading labels failed for {source}: expected labels {first} to {first + n_classes - 1}, got "
            f"{int(labels[invalid_rows[0]])} in row {invalid_rows[0]} ({len(invalid_rows):,} such rows). The labels "
            "are damaged or belong to another dataset or model; correct the number of classes, or the labels."
        )


def move_channels_first(source: Path | str, images: NDArray[Any]) -> NDArray[Any]:
    """Return images (N, C, H, W) from (N, C, H, W) or (N, H, W, C), with 3 channels (RGB) or 1 (grey)."""
    if images.ndim != 4 or not {1, 3} & {images.shape[1], images.shape[3]} or not images.size:
        raise DatasetError(
            f"Reading images failed for {source}: expected images (N, C, H, W) or (N, H, W, C) with 3 channels (RGB) "
            f"or 1 (grey), got {images.dtype} {images.shape}. Pass an array of such images."
        )
    if {images.shape[1], images.shape[3]} <= {1, 3}:
        raise DatasetError(
            f"Reading images failed for {source}: shape {images.shape} is ambiguous, since the channels may be axis 1 "
            "or axis 3. Change the height or width of the images, for example by padding."
        )
    return images if images.shape[1] in {1, 3} else images.transpose(0, 3, 1, 2)


def check_pixel_range(source: Path | str, images: NDArray[np.uint8]) -> None:
    """Reject 8-bit images whose largest pixel is 1, which were probably divided by 255."""
    if images.max(initial=0) == 1:
        raise DatasetError(
            f"Reading images failed for {source}: the images are uint8, whose pixels range from 0 to 255, but no pixel "
            "is above 1, so all images are nearly black. If pixels were divided by 255, multiply them by 255 before "
            "they are converted to uint8, or pass them as float32 where floats are accepted."
        )
