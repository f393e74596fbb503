"""Spatial attacks, which return the first image of a grid of rotations and translations that fools the network.

Source: Engstrom et al., "Exploring the Landscape of Spatial Robustness", ICML 2019; `foolbox.attacks.SpatialAttack`
with grid search, whose geometry and order this module follows: one affine map from output to input coordinates,
bilinear interpolation, zeros outside, and aligned corners. The result is the first misclassified image in grid order,
in which angles are the outermost loop. Images that are misclassified without an attack, and images that are classified
correctly at every grid point, are returned unchanged.
"""

import math

import numpy as np
import torch
from torch.nn import functional

from robust201.attacks.batching import BatchedModel
from robust201.attacks.samples import Samples
from robust201.tasks.attacks import Spatial


def attack(model: BatchedModel, samples: Samples, options: Spatial) -> torch.Tensor:
    """Return each image at the first grid point that fools the network, or the clean image if there is none."""
    clean, labels = samples.clean, samples.labels
    grid = source_coordinates(options, *samples.shape[1:]).to(clean.device)
    images = clean.clone()
    remaining = torch.arange(len(clean), device=clean.device)
    n_points_done = 0
    while n_points_done < len(grid) and len(remaining):
        # Evaluate as many points at once as fill a batch; the fewer images remain, the more points.
        points = grid[n_points_done : n_points_done + max(1, model.batch_size // len(remaining))]
        transformed = transform(clean[remaining], points)
        predicted = model.logits(transformed.flatten(0, 1)).argmax(dim=1)
        correct = (predicted == labels[remaining].repeat(len(points))).view(len(points), len(remaining))
        fooled = ~correct.all(dim=0)
        # argmin returns the index of the first 0, which is the first point that fools the network.
        first_fooling_point = correct.to(torch.uint8).argmin(dim=0)
        images[remaining[fooled]] = transformed[first_fooling_point, torch.arange(len(remaining), device=clean.device)][
            fooled
        ]
        remaining = remaining[~fooled]
        n_points_done += len(points)
    return images


def transform(images: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Return images (B, C, H, W) moved by each of P transformations (`source_coordinates`): (P, B, C, H, W)."""
    n_points, n_images = len(grid), len(images)
    repeated = images.repeat(n_points, 1, 1, 1)
    sampled = functional.grid_sample(
        repeated, grid.repeat_interleave(n_images, dim=0), mode="bilinear", padding_mode="zeros", align_corners=True
    )
    return sampled.clamp_(0, 1).view(n_points, *images.shape)


def source_coordinates(parameters: Spatial, height: int, width: int) -> torch.Tensor:
    """Return the position in the original image of each pixel of the transformed images, in Foolbox's order.

    Returns:
        (P, H, W, 2) float32, column and row; -1 and 1 are the centres of the outermost pixels.
    """
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    rows, columns = torch.meshgrid(rows, columns, indexing="ij")
    coordinates = torch.stack([columns, rows, torch.ones_like(rows)], dim=2)[..., None]
    shifts = np.linspace(-parameters.max_translation, parameters.max_translation, parameters.translations)
    points = []
    for degrees in np.linspace(-parameters.max_rotation, parameters.max_rotation, parameters.rotations):
        angle = degrees * math.pi / 180.0
        for column_shift in shifts:
            for row_shift in shifts:
                matrix = np.array(
                    [[np.cos(angle), -np.sin(angle), column_shift], [np.sin(angle), np.cos(angle), row_shift]],
                    np.float32,
                )
                # Foolbox divides the column shift by half the height. The images are square, so the result is the same.
                matrix[:, 2] /= np.array([height / 2.0, width / 2.0], np.float32)
                points.append(torch.matmul(torch.from_numpy(matrix).expand(height, width, 2, 3), coordinates)[..., 0])
    return torch.stack(points)
