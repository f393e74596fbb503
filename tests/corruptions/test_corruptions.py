"""The generator of corrupted images: properties of every corruption, and comparison with the published script."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from typer.testing import CliRunner

from robust201.cli.app import app
from robust201.core.errors import ConfigError, DatasetError
from robust201.corruptions import generator as corruptions
from robust201.corruptions.frost_textures import load_frost, synthetic_frost
from robust201.corruptions.generator import CORRUPTION_FUNCTIONS, corrupt
from robust201.tasks import CORRUPTIONS
from tests.support.natural_images import natural_images, stripes

FROST = stripes()
DETERMINISTIC_CORRUPTIONS = ("brightness", "contrast", "defocus_blur", "jpeg_compression", "pixelate", "zoom_blur")
"""The paper's corruptions without a random part."""
every_key = pytest.mark.parametrize("key", CORRUPTION_FUNCTIONS)

SCRIPT_HASHES = {
    "brightness": "494e24c0e01772fa3b7a598c4f2ac014",
    "contrast": "9c779dfc5c0dbc1e7804b7a238c74845",
    "defocus_blur": "685630031fcc7d997edcb90ddd494914",
    "fog": "1c230f30486ee4d5a47e1cd4dc003cf3",
    "gaussian_noise": "ac510e17f7fa6a3da4effb67d45ba633",
    "glass_blur": "9fc2fd78be0b6ce7f3b01c26c25e3922",
    "pixelate": "512a951e6ffe78a52726ea5b3028f617",
    "shot_noise": "1701c46a9c4cddd5425abfb8ae3ad27f",
    "zoom_blur": "049dd5b18046e4a72bc2abbea6316a03",
}
"""First 32 digits of the SHA-256 of the results of hendrycks/robustness 8190fe3, make_cifar_c.py, for
`natural_images(12)` at severities 1 to 5.

They were computed with OpenCV 3.4.18 (5.0 gives the same), scikit-image 0.19.3, SciPy 1.11.4 and Pillow 13, and with
robust201's random numbers in place of `np.random`. Of the corruptions without hashes, jpeg_compression gave equal
results, but its bytes depend on libjpeg; elastic_transform differed by up to 3/255 (with OpenCV 5.0, which does not
round positions to 1/32 pixel, by 1/255); snow and motion_blur need ImageMagick.
"""

MONOTONIC_KEYS = sorted(set(CORRUPTION_FUNCTIONS) - {"elastic_transform", "frost", "glass_blur", "motion_blur"})
"""Corruptions whose mean distance from the clean images grows with each severity. Of the other corruptions,
glass_blur hardly differs between severities 1 to 3, and motion_blur between severities 3 and 4; elastic_transform and
frost are weaker at the highest severities."""


def corrupt_images(
    images: NDArray[np.uint8], key: str, severity: int, *, seed: int = 0, first_index: int = 0
) -> NDArray[np.uint8]:
    indices = np.arange(first_index, first_index + len(images))
    return corrupt(images, key, severity, seed=seed, indices=indices, frost=FROST)


def mean_distances_of(key: str, images: NDArray[np.uint8]) -> list[float]:
    return [
        float(np.abs(corrupt_images(images, key, severity) - images.astype(float)).mean()) for severity in range(1, 6)
    ]


@pytest.mark.parametrize("key", SCRIPT_HASHES)
def test_corrupt_matches_published_script(key):
    images = natural_images(12)
    result = np.stack([corrupt_images(images, key, severity) for severity in range(1, 6)])
    assert hashlib.sha256(result.tobytes()).hexdigest()[:32] == SCRIPT_HASHES[key]


@every_key
@pytest.mark.parametrize("size", [16, 24, 32, 64])
def test_corrupt_preserves_shape_and_input_at_every_size(key, size):
    images = natural_images(2, size)
    original = images.copy()
    for severity in (1, 5):
        result = corrupt_images(images, key, severity)
        assert result.shape == images.shape
        assert result.dtype == np.uint8
        # The disk of defocus_blur at severity 1 is smaller than a pixel of small images.
        assert (result != images).any() or (key == "defocus_blur" and size < 32 and severity == 1)
    assert (images == original).all()


@every_key
@settings(max_examples=6)
@given(order=st.permutations(range(5)), count=st.integers(1, 5), severity=st.integers(1, 5))
def test_corrupt_result_does_not_depend_on_other_images_and_batches(key, order, count, severity):
    images, indices = natural_images(5), np.array([3, 40, 41, 7000, 9999])
    expected = corrupt(images, key, severity, seed=4, indices=indices, frost=FROST)
    subset = np.array(order[:count])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corruptions, "_BATCH_VALUES", 2 * images[0].size)
        result = corrupt(images[subset], key, severity, seed=4, indices=indices[subset], frost=FROST)
    assert (result == expected[subset]).all()


