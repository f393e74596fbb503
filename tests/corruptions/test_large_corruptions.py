"""Corruptions of 224-pixel images: ImageNet-C's constants, compared with simple versions of its script."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from robust201.corruptions import blurs, generator
from robust201.corruptions.frost_textures import synthetic_frost
from robust201.corruptions.generator import LARGE_IMAGES_VERSION, corrupt, corruption_recipes
from robust201.corruptions.inputs import IMAGENET_SIZE
from robust201.tasks import CORRUPTIONS, TASKS

SIZE = 224
SEVERITIES = (1, 2, 3, 4, 5)


def gradient_image(size: int = SIZE) -> NDArray[np.uint8]:
    """Return a smooth image with some texture: (1, size, size, 3)."""
    row_position, column_position = np.mgrid[:size, :size] / size
    texture = 20 * np.sin(60 * row_position * column_position)
    pixels = np.stack(
        [
            200 * row_position + texture + 20,
            180 * column_position + 30,
            100 * (row_position + column_position) - texture + 20,
        ],
        axis=-1,
    )
    return np.clip(pixels, 0, 255).astype(np.uint8)[None]


IMAGE = gradient_image()


def corrupt_image(key: str, severity: int, image: NDArray[np.uint8] = IMAGE, index: int = 0) -> NDArray[np.uint8]:
    indices = np.array([index])
    return corrupt(image, key, severity, seed=0, indices=indices, frost=synthetic_frost(0))[0]


@pytest.mark.parametrize("key", CORRUPTIONS)
def test_corruption_changes_large_images(key):
    weakest, strongest = corrupt_image(key, 1), corrupt_image(key, 5)
    assert weakest.shape == strongest.shape == (SIZE, SIZE, 3)
    changes = [np.abs(image.astype(int) - IMAGE[0]).mean() for image in (weakest, strongest)]
    assert changes[0] > 0.5
    # elastic_transform and frost are weaker at the highest severities.
    assert changes[0] < changes[1] or key in {"elastic_transform", "frost"}


@pytest.mark.parametrize(("severity", "scale"), [*zip(SEVERITIES, (0.08, 0.12, 0.18, 0.26, 0.38), strict=True)])
def test_gaussian_noise_has_published_scale(severity, scale):
    grey = np.full((1, SIZE, SIZE, 3), 128, np.uint8)
    noise = corrupt_image("gaussian_noise", severity, grey) / 255.0 - 128 / 255
    is_unclipped = (noise > -128 / 255 + 0.01) & (noise < 127 / 255 - 0.01)
    # The noise is clipped at black and white, so compare a quantile that clipping does not affect.
    # The median of the absolute value of a standard normal number is 0.6745.
    assert np.quantile(np.abs(noise), 0.5) == pytest.approx(0.6745 * scale, abs=0.004)
    assert is_unclipped.mean() > 0.7


@pytest.mark.parametrize(("severity", "factor"), [*zip(SEVERITIES, (0.4, 0.3, 0.2, 0.1, 0.05), strict=True)])
def test_contrast_matches_script(severity, factor):
    pixels = IMAGE[0] / 255.0
    means = pixels.mean(axis=(0, 1), keepdims=True)
    expected = (np.clip((pixels - means) * factor + means, 0, 1) * 255).astype(np.uint8)
    np.testing.assert_array_equal(corrupt_image("contrast", severity), expected)


@pytest.mark.parametrize(("severity", "scale"), [*zip(SEVERITIES, (0.6, 0.5, 0.4, 0.3, 0.25), strict=True)])
def test_pixelate_matches_script(severity, scale):
    low_resolution = int(SIZE * scale)
    image = Image.fromarray(IMAGE[0]).resize((low_resolution, low_resolution), Image.Resampling.BOX)
    expected = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX))
    np.testing.assert_array_equal(corrupt_image("pixelate", severity), expected)


@pytest.mark.parametrize(
    ("severity", "radius", "smoothing"), [(1, 3, 0.1), (2, 4, 0.5), (3, 6, 0.5), (4, 8, 0.5), (5, 10, 0.5)]
)
def test_defocus_kernel_matches_script(severity, radius, smoothing):
    """Compare with the script's disk, smoothed pixel by pixel with OpenCV's default border (BORDER_REFLECT_101)."""
    reach = 8 if radius <= 8 else radius
    smoothing_radius = 1 if radius <= 8 else 2
    side = 2 * reach + 1
    disk = np.array(
        [[float(x * x + y * y <= radius**2) for x in range(-reach, reach + 1)] for y in range(-reach, reach + 1)]
    )
    disk /= disk.sum()
    offsets = range(-smoothing_radius, smoothing_radius + 1)
    taps = np.array([math.exp(-0.5 * (offset / smoothing) ** 2) for offset in offsets])
    taps /= taps.sum()
    expected = np.zeros((side, side))
    for row in range(side):
        for column in range(side):
            for row_shift in offsets:
                for column_shift in offsets:
                    y, x = abs(row + row_shift), abs(column + column_shift)
                    y, x = min(y, 2 * (side - 1) - y), min(x, 2 * (side - 1) - x)
                    weight = taps[row_shift + smoothing_radius] * taps[column_shift + smoothing_radius]
                    expected[row, column] += weight * disk[y, x]
    kernel = blurs.large_defocus_kernel(*blurs.DEFOCUS_CONSTANTS.imagenet[severity - 1], 1.0)
    padding = reach - len(kernel) // 2
    np.testing.assert_allclose(np.pad(kernel, padding), expected, atol=1e-7)


@pytest.mark.parametrize(("severity", "quality"), [*zip(SEVERITIES, (25, 18, 15, 10, 7), strict=True)])
def test_jpeg_has_published_quality(severity, quality, tmp_path):  # type: ignore[no-untyped-def]
    Image.fromarray(IMAGE[0]).save(tmp_path / "image.jpg", quality=quality)
    with Image.open(tmp_path / "image.jpg") as image:
        np.testing.assert_array_equal(corrupt_image("jpeg_compression", severity), np.asarray(image))


def test_next_generator_version_is_recorded_for_all_sizes(monkeypatch):
    next_version = 1 + max(LARGE_IMAGES_VERSION, *(task.images_version for task in TASKS.values()))
    monkeypatch.setattr(generator, "GENERATOR_VERSION", next_version)
    for size in (IMAGENET_SIZE - 1, IMAGENET_SIZE):
        recipes = corruption_recipes(CORRUPTIONS, size, seed=5, frost=synthetic_frost(0))
        assert {recipe["generator_version"] for recipe in recipes.values()} == {next_version}


def test_constants_and_version_change_at_224_pixels():
    keys = ("brightness", "snow")
    small_recipes, large_recipes = (
        corruption_recipes(keys, size, seed=5, frost=synthetic_frost(0)) for size in (IMAGENET_SIZE - 1, IMAGENET_SIZE)
    )
    assert small_recipes == {
        "brightness": {"generator_version": 1, "seed": 5},
        "snow": {"generator_version": 2, "seed": 5},
    }
    assert {recipe["generator_version"] for recipe in large_recipes.values()} == {3}
    small_image_changes = (
        corrupt_image("brightness", 1, gradient_image(SIZE - 1)).astype(int) - gradient_image(SIZE - 1)[0]
    )
    large_image_changes = corrupt_image("brightness", 1).astype(int) - IMAGE[0]
    is_unclipped = IMAGE[0].max(axis=-1) < 200
    assert large_image_changes.max(axis=-1)[is_unclipped].min() >= 24  # 0.1 × 255, truncated
    assert small_image_changes.max() <= 13  # 0.05 × 255
