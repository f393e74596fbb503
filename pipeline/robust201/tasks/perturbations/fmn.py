"""The fast minimum-norm attack.

Source: Pintor, Roli, Brendel and Biggio, "Fast Minimum-norm Adversarial Attacks through Adaptive Norm Constraints",
NeurIPS 2021; `foolbox.attacks.fast_minimum_norm`. A step follows the gradient of the margin between the label and the
best other class, and is projected to a ball. The ball's radius epsilon shrinks while the image is misclassified, and
grows while it is not. This module corrects two errors of Foolbox 3.3.4 for both engines (docs/protocol.md): in L2
Foolbox does not project (as with `projection: none`), and in L0 it fails if epsilon reaches the number of values.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples
from robust201.tasks.attack_kit.batching import value_and_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.attack_kit.step_log import BallLog
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Fmn, FmnL2
from robust201.tasks.perturbations.minimum_norm import (
    cosine_decay,
    foolbox_minimum_norm_batches,
    fused_minimum_norm_batches,
    l2_norms,
    per_image,
)

_FINAL_GAMMA = 0.001
_MIN_NORM = 1e-12

_ComputeNorms = Callable[[torch.Tensor], torch.Tensor]
"""Images or gradients (B, 3, H, W) → their norms (B,)."""


def reference(context: Context, parameters: Fmn, request: Request) -> Iterator[Perturbed]:
    """Attack with Foolbox."""

    def search(model: Any, pixels: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # Import here, so that the fused engine does not import libraries that it does not use.
        from robust201.tasks.perturbations.foolbox_engine import foolbox

        attack = _library_class(parameters)(
            steps=parameters.steps, max_stepsize=parameters.max_stepsize, gamma=parameters.gamma
        )
        nearest: torch.Tensor = attack.run(model, pixels, foolbox.criteria.Misclassification(labels))
        return nearest

    yield from foolbox_minimum_norm_batches(context, request, CONSTRAINTS[parameters.norm], search)


def fused(job: AttackJob, parameters: Fmn) -> Iterator[Perturbed]:
    """Attack each image once for all epsilons."""
    job.record_clean()
    constraint = CONSTRAINTS[parameters.norm]

    def search(unbounded_job: AttackJob, samples: Samples) -> torch.Tensor:
        log = None
        if job.step_log is not None:
            radii = [constraint.reach_of_radius(epsilon) for epsilon in job.epsilons]
            log = BallLog(job.step_log, radii, samples.positions, parameters.steps)
        return run_fmn(unbounded_job, samples, parameters, log)

    yield from fused_minimum_norm_batches(job, constraint, search)


def run_fmn(job: AttackJob, samples: Samples, parameters: Fmn, log: BallLog | None = None) -> torch.Tensor:
    """Return the nearest misclassified iterate of each image, computed in Foolbox's order of operations."""
    clean, labels, functions = samples.clean, samples.labels, _NORM_FUNCTIONS[parameters.norm]
    is_l0 = parameters.norm == "L0"
    project = functions.project if getattr(parameters, "projection", "ball") == "ball" else _skip_projection
    delta = torch.zeros_like(clean)
    largest_possible_norm = functions.norms(torch.ones_like(clean) if is_l0 else torch.maximum(clean, 1 - clean))
    smallest_norm, best_delta = largest_possible_norm, delta
    epsilons = torch.full_like(largest_possible_norm, 1.0 if is_l0 else torch.inf)
    was_misclassified = torch.zeros_like(labels, dtype=torch.bool)
    margin = _margin(labels)
    for step in range(parameters.steps):
        decay = cosine_decay(step, parameters.steps)
        final_stepsize = parameters.max_stepsize / 100
        stepsize = final_stepsize + (parameters.max_stepsize - final_stepsize) * decay
        gamma = _FINAL_GAMMA + (parameters.gamma - _FINAL_GAMMA) * decay
        logits, margins, gradient = value_and_gradient_of(
            job.model, job.batching, clean + delta, margin, samples.strength_indices
        )
        misclassified = logits.argmax(dim=-1) != labels
        norms = functions.norms(delta)
        if log is not None:
            log.record(step, misclassified, norms)
        is_nearer = misclassified & (norms <= smallest_norm)
        was_misclassified = was_misclassified | misclassified
        smallest_norm = torch.where(is_nearer, norms, smallest_norm)
        best_delta = torch.where(per_image(is_nearer), delta, best_delta)
        state = _State(epsilons, misclassified, was_misclassified, norms, functions.norms(best_delta))
        if is_l0:
            epsilons = _next_count(state, gamma)
        else:
            epsilons = _next_radius(state, gamma, margins, functions.dual_norms(gradient))
        epsilons = torch.minimum(epsilons, largest_possible_norm)
        factor = per_image(1 / l2_norms(gradient).clamp_min(_MIN_NORM))
        delta = delta + gradient * factor * stepsize
        delta = clean + project(clean + delta - clean, epsilons) - clean
        delta = (clean + delta).clamp(0, 1) - clean
    if log is not None:
        log.write()
    return clean + best_delta


class _State(NamedTuple):
    """State per image (B,).

    Attributes:
        epsilons: epsilon of the previous projection (at the first step, the initial epsilon).
        misclassified: whether the current iterate is misclassified.
        was_misclassified: whether any iterate was misclassified.
        norms: norm of the current perturbation.
        best_norms: norm of the smallest perturbation that fools the network.
    """

    epsilons: torch.Tensor
    misclassified: torch.Tensor
    was_misclassified: torch.Tensor
    norms: torch.Tensor
    best_norms: torch.Tensor


