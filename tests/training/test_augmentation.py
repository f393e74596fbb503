"""Augmentation: effects on pixels, and random numbers that depend only on image, epoch and seed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from robust201.training.augmentation import Augmenter, resample
from robust201.training.recipes import AUGMENTATIONS, Augmentation

CPU = torch.device("cpu")
N_IDS = 40


def make_pixels(count=N_IDS, size=8, seed=0, low=0):
    return np.random.default_rng(seed).integers(low, 256, (count, 3, size, size), dtype=np.uint8)


def augment(fields, pixels, ids=None, *, seed=1, epoch=0, n_ids=N_IDS):
    ids = np.arange(len(pixels)) if ids is None else np.asarray(ids)
    augmenter = Augmenter(Augmentation.model_validate(fields), n_ids=n_ids, seed=seed, device=CPU)
    return augmenter(pixels, ids, epoch).numpy()


def test_augmentation_without_fields_is_the_identity():
    pixels = make_pixels()
    assert np.array_equal(augment({}, pixels), pixels.astype(np.float32) / np.float32(255))
    assert AUGMENTATIONS["none"] == Augmentation()


ALL_AUGMENTATIONS = [fields.model_dump() for name, fields in AUGMENTATIONS.items() if name != "none"]


@pytest.mark.parametrize("fields", ALL_AUGMENTATIONS, ids=str)
@settings(max_examples=5)
@given(order=st.permutations(range(12)), batch_size=st.integers(1, 12), epoch=st.integers(0, 3))
def test_augmentation_keeps_range_and_shape_and_does_not_depend_on_the_batch(fields, order, batch_size, epoch):
    pixels = make_pixels()
    all_augmented = augment(fields, pixels, epoch=epoch)
    assert (all_augmented.shape, all_augmented.dtype) == ((N_IDS, 3, 8, 8), np.float32)
    assert 0 <= all_augmented.min() <= all_augmented.max() <= 1
    for start in range(0, len(order), batch_size):
        ids = order[start : start + batch_size]
        assert np.array_equal(augment(fields, pixels[ids], ids, epoch=epoch), all_augmented[ids])


@pytest.mark.parametrize(
    "fields", [*ALL_AUGMENTATIONS, {"jitter": 0.1}, {"translate": 2}, {"rotate_degrees": 9}], ids=str
)
def test_augmentation_differs_between_images_seeds_and_epochs(fields):
    equal_images = np.repeat(make_pixels(1), N_IDS, axis=0)
    augmented = augment(fields, equal_images)
    assert len({image.tobytes() for image in augmented}) > 4
    assert not np.array_equal(augmented, augment(fields, equal_images, epoch=1))
    assert not np.array_equal(augmented, augment(fields, equal_images, seed=2))
    assert np.array_equal(augmented, augment(fields, equal_images))


@settings(max_examples=30)
@given(st.booleans(), st.integers(0, 3), st.integers(0, 4), st.integers(0, 50))
def test_flip_mirrors_and_crop_shifts_images(flip, padding, epoch, seed):
    images = make_pixels(6, low=1)
    augmented = np.rint(augment({"flip": flip, "crop_padding": padding}, images, epoch=epoch, seed=seed) * 255)
    for image, augmented_image in zip(images, augmented, strict=True):
        padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
        candidates = [padded, padded[..., ::-1]] if flip else [padded]
        offsets = range(2 * padding + 1)
        assert any(
            np.array_equal(augmented_image, candidate[:, y : y + 8, x : x + 8])
            for candidate in candidates
            for y in offsets
            for x in offsets
        )


def test_crops_have_all_offsets_and_both_orientations():
    images = np.zeros((400, 3, 8, 8), np.uint8)
    images[:, :, 4, 3] = 1
    augmented = augment({"flip": True, "crop_padding": 2}, images, n_ids=400)
    _, _, rows, columns = np.nonzero(augmented[:, :1])
    assert set(rows) == {2, 3, 4, 5, 6}
    assert set(columns) == {1, 2, 3, 4, 5, 6}
    assert len(rows) == 400


@pytest.mark.parametrize("is_bilinear", [False, True])
@given(shift_right=st.integers(-9, 9), shift_down=st.integers(-9, 9))
def test_resample_translates_by_integer_pixels_exactly(is_bilinear, shift_right, shift_down):
    images = torch.from_numpy(make_pixels(2)).float() / 255
    translated = resample(
        images, np.zeros(2), np.array([[shift_right] * 2, [shift_down] * 2], float), is_bilinear
    ).numpy()
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (9, 9), (9, 9)))
    assert np.array_equal(
        translated, padded[:, :, 9 - shift_down : 17 - shift_down, 9 - shift_right : 17 - shift_right]
    )


@pytest.mark.parametrize("is_bilinear", [False, True])
@pytest.mark.parametrize("quarter_turns", range(-4, 5))
def test_resample_rotates_by_right_angles_counterclockwise(is_bilinear, quarter_turns):
    images = torch.from_numpy(make_pixels(2)).float() / 255
    rotated = resample(images, np.full(2, 90.0 * quarter_turns), np.zeros((2, 2)), is_bilinear).numpy()
    expected = np.rot90(images.numpy(), quarter_turns, axes=(2, 3))
    if is_bilinear and quarter_turns:  # sin(pi) is not exactly 0 in floating point.
        np.testing.assert_allclose(rotated, expected, atol=1e-5)
    else:
        assert np.array_equal(rotated, expected)


@given(degrees=st.floats(-180, 180), shift_right=st.floats(-4, 4), shift_down=st.floats(-4, 4))
def test_resample_matches_scipy(degrees, shift_right, shift_down):
    image = make_pixels(1, size=9)[0] / 255
    resampled = resample(
        torch.from_numpy(image[None]).float(),
        np.array([degrees]),
        np.array([[shift_right], [shift_down]]),
        is_bilinear=True,
    )
    angle = np.deg2rad(degrees)
    # SciPy's matrix maps output coordinates to input coordinates, rows first. The image is padded with zeros, because
    # SciPy does not interpolate between the border and the zeros beyond it.
    matrix = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    offset = 4 - matrix @ (4 + np.array([shift_down, shift_right]))
    padded = np.pad(image, ((0, 0), (9, 9), (9, 9)))
    centre = matrix @ np.array([9, 9])
    for channel in range(3):
        expected = ndimage.affine_transform(
            padded[channel], matrix, offset + 9 - centre, order=1, output_shape=(27, 27)
        )
        np.testing.assert_allclose(resampled[0, channel], expected[9:18, 9:18], atol=1e-5)


def test_translations_cover_their_range():
    # The images are horizontal ramps, so a pixel's value shows the shift.
    ramp = np.broadcast_to(np.arange(40, 104, 2, dtype=np.uint8), (N_IDS, 3, 32, 32)).copy()
    centre_values = augment({"translate": 3}, ramp)[:, 0, 16, 16] * 255
    shifts = (ramp[0, 0, 16, 16] - centre_values) / 2
    assert -3 <= shifts.min() < -2
    assert 2 < shifts.max() <= 3
    assert len(set(shifts.round(3))) == N_IDS


def brightness_factors(strength):
    """Return the brightness factors of uniform grey images, which contrast and saturation jitter do not change."""
    grey = np.full((N_IDS, 3, 4, 4), 100, np.uint8)
    return augment({"jitter": strength}, grey)[:, 0, 0, 0] * 255 / 100


def test_jitter_changes_the_mean_grey_only_by_brightness():
    factors = brightness_factors(0.25)
    assert 0.75 <= factors.min() < 0.8
    assert 1.2 < factors.max() <= 1.25
    # Contrast and saturation preserve the mean grey, so only the brightness factor changes it.
    colours = make_pixels(low=60) // 2
    augmented = augment({"jitter": 0.25}, colours)
    weights = np.array([0.2989, 0.587, 0.114])[None, :, None, None]
    means = [(images * weights).sum(axis=1).mean(axis=(1, 2)) / weights.sum() for images in (augmented, colours / 255)]
    np.testing.assert_allclose(means[0] / means[1], factors, atol=2e-3)


@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_jitter_stays_within_its_strength(strength):
    assert 0.8 * strength < np.abs(brightness_factors(strength) - 1).max() <= strength + 1e-6


def test_named_augmentations_have_the_published_parameters():
    std, std_star = AUGMENTATIONS["std"], AUGMENTATIONS["std*"]
    assert (std.crop_padding, std.jitter, std.rotate_degrees, std.flip) == (4, 0.25, 2, True)
    assert (std_star.crop_padding, std_star.rotate_degrees) == (3, 30)
    tensorflow, tensorflow_star = AUGMENTATIONS["std-tf"], AUGMENTATIONS["std*-tf"]
    assert (tensorflow.translate, tensorflow.rotate_degrees, tensorflow.jitter, tensorflow.flip) == (4, 0, 0, True)
    assert (tensorflow_star.translate, tensorflow_star.rotate_degrees) == (3, 30)
    assert tensorflow.interpolation == tensorflow_star.interpolation == "bilinear"
