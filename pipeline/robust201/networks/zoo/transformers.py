"""Spatial and polar transformers, which move images to a predicted pose before a residual network.

Spatial transformer: Jaderberg, Simonyan, Zisserman and Kavukcuoglu, "Spatial Transformer Networks", NeurIPS 2015, as in
PyTorch's tutorial, with the layers of Wang and Horne's code (report on robust features, 2020).

Polar transformer: Tai, Bailis and Valiant, "Equivariant Transformer Networks", ICML 2019. Its pose predictors commute
with the transformations that they predict. How the predictors are combined is specific to robust201: a translation is
predicted first, then a rotation about the predicted point, and both are applied in one interpolation.
"""

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from robust201.networks.zoo import scale_count
from robust201.networks.zoo.resnet import ResNet, build_resnet


class SpatialTransformer(nn.Module):
    """Transform images (B, 3, 32, 32) with a predicted affine map, which is the identity before training."""

    def __init__(self, *, channels: int = 32, hidden: int = 1024) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for c_in, is_pooled in ((3, False), (channels, True), (channels, True), (channels, True)):
            layers += [nn.Conv2d(c_in, channels, 3, padding=1, bias=False), nn.ReLU()]
            if is_pooled:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.hidden = nn.Linear(16 * channels, hidden)
        self.affine = nn.Linear(hidden, 6)
        nn.init.zeros_(self.affine.weight)
        with torch.no_grad():
            self.affine.bias.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))

    def predict_affine_maps(self, images: torch.Tensor) -> torch.Tensor:
        """Return the predicted maps (B, 2, 3) from output coordinates to image coordinates."""
        features = self.features(images).flatten(1).to(self.hidden.weight.dtype)
        maps: torch.Tensor = self.affine(self.hidden(features).relu()).view(-1, 2, 3)
        return maps

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.predict_affine_maps(images)
        points = image_points(32, 32, like=maps) @ maps[:, :, :2].transpose(1, 2) + maps[:, None, :, 2]
        return torch.unflatten(sample(images, points), 2, (32, 32)).to(images.dtype)


class TransformedResNet(nn.Module):
    """A residual network whose input is the output of a transformer."""

    def __init__(self, transformer: nn.Module, resnet: ResNet) -> None:
        super().__init__()
        self.transformer = transformer
        self.resnet = resnet

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.resnet(self.transformer(x))
        return logits


_REDUCTION = 4
"""Number of input pixels per position of a heat map."""

_ZERO_ANGLE_WEIGHT = 1e-4
"""Weight of the angle 0 in mean directions. Without it, a mean has neither direction nor derivative if all angles are
equally likely, for example on images of one colour."""


