"""Spatial and polar transformers: sampling, and predicted poses that follow the image."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from robust201.networks.zoo.transformers import (
    PolarTransformer,
    SpatialTransformer,
    centroid,
    image_points,
    mean_direction,
    sample,
)


def smooth_images(count=2, size=32):
    """Return float64 images of a few waves that are zero near the border, so that rotations lose no content."""
    grid = torch.linspace(-1, 1, size, dtype=torch.float64)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    phases = torch.rand(count, 3, 1, 1, dtype=torch.float64) * 6
    window = (1 - x**2 - y**2).clamp_min(0) ** 2
    return window * (torch.sin(3 * x + phases) + torch.cos(2 * y - x + 2 * phases) + 0.5 * x)


# --- sampling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(5, 8), (32, 32)])
def test_sample_and_gradients_match_grid_sample(size):
    images = torch.randn(3, 2, *size, dtype=torch.float64, requires_grad=True)
    points = (torch.rand(3, 40, 2, dtype=torch.float64) * 3 - 1.5).requires_grad_()
    sampled = sample(images, points)
    expected = functional.grid_sample(images, points[:, None], align_corners=False)[:, :, 0]
    torch.testing.assert_close(sampled, expected)
    weights = torch.randn_like(sampled)
    for gradient, expected_gradient in zip(
        torch.autograd.grad((sampled * weights).sum(), [images, points]),
        torch.autograd.grad((expected * weights).sum(), [images, points]),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected_gradient)


def test_sample_at_pixel_centres_is_exact_with_nonzero_gradients():
    images = torch.rand(2, 3, 32, 32)
    points = image_points(32, 32, like=images).repeat(2, 1, 1).requires_grad_()
    sampled = sample(images, points)
    assert torch.equal(sampled.unflatten(2, (32, 32)), images)
    (gradient,) = torch.autograd.grad(sampled.sum(), points)
    assert (gradient != 0).all(dim=2).float().mean() > 0.9


def test_sample_has_second_derivatives():
    images = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    points = (torch.rand(1, 6, 2, dtype=torch.float64) - 0.5).requires_grad_()
    assert torch.autograd.gradgradcheck(sample, (images, points))


# --- spatial transformer ----------------------------------------------------------------------------------------------


def test_spatial_transformer_matches_affine_grid():
    transformer = SpatialTransformer(channels=4, hidden=8)
    nn.init.normal_(transformer.affine.weight, std=0.3)
    images = torch.rand(3, 3, 32, 32)
    maps = transformer.predict_affine_maps(images)
    assert (maps[0] != maps[1]).all()
    grid = functional.affine_grid(maps, [3, 3, 32, 32], align_corners=False)
    expected = functional.grid_sample(images, grid, align_corners=False)
    torch.testing.assert_close(transformer(images), expected, rtol=1e-4, atol=1e-4)


# --- polar transformer ------------------------------------------------------------------------------------------------


def rotate(images, degrees):
    """Return rotated images; positive angles are clockwise, because y points down."""
    angle = math.radians(degrees)
    inverse_rotation = torch.tensor(
        [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=images.dtype
    )
    points = image_points(*images.shape[-2:], like=images) @ inverse_rotation.T
    return sample(images, points.expand(len(images), -1, -1)).unflatten(2, images.shape[-2:])


def transformer_without_translation(filters=4):
    """Return a transformer with constant translation heat maps, which predicts the centre of the image."""
    transformer = PolarTransformer(filters=filters).double().eval()
    for axis in transformer.translation.axes:
        nn.init.zeros_(axis.weight)
    # Weights are larger than initial weights, so that angles have different probabilities.
    nn.init.normal_(transformer.rotation.axes[0].weight, std=20.0)
    return transformer


@pytest.mark.parametrize("columns", [3, -5, 16, 32])
def test_rotation_shifts_the_polar_image_cyclically(columns):
    images = smooth_images()
    transformer = PolarTransformer(filters=2)
    centre = torch.zeros(2, 2, dtype=torch.float64)
    polar = transformer.polar_images(images, centre)
    assert polar.shape == (2, 3, 32, 64)
    polar_of_rotated = transformer.polar_images(rotate(images, columns * 360 / 64), centre)
    expected = polar.roll(columns, dims=3)
    error, movement = (polar_of_rotated - expected).abs().max(), (polar_of_rotated - polar).abs().max()
    # Quarter turns map pixels to pixels; for other angles, interpolation adds an error.
    assert error < (1e-12 if columns % 16 == 0 else 0.2) * movement


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_polar_transformer_removes_rotations(degrees):
    # With a fixed centre, a rotated image and the original image have the same output.
    transformer, images = transformer_without_translation(), smooth_images()
    expected = transformer(images)
    assert (expected - images).abs().max() > 0.1 * images.abs().max()
    transformed = transformer(rotate(images, degrees))
    # The small constant weight of angle 0 shifts the predicted direction by about 1e-4.
    torch.testing.assert_close(transformed, expected, rtol=0, atol=2e-3 * images.abs().max().item())


def test_heat_maps_shift_with_the_image():
    # If the image shifts by four pixels along an axis, the axis's heat map shifts by one position.
    transformer = PolarTransformer(filters=4).double().eval()
    images = torch.zeros(1, 3, 64, 64, dtype=torch.float64)
    images[..., 28:34, 28:36] = 1
    horizontal, vertical = transformer.translation(images)
    assert horizontal.shape == vertical.shape == (1, 16)
    shifted_heat_maps = transformer.translation(images.roll((8, -4), dims=(2, 3)))
    torch.testing.assert_close(shifted_heat_maps[0], horizontal.roll(-1, dims=1))
    torch.testing.assert_close(shifted_heat_maps[1], vertical.roll(2, dims=1))
    assert not torch.allclose(shifted_heat_maps[0], horizontal)
    assert not torch.allclose(shifted_heat_maps[1], vertical)


def test_polar_transformer_centres_images():
    transformer = transformer_without_translation()
    images = functional.pad(smooth_images(1, size=20), (6, 6, 6, 6))  # so that the shift loses no content
    expected = transformer(images)
    transformer.predict_centre = lambda _images: torch.tensor([[0.25, -0.125]], dtype=torch.float64)  # 4 and -2 pixels
    torch.testing.assert_close(transformer(images.roll((-2, 4), dims=(2, 3))), expected, rtol=0, atol=1e-3)


def test_centroid_and_mean_direction_match_hand_calculations():
    uniform = torch.full((1, 8), 1 / 8, dtype=torch.float64)
    assert centroid(uniform, 32).abs() < 1e-12
    # Equal probabilities have no direction, so the angle is 0.
    assert mean_direction(uniform)[0].tolist() == pytest.approx([1, 0])
    at_last_position = functional.one_hot(torch.tensor([7]), 8).double()
    assert centroid(at_last_position, 32).item() == pytest.approx(3.5 * 0.25)
    at_two_positions = (at_last_position + functional.one_hot(torch.tensor([0]), 8)) / 2  # -180 and 135 degrees
    angle = math.degrees(math.atan2(mean_direction(at_two_positions)[0, 1], mean_direction(at_two_positions)[0, 0]))
    assert angle == pytest.approx(157.5, abs=0.02)
