"""The fast adaptive boundary attack, and what its runs share.

Source: Croce and Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack", ICML 2020;
`pyautoattack.fab_base.FABAttack` and its form for PyTorch. An iterate goes to the nearest of the linearised boundaries
between the label and the other classes, a little beyond, drawn towards the clean image; where it is misclassified it
counts if it is the nearest so far, and goes back nine tenths of the way. Epsilon decides only which results count, so
the first run serves all epsilons; further ones start at random in half of the ball.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import logits_of, objective_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Fab, FabTargeted
from robust201.tasks.perturbations.hyperplanes import project_l1, project_l2, project_linf

if TYPE_CHECKING:
    from pyautoattack import AutoAttack

_OVERSHOOT = 1.05
_TOWARDS_CLEAN = 0.1
_BACK = 0.9
_NEVER = 1e10

_PROJECTIONS = {"Linf": project_linf, "L2": project_l2, "L1": project_l1}

_LENGTHS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Linf": lambda flat: flat.abs().max(dim=1)[0],
    "L2": lambda flat: (flat**2).sum(dim=1).sqrt(),
    "L1": lambda flat: flat.abs().sum(dim=1),
}
"""Norms of (B, D), in AutoAttack's order of operations."""

_DUAL = {"Linf": "L1", "L2": "L2", "L1": "Linf"}
"""In whose norm a gradient says how near a boundary is."""

Boundary: TypeAlias = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Iterates (B, 3, H, W) → a class's logit minus the label's (B,), and its gradient (B, 3, H, W), of the class whose
linearised boundary is nearest."""


def reference(context: Context, parameters: Fab, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    yield from fab_batches(context, parameters, request, "fab")


def fab_batches(
    context: Context, parameters: Fab | FabTargeted, request: Request, name: Literal["fab", "fab-t"]
) -> Iterator[Perturbed]:
    """Attack with one of AutoAttack's two forms of FAB."""
    # Imported here: the fused engine must not wait for a library that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import autoattack_batches

    def configure(adversary: "AutoAttack") -> None:
        configure_library(adversary, context, parameters)

    yield from autoattack_batches(context, request, CONSTRAINTS[parameters.norm], names=(name,), configure=configure)


def configure_library(adversary: "AutoAttack", context: Context, parameters: Fab | FabTargeted) -> None:
    """Give AutoAttack the attack with these parameters."""
    from pyautoattack.fab_pt import FABAttack_PT

    restarts, targets = 1, 1
    if isinstance(parameters, Fab):
        restarts = parameters.restarts
    else:
        targets = min(parameters.targets, context.classifier.n_classes - 1)
    adversary.fab = FABAttack_PT(
        context.classifier,
        n_restarts=restarts,
        n_iter=parameters.steps,
        eps=adversary.epsilon,
        seed=adversary.seed,
        norm=adversary.norm,
        device=adversary.device,
        n_target_classes=targets,
    )


def fused(job: AttackJob, parameters: Fab) -> Iterator[Perturbed]:
    """Attack all epsilons together, with one sample per image in the first run."""
    yield from attack_correct(job, job.pools_of_images, single_run(parameters), parameters.restarts)


def single_run(parameters: Fab) -> SingleRun:
    """Make a run towards the nearest class."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return run_fab(
            job, samples, restart, parameters, lambda chosen: _nearest_class(job, chosen, parameters.norm), restart > 0
        )

    return run


def run_fab(
    job: AttackJob,
    samples: Samples,
    number: int,
    parameters: Fab | FabTargeted,
    boundary: Callable[[Samples], Boundary],
    starts_at_random: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run FAB once.

    Args:
        job: model, batches and draws.
        samples: what is attacked.
        number: of the run, which names its draws.
        parameters: of the attack.
        boundary: makes what is differentiated for some of the samples.
        starts_at_random: whether it starts in half of the ball; else at the clean image, where no epsilon matters.

    Returns:
        Candidates (B, 3, H, W), and which of them are misclassified and in their ball (B,).
    """
    norm = parameters.norm
    if starts_at_random:
        start = _random_start(job, samples, number, norm)
        found = _approach(job, samples, start, boundary(samples), parameters.steps, norm)
    else:
        _, first, again = np.unique(samples.positions, return_index=True, return_inverse=True)
        order = np.argsort(first)  # in the order in which the images appear
        images, again = samples.take(first[order]), np.argsort(order)[again]
        found = _approach(job, images, images.clean, boundary(images), parameters.steps, norm)
        found = found[torch.from_numpy(again).to(found.device)]
    logits = logits_of(job.model, job.batching, found, samples.strengths)
    distances = _LENGTHS[norm]((samples.clean - found).flatten(1))
    return found, (logits.argmax(dim=1) != samples.labels) & ~(distances > samples.epsilons.flatten())


