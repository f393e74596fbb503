"""APGD on the cross-entropy loss, and the parts that it shares with APGD on other losses.

Source: Croce and Hein, ICML 2020, algorithm 1, and ICML 2021 (L1); `pyautoattack.autopgd_base.APGDAttack`. The momentum
is .75. The first step size is 2 epsilon; it is halved at checkpoints where progress stalls (rho .75). In L1, steps are
sparse and have no momentum. Each restart has one random start. Only correctly classified images are attacked. The
attack continues for images that are already fooled, because AutoAttack returns the last misclassified iterate. For
images that resist, it returns the clean image.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import loss_and_gradient_of, value_and_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Apgd
from robust201.tasks.perturbations.apgd_steps import (
    STEP_DECAY_THRESHOLD,
    L1Steps,
    L2Steps,
    LinfSteps,
    Steps,
    normal_noise,
    random_start,
)
from robust201.tasks.perturbations.l1_projection import correction_to_l1

if TYPE_CHECKING:
    from pyautoattack import AutoAttack

Loss: TypeAlias = Callable[[torch.Tensor, slice], torch.Tensor]
"""(logits (b, C), slice of the samples) → (b,): the loss that the attack maximises."""


def reference(context: Context, parameters: Apgd, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import autoattack_batches

    def configure(adversary: "AutoAttack") -> None:
        configure_library(adversary, context, parameters)

    constraint = CONSTRAINTS[parameters.norm]
    yield from autoattack_batches(context, request, constraint, names=("apgd-ce",), configure=configure)


def configure_library(adversary: "AutoAttack", context: Context, parameters: Apgd) -> None:
    """Replace AutoAttack's APGD object with one that has these parameters."""
    from pyautoattack.autopgd_base import APGDAttack

    # Setting the attributes of AutoAttack's own object is not enough: the constructor derives the checkpoints of the
    # step size from the number of iterations.
    adversary.apgd = APGDAttack(
        context.classifier, n_restarts=parameters.restarts, loss="ce", **library_arguments(adversary, parameters)
    )


def library_arguments(adversary: "AutoAttack", parameters: Apgd) -> dict[str, Any]:
    """Return the arguments that both of AutoAttack's APGD classes share."""
    return {
        "n_iter": parameters.steps,
        "norm": adversary.norm,
        "eps": adversary.epsilon,
        "seed": adversary.seed,
        "eot_iter": 1,
        "rho": STEP_DECAY_THRESHOLD,
        "device": adversary.device,
        "logger": adversary.logger,
        "use_largereps": has_shrinking_ball(parameters),
    }


def has_shrinking_ball(parameters: Apgd) -> bool:
    """Return whether the ball shrinks during a run."""
    return parameters.norm == "L1" and parameters.larger_epsilons


def fused(job: AttackJob, parameters: Apgd) -> Iterator[Perturbed]:
    """Attack at all epsilons together. A run never removes samples, so the host never waits for the device."""
    yield from attack_correct(job, job.chunks, single_run(parameters), parameters.restarts)


def single_run(parameters: Apgd) -> SingleRun:
    """Return a function that runs the attack once on the cross-entropy."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return run_apgd(job, samples, restart, parameters, None)

    return run


@dataclass
class _State:
    """State of a run for each sample.

    Attributes:
        images: (B, 3, H, W) current iterate.
        gradient: (B, 3, H, W) gradient at the iterate.
        loss: (B,) loss at the iterate.
        best_images: (B, 3, H, W) iterate with the highest loss.
        best_gradient: (B, 3, H, W) gradient at `best_images`.
        best_loss: (B,) loss at `best_images`.
        adversarial: (B, 3, H, W) last misclassified iterate.
        fooled: (B,) whether there is a misclassified iterate.
    """

    images: torch.Tensor
    gradient: torch.Tensor
    loss: torch.Tensor
    best_images: torch.Tensor
    best_gradient: torch.Tensor
    best_loss: torch.Tensor
    adversarial: torch.Tensor
    fooled: torch.Tensor


def run_apgd(
    job: AttackJob, samples: Samples, run_number: int, parameters: Apgd, loss: Loss | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run APGD once.

    Args:
        job: model, batches and random numbers.
        samples: samples to attack.
        run_number: number of the run, which determines its random numbers.
        parameters: parameters of the attack.
        loss: the loss to maximise; None for the cross-entropy.

    Returns:
        Candidates (B, 3, H, W), and which of them are misclassified (B,).
    """
    n_steps = parameters.steps
    if has_shrinking_ball(parameters):
        state = _run_in_shrinking_balls(job, samples, run_number, n_steps, loss)
        return state.adversarial, state.fooled
    state = _evaluate_start(job, samples, random_start(job, samples, run_number, parameters.norm), loss)
    steps: Steps
    if parameters.norm == "L1":
        steps = L1Steps(samples, n_steps, job.epsilons, None)
    else:
        steps = (LinfSteps if parameters.norm == "Linf" else L2Steps)(samples, n_steps, state.best_loss)
    _ascend(job, samples, state, steps, n_steps, loss)
    return state.adversarial, state.fooled


