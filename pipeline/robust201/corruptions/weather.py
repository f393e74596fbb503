"""Weather: snow, frost, fog and brightness.

Constants and arithmetic: hendrycks/robustness, ImageNet-C/create_c/make_cifar_c.py, written for 32 pixels, and
make_imagenet_c.py, for 224 (Hendrycks and Dietterich, 2019). Lengths are scaled for images of other heights.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.corruptions.blurs import blur_along
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
from robust201.corruptions.sampling import resample_layers, truncate, zoom_middle


class SnowConstants(NamedTuple):
    """Constants of snow at one severity.

    Attributes:
        mean: mean of the normal noise that becomes flakes.
        scale: standard deviation of the noise.
        zoom: enlargement of the noise.
        threshold: minimum value of a flake; smaller noise is removed.
        radius: radius of the motion blur, in pixels.
        sigma: standard deviation of the motion blur, in pixels.
        image_weight: weight of the original image; its complement is the weight of the whitened image.
    """

    mean: float
    scale: float
    zoom: float
    threshold: float
    radius: int
    sigma: float
    image_weight: float


SNOW_CONSTANTS = Constants(
    cifar=(
        SnowConstants(0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        SnowConstants(0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        SnowConstants(0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        SnowConstants(0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        SnowConstants(0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    imagenet=(
        SnowConstants(0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        SnowConstants(0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        SnowConstants(0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        SnowConstants(0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        SnowConstants(0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
)
"""Constants of snow at each severity."""

SNOW_ANGLES = (-135.0, -45.0)
"""Range of the motion kernel's angle in degrees (see `blurs.motion_taps`). At -90, each pixel is averaged with the
pixels above it, so the trail of a snowflake is straight below the flake."""

FROST_WEIGHTS = Constants(
    cifar=((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
    imagenet=((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
)
"""Weights of the image and of the frost texture, which are added."""

FROST_SCALE = 0.2
"""Factor by which frost textures are resized for 32-pixel images. For 224-pixel images they keep their size."""

FOG_PLASMA = Constants(
    cifar=((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)),
    imagenet=((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4)),
)
"""Strength of the fog, and square root of the factor by which noise shrinks from one scale to the next finer one."""

BRIGHTNESS_INCREASES = Constants(cifar=(0.05, 0.1, 0.15, 0.2, 0.3), imagenet=(0.1, 0.2, 0.3, 0.4, 0.5))
"""Amount added to the channel V of HSV, which is in [0, 1]."""

_GREY_WEIGHTS = np.array((0.299, 0.587, 0.114), np.float32)  # ITU-R BT.601 luma, OpenCV's RGB2GRAY


def grey_of(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return luma (…) of pixels (…, 3) in [0, 1], bit-identical to two fused multiply-adds, which round only sums.

    Version 2 of the snow images was first generated with a matrix product, which gives the same bits on processors with
    AVX-512. Products of two float32 are exact in float64. A sum is rounded to float64 and then to float32; a test shows
    for all colours that this equals rounding once.
    """
    grey: NDArray[np.float32] = pixels[..., 0] * _GREY_WEIGHTS[0]
    for channel in (1, 2):
        product = pixels[..., channel].astype(np.float64) * float(_GREY_WEIGHTS[channel])
        grey = (product + grey).astype(np.float32)
    return grey


