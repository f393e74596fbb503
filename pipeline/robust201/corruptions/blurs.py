"""Blurs: defocus, frosted glass, motion and zoom.

Constants and arithmetic: hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py, written for 32 pixels, and
make_imagenet_c.py, for 224 (Hendrycks and Dietterich, 2019). Lengths are scaled for images of other heights.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from robust201.core.portable_floats import exp
from robust201.corruptions.inputs import (
    IMAGENET_SIZE,
    Constants,
    CorruptionRandomNumbers,
    Images,
    scale_of,
)
from robust201.corruptions.sampling import (
    correlate,
    fold_positions,
    smooth,
    stretch_kernel,
    truncate,
    zoom_middle,
)

DEFOCUS_CONSTANTS = Constants(
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
    imagenet=((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5)),
)
"""Radius of the disk and standard deviation of its smoothing, in pixels."""

GLASS_CONSTANTS = Constants(
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    imagenet=((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
)
"""Standard deviation of the smoothing and largest displacement, both in pixels, and number of displacement rounds."""

MOTION_CONSTANTS = Constants(
    cifar=((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)),
    imagenet=((10, 3.0), (15, 5.0), (15, 8.0), (15, 12.0), (20, 15.0)),
)
"""Radius and standard deviation of the motion kernel in pixels."""

MAX_MOTION_ANGLE = 45.0
"""Largest angle between the motion and the horizontal, in degrees."""

_LEVELS_16_BIT = 257
"""Number of 16-bit levels per 8-bit level: 65535 / 255."""

ZOOM_RANGES = Constants(
    cifar=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    imagenet=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
)
"""End of the range of enlargements, which starts at 1, and the step between enlargements. Because of rounding errors,
there are 7, 12, 16, 21 and 26 enlargements for small images."""

_MAX_RADIUS_WITH_3X3_SMOOTHING = 8
"""Maximum radius for which the published kernel for large images is smoothed with a 3x3 instead of a 5x5 Gaussian."""


@cache
def large_defocus_kernel(radius: float, smoothing: float, scale: float) -> NDArray[np.float64]:
    """Return the defocus kernel that was published for 224 pixels: a disk smoothed by a 3x3 or 5x5 Gaussian in float32.

    `radius` and `smoothing` (a standard deviation) are in pixels of a 224-pixel image, and `scale` is H / 224. The
    kernel is odd and square, with sum 1.
    """
    disk_reach = max(_MAX_RADIUS_WITH_3X3_SMOOTHING, round(radius))
    offsets = np.arange(-disk_reach, disk_reach + 1)
    disk = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    smoothing_radius = 1 if radius <= _MAX_RADIUS_WITH_3X3_SMOOTHING else 2
    taps = exp(-0.5 * (np.arange(-smoothing_radius, smoothing_radius + 1) / smoothing) ** 2)
    weights = (taps / taps.sum()).astype(np.float32)
    # OpenCV's default border mirrors at the edge pixel's centre.
    padded = np.pad(disk, smoothing_radius, mode="reflect")
    rows = np.zeros_like(padded[smoothing_radius:-smoothing_radius])
    for shift, weight in enumerate(weights):
        rows += weight * padded[shift : shift + len(disk)]
    smoothed = np.zeros_like(disk)
    for shift, weight in enumerate(weights):
        smoothed += weight * rows[:, shift : shift + len(disk)]
    kernel_radius = int(np.abs(np.argwhere(smoothed > 0) - disk_reach).max())
    smoothed = smoothed[
        disk_reach - kernel_radius : disk_reach + kernel_radius + 1,
        disk_reach - kernel_radius : disk_reach + kernel_radius + 1,
    ]
    return smoothed.astype(np.float64) if scale == 1 else stretch_kernel(smoothed, scale)


@cache
def defocus_kernel(radius: float, smoothing: float, scale: float) -> NDArray[np.float64]:
    """Return the defocus kernel that was published for 32 pixels: a disk smoothed by a 3x3 Gaussian in float32."""
    reach = math.floor(radius) + 1
    offsets = np.arange(-reach, reach + 1)
    disk = (offsets[:, None] ** 2 + offsets**2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    taps = exp(-0.5 * (np.arange(-1, 2) / smoothing) ** 2)
    outer_weight, centre_weight, _ = (taps / taps.sum()).astype(np.float32)
    # Use float32 and OpenCV's order of operations, since truncation makes the last bit visible in flat areas.
    padded = np.pad(disk, 1)
    kernel = padded[:, 1:-1] * centre_weight + (padded[:, :-2] + padded[:, 2:]) * outer_weight
    kernel = kernel[1:-1] * centre_weight + (kernel[:-2] + kernel[2:]) * outer_weight
    return kernel.astype(np.float64) if scale == 1 else stretch_kernel(kernel, scale)


def defocus_blur(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Blur images like a lens that is out of focus."""
    size = images.shape[1]
    make_kernel = large_defocus_kernel if size >= IMAGENET_SIZE else defocus_kernel
    kernel = make_kernel(*DEFOCUS_CONSTANTS.at(severity, size), scale_of(size))
    return truncate(np.clip(correlate(images / 255.0, kernel), 0, 1) * 255)


