"""APGD on the cross-entropy loss, and what its runs on other losses share.

Source: Croce and Hein, ICML 2020, algorithm 1, and ICML 2021 (L1); `pyautoattack.autopgd_base.APGDAttack`. Momentum .75
and a first step size of 2 epsilon, halved at checkpoints where progress stalls (rho .75); in L1 sparse steps without
momentum. One random start per restart. Images that are classified correctly are attacked; those that were fooled go on,
because the last misclassified iterate is what AutoAttack returns, and images that resist come back clean.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import gradient_of, objective_gradient_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.attack_kit.step_log import RunLog
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Apgd, ApgdL1
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
"""(logits (b, C), which of the samples they are of) → (b,): what the attack makes as large as it can."""


def reference(context: Context, parameters: Apgd, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    yield from apgd_batches(context, parameters, request, "ce")


def apgd_batches(
    context: Context, parameters: Apgd, request: Request, loss: Literal["ce", "dlr"]
) -> Iterator[Perturbed]:
    """Attack with AutoAttack's APGD on one of its losses."""
    # Imported here: the fused engine must not wait for a library that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import autoattack_batches

    def configure(adversary: "AutoAttack") -> None:
        configure_library(adversary, context, parameters, loss)

    constraint = CONSTRAINTS[parameters.norm]
    name: Literal["apgd-ce", "apgd-dlr"] = "apgd-ce" if loss == "ce" else "apgd-dlr"
    yield from autoattack_batches(context, request, constraint, names=(name,), configure=configure)


def configure_library(adversary: "AutoAttack", context: Context, parameters: Apgd, loss: Literal["ce", "dlr"]) -> None:
    """Give AutoAttack the attack with these parameters."""
    from pyautoattack.autopgd_base import APGDAttack

    # Made anew, because the checkpoints of the step size are derived from the iterations when the attack is made.
    adversary.apgd = APGDAttack(
        context.classifier, n_restarts=parameters.restarts, loss=loss, **library_arguments(adversary, parameters)
    )


def library_arguments(adversary: "AutoAttack", parameters: Apgd) -> dict[str, Any]:
    """Give what both of AutoAttack's APGDs are made with."""
    return {
        "n_iter": parameters.steps,
        "norm": adversary.norm,
        "eps": adversary.epsilon,
        "seed": adversary.seed,
        "eot_iter": 1,
        "rho": STEP_DECAY_THRESHOLD,
        "device": adversary.device,
        "logger": adversary.logger,
        "use_largereps": uses_larger_epsilons(parameters),
    }


def uses_larger_epsilons(parameters: Apgd) -> bool:
    """Say whether a run shrinks its ball on the way."""
    return isinstance(parameters, ApgdL1) and parameters.larger_epsilons


def fused(job: AttackJob, parameters: Apgd) -> Iterator[Perturbed]:
    """Attack all epsilons together. Nothing is dropped, so nothing is looked up in the loop and no device waits."""
    yield from attack_correct(job, job.chunks, single_run(parameters), parameters.restarts)


def single_run(parameters: Apgd) -> SingleRun:
    """Make a run on the cross-entropy."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return run_apgd(job, samples, restart, parameters, None)

    return run


@dataclass
class _State:
    """Where each sample stands.

    Attributes:
        images: (B, 3, H, W) iterate.
        gradient: (B, 3, H, W) at the iterate.
        loss: (B,) at the iterate.
        best: (B, 3, H, W) iterate of the highest loss.
        best_gradient: (B, 3, H, W) at `best`.
        best_loss: (B,) at `best`.
        found: (B, 3, H, W) last misclassified iterate.
        fooled: (B,) whether there is one.
        steps_before: steps of the run before those that led here.
    """

    images: torch.Tensor
    gradient: torch.Tensor
    loss: torch.Tensor
    best: torch.Tensor
    best_gradient: torch.Tensor
    best_loss: torch.Tensor
    found: torch.Tensor
    fooled: torch.Tensor
    steps_before: int = 0


def run_apgd(
    job: AttackJob, samples: Samples, number: int, parameters: Apgd, loss: Loss | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run APGD once.

    Args:
        job: model, batches and draws.
        samples: what is attacked.
        number: of the run, which names its draws.
        parameters: of the attack.
        loss: what is maximised; None for the cross-entropy.

    Returns:
        Candidates (B, 3, H, W), and which of them are misclassified (B,).
    """
    n_steps = parameters.steps
    log = job.run_log(samples, n_steps, number)
    if uses_larger_epsilons(parameters):
        state = _shrink(job, samples, number, n_steps, loss, log)
        log.write(state.fooled)
        return state.found, state.fooled
    state = _look_first(job, samples, random_start(job, samples, number, parameters.norm), loss)
    log.mark(1, state.fooled)
    steps: Steps
    if parameters.norm == "L1":
        steps = L1Steps(samples, n_steps, job.epsilons, None)
    else:
        steps = (LinfSteps if parameters.norm == "Linf" else L2Steps)(samples, n_steps, state.best_loss)
    _climb(job, samples, state, steps, n_steps, loss, log)
    log.write(state.fooled)
    return state.found, state.fooled