def _margin(labels: torch.Tensor) -> Callable[[torch.Tensor, slice], torch.Tensor]:
    def margin(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        label = labels[rows].clone()[:, None]
        best_other = logits.detach().scatter(1, label, -torch.inf).argmax(dim=1, keepdim=True)
        return (logits.gather(1, best_other) - logits.gather(1, label))[:, 0]

    return margin


def _next_radius(state: _State, gamma: float, margins: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
    """Return the next epsilons (B,) in Linf, L2 or L1; `slopes` are dual norms of the margins' gradients."""
    distance_to_boundary = margins.abs() / slopes
    larger_radius = torch.where(
        state.was_misclassified, state.epsilons * (1 + gamma), state.norms + distance_to_boundary
    )
    return torch.where(
        state.misclassified, torch.minimum(state.epsilons * (1 - gamma), state.best_norms), larger_radius
    )


def _next_count(state: _State, gamma: float) -> torch.Tensor:
    """Return the next epsilons (B,) in L0, which are whole numbers of values."""
    n_values = state.epsilons
    smaller_count = torch.minimum(torch.minimum(n_values - 1, (n_values * (1 - gamma)).trunc()), state.best_norms)
    larger_count = torch.maximum(n_values + 1, (n_values * (1 + gamma)).trunc())
    return torch.where(state.misclassified, smaller_count, larger_count).clamp_min(1)


def _skip_projection(difference: torch.Tensor, _epsilons: torch.Tensor) -> torch.Tensor:
    return difference


def _project_linf(difference: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    radii = per_image(epsilons)
    return torch.minimum(torch.maximum(difference, -radii), radii)


def _project_l2(difference: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    return difference * per_image((epsilons / l2_norms(difference).clamp_min(_MIN_NORM)).clamp_max(1))


def _project_l1(difference: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    """Project onto L1 balls (Duchi et al., ICML 2008), in Foolbox's order of operations."""
    flat = difference.flatten(1)
    is_inside = (flat.abs().sum(dim=1) <= epsilons).to(flat.dtype)[:, None]
    sizes = flat.abs().sort(dim=-1).values.flip(-1)
    sums = sizes.cumsum(dim=-1)
    ranks = torch.arange(1, flat.shape[1] + 1, device=flat.device).to(flat.dtype)
    last_index = ((sizes * ranks > sums - epsilons[:, None]).to(flat.dtype) * ranks).amax(dim=-1) - 1
    last_index = last_index.clamp_min(0)
    excess = (sums.gather(1, last_index.long()[:, None])[:, 0] - epsilons) / (last_index + 1.0)
    shrunk = (flat.abs() - excess[:, None]).clamp_min(0)
    return (is_inside * flat + (1 - is_inside) * shrunk * flat.sign()).view_as(difference)


def _project_l0(difference: torch.Tensor, epsilons: torch.Tensor) -> torch.Tensor:
    """Keep the epsilon + 1 largest values, as Foolbox does, and values equal to the smallest of them."""
    sizes = difference.flatten(1).abs()
    index = epsilons.long().clamp_max(sizes.shape[1] - 1)
    smallest = sizes.sort(dim=1).values.flip(-1).gather(1, index[:, None])
    return torch.where((sizes >= smallest).view_as(difference), difference, 0.0)


class _NormFunctions(NamedTuple):
    """Functions of a norm.

    Attributes:
        norms: norms (B,) of perturbations.
        dual_norms: dual norms (B,) of gradients.
        project: (perturbations (B, 3, H, W), epsilons (B,)) → projections of the perturbations to balls around 0.
    """

    norms: _ComputeNorms
    dual_norms: _ComputeNorms
    project: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _linf_norms(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(1).abs().amax(dim=-1)


def _l1_norms(images: torch.Tensor) -> torch.Tensor:
    return images.flatten(1).abs().sum(dim=-1)


def _l0_norms(images: torch.Tensor) -> torch.Tensor:
    return (images.flatten(1) != 0).sum(dim=-1).to(images.dtype)


_NORM_FUNCTIONS = {
    "Linf": _NormFunctions(_linf_norms, _l1_norms, _project_linf),
    "L2": _NormFunctions(l2_norms, l2_norms, _project_l2),
    "L1": _NormFunctions(_l1_norms, _linf_norms, _project_l1),
    "L0": _NormFunctions(_l0_norms, _linf_norms, _project_l0),
}


def _library_class(parameters: Fmn) -> Any:
    """Return Foolbox's class of the attack, with two errors corrected (see the top of this module)."""
    import eagerpy

    from robust201.tasks.perturbations.foolbox_engine import foolbox

    if isinstance(parameters, FmnL2):
        library_class = foolbox.attacks.L2FMNAttack

        class ProjectedL2FMN(library_class):  # type: ignore[misc,valid-type]
            def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
                return x0 + eagerpy.astensor(_project_l2((x - x0).raw, epsilon.raw))

        return ProjectedL2FMN if parameters.projection == "ball" else library_class
    if parameters.norm == "L0":

        class LimitedL0FMN(foolbox.attacks.L0FMNAttack):  # type: ignore[misc]
            def project(self, x: Any, x0: Any, epsilon: Any) -> Any:
                return super().project(x, x0, eagerpy.minimum(epsilon, float(x[0].raw.numel() - 1)))

        return LimitedL0FMN
    return {"Linf": foolbox.attacks.LInfFMNAttack, "L1": foolbox.attacks.L1FMNAttack}[parameters.norm]