def snow(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Whiten images and add falling snowflakes."""
    size = images.shape[1]
    constants = SNOW_CONSTANTS.at(severity, size)
    flakes = resample_layers(_flakes(constants, random_numbers, reference_size(size)) / 255.0, size)
    pixels = (images / 255.0).astype(np.float32)
    grey = grey_of(pixels)[..., None]
    whitened = np.maximum(pixels, grey * np.float32(1.5) + np.float32(0.5))
    pixels = np.float32(constants.image_weight) * pixels + np.float32(1 - constants.image_weight) * whitened
    layer = flakes[..., None]
    return truncate(np.clip(pixels + layer + np.rot90(layer, k=2, axes=(1, 2)), 0, 1) * 255)


def _flakes(constants: SnowConstants, random_numbers: CorruptionRandomNumbers, size: int) -> NDArray[np.uint8]:
    """Return layers of falling flakes: (N, size, size) uint8."""
    shape = (size, size)
    noise_and_angles = random_numbers.draw_per_image(
        lambda rng: np.append(rng.standard_normal(shape), rng.uniform(*SNOW_ANGLES))
    )
    noise = noise_and_angles[:, :-1].reshape(-1, *shape) * constants.scale + constants.mean
    layers = zoom_middle(noise.transpose(1, 2, 0), constants.zoom).transpose(2, 0, 1)
    layers = np.where(layers < constants.threshold, 0, layers)
    pixels = truncate(np.clip(layers, 0, 1) * 255)[..., None]
    return blur_along(pixels, constants.radius, constants.sigma, noise_and_angles[:, -1])[..., 0]


def frost(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Blend images with a random patch of a frost texture."""
    size = images.shape[1]
    image_weight, frost_weight = FROST_WEIGHTS.at(severity, size)
    texture_scale = scale_of(size) if size >= IMAGENET_SIZE else FROST_SCALE * size / CIFAR_SIZE
    textures = random_numbers.frost.resample(texture_scale, size)
    uniforms = random_numbers.draw_per_image(lambda rng: rng.random(3))
    frosted = np.empty_like(images)
    for position, (texture_choice, row_fraction, column_fraction) in enumerate(uniforms):
        texture = textures[int(texture_choice * len(textures))]
        top = int(row_fraction * (texture.shape[0] - size))
        left = int(column_fraction * (texture.shape[1] - size))
        patch = texture[top : top + size, left : left + size]
        frosted[position] = truncate(np.clip(image_weight * images[position] + frost_weight * patch, 0, 255))
    return frosted


def plasma(noise: Floats, fading: float) -> Floats:
    """Return cloud-like height maps (N, M, M) in [0, 1], from the diamond-square algorithm on a torus.

    `noise` (N, M * M - 1) is uniform in [-1, 1), where M is a power of two. From one scale to the next, its range
    shrinks by the square of `fading`.
    """
    size = round((noise.shape[1] + 1) ** 0.5)
    heights = np.zeros((len(noise), size, size))
    n_used, step, noise_range = 0, size, 100.0
    while step >= 2:
        half, count = step // 2, size // step
        # The published script draws from [-range, range) and multiplies by the range once more.
        displacements = noise[:, n_used : n_used + 3 * count * count].reshape(-1, 3, count, count) * noise_range**2
        n_used += 3 * count * count
        corners = heights[:, ::step, ::step]
        vertical_sums = corners + np.roll(corners, -1, axis=1)
        middles = (vertical_sums + np.roll(vertical_sums, -1, axis=2)) / 4 + displacements[:, 0]
        heights[:, half::step, half::step] = middles
        horizontal_sums = corners + np.roll(corners, -1, axis=2)
        heights[:, ::step, half::step] = (middles + np.roll(middles, 1, axis=1) + horizontal_sums) / 4 + displacements[
            :, 1
        ]
        heights[:, half::step, ::step] = (middles + np.roll(middles, 1, axis=2) + vertical_sums) / 4 + displacements[
            :, 2
        ]
        step, noise_range = half, noise_range / fading
    heights -= heights.min(axis=(1, 2), keepdims=True)
    normalised: Floats = heights / heights.max(axis=(1, 2), keepdims=True)
    return normalised


def fog(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Add clouds to images, and scale the sum so that no value exceeds the image's brightest value."""
    size = images.shape[1]
    strength, fading = FOG_PLASMA.at(severity, size)
    map_size = 1 << (size - 1).bit_length()
    noise = random_numbers.draw_per_image(lambda rng: rng.uniform(-1, 1, map_size * map_size - 1))
    clouds = plasma(noise, fading)[:, :size, :size, None]
    pixels = images / 255.0
    brightest = pixels.max(axis=(1, 2, 3), keepdims=True)
    return truncate(np.clip((pixels + strength * clouds) * brightest / (brightest + strength), 0, 1) * 255)


def brightness(images: Images, severity: int, random_numbers: CorruptionRandomNumbers) -> Images:
    """Raise the channel V (value) of every pixel in HSV (Smith, 1978)."""
    hue, saturation, value = _to_hsv(images / 255.0)
    value = np.clip(value + BRIGHTNESS_INCREASES.at(severity, images.shape[1]), 0, 1)
    return truncate(np.clip(_from_hsv(hue, saturation, value), 0, 1) * 255)


def _to_hsv(pixels: Floats) -> tuple[Floats, Floats, Floats]:
    red, green, blue = np.moveaxis(pixels, -1, 0)
    value = pixels.max(axis=-1)
    chroma = value - pixels.min(axis=-1)
    nonzero_chroma = np.where(chroma == 0, 1, chroma)
    # If several channels have the largest value, the last of them determines the sector, as in scikit-image.
    sector = np.where(red == value, (green - blue) / nonzero_chroma, 0.0)
    sector = np.where(green == value, 2 + (blue - red) / nonzero_chroma, sector)
    sector = np.where(blue == value, 4 + (red - green) / nonzero_chroma, sector)
    hue = np.where(chroma == 0, 0, (sector / 6) % 1)
    saturation = np.where(chroma == 0, 0, chroma / np.where(value == 0, 1, value))
    return hue, saturation, value


def _from_hsv(hue: Floats, saturation: Floats, value: Floats) -> Floats:
    """Convert hue, saturation and value (…) to red, green and blue (…, 3)."""
    sector = np.floor(hue * 6)
    fraction = hue * 6 - sector
    low = value * (1 - saturation)
    descending = value * (1 - fraction * saturation)
    ascending = value * (1 - (1 - fraction) * saturation)
    index = sector.astype(np.intp) % 6
    red = np.choose(index, (value, descending, low, low, ascending, value))
    green = np.choose(index, (ascending, value, value, descending, low, low))
    blue = np.choose(index, (low, low, ascending, value, value, descending))
    return np.stack((red, green, blue), axis=-1)
