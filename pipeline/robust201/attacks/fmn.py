"""The fast minimum-norm attack.

Source: Pintor, Roli, Brendel and Biggio, "Fast Minimum-norm Adversarial Attacks through Adaptive Norm Constraints",
NeurIPS 2021; `foolbox.attacks.fast_minimum_norm`. One run per image serves all epsilons: at each epsilon, the result is
the nearest misclassified image that the attack finds, if it is inside the ball, and the clean image otherwise. A step
follows the gradient of the margin between the label and the best other class, and is projected onto a ball. The ball's
radius, `epsilons` in `_run_once`, shrinks while the image is misclassified, and grows while it is not. In L2, Foolbox
3.3.4 does not project (as with `projection: none`); with `project_l2`, both engines can (docs/protocol/attacks.md).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.batching import BatchedModel
from robust201.attacks.norms import DUAL_NORMS, norms, per_image
from robust201.attacks.samples import Samples
from robust201.networks.device import cumulative_sum
from robust201.tasks.attacks import Fmn
from robust201.tasks.constraints import CONSTRAINTS, Constraint

_FINAL_GAMMA = 0.001
_MIN_NORM = 1e-12

_Project = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(perturbations (B, C, H, W), epsilons (B,)) → projections of the perturbations onto balls around 0."""


def attack(model: BatchedModel, samples: Samples, options: Fmn) -> torch.Tensor:
    """Return each image's nearest misclassified iterate if it lies in the ball, otherwise the clean image."""
    images, rows = samples.unique_images()
    nearest = find_nearest(model, images, options)[rows]
    return keep_in_balls(CONSTRAINTS[options.norm], samples.clean, nearest, samples.radii)


def keep_in_balls(
    constraint: Constraint, clean: torch.Tensor, nearest: torch.Tensor, radii: NDArray[np.float64]
) -> torch.Tensor:
    """Return the nearest images (B, C, H, W); replace images outside of the balls of radii (B,) by the clean images."""
    reach = torch.tensor([constraint.reach_of_radius(radius) for radius in radii.tolist()], dtype=torch.float64)
    is_inside = constraint.distances(nearest - clean).double() <= reach.to(nearest.device)
    return torch.where(per_image(is_inside), nearest, clean)


def find_nearest(model: BatchedModel, samples: Samples, options: Fmn) -> torch.Tensor:
    """Return each image's nearest misclassified iterate (B, C, H, W) of all requested runs, or the clean image."""
    project = _PROJECTIONS[options.norm]
    projections: dict[str, list[_Project]] = {
        "ball": [project],
        "none": [_skip_projection],
        "both": [project, _skip_projection],
    }
    requested = options.projection if options.norm == "L2" else "ball"
    results = [_run_once(model, samples, options, project) for project in projections[requested]]
    return select_nearest(samples.clean, results, options.norm)


def select_nearest(clean: torch.Tensor, results: Sequence[torch.Tensor], norm: str) -> torch.Tensor:
    """Return for each image the nearest result that differs from the clean image, or the clean image if none does."""
    nearest = results[0]
    for result in results[1:]:
        nearest_norms, result_norms = norms(nearest - clean, norm), norms(result - clean, norm)
        is_nearer = (result_norms > 0) & ((nearest_norms == 0) | (result_norms < nearest_norms))
        nearest = torch.where(per_image(is_nearer), result, nearest)
    return nearest


def _run_once(model: BatchedModel, samples: Samples, options: Fmn, project: _Project) -> torch.Tensor:
    """Return each image's nearest misclassified iterate, or the clean image, in Foolbox's order of operations."""
    clean, labels, norm = samples.clean, samples.labels, options.norm
    delta = torch.zeros_like(clean)
    largest_possible_norm = norms(torch.maximum(clean, 1 - clean), norm)
    smallest_norm, best_delta = largest_possible_norm, delta
    epsilons = torch.full_like(largest_possible_norm, torch.inf)
    was_misclassified = torch.zeros_like(labels, dtype=torch.bool)
    margin = _margin(labels)
    for step in range(options.steps):
        decay = (1 + math.cos(math.pi * step / options.steps)) / 2
        final_stepsize = options.max_stepsize / 100
        stepsize = final_stepsize + (options.max_stepsize - final_stepsize) * decay
        gamma = _FINAL_GAMMA + (options.gamma - _FINAL_GAMMA) * decay
        logits, margins, gradient = model.value_and_gradient(clean + delta, margin)
        misclassified = logits.argmax(dim=-1) != labels
        lengths = norms(delta, norm)
        is_nearer = misclassified & (lengths <= smallest_norm)
        was_misclassified = was_misclassified | misclassified
        smallest_norm = torch.where(is_nearer, lengths, smallest_norm)
        best_delta = torch.where(per_image(is_nearer), delta, best_delta)
        # On the boundary, the distance is 0 even if the gradient is 0.
        distance_to_boundary = torch.where(margins == 0, margins, margins.abs() / norms(gradient, DUAL_NORMS[norm]))
        larger = torch.where(was_misclassified, epsilons * (1 + gamma), lengths + distance_to_boundary)
        smaller = torch.minimum(epsilons * (1 - gamma), norms(best_delta, norm))
        epsilons = torch.minimum(torch.where(misclassified, smaller, larger), largest_possible_norm)
        factor = per_image(1 / norms(gradient, "L2").clamp_min(_MIN_NORM))
        delta = delta + gradient * factor * stepsize
        delta = clean + project(clean + delta - clean, epsilons) - clean
        delta = (clean + delta).clamp(0, 1) - clean
    return clean + best_delta


def _margin(labels: torch.Tensor) -> Callable[[torch.Tensor, slice], torch.Tensor]:
    def margin(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        label = labels[rows].clone()[:, None]
        best_other = logits.detach().scatter(1, label, -torch.inf).argmax(dim=1, keepdim=True)
        return (logits.gather(1, best_other) - logits.gather(1, label))[:, 0]

    return margin


def _skip_projection(difference: torch.Tensor, _epsilons: torch.Tensor) -> torch.Tensor:
    return difference


def _project_linf(difference: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    radii = per_image(epsilons)
    return torch.minimum(torch.maximum(difference, -radii), radii)


def project_l2(difference: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    """Project perturbations (B, C, H, W) onto L2 balls of radii (B,) around 0."""
    return difference * per_image((epsilons / norms(difference, "L2").clamp_min(_MIN_NORM)).clamp_max(1))


def _project_l1(difference: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    """Project onto L1 balls (Duchi et al., ICML 2008), in Foolbox's order of operations."""
    flat = difference.flatten(1)
    is_inside = (flat.abs().sum(dim=1) <= epsilons).to(flat.dtype)[:, None]
    sizes = flat.abs().sort(dim=-1).values.flip(-1)
    sums = cumulative_sum(sizes, dim=-1)
    ranks = torch.arange(1, flat.shape[1] + 1, device=flat.device).to(flat.dtype)
    last_index = ((sizes * ranks > sums - epsilons[:, None]).to(flat.dtype) * ranks).amax(dim=-1) - 1
    last_index = last_index.clamp_min(0)
    excess = (sums.gather(1, last_index.long()[:, None])[:, 0] - epsilons) / (last_index + 1.0)
    shrunk = (flat.abs() - excess[:, None]).clamp_min(0)
    return (is_inside * flat + (1 - is_inside) * shrunk * flat.sign()).view_as(difference)


_PROJECTIONS: dict[str, _Project] = {"Linf": _project_linf, "L2": project_l2, "L1": _project_l1}
