"""Conversion of a user's arrays of images and labels to an image set, with checks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError, warn_caller
from robust201.core.records import NO_NORMALISATION, ImageSet
from robust201.images.checks import as_labels, check_pixel_range, move_channels_first

_ROUNDING_TOLERANCE = 1e-3
"""Floats count as 8-bit pixels if each of them, times 255, is at most this far from an integer. The rounding error of
k / 255 in float32 is far smaller."""

_MAX_CLIPPED_EXCESS = 1e-5
"""Maximum distance of floats from [0, 1] that counts as a rounding error, for example of a bicubic filter."""

_PIXEL_TYPES = "uint8, or float32 or float64 in [0, 1]"


def as_image_set(images: Any, labels: Any) -> ImageSet:
    """Convert a user's images and labels to an image set.

    Args:
        images: an array (N, C, H, W) or (N, H, W, C) with C = 3 (RGB) or 1 (grey), in uint8, or in float32 or float64
            in [0, 1]. It may be a NumPy array, a torch tensor on any device or a list. Floats become uint8 if all are
            multiples of 1/255. An image set, such as `robust201.images.load_images` returns, is returned unchanged.
        labels: (N,) or (N, 1) integers from 0; None for an image set.

    Returns:
        An image set with images in uint8 or float32. Its number of classes is 0, because the network determines it.

    Raises:
        DatasetError: labels are missing or superfluous, a type, shape, length or range is wrong, or the axis of the
            channels is ambiguous.

    Warns:
        RobustWarning: floats were clipped, because they exceed [0, 1] by rounding errors.
    """
    if isinstance(images, ImageSet):
        if labels is not None:
            raise DatasetError(
                "Reading arguments failed for `labels`: the image set already has labels. Remove the argument, or pass "
                "only the array of the image set: `images.images`."
            )
        return images
    if labels is None:
        raise DatasetError(
            "Reading arguments failed for `labels`: expected the class number of each image, got None. Pass the labels."
        )
    pixels = move_channels_first("`images`", _as_array(images, "images"))
    array = np.ascontiguousarray(_as_pixels(pixels))
    return ImageSet(
        dataset="images",
        images=array,
        labels=as_labels("`labels`", _as_array(labels, "labels"), len(array)),
        indices=np.arange(len(array)),
        n_classes=0,
        normalisation=NO_NORMALISATION.of_channels(array.shape[1]),
        sha256="",
    )


def _as_array(values: Any, argument_name: str) -> NDArray[Any]:
    try:
        # A tensor may be on another device or require gradients, and NumPy has no bfloat16.
        return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as error:
        dtype = getattr(values, "dtype", type(values).__name__)
        raise DatasetError(
            f"Reading arguments failed for `{argument_name}`: expected a NumPy array or a tensor of numbers, got "
            f"{dtype}. Convert the argument."
        ) from error


def _as_pixels(pixels: NDArray[Any]) -> NDArray[Any]:
    if pixels.dtype == np.uint8:
        check_pixel_range("`images`", pixels)
        return pixels
    if pixels.dtype not in (np.float32, np.float64):
        raise DatasetError(
            f"Reading arguments failed for `images`: expected {_PIXEL_TYPES}, got {pixels.dtype}. Convert the images."
        )
    lowest, highest = float(pixels.min()), float(pixels.max())
    if np.isnan(lowest):  # the minimum propagates NaN
        row = int(np.flatnonzero(np.isnan(pixels).any(axis=(1, 2, 3)))[0])
        raise DatasetError(f"Reading arguments failed for `images`: image {row} contains NaN. Remove such images.")
    if not (lowest >= -_MAX_CLIPPED_EXCESS and highest <= 1 + _MAX_CLIPPED_EXCESS):
        raise DatasetError(
            f"Reading arguments failed for `images`: expected {_PIXEL_TYPES}, got {lowest:.9g} to {highest:.9g}. Pass "
            "pixels divided by 255, without normalisation."
        )
    if not (lowest >= 0 and highest <= 1):
        warn_caller(f"Pixels from {lowest:.9g} to {highest:.9g} were clipped to [0, 1] (rounding error).")
        pixels = pixels.clip(0, 1)
    scaled_pixels = pixels * 255
    rounded_pixels = scaled_pixels.round()
    are_8_bits = bool((np.abs(scaled_pixels - rounded_pixels) <= _ROUNDING_TOLERANCE).all())
    return rounded_pixels.astype(np.uint8) if are_8_bits else pixels.astype(np.float32)