class PosePredictor(nn.Module):
    """Predict heat maps along the axes of an image: one along the width, and optionally another along the height.

    Args:
        n_axes: 2 for both axes, 1 for the width only.
        is_cyclic: whether the width is an angle, so that the first column follows the last.
        filters: channels of the convolutions.
    """

    def __init__(self, n_axes: int, *, is_cyclic: bool, filters: int) -> None:
        super().__init__()
        self.is_cyclic = is_cyclic
        self.conv1 = nn.Conv2d(3, filters, 5, stride=2, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 5, stride=2, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.axes = nn.ModuleList(nn.Conv2d(filters, 1, (1, 5), bias=False) for _ in range(n_axes))

    def _pad(self, x: torch.Tensor, rows: int) -> torch.Tensor:
        if self.is_cyclic:
            x = torch.cat((x[..., -2:], x, x[..., :2]), dim=-1)
            return functional.pad(x, (0, 0, rows, rows))
        return functional.pad(x, (2, 2, rows, rows))

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        """Return probabilities (B, W / 4), and (B, H / 4) if there are two axes, for images (B, 3, H, W)."""
        x = functional.leaky_relu(self.bn1(self.conv1(self._pad(images, 2))), 0.1)
        x = functional.leaky_relu(self.bn2(self.conv2(self._pad(x, 2))), 0.1)
        dtype = torch.promote_types(x.dtype, torch.float32)
        maxima_by_axis = (x.amax(dim=2, keepdim=True), x.amax(dim=3).unsqueeze(2))
        return [
            axis(self._pad(maxima, 0)).flatten(1).to(dtype).softmax(dim=1)
            for axis, maxima in zip(self.axes, maxima_by_axis, strict=False)
        ]


def centroid(probabilities: torch.Tensor, length: int) -> torch.Tensor:
    """Return the mean coordinate (B,) of probabilities (B, K) along an axis of `length` pixels from -1 to 1.

    Positions are 4 pixels apart. For equal probabilities, the mean is 0.
    """
    positions = torch.arange(probabilities.shape[1], dtype=probabilities.dtype, device=probabilities.device)
    coordinates: torch.Tensor = (positions - positions.mean()) * (2 * _REDUCTION / length)
    return torch.matmul(probabilities, coordinates)


def mean_direction(probabilities: torch.Tensor) -> torch.Tensor:
    """Return cosine and sine (B, 2) of the mean angle, given probabilities (B, K) of `evenly_spaced_angles`."""
    angles = evenly_spaced_angles(probabilities.shape[1], like=probabilities)
    vector = torch.matmul(probabilities, torch.stack((angles.cos(), angles.sin()), dim=1))
    vector = vector + torch.tensor((_ZERO_ANGLE_WEIGHT, 0.0), dtype=probabilities.dtype, device=probabilities.device)
    unit_vector: torch.Tensor = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    return unit_vector


def evenly_spaced_angles(count: int, like: torch.Tensor) -> torch.Tensor:
    """Return `count` evenly spaced angles from -pi (included) to pi (excluded)."""
    return torch.arange(count, dtype=like.dtype, device=like.device) * (2 * math.pi / count) - math.pi


def polar_points(n_radii: int, n_angles: int, like: torch.Tensor) -> torch.Tensor:
    """Return the coordinates (N, 2) of the pixels of a polar image about the point (0, 0).

    Its rows are radii from 0 to sqrt(2), and its columns are angles.
    """
    radii = torch.arange(n_radii, dtype=like.dtype, device=like.device) * (math.sqrt(2) / (n_radii - 1))
    angles = evenly_spaced_angles(n_angles, like)
    return (radii[:, None, None] * torch.stack((angles.cos(), angles.sin()), dim=1)).flatten(0, 1)


class PolarTransformer(nn.Module):
    """Move the predicted centroid of images (B, 3, H, W) to the centre, and rotate the predicted angle to 0.

    The angle is predicted from a polar image about the centroid, with H radii and about 2 H angles. If the image is
    rotated, the columns of the polar image and the heat map shift cyclically.
    """

    def __init__(self, *, filters: int = 32) -> None:
        super().__init__()
        self.translation = PosePredictor(2, is_cyclic=False, filters=filters)
        self.rotation = PosePredictor(1, is_cyclic=True, filters=filters)

    def predict_centre(self, images: torch.Tensor) -> torch.Tensor:
        """Return the predicted centroids (x, y): (B, 2)."""
        horizontal, vertical = self.translation(images)
        return torch.stack((centroid(horizontal, images.shape[3]), centroid(vertical, images.shape[2])), dim=1)

    def polar_images(self, images: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
        """Return polar images (B, 3, radii, angles) about the centres (B, 2)."""
        n_radii = images.shape[2]
        n_angles = _REDUCTION * ((n_radii + 1) // 2)  # a multiple of _REDUCTION, so that heat maps are also cyclic
        points = polar_points(n_radii, n_angles, like=centre) + centre[:, None]
        return torch.unflatten(sample(images, points), 2, (n_radii, n_angles)).to(images.dtype)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        centre = self.predict_centre(images)
        (angle_probabilities,) = self.rotation(self.polar_images(images, centre))
        cosine, sine = mean_direction(angle_probabilities).unbind(1)
        transposed_rotation = torch.stack((cosine, sine, -sine, cosine), dim=1).view(-1, 2, 2)
        height, width = images.shape[-2:]
        points = image_points(height, width, like=centre) @ transposed_rotation + centre[:, None]
        return torch.unflatten(sample(images, points), 2, (height, width)).to(images.dtype)


def pixel_centres(length: int, like: torch.Tensor) -> torch.Tensor:
    """Return the coordinates (length,) of pixel centres along an axis from -1 to 1."""
    return (2 * torch.arange(length, dtype=like.dtype, device=like.device) + 1) / length - 1


def image_points(height: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Return the coordinates (height * width, 2), x before y, of all pixels, row by row."""
    y, x = torch.meshgrid(pixel_centres(height, like), pixel_centres(width, like), indexing="ij")
    return torch.stack((x, y), dim=-1).flatten(0, 1)


def _interpolation_weights(coordinates: torch.Tensor, length: int) -> torch.Tensor:
    """Return the interpolation weights (B, N, length) of the pixels of an axis for points (B, N)."""
    position = ((coordinates + 1) * length - 1) / 2
    pixel_before = position.floor()
    fraction = (position - pixel_before).unsqueeze(-1)
    offset = torch.arange(length, dtype=pixel_before.dtype, device=pixel_before.device) - pixel_before.unsqueeze(-1)
    # These weights equal max(0, 1 - |distance|), but that formula's derivative vanishes at pixel centres. A transformer
    # that starts as the identity samples at pixel centres, so it would never learn.
    return (offset == 0) * (1 - fraction) + (offset == 1) * fraction


def sample(images: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Sample images bilinearly at points, with zeros outside; like `grid_sample`, but with matrix products.

    `grid_sample` has no second derivative, which some measures need, and its first derivative is not deterministic on a
    GPU.

    Args:
        images: (B, C, H, W).
        points: (B, N, 2), (x, y) with -1 and 1 at the outer edges, x to the right and y down.

    Returns:
        (B, C, N) in the type of the points.
    """
    height, width = images.shape[-2:]
    flat_rows = images.to(points.dtype).transpose(1, 2).flatten(2)  # (B, H, C W)
    interpolated_rows = torch.unflatten(
        _interpolation_weights(points[..., 1], height) @ flat_rows, 2, (-1, width)
    )  # (B, N, C, W)
    samples = torch.matmul(interpolated_rows, _interpolation_weights(points[..., 0], width).unsqueeze(-1))
    return samples.squeeze(-1).transpose(1, 2)


def build_stn_resnet(width: int, n_classes: int, *, blocks: Sequence[int]) -> TransformedResNet:
    """Build a residual network behind a spatial transformer; the first stage has `width` channels."""
    transformer = SpatialTransformer(channels=scale_count(32, width, 64), hidden=scale_count(1024, width, 64))
    return TransformedResNet(transformer, build_resnet(width, n_classes, blocks=blocks))


def build_ptn_resnet(width: int, n_classes: int, *, blocks: Sequence[int]) -> TransformedResNet:
    """Build a residual network behind a polar transformer; the first stage has `width` channels."""
    transformer = PolarTransformer(filters=scale_count(32, width, 64))
    return TransformedResNet(transformer, build_resnet(width, n_classes, blocks=blocks))