def _shrink(job: AttackJob, samples: Samples, number: int, n_steps: int, loss: Loss | None, log: RunLog) -> _State:
    """Run in L1 balls of 3, 2 and 1 epsilon, each from the best iterate of the one before (Croce and Hein, 2021)."""
    before = math.ceil(0.3 * n_steps)
    first = [3.0 * epsilon for epsilon in job.epsilons]
    images = samples.clean + normal_noise(job, samples, number)
    images = images + correction_to_l1(samples.clean, images - samples.clean, samples.spread(first))
    taken = 0
    for factor, n_here in ((3.0, before), (2.0, before), (1.0, n_steps - 2 * before)):
        radii = [factor * epsilon for epsilon in job.epsilons]
        images = images + correction_to_l1(samples.clean, images - samples.clean, samples.spread(radii))
        images = images.clamp(0, 1)
        state = _look_first(job, samples, images, loss)
        state.steps_before = taken
        is_last = factor == 1.0  # what is misclassified in a larger ball does not count
        if is_last:
            log.mark(max(taken, 1), state.fooled)
        _climb(job, samples, state, L1Steps(samples, n_here, radii, images), n_here, loss, log if is_last else None)
        images, taken = state.best, taken + n_here
    return state


def _climb(
    job: AttackJob,
    samples: Samples,
    state: _State,
    steps: Steps,
    n_steps: int,
    loss: Loss | None,
    log: RunLog | None,
) -> None:
    """Take the steps of one ball, Croce and Hein (2020), algorithm 1."""
    previous = state.images
    for iteration in range(n_steps):
        current = state.images
        state.images, previous = steps.move(current, previous, state.gradient, iteration), current
        wrong = _look(job, samples, state, loss)
        if log is not None:
            log.mark(state.steps_before + iteration + 1, wrong)
        back = steps.review(iteration, state.loss, state.best_loss, state.best)
        if back is not None:
            pixels = back.view(-1, 1, 1, 1)
            state.images = torch.where(pixels, state.best, state.images)
            state.gradient = torch.where(pixels, state.best_gradient, state.gradient)


def _look_first(job: AttackJob, samples: Samples, images: torch.Tensor, loss: Loss | None) -> _State:
    """Differentiate at the start."""
    logits, value, gradient = _differentiate(job, samples, images, loss)
    wrong = logits.argmax(dim=1) != samples.labels
    return _State(images, gradient, value, images, gradient, value, images, wrong)


def _look(job: AttackJob, samples: Samples, state: _State, loss: Loss | None) -> torch.Tensor:
    """Differentiate at the iterate; keep it where it is misclassified, which is returned, or has the highest loss."""
    logits, value, gradient = _differentiate(job, samples, state.images, loss)
    wrong = logits.argmax(dim=1) != samples.labels
    better = value > state.best_loss
    state.gradient, state.loss = gradient, value
    state.fooled = state.fooled | wrong
    state.found = torch.where(wrong.view(-1, 1, 1, 1), state.images, state.found)
    state.best = torch.where(better.view(-1, 1, 1, 1), state.images, state.best)
    state.best_gradient = torch.where(better.view(-1, 1, 1, 1), gradient, state.best_gradient)
    state.best_loss = torch.where(better, value, state.best_loss)
    return wrong


def _differentiate(
    job: AttackJob, samples: Samples, images: torch.Tensor, loss: Loss | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if loss is None:
        return gradient_of(job.model, job.batching, images, samples.labels, samples.strengths)
    return objective_gradient_of(job.model, job.batching, images, loss, samples.strengths)
