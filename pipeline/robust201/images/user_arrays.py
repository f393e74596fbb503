"""Conversion of a user's arrays of images and labels to an image set, with checks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.records import NO_NORMALISATION, ImageSet

_ROUNDING = 1e-3
"""Maximum distance of 255 times a float from an integer: far more than the rounding of k / 255 in float32."""

_FORMS = "uint8, or float32 or float64 in [0, 1]"


def as_image_set(images: Any, labels: Any) -> ImageSet:
    """Convert images and labels from NumPy, torch (on any device) or lists; return an image set unchanged.

    Args:
        images: (N, C, H, W) or (N, H, W, C) with C = 3 (RGB) or 1 (grey); uint8, or float32 or float64 in [0, 1].
            Floats become uint8 if all are multiples of 1/255. Or an image set, such as
            `robust201.images.load_images` returns, which has labels.
        labels: (N,) integers from 0.

    Returns:
        Images uint8 or float32; the number of classes is 0, because the network determines it.

    Raises:
        DatasetError: the type, shape, length or range is wrong, or the axis of the channels is ambiguous.
    """
    if isinstance(images, ImageSet):
        if labels is not None:
            raise DatasetError(
                "Reading labels failed for the labels given: an image set has labels. Leave the labels out, or give "
                "the set's array: images.images."
            )
        return images
    pixels = _as_array(images, "images")
    if pixels.ndim != 4 or not {1, 3} & {pixels.shape[1], pixels.shape[3]} or not pixels.size:
        raise DatasetError(
            "Reading images failed for the images given: expected shape (N, C, H, W) or (N, H, W, C) with 3 channels "
            f"(RGB) or 1 (grey), got {pixels.shape}. Give a batch of such images."
        )
    if {pixels.shape[1], pixels.shape[3]} <= {1, 3}:
        raise DatasetError(
            f"Reading images failed for the images given: shape {pixels.shape} is ambiguous, since the channels may be "
            "axis 1 or axis 3. Give images of another height or width, such as padded ones."
        )
    if pixels.shape[1] not in {1, 3}:
        pixels = pixels.transpose(0, 3, 1, 2)
    array = np.ascontiguousarray(_as_pixels(pixels))
    return ImageSet(
        dataset="images",
        images=array,
        labels=_as_labels(labels, len(array)),
        indices=np.arange(len(array)),
        n_classes=0,
        normalisation=NO_NORMALISATION.of_channels(array.shape[1]),
        sha256="",
    )


def check_label_range(labels: NDArray[np.int64], n_classes: int) -> None:
    """Check that every label is a class of the model; the error names the first that is not."""
    wrong = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if len(wrong):
        raise DatasetError(
            f"Reading labels failed for image {wrong[0]}: expected 0 to {n_classes - 1}, as the model has "
            f"{n_classes} classes, got {labels[wrong[0]]} ({len(wrong):,} such labels). "
            "Correct the labels or the model."
        )


def _as_array(values: Any, what: str) -> NDArray[Any]:
    try:
        # A tensor may be on another device or require gradients, and NumPy has no bfloat16.
        return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as error:
        dtype = getattr(values, "dtype", type(values).__name__)
        raise DatasetError(
            f"Reading {what} failed for the {what} given: expected a NumPy array or a tensor of numbers, got {dtype}. "
            "Convert them."
        ) from error


def _as_pixels(pixels: NDArray[Any]) -> NDArray[Any]:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype not in (np.float32, np.float64):
        raise DatasetError(
            f"Reading images failed for the images given: expected {_FORMS}, got {pixels.dtype}. Convert them."
        )
    lowest, highest = float(pixels.min()), float(pixels.max())
    if not (lowest >= 0 and highest <= 1):  # NaN compares as false
        raise DatasetError(
            f"Reading images failed for the images given: expected {_FORMS}, got {lowest:g} to {highest:g}. Give "
            "pixels divided by 255, without normalisation."
        )
    scaled = pixels * 255
    rounded = scaled.round()
    is_rounded = bool((np.abs(scaled - rounded) <= _ROUNDING).all())
    return rounded.astype(np.uint8) if is_rounded else pixels.astype(np.float32)


def _as_labels(labels: Any, n_images: int) -> NDArray[np.int64]:
    array = _as_array(labels, "labels")
    if array.dtype.kind not in "iu" or array.shape != (n_images,):
        raise DatasetError(
            f"Reading labels failed for the labels given: expected integers, one for each of the {n_images:,} images, "
            f"got {array.dtype} of shape {array.shape}. Give the number of each image's class."
        )
    return array.astype(np.int64)