@every_key
def test_random_numbers_depend_on_seed_and_index(key):
    images = natural_images(2)
    result = corrupt_images(images, key, 5)
    other_seed, other_indices = corrupt_images(images, key, 5, seed=1), corrupt_images(images, key, 5, first_index=2)
    is_random = (result != other_seed).any()
    assert (result != other_indices).any() == is_random
    assert key not in CORRUPTIONS or is_random == (key not in DETERMINISTIC_CORRUPTIONS)


@pytest.mark.parametrize("key", MONOTONIC_KEYS)
@pytest.mark.parametrize("size", [16, 32, 64])
def test_distance_grows_with_severity(key, size):
    mean_distances = mean_distances_of(key, natural_images(12, size))
    if key == "defocus_blur" and size == 16:
        assert mean_distances == sorted(mean_distances)  # the disk at severity 1 is smaller than a pixel
    elif key == "zoom_blur" and size == 16:
        assert mean_distances[4] > mean_distances[0]  # small enlargements of 16 pixels crop the same number of pixels
    else:
        assert all(low < high for low, high in itertools.pairwise(mean_distances)), mean_distances


@every_key
@pytest.mark.parametrize("grey", [0, 255])
def test_corrupt_supports_flat_images(key, grey):
    images = np.full((2, 16, 16, 3), grey, np.uint8)
    result = corrupt_images(images, key, 5)
    if key in ("motion_blur", "pixelate", "jpeg_compression", "elastic_transform", "glass_blur", "contrast"):
        assert np.abs(result.astype(int) - grey).max() <= 1


@pytest.mark.parametrize(
    "key",
    ["brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "glass_blur", "motion_blur", "zoom_blur"],
)
def test_corruption_keeps_grey_images_grey(key):
    images = natural_images(3)[..., :1].repeat(3, 3)
    assert np.ptp(corrupt_images(images, key, 4), axis=-1).max() == 0


def test_severities_share_random_numbers():
    images = np.full((4, 32, 32, 3), 128, np.uint8)
    is_changed = [corrupt_images(images, "impulse_noise", severity) != 128 for severity in range(1, 6)]
    assert all((lower <= higher).all() for lower, higher in itertools.pairwise(is_changed))
    assert [float(mask.mean()) for mask in is_changed] == pytest.approx([0.01, 0.02, 0.03, 0.05, 0.07], rel=0.15)


def test_frost_patches_come_from_all_textures():
    black = np.zeros((200, 32, 32, 3), np.uint8)
    result = corrupt_images(black, "frost", 1)
    textures = FROST.resample(0.2, 32)
    first_pixels = {tuple(image[0, 0]) for image in result}
    # Patches of 32 pixels begin in one of the first 16 of a texture's 48 rows, and each row has a single colour.
    expected = [{tuple((0.2 * pixel).astype(np.uint8)) for pixel in texture[:16, 0]} for texture in textures]
    assert first_pixels <= set.union(*expected)
    assert all(first_pixels & pixels for pixels in expected)


def test_resample_to_a_fifth_selects_every_fifth_pixel():
    for texture, small_texture in zip(FROST.images, FROST.resample(0.2, 32), strict=True):
        assert (small_texture == texture[2::5, 2::5]).all()


def test_synthetic_frost_depends_only_on_seed():
    textures, same_seed, other_seed = (synthetic_frost.__wrapped__(seed) for seed in (0, 0, 1))
    assert textures.name == "synthetic"
    assert textures.sha256 == same_seed.sha256 != other_seed.sha256
    for texture in textures.images:
        assert texture.dtype == np.uint8
        assert texture.std() > 10


def test_resample_rejects_too_small_textures():
    with pytest.raises(DatasetError, match=r"'stripes': height and width must be more than 512 pixels, got 240x260"):
        FROST.resample(1.0, 512)


def test_load_frost_checks_files(tmp_path):
    with pytest.raises(DatasetError, match=r"frost1\.png: No such file"):
        load_frost(tmp_path)
    (tmp_path / "frost1.png").write_bytes(b"not frost")
    with pytest.raises(DatasetError, match=r"frost1\.png: expected 1,199,930 bytes, got 9"):
        load_frost(tmp_path)


INVALID_INPUTS = [
    ("gausian_noise", natural_images(1), ConfigError),
    ("fog", natural_images(1)[:, :, :16], DatasetError),
    ("fog", natural_images(1)[..., 0], DatasetError),
    ("fog", natural_images(1) / 255.0, DatasetError),
    ("fog", natural_images(1)[:, :4, :4], DatasetError),
]


@pytest.mark.parametrize(("key", "images", "error"), INVALID_INPUTS)
def test_corrupt_rejects_bad_input(key, images, error):
    with pytest.raises(error, match=key):
        corrupt_images(images, key, 1)


def test_corrupt_command_writes_corruptions_of_digits(tmp_path):
    arguments = ["--data", "digits", "--images", "12", "--keys", "fog,frost", "--seed", "3", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["corrupt", *arguments], catch_exceptions=False)
    assert "2 corruptions of 12 images of digits at 5 severities" in result.stdout
    assert "seed 3, frost synthetic" in result.stdout
    assert np.load(tmp_path / "fog.npy").shape == (60, 32, 32, 3)
