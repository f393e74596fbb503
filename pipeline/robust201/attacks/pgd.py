"""Projected gradient descent in Linf and L2 balls.

Sources: Kurakin, Goodfellow and Bengio, "Adversarial Machine Learning at Scale", ICLR 2017; Madry et al., "Towards Deep
Learning Models Resistant to Adversarial Attacks", ICLR 2018; `foolbox.attacks.LinfPGD` and `L2PGD`, whose order of
operations this module follows. The published dataset uses Foolbox's defaults (docs/protocol/attacks.md). The attack
starts at the clean image, or at a uniformly random point of the ball. A step moves along the cross-entropy's gradient:
in Linf, along its sign by `rel_stepsize` × epsilon; in L2, by `step_size`. The image is then projected onto the ball
and clipped to [0, 1]. Every image is attacked.

`target: least_likely` moves towards the clean image's least likely class, as in equation 2 of Jung et al. (ICLR 2023).
Their published numbers do not follow this equation. Two further options reproduce the training and evaluation code of
Wang and Horne (2020, docs/protocol/attacks.md). `label: predicted` moves away from the class predicted at the starting
point instead of the image's label. `iterate: best` returns each image's iterate with the highest cross-entropy,
including the starting point, as the library of Engstrom et al. ("Robustness", 2019) does; Foolbox returns the last
iterate.
"""

import numpy as np
import torch
from torch.nn import functional

from robust201.attacks.batching import BatchedModel
from robust201.attacks.norms import norms, per_image
from robust201.attacks.samples import Samples
from robust201.tasks.attacks import Pgd, PgdVariant

_MIN_NORM = 1e-12

_Options = Pgd | PgdVariant


def attack(model: BatchedModel, samples: Samples, options: _Options) -> torch.Tensor:
    """Return each image's last or best iterate."""
    if isinstance(options, PgdVariant) and options.norm == "L2":
        ball: _Cube | _L2Ball = _L2Ball(samples, options.step_size)
    else:
        ball = _Cube(samples, options)
    images = ball.starting_points() if options.random_start else samples.clean.clone()
    classes = _classes(model, samples, images, options)
    best = _BestIterate(images) if isinstance(options, PgdVariant) and options.iterate == "best" else None
    for _ in range(options.steps):
        _, loss, gradient = model.loss_and_gradient(images, classes)
        if best is not None:
            best.offer(images, loss)
        images = ball.project(ball.step(gradient).add_(images)).clamp_(0, 1)
    if best is not None:
        best.offer(images, functional.cross_entropy(model.logits(images), classes, reduction="none"))
        images = best.images
    return ball.project(images)


def _classes(model: BatchedModel, samples: Samples, start: torch.Tensor, options: _Options) -> torch.Tensor:
    """Return the classes (B,) that the attack moves towards if `_has_target(options)`, or else away from."""
    if _has_target(options):
        return model.logits(samples.clean).argmin(dim=1)
    if isinstance(options, PgdVariant) and options.label == "predicted":
        return model.logits(start).argmax(dim=1)
    return samples.labels


def _has_target(options: _Options) -> bool:
    return isinstance(options, Pgd) and options.target == "least_likely"


class _Cube:
    """Starting points, steps and projections in the Linf balls around the clean images."""

    def __init__(self, samples: Samples, options: _Options) -> None:
        self._samples = samples
        step_sizes = samples.per_sample(options.rel_stepsize * samples.radii)
        self._step_sizes = -step_sizes if _has_target(options) else step_sizes

    def starting_points(self) -> torch.Tensor:
        """Draw starting points uniformly from the ball, clipped to [0, 1]: (B, C, H, W)."""
        epsilons = self._samples.epsilons
        noise = self._samples.uniforms().mul_(2 * epsilons).sub_(epsilons)
        return noise.add_(self._samples.clean).clamp_(0, 1)

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the step along a gradient, a new tensor (B, C, H, W)."""
        return gradient.sign().mul_(self._step_sizes)

    def project(self, images: torch.Tensor) -> torch.Tensor:
        """Project images (B, C, H, W) onto the ball; overwrites `images`."""
        return project_to_cube(images, self._samples.clean, self._samples.epsilons)


def project_to_cube(images: torch.Tensor, clean: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    """Project images (B, C, H, W) onto Linf balls of radii (B, 1, 1, 1) around clean images; overwrites `images`."""
    difference = images.sub_(clean)
    return torch.minimum(torch.maximum(difference, -epsilons, out=difference), epsilons, out=difference).add_(clean)


class _L2Ball:
    """Starting points, steps and projections in the L2 balls around the clean images."""

    def __init__(self, samples: Samples, step_size: float) -> None:
        self._samples, self._step_size = samples, step_size

    def starting_points(self) -> torch.Tensor:
        """Draw starting points as Foolbox does.

        They are the first n coordinates of points on a sphere in n + 2 dimensions (Voelker et al., 2017).
        """
        clean, n_values = self._samples.clean, int(np.prod(self._samples.shape))
        normals = self._samples.normals(n_values + 2)
        directions = normals / (normals**2).sum(dim=-1, keepdim=True).sqrt()
        return (clean + self._samples.epsilons * directions[:, :n_values].reshape(clean.shape)).clamp(0, 1)

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        return (gradient * _norms(gradient).reciprocal()).mul_(self._step_size)

    def project(self, images: torch.Tensor) -> torch.Tensor:
        return project_to_l2_ball(images, self._samples.clean, self._samples.epsilons)


def project_to_l2_ball(images: torch.Tensor, clean: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    """Project images (B, C, H, W) onto L2 balls of radii (B, 1, 1, 1) around clean images; overwrites `images`."""
    difference = images.sub_(clean)
    return difference.mul_((_norms(difference).reciprocal() * epsilons).clamp_max(1)).add_(clean)


def _norms(images: torch.Tensor) -> torch.Tensor:
    """Return L2 norms (B, 1, 1, 1), replacing 0 by a small number, in Foolbox's order of operations."""
    return per_image(norms(images, "L2").clamp_min(_MIN_NORM))


class _BestIterate:
    """Stores each image's iterate with the highest loss; of several such iterates, the first."""

    def __init__(self, images: torch.Tensor) -> None:
        self.images = images
        self._loss = torch.full((len(images),), -torch.inf, device=images.device)

    def offer(self, images: torch.Tensor, loss: torch.Tensor) -> None:
        """Store the iterates (B, C, H, W) whose losses (B,) are the highest so far."""
        is_better = loss > self._loss
        self.images = torch.where(per_image(is_better), images, self.images)
        self._loss = torch.where(is_better, loss, self._loss)
