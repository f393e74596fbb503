"""Interpolation, kernels and borders of the published corruptions, for batches of images.

The published scripts call OpenCV 3.4 and scikit-image 0.13 (requirements of hendrycks/robustness), on which robust201
does not depend. This module implements the functions that they use.
"""

import math
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robust201.core.portable_floats import exp, fused_multiply_add

Border = Literal["edge", "half_sample", "whole_sample"]
"""Pixels outside of an image: repeated edge pixels, or a mirror image. The two pixels to the left of a row a b c are
a a for ``"edge"``, b a for ``"half_sample"`` (mirrored at the edge), and c b for ``"whole_sample"`` (mirrored at the
edge pixel's centre)."""


def truncate(pixels: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Truncate pixels in [0, 255] to integers, as the published script does: 254.9999 becomes 254."""
    return pixels.astype(np.uint8)


def fold_positions(positions: NDArray[np.int64], length: int, border: Border) -> NDArray[np.int64]:
    """Map integer positions on an infinite axis to positions in [0, length), the pixels of an image.

    ``"edge"`` clamps; ``"half_sample"`` is SciPy's ``reflect``; ``"whole_sample"`` is OpenCV's ``BORDER_REFLECT_101``.
    """
    if border == "edge":
        return np.clip(positions, 0, length - 1)
    if border == "half_sample":
        folded = positions % (2 * length)
        return np.minimum(folded, 2 * length - 1 - folded)
    period = max(2 * (length - 1), 1)
    folded = positions % period
    return np.minimum(folded, period - folded)


@cache
def zoom_taps(length: int, factor: float) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the source of each output pixel along an axis when an image's centre is enlarged by `factor`, at least 1.

    The central ``ceil(length / factor)`` pixels are stretched to ``round(… * factor)``, keeping the first and last
    pixel centres (`scipy.ndimage.zoom` of order 1). The central `length` pixels of the result are kept.

    Returns:
        Lower pixels (length,), upper pixels (length,), and the weights (length,) of the upper ones, in [0, 1].
    """
    central_length = math.ceil(length / factor)
    stretched_length = round(central_length * factor)
    position_step = (central_length - 1) / (stretched_length - 1)
    positions = np.minimum((np.arange(length) + (stretched_length - length) // 2) * position_step, central_length - 1)
    lower = np.minimum(np.floor(positions).astype(np.int64), central_length - 1)
    upper = np.minimum(lower + 1, central_length - 1)
    offset = (length - central_length) // 2
    return lower + offset, upper + offset, positions - lower


def zoom_middle(layers: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Enlarge the centre of square images (H, H, …) bilinearly by a factor of at least 1, keeping their size."""
    lower, upper, weight = zoom_taps(layers.shape[0], factor)
    row_weights = weight.reshape(-1, *[1] * (layers.ndim - 1))
    stretched = layers[lower] * (1 - row_weights) + layers[upper] * row_weights
    column_weights = weight.reshape(1, -1, *[1] * (layers.ndim - 2))
    enlarged: NDArray[np.float64] = stretched[:, lower] * (1 - column_weights) + stretched[:, upper] * column_weights
    return enlarged


def resize_bilinear(
    images: NDArray[np.floating] | NDArray[np.uint8], height: int, width: int, *, step: float
) -> NDArray[np.float64]:
    """Resample images (N, H, W, …) with aligned pixel areas and without smoothing, like OpenCV's `INTER_LINEAR`.

    `step` is the number of input pixels per output pixel, along both axes.

    Returns:
        (N, height, width, …) float64, not rounded.
    """
    resized = images.astype(np.float64)
    for axis, n_positions in ((1, height), (2, width)):
        length = resized.shape[axis]
        positions = np.clip((np.arange(n_positions) + 0.5) * step - 0.5, 0, length - 1)
        lower = np.floor(positions).astype(np.int64)
        upper = np.minimum(lower + 1, length - 1)
        shape = [1] * resized.ndim
        shape[axis] = n_positions
        weight = (positions - lower).reshape(shape)
        resized = resized.take(lower, axis) * (1 - weight) + resized.take(upper, axis) * weight
    return resized


def resample_layers(layers: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Resize square layers (N, H, H) to (N, size, size): enlarge bilinearly, or shrink with a box filter."""
    length = layers.shape[1]
    if size == length:
        return layers
    if size > length:
        return resize_bilinear(layers, size, size, step=length / size)
    output_edges = np.arange(size + 1) * (length / size)
    input_edges = np.arange(length)
    overlap = np.minimum(output_edges[1:, None], input_edges + 1) - np.maximum(output_edges[:-1, None], input_edges)
    weights = np.maximum(overlap, 0) * (size / length)
    return weighted_sums(weights, weighted_sums(weights, layers, axis=1), axis=2)


def weighted_sums(weights: NDArray[np.float64], values: NDArray[np.floating], axis: int) -> NDArray[np.float64]:
    """Multiply by a matrix (T, S) along an axis of length S, adding the terms in order of position.

    A BLAS library adds terms in an order that depends on the processor. Earlier images were generated with OpenBLAS.
    Fused multiply-adds give the same bits as OpenBLAS with AVX2 and AVX-512. For odd sizes, whose last rows OpenBLAS
    sums differently, nearly all bits are the same.

    Returns:
        An array of the shape of `values`, with length T instead of S along the axis.
    """
    values_axis_last = np.moveaxis(values.astype(np.float64), axis, -1)
    total = np.zeros((*values_axis_last.shape[:-1], len(weights)))
    for position in range(weights.shape[1]):
        total = fused_multiply_add(values_axis_last[..., position, None], weights[:, position], total)
    return np.moveaxis(total, -1, axis)


def sample_bilinear(
    images: NDArray[np.float32], rows: NDArray[np.floating], columns: NDArray[np.floating], border: Border
) -> NDArray[np.float32]:
    """Interpolate images (N, H, W, C) at fractional positions (N, h, w); pixel centres are integers.

    Returns:
        (N, h, w, C) float32.
    """
    n_images, height, width, _ = images.shape
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    row_fraction, column_fraction = (rows - top)[..., None], (columns - left)[..., None]
    image_indices = np.arange(n_images).reshape(-1, 1, 1)
    upper_rows, lower_rows = fold_positions(top, height, border), fold_positions(top + 1, height, border)
    left_columns, right_columns = fold_positions(left, width, border), fold_positions(left + 1, width, border)
    upper = (
        images[image_indices, upper_rows, left_columns] * (1 - column_fraction)
        + images[image_indices, upper_rows, right_columns] * column_fraction
    )
    lower = (
        images[image_indices, lower_rows, left_columns] * (1 - column_fraction)
        + images[image_indices, lower_rows, right_columns] * column_fraction
    )
    sampled: NDArray[np.float64] = upper * (1 - row_fraction) + lower * row_fraction
    return sampled.astype(np.float32)


def correlate(images: NDArray[np.float64], kernel: NDArray[np.floating]) -> NDArray[np.float64]:
    """Correlate images (N, H, W, C) with a small odd square kernel, like OpenCV's `filter2D` with its default border.

    Images are mirrored at the centres of their edge pixels.
    """
    radius = len(kernel) // 2
    _, height, width, _ = images.shape
    rows = fold_positions(np.arange(-radius, height + radius), height, "whole_sample")
    columns = fold_positions(np.arange(-radius, width + radius), width, "whole_sample")
    padded = images[:, rows][:, :, columns]
    total = np.zeros_like(images)
    for (row_shift, column_shift), weight in np.ndenumerate(kernel):
        total += float(weight) * padded[:, row_shift : row_shift + height, column_shift : column_shift + width]
    return total


def stretch_kernel(kernel: NDArray[np.floating], scale: float) -> NDArray[np.float64]:
    """Resample an odd square kernel to a grid with `scale` new pixels per old pixel, keeping its sum.

    The kernel is treated as constant over each of its pixels, enlarged by `scale`, and integrated over the new pixels.
    """
    old_radius = len(kernel) // 2
    new_radius = math.ceil((old_radius + 0.5) * scale - 0.5)
    old_centres = (np.arange(-old_radius, old_radius + 1)) * scale
    new_centres = np.arange(-new_radius, new_radius + 1)[:, None]
    overlap = np.minimum(new_centres + 0.5, old_centres + scale / 2) - np.maximum(
        new_centres - 0.5, old_centres - scale / 2
    )
    weights = np.maximum(overlap, 0) / scale
    return weighted_sums(weights, weighted_sums(weights, kernel, axis=0), axis=1)


def smooth(
    layers: NDArray[np.float64],
    sigma: float,
    axes: tuple[int, int],
    *,
    mode: Literal["nearest", "reflect"],
    truncate: float,
) -> NDArray[np.float64]:
    """Smooth with a Gaussian along two axes, like `scipy.ndimage.gaussian_filter`.

    SciPy computes the weights with `numpy.exp`, whose last bit depends on the processor; this function uses
    `portable_floats.exp`. `sigma` is in pixels, and 0 changes nothing; `truncate` is the kernel's radius in standard
    deviations.
    """
    from scipy.ndimage import correlate1d

    if sigma == 0:
        return layers
    radius = int(truncate * sigma + 0.5)
    weights = exp(-0.5 / (sigma * sigma) * np.arange(-radius, radius + 1, dtype=np.float64) ** 2)
    weights /= weights.sum()
    for axis in axes:
        layers = correlate1d(layers, weights, axis, mode=mode)
    return layers
