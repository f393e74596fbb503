"""The worst of a grid of rotations and translations.

Source: Engstrom et al., "Exploring the Landscape of Spatial Robustness", ICML 2019; `foolbox.attacks.SpatialAttack`
with its grid search, whose geometry and order this is: one affine map from output to input coordinates, bilinear, zeros
outside, the corners of the outermost pixels' centres fixed. An image comes back at the first grid point at which it is
misclassified, angles outermost, and as it is where it is misclassified from the start or at no point.
"""

import math
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional

from robust201.tasks.attack_kit.attack_job import AttackJob
from robust201.tasks.attack_kit.batching import logits_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request, to_float
from robust201.tasks.parameters import SpatialParameters


def reference(context: Context, parameters: SpatialParameters, request: Request) -> Iterator[Perturbed]:
    """Attack with Foolbox."""
    # Imported here: the fused engine must not wait for a library that it does not use.
    from robust201.tasks.perturbations.foolbox_engine import foolbox, foolbox_batches

    attack = foolbox.attacks.SpatialAttack(
        max_translation=parameters.max_translation,
        max_rotation=parameters.max_rotation,
        num_translations=parameters.translations,
        num_rotations=parameters.rotations,
        grid_search=True,
    )
    batches = foolbox_batches(context, attack, request, None)
    while True:
        with warnings.catch_warnings():
            # Foolbox does not say in which order torch.meshgrid shall number its axes, and torch will ask it to.
            warnings.filterwarnings("ignore", message="torch.meshgrid: in an upcoming release")
            batch = next(batches, None)
        if batch is None:
            return
        # Interpolation rounds, and may leave [0, 1] by that.
        yield batch._replace(images=batch.images.clamp(0, 1))


def fused(job: AttackJob, parameters: SpatialParameters) -> Iterator[Perturbed]:
    """Show the network several grid points at once, of the images that no point before has fooled."""
    grid = source_coordinates(parameters, job.shape[1], job.shape[2]).to(job.images.device)
    for piece in job.batching.slices(np.zeros(len(job.images), np.int64)):
        positions = torch.arange(piece.start, piece.stop, device=job.images.device)
        found = _search(job, to_float(job.images[piece]), job.labels[piece], grid)
        for strength in range(len(job.epsilons)):
            # A copy, made outside of inference mode: its tensors would be of no use to whoever differentiates.
            yield Perturbed(strength, positions, found.clone())


@torch.inference_mode()
def _search(job: AttackJob, clean: torch.Tensor, labels: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Find what each image comes back as: (B, 3, H, W)."""
    found = clean.clone()
    left = _right(job, clean, labels).nonzero().flatten()
    point = 0
    while point < len(grid) and len(left):
        # As many points as make a full batch: fewer images are left, so more points go together.
        points = grid[point : point + max(1, job.batching.samples // len(left))]
        moved = transform(clean[left], points)
        right = _right(job, moved.flatten(0, 1), labels[left].repeat(len(points))).view(len(points), len(left))
        fooled = ~right.all(dim=0)
        # The first of equal ones: `right` is 0 at the first point that fools.
        first = right.to(torch.uint8).argmin(dim=0)
        found[left[fooled]] = moved[first, torch.arange(len(left), device=clean.device)][fooled]
        left = left[~fooled]
        point += len(points)
    return found


def _right(job: AttackJob, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits_of(job.model, job.batching, images).argmax(dim=1) == labels


def transform(images: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Show images from grid points.

    Args:
        images: (B, 3, H, W) float32 in [0, 1].
        grid: (P, H, W, 2) of `source_coordinates`.

    Returns:
        (P, B, 3, H, W) float32 in [0, 1].
    """
    n_points, n_images = len(grid), len(images)
    repeated = images.repeat(n_points, 1, 1, 1)
    sampled = functional.grid_sample(
        repeated, grid.repeat_interleave(n_images, dim=0), mode="bilinear", padding_mode="zeros", align_corners=True
    )
    return sampled.clamp_(0, 1).view(n_points, *images.shape)


def source_coordinates(parameters: SpatialParameters, height: int, width: int) -> torch.Tensor:
    """Say where each pixel of a transformed image is read, in Foolbox's order of grid points and operations.

    Returns:
        (P, H, W, 2) float32: column and row, -1 and 1 in the centres of the outermost pixels.
    """
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    rows, columns = torch.meshgrid(rows, columns, indexing="ij")
    places = torch.stack([columns, rows, torch.ones_like(rows)], dim=2)[..., None]
    shifts = np.linspace(-parameters.max_translation, parameters.max_translation, parameters.translations)
    points = []
    for degrees in np.linspace(-parameters.max_rotation, parameters.max_rotation, parameters.rotations):
        angle = degrees * math.pi / 180.0
        for across in shifts:
            for down in shifts:
                matrix = np.array(
                    [[np.cos(angle), -np.sin(angle), across], [np.sin(angle), np.cos(angle), down]], np.float32
                )
                # Foolbox divides by half of the rows first; images are square where that matters.
                matrix[:, 2] /= np.array([height / 2.0, width / 2.0], np.float32)
                points.append(torch.matmul(torch.from_numpy(matrix).expand(height, width, 2, 3), places)[..., 0])
    return torch.stack(points)
