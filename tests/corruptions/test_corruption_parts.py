"""Components of the corruption generator, compared with simple loops that follow the published script.

Corruptions with a hash in `test_corruptions.SCRIPT_HASHES` are compared there with the results of the script itself.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import ndimage

from robust201.core.noise import generator
from robust201.corruptions import blurs, digital, sampling
from robust201.corruptions.generator import corrupt
from tests.support.natural_images import natural_images, stripes

TRUNCATION_TOLERANCE = 1.001
"""Maximum difference between an exact pixel and the truncated one, which is up to one level darker."""


def corrupt_images(images: NDArray[np.uint8], key: str, severity: int) -> NDArray[np.uint8]:
    return corrupt(images, key, severity, seed=0, indices=np.arange(len(images)), frost=stripes())


@given(radius=st.integers(0, 2), scale=st.sampled_from([0.5, 0.75, 1.0, 1.5, 2.0, 3.5]), seed=st.integers(0, 99))
def test_stretch_kernel_preserves_sum_and_symmetry(radius, scale, seed):
    kernel = np.random.default_rng(seed).random((2 * radius + 1,) * 2)
    kernel = (kernel + kernel[::-1]) / (2 * kernel.sum())
    stretched = sampling.stretch_kernel(kernel, scale)
    assert stretched.sum() == pytest.approx(1)
    assert np.allclose(stretched, stretched[::-1])
    assert (stretched >= 0).all()
    if scale == 1:
        assert np.allclose(stretched, kernel)


def test_stretch_kernel_weights_by_area():
    point_kernel, plus_kernel = np.ones((1, 1)), np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]]) / 5
    assert np.allclose(sampling.stretch_kernel(point_kernel, 3), np.full((3, 3), 1 / 9))
    assert np.allclose(sampling.stretch_kernel(point_kernel, 2), np.outer([1, 2, 1], [1, 2, 1]) / 16)
    assert np.allclose(sampling.stretch_kernel(plus_kernel, 0.5), np.array([[0, 1, 0], [1, 6, 1], [0, 1, 0]]) / 10)


@pytest.mark.parametrize("severity", [1, 2, 5])
@pytest.mark.parametrize("size", [16, 32])
def test_elastic_transform_matches_scipy(severity, size):
    images, scale = natural_images(2, size), size / 32
    strength, smoothing, shift = (32 * fraction for fraction in digital.ELASTIC_FRACTIONS.cifar[severity - 1])
    grid = np.mgrid[:size, :size].astype(float)
    for index, result in enumerate(corrupt_images(images, "elastic_transform", severity)):
        uniforms = generator(0, "elastic_transform", index).uniform(-1, 1, 6 + 2 * 32 * 32)
        c, r = size // 2, size // 3
        corners = np.array([[c + r, c + r], [c + r, c - r], [c - r, c - r]], float)
        moved_corners = corners + uniforms[:6].reshape(3, 2) * shift * scale
        forward = np.linalg.solve(np.c_[corners, np.ones(3)], moved_corners).T
        inverse = np.linalg.inv(np.vstack([forward, [0, 0, 1]]))
        columns, rows, _ = np.tensordot(inverse, np.stack([grid[1], grid[0], np.ones_like(grid[0])]), 1)
        fields = [
            ndimage.gaussian_filter(field, smoothing, mode="reflect", truncate=3) * strength * scale
            for field in uniforms[6:].reshape(2, 32, 32)
        ]
        if size == 16:
            fields = [field.reshape(16, 2, 16, 2).mean((1, 3)) for field in fields]
        for channel in range(3):
            sheared = ndimage.map_coordinates(
                images[index, ..., channel] / 255.0, (rows, columns), order=1, mode="mirror"
            )
            positions = (grid[0] + fields[1], grid[1] + fields[0])
            expected = ndimage.map_coordinates(sheared, positions, order=1, mode="reflect") * 255
            assert np.abs(result[..., channel] - expected).max() < TRUNCATION_TOLERANCE


@settings(max_examples=20)
@given(angle=st.floats(-180, 180), radius=st.sampled_from([3.0, 4.5, 6.0]), sigma=st.floats(0.5, 12))
def test_motion_blur_is_weighted_sum_along_ray(angle, radius, sigma):
    image = natural_images(1, 16)[0, ..., :1]
    weights, offsets = blurs.motion_taps(radius, sigma, angle)
    assert weights.sum() == pytest.approx(1)
    assert (np.diff(weights) <= 0).all()
    ray = np.arange(len(offsets))[:, None] * [math.sin(math.radians(angle)), math.cos(math.radians(angle))]
    assert np.abs(offsets - ray).max() <= 0.5 + 1e-9
    expected = np.zeros((16, 16))
    for row in range(16):
        for column in range(16):
            for weight, (row_shift, column_shift) in zip(weights, offsets, strict=True):
                expected[row, column] += (
                    weight * image[np.clip(row + row_shift, 0, 15), np.clip(column + column_shift, 0, 15), 0]
                )
    result = blurs.blur_along(image[None], radius, sigma, np.array([angle]))
    assert (expected - result[0, ..., 0]).max() < 1
    assert (result[0, ..., 0] - expected).max() <= 0.5 / 257 + 1e-9


def test_motion_blur_rounds_to_16_bits_and_truncates_to_8():
    """ImageMagick 6.9 (Q16) does the same. Rounding to the nearest level would make half of the values too bright."""
    image = natural_images(1, 32)[0, ..., :1].astype(np.uint8)
    weights, offsets = blurs.motion_taps(6, 1.5, 30.0)
    exact_weights = [Fraction(float(weight)) for weight in weights]
    n_rounded_down = 0
    result = blurs.blur_along(image[None], 6, 1.5, np.array([30.0]))[0, ..., 0]
    for row in range(16):
        for column in range(16):
            neighbours = (int(image[row + row_shift, column + column_shift, 0]) for row_shift, column_shift in offsets)
            weighted_sum = sum(weight * level for weight, level in zip(exact_weights, neighbours, strict=True))
            blurred = weighted_sum / sum(exact_weights)
            assert result[row, column] == math.floor(257 * blurred + Fraction(1, 2)) // 257
            n_rounded_down += math.floor(blurred + Fraction(1, 2)) > result[row, column]
    assert 0.35 < n_rounded_down / 256 < 0.65


def test_snow_trail_is_below_flake():
    """Each pixel is averaged with the pixels above it, so a flake leaves its trail below."""
    layer = np.zeros((1, 32, 32, 1), np.uint8)
    layer[0, 16, 16] = 255
    trail = np.argwhere(blurs.blur_along(layer, 8, 3, np.array([-90.0]))[0, ..., 0])
    assert (trail[:, 1] == 16).all()
    assert trail[:, 0].min() == 16
    assert trail[:, 0].max() > 20


@given(length=st.integers(1, 9), position=st.integers(-40, 40))
def test_fold_positions_matches_numpy_pad(length, position):
    modes = {"edge": "edge", "half_sample": "symmetric", "whole_sample": "reflect"}
    for border in ("edge", "half_sample", "whole_sample"):
        padded = np.pad(np.arange(length), 40, mode=modes[border])
        folded = sampling.fold_positions(np.array([position]), length, border)
        if 0 <= position + 40 < len(padded):
            assert folded[0] == padded[position + 40]


@pytest.mark.parametrize("size", [8, 16, 24, 32, 48, 64])
def test_resample_layers_preserves_mean(size):
    flat = np.full((2, 32, 32), 0.25)
    assert np.allclose(sampling.resample_layers(flat, size), 0.25)
    ramp = np.broadcast_to(np.arange(32.0), (1, 32, 32))
    resampled = sampling.resample_layers(ramp, size)
    assert resampled.shape == (1, size, size)
    assert resampled.mean() == pytest.approx(15.5)
