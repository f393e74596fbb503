"""Digital processing: contrast, elastic transform, pixelation and JPEG compression.

Constants and arithmetic: hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py (Hendrycks and Dietterich, 2019),
written for 32 pixels. Lengths are multiplied by H / 32 for images of other heights.
"""

import math
from io import BytesIO

import numpy as np

from robust201.tasks.corruptions.draws import REFERENCE_SIZE, CorruptionDraws, Floats, Images
from robust201.tasks.corruptions.sampling import resample_layers, sample_bilinear, smooth, truncate

CONTRAST_SHARES = (0.75, 0.5, 0.4, 0.3, 0.15)
"""Share of a value's distance to its channel's mean that remains."""

ELASTIC_SHARES = ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
"""Strength and smoothing of the displacements, and largest shift of the affine map's corners, in shares of
the height."""

PIXELATE_SHARES = (0.95, 0.9, 0.85, 0.75, 0.65)
"""Height in between, as a share of the height (30, 28, 27, 24 and 20 of 32 pixels)."""

JPEG_QUALITIES = (80, 65, 58, 50, 40)


def contrast(images: Images, severity: int, draws: CorruptionDraws) -> Images:
    """Move every value towards the mean of its channel."""
    pixels = images / 255.0
    # Image by image, as published: the order of a sum decides its last bit, which truncation makes visible.
    means = np.stack([image.mean(axis=(0, 1), keepdims=True) for image in pixels])
    return truncate(np.clip((pixels - means) * CONTRAST_SHARES[severity - 1] + means, 0, 1) * 255)


def elastic_transform(images: Images, severity: int, draws: CorruptionDraws) -> Images:
    """Shear images by a random affine map, then stretch and squeeze them locally (Simard et al., 2003).

    Equal draws give the published script's pixels but for up to 3 of 255: OpenCV rounds positions to 1/32 pixel.
    """
    size = images.shape[1]
    shape = (2, REFERENCE_SIZE, REFERENCE_SIZE)
    strength, smoothing, shift = (REFERENCE_SIZE * share for share in ELASTIC_SHARES[severity - 1])
    scale = size / REFERENCE_SIZE
    uniform = draws.each(lambda generator: generator.uniform(-1, 1, 6 + math.prod(shape)))
    pixels = (images / 255.0).astype(np.float32)
    rows, columns = _affine_sources(size, uniform[:, :6].reshape(-1, 3, 2) * shift * scale)
    sheared = sample_bilinear(pixels, rows, columns, "whole")
    # Made at 32 pixels: smoothed noise of another size would have another strength in relation to its lengths.
    fields = smooth(uniform[:, 6:].reshape(-1, *shape), smoothing, (2, 3), mode="reflect", truncate=3)
    right, down = (resample_layers(fields[:, axis], size) * strength * scale for axis in (0, 1))
    grid = np.arange(size, dtype=np.float64)
    moved = sample_bilinear(sheared, grid[:, None] + down, grid + right, "half")
    return truncate(np.clip(moved, 0, 1) * np.float32(255))


def _affine_sources(size: int, shifts: Floats) -> tuple[Floats, Floats]:
    """Say where each pixel comes from under the affine maps that move three corners of the middle square.

    Args:
        size: height of the images.
        shifts: (N, 3, 2) shifts of the lower right, upper right and upper left corner, columns before rows.

    Returns:
        Row and column positions, (N, size, size) each.
    """
    centre, reach = size // 2, size // 3
    corners = np.array([[centre + reach, centre + reach], [centre + reach, centre - reach], [centre - reach] * 2])
    # The inverse map, from moved corners back to the corners, by Cramer's rule: LAPACK rounds as the processor does.
    (x, y), (right, down), (other_right, other_down) = np.moveaxis(corners + shifts, 0, -1)
    right, down, other_right, other_down = right - x, down - y, other_right - x, other_down - y
    area = right * other_down - down * other_right
    rows, columns = np.mgrid[:size, :size]
    sources = []
    for here, there, other in corners.T:
        by_column = (other_down * (there - here) - down * (other - here)) / area
        by_row = (right * (other - here) - other_right * (there - here)) / area
        shift = here - by_column * x - by_row * y
        a, b, c = (values[:, None, None] for values in (by_column, by_row, shift))
        sources.append(columns * a + rows * b + c)
    return sources[1], sources[0]


def pixelate(images: Images, severity: int, draws: CorruptionDraws) -> Images:
    """Shrink images and enlarge them again, by means over areas both times."""
    from PIL import Image

    size = images.shape[1]
    between = int(size * PIXELATE_SHARES[severity - 1])
    coarse = [Image.fromarray(image).resize((between, between), Image.Resampling.BOX) for image in images]
    return np.stack([np.asarray(image.resize((size, size), Image.Resampling.BOX)) for image in coarse])


def jpeg_compression(images: Images, severity: int, draws: CorruptionDraws) -> Images:
    """Compress images as JPEG; the last bits depend on the libjpeg that Pillow was built with."""
    from PIL import Image

    compressed = np.empty_like(images)
    for position, image in enumerate(images):
        stream = BytesIO()
        Image.fromarray(image).save(stream, "JPEG", quality=JPEG_QUALITIES[severity - 1])
        with Image.open(stream) as decoded:
            compressed[position] = np.asarray(decoded)
    return compressed
