"""Digital processing: contrast, elastic transform, pixelation and JPEG compression.

Constants and arithmetic: hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py, written for 32 pixels, and
make_imagenet_c.py, for 224 (Hendrycks and Dietterich, 2019). Lengths are scaled for images of other heights.
"""

import math
from io import BytesIO

import numpy as np

from robust201.corruptions.inputs import (
    CIFAR_SIZE,
    IMAGENET_SIZE,
    Constants,
    CorruptionRandomNumbers,
    Floats,
    Images,
    reference_size,
    scale_of,
)
from robust201.corruptions.sampling import resample_layers, sample_bilinear, smooth, truncate

CONTRAST_FACTORS = Constants(cifar=(0.75, 0.5, 0.4, 0.3, 0.15), imagenet=(0.4, 0.3, 0.2, 0.1, 0.05))
"""Factor by which a value's distance to its channel's mean is multiplied."""

ELASTIC_FRACTIONS = Constants(
    cifar=((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    imagenet=((2.0, 0.7, 0.1), (2.0, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
)
"""Strength and smoothing of the displacements, and largest shift of the affine map's corners, all as fractions of
`_elastic_unit`."""

PIXELATE_SCALES = Constants(cifar=(0.95, 0.9, 0.85, 0.75, 0.65), imagenet=(0.6, 0.5, 0.4, 0.3, 0.25))
"""Downsampled size as a fraction of the original. CIFAR-10-C's sizes are 30, 28, 27, 24 and 20 of 32 pixels."""

JPEG_QUALITIES = Constants(cifar=(80, 65, 58, 50, 40), imagenet=(25, 18, 15, 10, 7))
"""JPEG quality, in libjpeg's scale from 1 to 100."""


def _elastic_unit(size: int) -> int:
    """Return the height in pixels to which the published constants refer. The script for 224 pixels uses 244."""
    return 244 if size >= IMAGENET_SIZE else CIFAR_SIZE


def contrast(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Move every value towards the mean of its channel."""
    pixels = images / 255.0
    # Compute means image by image, as published: a sum's order affects its last bit, which truncation makes visible.
    means = np.stack([image.mean(axis=(0, 1), keepdims=True) for image in pixels])
    return truncate(np.clip((pixels - means) * CONTRAST_FACTORS.at(severity, images.shape[1]) + means, 0, 1) * 255)


def elastic_transform(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Apply a random affine map to images, then displace pixels by a smooth random field (Simard et al., 2003).

    With the same random numbers, pixels differ by up to 3/255 from the published script's, since OpenCV rounds
    positions to 1/32 pixel.
    """
    size = images.shape[1]
    shape = (2, reference_size(size), reference_size(size))
    strength, smoothing, shift = (_elastic_unit(size) * fraction for fraction in ELASTIC_FRACTIONS.at(severity, size))
    scale = scale_of(size)
    uniforms = random_numbers.draw_per_image(lambda rng: rng.uniform(-1, 1, 6 + math.prod(shape)))
    pixels = (images / 255.0).astype(np.float32)
    rows, columns = _affine_sources(size, uniforms[:, :6].reshape(-1, 3, 2) * shift * scale)
    sheared = sample_bilinear(pixels, rows, columns, "whole_sample")
    # Smooth the noise at the published size, then resample it: a kernel scaled to another size would average another
    # number of values, and so change the noise's amplitude.
    fields = smooth(uniforms[:, 6:].reshape(-1, *shape), smoothing, (2, 3), mode="reflect", truncate=3)
    column_shifts, row_shifts = (resample_layers(fields[:, axis], size) * strength * scale for axis in (0, 1))
    grid = np.arange(size, dtype=np.float64)
    warped = sample_bilinear(sheared, grid[:, None] + row_shifts, grid + column_shifts, "half_sample")
    return truncate(np.clip(warped, 0, 1) * np.float32(255))


def _affine_sources(size: int, shifts: Floats) -> tuple[Floats, Floats]:
    """Return the source of each pixel under affine maps that displace three corners of the central square.

    `shifts` (N, 3, 2) displace the lower right, upper right and upper left corner, columns before rows.

    Returns:
        Row and column positions, (N, size, size) each.
    """
    centre, reach = size // 2, size // 3
    corners = np.array([[centre + reach, centre + reach], [centre + reach, centre - reach], [centre - reach] * 2])
    # Compute the inverse map, from displaced to original corners, with Cramer's rule, since LAPACK's rounding depends
    # on the processor.
    (x, y), (corner_x, corner_y), (other_x, other_y) = np.moveaxis(corners + shifts, 0, -1)
    edge_x, edge_y, other_edge_x, other_edge_y = corner_x - x, corner_y - y, other_x - x, other_y - y
    area = edge_x * other_edge_y - edge_y * other_edge_x
    rows, columns = np.mgrid[:size, :size]
    sources = []
    for start, end, other_end in corners.T:
        column_slope = (other_edge_y * (end - start) - edge_y * (other_end - start)) / area
        row_slope = (edge_x * (other_end - start) - other_edge_x * (end - start)) / area
        offset = start - column_slope * x - row_slope * y
        a, b, c = (coefficients[:, None, None] for coefficients in (column_slope, row_slope, offset))
        sources.append(columns * a + rows * b + c)
    return sources[1], sources[0]


def pixelate(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Downsample and upsample images, with a box filter both times."""
    from PIL import Image

    size = images.shape[1]
    low_resolution = int(size * PIXELATE_SCALES.at(severity, size))
    coarse = [Image.fromarray(image).resize((low_resolution,) * 2, Image.Resampling.BOX) for image in images]
    return np.stack([np.asarray(image.resize((size, size), Image.Resampling.BOX)) for image in coarse])


def jpeg_compression(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Compress images as JPEG; the last bits depend on the libjpeg that Pillow was built with."""
    from PIL import Image

    compressed = np.empty_like(images)
    for position, image in enumerate(images):
        stream = BytesIO()
        Image.fromarray(image).save(stream, "JPEG", quality=JPEG_QUALITIES.at(severity, images.shape[1]))
        with Image.open(stream) as decoded:
            compressed[position] = np.asarray(decoded)
    return compressed