def glass_blur(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Smooth images, displace pixels locally, and smooth again, like frosted glass.

    The published script writes ``x[h, w], x[h', w'] = x[h', w'], x[h, w]`` to swap two pixels. Both sides are views of
    one NumPy array, so the second assignment reads the value that the first wrote: pixel (h', w') is copied to (h, w),
    and is not changed itself.
    """
    smoothing, displacement, rounds = GLASS_CONSTANTS.at(severity, images.shape[1])
    scale = scale_of(images.shape[1])
    sigma = smoothing * scale
    reach = max(1, round(displacement * scale))
    # scikit-image's `gaussian` repeats edge pixels and truncates the kernel at four standard deviations.
    smoothed = truncate(smooth(images / 255.0, sigma, (1, 2), mode="nearest", truncate=4.0) * 255)
    shuffled = np.take_along_axis(
        smoothed.reshape(len(images), -1, 3),
        _glass_sources(images.shape[1], reach, rounds, random_numbers)[..., None],
        axis=1,
    ).reshape(images.shape)
    smoothed_again = smooth(shuffled / 255.0, sigma, (1, 2), mode="nearest", truncate=4.0)
    return truncate(np.clip(smoothed_again, 0, 1) * 255)


def _glass_sources(size: int, reach: int, rounds: int, random_numbers: CorruptionRandomNumbers) -> NDArray[np.int64]:
    """Return the source of each pixel after all rounds: (N, size * size) int64, pixels counted row by row."""
    targets = range(size - reach, reach, -1)
    max_rounds = max(GLASS_CONSTANTS.at(severity, size)[2] for severity in range(1, 6))
    shape = (max_rounds, len(targets), len(targets), 2)
    displacements = random_numbers.draw_per_image(lambda rng: rng.integers(-reach, reach, size=shape)).astype(np.int64)
    sources = np.repeat(np.arange(size * size)[:, None], len(displacements), axis=1)
    image_indices = np.arange(len(displacements))
    for displacement_round in range(rounds):
        for row_index, row in enumerate(targets):
            for column_index, column in enumerate(targets):
                column_shift, row_shift = displacements[:, displacement_round, row_index, column_index].T
                sources[row * size + column] = sources[(row + row_shift) * size + column + column_shift, image_indices]
    return np.ascontiguousarray(sources.T)


def motion_taps(radius: float, sigma: float, angle: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the kernel of a straight motion with a fading trace.

    A point moves along a ray and fades like one side of a Gaussian. The kernel has one sample per pixel of the path,
    and each sample is assigned to the nearest pixel. It replaces ImageMagick's `MotionBlurImage`, which the published
    script calls. The number of samples (``2 ceil(radius) + 1``), the fading and the direction are the same, but no code
    is taken from ImageMagick. Lengths are in pixels; an angle of 0 degrees is to the right, 90 is down.

    Returns:
        Weights (T,) float64, which sum to 1, and the offsets (T, 2) int64 of the averaged pixels from the blurred one,
        in rows and columns.
    """
    distances = np.arange(2 * math.ceil(radius) + 1)
    direction = np.array([math.sin(math.radians(angle)), math.cos(math.radians(angle))])
    return _fading_weights(len(distances), sigma), np.ceil(distances[:, None] * direction - 0.5).astype(np.int64)


@cache
def _fading_weights(n_samples: int, sigma: float) -> NDArray[np.float64]:
    """Return the weights (n_samples,) of a motion kernel's samples, which sum to 1."""
    weights = exp(-0.5 * (np.arange(n_samples) / sigma) ** 2)
    weights /= weights.sum()
    return weights


def blur_along(images: NDArray[np.uint8], radius: float, sigma: float, angles: NDArray[np.float64]) -> Images:
    """Blur each image (N, H, W, C) along its own direction (see `motion_taps`), repeating edge pixels.

    A blurred value t becomes ``floor(floor(257 t + 1/2) / 257)``. ImageMagick 6.9 (Q16), which the published script
    calls, uses 16 bits, with 257 levels per 8-bit level. It rounds sums to 16 bits, and truncates them to 8 bits.
    Rounding t directly would make half of the values one grey level too bright.
    """
    _, height, width, _ = images.shape
    reach = 2 * math.ceil(radius)
    rows = fold_positions(np.arange(-reach, height + reach), height, "edge")
    columns = fold_positions(np.arange(-reach, width + reach), width, "edge")
    blurred = np.empty_like(images)
    for position, angle in enumerate(angles):
        padded = images[position][rows][:, columns]
        weights, offsets = motion_taps(radius, sigma, float(angle))
        total = np.zeros(images.shape[1:])
        for weight, (row_shift, column_shift) in zip(weights, offsets + reach, strict=True):
            total += weight * padded[row_shift : row_shift + height, column_shift : column_shift + width]
        blurred[position] = np.floor(_LEVELS_16_BIT * total + 0.5) // _LEVELS_16_BIT
    return blurred


def motion_blur(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Blur images like a camera that moves during the exposure."""
    radius, sigma = MOTION_CONSTANTS.at(severity, images.shape[1])
    scale = scale_of(images.shape[1])
    angles = random_numbers.draw_per_image(lambda rng: rng.uniform(-MAX_MOTION_ANGLE, MAX_MOTION_ANGLE, size=()))
    return blur_along(images, radius * scale, sigma * scale, angles)


def zoom_blur(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Average images with enlargements of their centres, like a camera that moves towards its object."""
    factors = np.arange(1, *ZOOM_RANGES.at(severity, images.shape[1]))
    # Put the axes of rows and columns first, so that gathering rows and columns copies long runs of memory.
    original = (images / 255.0).astype(np.float32).transpose(1, 2, 0, 3)
    layers = np.ascontiguousarray(original.astype(np.float64))
    total = np.zeros_like(original)
    for factor in factors:
        # Sum in float32, one enlargement after the other, as published, since truncation makes the last bit visible.
        total += zoom_middle(layers, float(factor)).astype(np.float32)
    mean = (original + total) / np.float32(len(factors) + 1)
    return truncate((np.clip(mean, 0, 1) * np.float32(255)).transpose(2, 0, 1, 3))