def _approach(
    job: AttackJob, samples: Samples, start: torch.Tensor, boundary: Boundary, n_steps: int, norm: str
) -> torch.Tensor:
    """Find the nearest misclassified iterates: (B, 3, H, W), the clean image where there is none."""
    clean, length, project = samples.clean, _LENGTHS[norm], _PROJECTIONS[norm]
    n_samples = len(clean)
    flat_clean = clean.flatten(1)
    images, found = start, clean
    shortest = torch.full((n_samples,), _NEVER, device=clean.device)
    for _ in range(n_steps):
        difference, gradient = boundary(images)
        offset = -difference + (gradient * images).flatten(1).sum(dim=-1)
        normal = gradient.flatten(1)
        points = torch.cat((images.flatten(1), flat_clean), 0)
        moves = project(points, torch.cat((normal, normal), 0), torch.cat((offset, offset), 0))
        lengths = length(moves).clamp_min(1e-8)
        from_image, from_clean = lengths[:n_samples], lengths[n_samples:]
        share = (from_image / (from_image + from_clean)).clamp(0, _TOWARDS_CLEAN).view(-1, 1, 1, 1)
        step, clean_step = moves[:n_samples].view(clean.shape), moves[n_samples:].view(clean.shape)
        images = (images + _OVERSHOOT * step) * (1 - share) + (clean + clean_step * _OVERSHOOT) * share
        images = images.clamp(0.0, 1.0)
        wrong = logits_of(job.model, job.batching, images, samples.strengths).argmax(dim=1) != samples.labels
        distances = length((images - clean).flatten(1))
        nearer = wrong & (distances < shortest)
        found = torch.where(nearer.view(-1, 1, 1, 1), images, found)
        shortest = torch.where(nearer, distances, shortest)
        images = torch.where(wrong.view(-1, 1, 1, 1), clean + (images - clean) * _BACK, images)
    return found


def _random_start(job: AttackJob, samples: Samples, number: int, norm: str) -> torch.Tensor:
    """Draw from the surface of a ball of half of epsilon, in AutoAttack's order of operations."""
    if norm == "Linf":
        noise = job.draws.uniforms(number, samples.images, job.shape).to(samples.clean.device) * 2 - 1
    else:
        noise = job.draws.normals(number, samples.images, samples.clean[0].numel()).to(samples.clean.device)
        noise = noise.view(samples.clean.shape)
    lengths = _LENGTHS[norm](noise.flatten(1)).view(-1, 1, 1, 1)
    return (samples.clean + samples.epsilons * noise / lengths * 0.5).clamp(0.0, 1.0)


def _nearest_class(job: AttackJob, samples: Samples, norm: str) -> Boundary:
    """Differentiate the logits of all classes, one after the other, and keep the nearest."""

    def boundary(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, _, own = _gradient_of_logit(job, samples, images, samples.labels)
        own_logit = logits.gather(1, samples.labels[:, None])[:, 0]
        nearest = torch.full_like(own_logit, torch.inf)
        difference, gradient = torch.zeros_like(own_logit), torch.zeros_like(own)
        for number in range(logits.shape[1]):
            classes = torch.full_like(samples.labels, number)
            of_class = _gradient_of_logit(job, samples, images, classes)[2] - own
            behind = torch.where(samples.labels == number, _NEVER, logits[:, number] - own_logit)
            distance = behind.abs() / (1e-12 + _LENGTHS[_DUAL[norm]](of_class.flatten(1)))
            nearer = distance < nearest
            nearest = torch.where(nearer, distance, nearest)
            difference = torch.where(nearer, behind, difference)
            gradient = torch.where(nearer.view(-1, 1, 1, 1), of_class, gradient)
        return difference, gradient

    return boundary


def _gradient_of_logit(
    job: AttackJob, samples: Samples, images: torch.Tensor, classes: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    def one_logit(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        return logits.gather(1, classes[rows].clone()[:, None])[:, 0]

    return objective_gradient_of(job.model, job.batching, images, one_logit, samples.strengths)