def _run_in_shrinking_balls(
    job: AttackJob, samples: Samples, run_number: int, n_steps: int, loss: Loss | None
) -> _State:
    """Run in L1 balls of 3, 2 and 1 epsilon, starting in each from the best iterate so far (Croce and Hein, 2021)."""
    n_large_ball_steps = math.ceil(0.3 * n_steps)
    largest_radii = [3.0 * epsilon for epsilon in job.epsilons]
    images = samples.clean + normal_noise(job, samples, run_number)
    images = images + correction_to_l1(samples.clean, images - samples.clean, samples.expand_by_strength(largest_radii))
    for factor, n_ball_steps in (
        (3.0, n_large_ball_steps),
        (2.0, n_large_ball_steps),
        (1.0, n_steps - 2 * n_large_ball_steps),
    ):
        radii = [factor * epsilon for epsilon in job.epsilons]
        images = images + correction_to_l1(samples.clean, images - samples.clean, samples.expand_by_strength(radii))
        images = images.clamp(0, 1)
        state = _evaluate_start(job, samples, images, loss)
        steps = L1Steps(samples, n_ball_steps, radii, images)
        _ascend(job, samples, state, steps, n_ball_steps, loss)
        images = state.best_images
    return state


def _ascend(
    job: AttackJob,
    samples: Samples,
    state: _State,
    steps: Steps,
    n_steps: int,
    loss: Loss | None,
) -> None:
    """Take the steps in one ball (Croce and Hein, 2020, algorithm 1)."""
    previous = state.images
    for iteration in range(n_steps):
        current = state.images
        state.images, previous = steps.move(current, previous, state.gradient, iteration), current
        _evaluate_iterate(job, samples, state, loss)
        reverted = steps.update_step_sizes(iteration, state.loss, state.best_loss, state.best_images)
        if reverted is not None:
            reverted_mask = reverted.view(-1, 1, 1, 1)
            state.images = torch.where(reverted_mask, state.best_images, state.images)
            state.gradient = torch.where(reverted_mask, state.best_gradient, state.gradient)


def _evaluate_start(job: AttackJob, samples: Samples, images: torch.Tensor, loss: Loss | None) -> _State:
    """Return the state at the starting points."""
    logits, losses, gradient = _differentiate(job, samples, images, loss)
    misclassified = logits.argmax(dim=1) != samples.labels
    return _State(images, gradient, losses, images, gradient, losses, images, misclassified)


def _evaluate_iterate(job: AttackJob, samples: Samples, state: _State, loss: Loss | None) -> None:
    """Evaluate the iterates, and update the last misclassified and best ones."""
    logits, losses, gradient = _differentiate(job, samples, state.images, loss)
    misclassified = logits.argmax(dim=1) != samples.labels
    is_better = losses > state.best_loss
    state.gradient, state.loss = gradient, losses
    state.fooled = state.fooled | misclassified
    state.adversarial = torch.where(misclassified.view(-1, 1, 1, 1), state.images, state.adversarial)
    state.best_images = torch.where(is_better.view(-1, 1, 1, 1), state.images, state.best_images)
    state.best_gradient = torch.where(is_better.view(-1, 1, 1, 1), gradient, state.best_gradient)
    state.best_loss = torch.where(is_better, losses, state.best_loss)


def _differentiate(
    job: AttackJob, samples: Samples, images: torch.Tensor, loss: Loss | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if loss is None:
        return loss_and_gradient_of(job.model, job.batching, images, samples.labels, samples.strength_indices)
    return value_and_gradient_of(job.model, job.batching, images, loss, samples.strength_indices)
