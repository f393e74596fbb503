"""Interpolation, kernels and borders of the published corruptions, for batches of images.

The originals call OpenCV 3.4 and scikit-image 0.13 (requirements of hendrycks/robustness). Neither is a dependency
here: this module implements the same calls, and tests compare each function with a plain loop.
"""

import math
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from robust201.core.portable_floats import exp, fused_multiply_add

Border = Literal["edge", "half", "whole"]
"""Pixels to the left of an image a b c: its edge (a a|), its mirror image at the edge (b a|), or its mirror image at
the edge pixel (c b|)."""


def truncate(pixels: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Truncate pixels in [0, 255] to integers, as the published script does: 254.9999 becomes 254."""
    return pixels.astype(np.uint8)


def fold_positions(positions: NDArray[np.int64], length: int, border: Border) -> NDArray[np.int64]:
    """Map positions on an infinite axis to positions of an image.

    Args:
        positions: any whole numbers.
        length: pixels on the axis.
        border: ``"edge"`` clamps; ``"half"`` is scipy's ``reflect``; ``"whole"`` is OpenCV's ``BORDER_REFLECT_101``.

    Returns:
        Positions in [0, length), of the same shape.
    """
    if border == "edge":
        return np.clip(positions, 0, length - 1)
    if border == "half":
        folded = positions % (2 * length)
        return np.minimum(folded, 2 * length - 1 - folded)
    period = max(2 * (length - 1), 1)
    folded = positions % period
    return np.minimum(folded, period - folded)


@cache
def zoom_taps(length: int, factor: float) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the source of each pixel of an axis when the centre of an image is enlarged.

    The central ``ceil(length / factor)`` pixels are stretched to ``round(… * factor)``, keeping the first and last
    pixel centres (`scipy.ndimage.zoom` of order 1), and the central `length` of the result remain.

    Args:
        length: pixels on the axis.
        factor: enlargement, at least 1.

    Returns:
        Lower pixels (length,), upper pixels (length,), and the weights (length,) of the upper ones, in [0, 1].
    """
    middle = math.ceil(length / factor)
    stretched = round(middle * factor)
    step = (middle - 1) / (stretched - 1)
    positions = np.minimum((np.arange(length) + (stretched - length) // 2) * step, middle - 1)
    lower = np.minimum(np.floor(positions).astype(np.int64), middle - 1)
    upper = np.minimum(lower + 1, middle - 1)
    offset = (length - middle) // 2
    return lower + offset, upper + offset, positions - lower


def zoom_middle(layers: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Enlarge the centre of square images bilinearly, keeping their size.

    Args:
        layers: (H, H, …) float64, the image axes first.
        factor: enlargement, at least 1.

    Returns:
        An array of the same shape.
    """
    lower, upper, weight = zoom_taps(layers.shape[0], factor)
    rows = weight.reshape(-1, *[1] * (layers.ndim - 1))
    stretched = layers[lower] * (1 - rows) + layers[upper] * rows
    columns = weight.reshape(1, -1, *[1] * (layers.ndim - 2))
    result: NDArray[np.float64] = stretched[:, lower] * (1 - columns) + stretched[:, upper] * columns
    return result


def resize_bilinear(
    images: NDArray[np.floating] | NDArray[np.uint8], height: int, width: int, *, step: float
) -> NDArray[np.float64]:
    """Resample images with aligned pixel areas and without smoothing, like OpenCV's `INTER_LINEAR`.

    Args:
        images: (N, H, W, …).
        height: output rows.
        width: output columns.
        step: input pixels per output pixel, along both axes.

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
    """Resize square layers: bilinearly to a larger size, with a box filter to a smaller one.

    Args:
        layers: (N, H, H).
        size: output height and width.

    Returns:
        (N, size, size) float64; the input itself if it has that size.
    """
    length = layers.shape[1]
    if size == length:
        return layers
    if size > length:
        return resize_bilinear(layers, size, size, step=length / size)
    edges = np.arange(size + 1) * (length / size)
    old = np.arange(length)
    overlap = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    weights = np.maximum(overlap, 0) * (size / length)
    return weighted_sums(weights, weighted_sums(weights, layers, axis=1), axis=2)


def weighted_sums(weights: NDArray[np.float64], values: NDArray[np.floating], axis: int) -> NDArray[np.float64]:
    """Multiply by a matrix along one axis, adding terms in order.

    The order of a BLAS depends on the processor. Fused multiply-adds give the same bits as OpenBLAS with AVX2 and
    AVX-512, which earlier images were generated with. For odd sizes, whose last rows OpenBLAS sums differently, nearly
    all bits are the same.

    Args:
        weights: (T, S).
        values: any shape, with length S along the axis.
        axis: the axis that becomes T long.

    Returns:
        An array of the shape of `values` with T instead of S along the axis.
    """
    last = np.moveaxis(values.astype(np.float64), axis, -1)
    total = np.zeros((*last.shape[:-1], len(weights)))
    for position in range(weights.shape[1]):
        total = fused_multiply_add(last[..., position, None], weights[:, position], total)
    return np.moveaxis(total, -1, axis)


def sample_bilinear(
    images: NDArray[np.float32], rows: NDArray[np.floating], columns: NDArray[np.floating], border: Border
) -> NDArray[np.float32]:
    """Interpolate images bilinearly at fractional positions.

    Args:
        images: (N, H, W, C) float32.
        rows: (N, h, w) row positions; pixel centres are integers.
        columns: (N, h, w) column positions.
        border: pixels outside of the image.

    Returns:
        (N, h, w, C) float32.
    """
    n_images, height, width, _ = images.shape
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    image = np.arange(n_images).reshape(-1, 1, 1)
    above, below = fold_positions(top, height, border), fold_positions(top + 1, height, border)
    before, after = fold_positions(left, width, border), fold_positions(left + 1, width, border)
    upper = images[image, above, before] * (1 - right) + images[image, above, after] * right
    lower = images[image, below, before] * (1 - right) + images[image, below, after] * right
    sampled: NDArray[np.float64] = upper * (1 - down) + lower * down
    return sampled.astype(np.float32)


def correlate(images: NDArray[np.float64], kernel: NDArray[np.floating]) -> NDArray[np.float64]:
    """Correlate images with a small odd square kernel, mirrored at the edge pixels.

    Args:
        images: (N, H, W, C) float64.
        kernel: (2 r + 1, 2 r + 1).

    Returns:
        An array of the images' shape, as from OpenCV's `filter2D` with its default border.
    """
    radius = len(kernel) // 2
    _, height, width, _ = images.shape
    rows = fold_positions(np.arange(-radius, height + radius), height, "whole")
    columns = fold_positions(np.arange(-radius, width + radius), width, "whole")
    padded = images[:, rows][:, :, columns]
    total = np.zeros_like(images)
    for (row, column), weight in np.ndenumerate(kernel):
        total += float(weight) * padded[:, row : row + height, column : column + width]
    return total


def stretch_kernel(kernel: NDArray[np.floating], scale: float) -> NDArray[np.float64]:
    """Resample a kernel to a finer or coarser pixel grid.

    The kernel is treated as constant over each of its pixels, enlarged by `scale`, and integrated over the new pixels.

    Args:
        kernel: (2 r + 1, 2 r + 1).
        scale: new pixels per old pixel; 1 changes nothing.

    Returns:
        An odd square kernel of the same sum.
    """
    old_radius = len(kernel) // 2
    new_radius = math.ceil((old_radius + 0.5) * scale - 0.5)
    old = (np.arange(-old_radius, old_radius + 1)) * scale
    new = np.arange(-new_radius, new_radius + 1)[:, None]
    overlap = np.minimum(new + 0.5, old + scale / 2) - np.maximum(new - 0.5, old - scale / 2)
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
    `portable_floats.exp`.

    Args:
        layers: any shape.
        sigma: standard deviation, in pixels; 0 changes nothing.
        axes: the two axes.
        mode: pixels outside: edge pixels repeated, or mirrored at the edge.
        truncate: kernel radius in standard deviations.

    Returns:
        An array of the shape of `layers`.
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
