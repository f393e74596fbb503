"""APGD on the cross-entropy loss.

Source: Croce and Hein, ICML 2020, algorithm 1; `pyautoattack.autopgd_base.APGDAttack`. Momentum .75, first step size 2
epsilon, halved at checkpoints where progress stalls (rho .75); one random start per restart. Images that are classified
correctly are attacked; those that were fooled go on, because the last misclassified iterate is what AutoAttack returns,
and images that resist come back clean.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from robust201.engine.attack_job import AttackJob, Samples, attack_correct
from robust201.engine.batching import gradient_of
from robust201.engine.context import Context, Perturbed, Request
from robust201.tasks.constraints import LINF
from robust201.tasks.parameters import ApgdParameters

if TYPE_CHECKING:
    from pyautoattack import AutoAttack

STEP_DECAY_THRESHOLD = 0.75
"""rho of Croce and Hein (2020), section 3.2, which AutoAttack sets too."""

_MOMENTUM = 0.75


def reference(context: Context, parameters: ApgdParameters, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    # Imported here: the fused engine must not wait for a library that it does not use.
    from pyautoattack.autopgd_base import APGDAttack

    from robust201.tasks.perturbations.autoattack_engine import autoattack_batches

    def configure(adversary: "AutoAttack") -> None:
        # Made anew, because the checkpoints of the step size are derived from the iterations when the attack is made.
        adversary.apgd = APGDAttack(
            context.classifier,
            n_iter=parameters.steps,
            norm=adversary.norm,
            n_restarts=parameters.restarts,
            eps=adversary.epsilon,
            seed=adversary.seed,
            loss="ce",
            eot_iter=1,
            rho=STEP_DECAY_THRESHOLD,
            device=adversary.device,
            logger=adversary.logger,
        )

    yield from autoattack_batches(context, request, LINF, name="apgd-ce", configure=configure)


def fused(job: AttackJob, parameters: ApgdParameters) -> Iterator[Perturbed]:
    """Attack all epsilons together. Nothing is dropped, so nothing is looked up in the loop and no device waits."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _single_run(job, samples, restart, parameters.steps)

    yield from attack_correct(job, job.chunks, run, parameters.restarts)


@dataclass
class _State:
    """Where each sample stands.

    Attributes:
        images: (B, 3, H, W) iterate.
        gradient: (B, 3, H, W) at the iterate.
        loss: (B,) at the iterate.
        wrong: (B,) whether the iterate is misclassified.
        best: (B, 3, H, W) iterate of the highest loss.
        best_gradient: (B, 3, H, W) at `best`.
        best_loss: (B,) at `best`.
        found: (B, 3, H, W) last misclassified iterate.
        fooled: (B,) whether there is one.
    """

    images: torch.Tensor
    gradient: torch.Tensor
    loss: torch.Tensor
    wrong: torch.Tensor
    best: torch.Tensor
    best_gradient: torch.Tensor
    best_loss: torch.Tensor
    found: torch.Tensor
    fooled: torch.Tensor


def _single_run(job: AttackJob, samples: Samples, restart: int, n_steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Run APGD once, Croce and Hein (2020), algorithm 1: candidates, and which of them are misclassified."""
    state = _start(job, samples, restart)
    lower, upper = samples.clean - samples.epsilons, samples.clean + samples.epsilons
    step_sizes = 2 * samples.epsilons
    previous = state.images
    schedule = _StepSizes(n_steps, state.best_loss)
    for iteration in range(n_steps):
        momentum = _MOMENTUM if iteration > 0 else 1.0
        current = state.images
        stepped = current + step_sizes * state.gradient.sign()
        stepped = _clip(stepped, lower, upper).sub_(current).mul_(momentum).add_(current)
        stepped.add_((current - previous).mul_(1 - momentum))
        state.images, previous = _clip(stepped, lower, upper), current
        _look(job, samples, state)
        halved = schedule.checked(iteration, state.loss, state.best_loss)
        if halved is not None:
            pixels = halved.view(-1, 1, 1, 1)
            step_sizes = torch.where(pixels, step_sizes / 2, step_sizes)
            state.images = torch.where(pixels, state.best, state.images)
            state.gradient = torch.where(pixels, state.best_gradient, state.gradient)
    return state.found, state.fooled


def _start(job: AttackJob, samples: Samples, restart: int) -> _State:
    """Start at clean + epsilon * t / max |t|, t uniform in [-1, 1)."""
    direction = job.draws.uniforms(restart, samples.images, job.shape).to(samples.clean.device)
    direction = direction.mul_(2).sub_(1)
    largest = direction.abs().flatten(1).amax(dim=1).view(-1, 1, 1, 1)
    images = direction.div_(largest + 1e-12).mul_(samples.epsilons).add_(samples.clean).clamp_(0, 1)
    logits, loss, gradient = gradient_of(job.model, job.batching, images, samples.labels, samples.strengths)
    wrong = logits.argmax(dim=1) != samples.labels
    return _State(images, gradient, loss, wrong, images, gradient, loss, images, wrong)


def _look(job: AttackJob, samples: Samples, state: _State) -> None:
    """Differentiate at the iterate, and keep it where it is misclassified or has the highest loss so far."""
    logits, loss, gradient = gradient_of(job.model, job.batching, state.images, samples.labels, samples.strengths)
    wrong = logits.argmax(dim=1) != samples.labels
    better = loss > state.best_loss
    state.gradient, state.loss, state.wrong = gradient, loss, wrong
    state.fooled = state.fooled | wrong
    state.found = torch.where(wrong.view(-1, 1, 1, 1), state.images, state.found)
    state.best = torch.where(better.view(-1, 1, 1, 1), state.images, state.best)
    state.best_gradient = torch.where(better.view(-1, 1, 1, 1), gradient, state.best_gradient)
    state.best_loss = torch.where(better, loss, state.best_loss)


def _clip(images: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
    """Clip to the epsilon ball and to [0, 1]; overwrites `images`."""
    return torch.minimum(torch.maximum(images, lower, out=images), upper, out=images).clamp_(0, 1)


class _StepSizes:
    """Decides at checkpoints whose step size is halved (Croce and Hein, section 3.2).

    The checkpoints are .22, .06 and .03 of the iterations, as in `pyautoattack.autopgd_base`.

    Args:
        n_steps: iterations.
        best_loss: (B,) at the start.
    """

    def __init__(self, n_steps: int, best_loss: torch.Tensor) -> None:
        self._interval = max(int(0.22 * n_steps), 1)
        self._shortest = max(int(0.06 * n_steps), 1)
        self._decrease = max(int(0.03 * n_steps), 1)
        self._since = 0
        # Row 0 stays zero: AutoAttack compares the first iteration's loss with zero, not with that of the start.
        self._losses = best_loss.new_zeros((n_steps + 1, len(best_loss)))
        self._best_at_check = best_loss
        self._halved_at_check = torch.ones_like(best_loss, dtype=torch.bool)

    def checked(self, iteration: int, loss: torch.Tensor, best_loss: torch.Tensor) -> torch.Tensor | None:
        """Take down an iteration's losses.

        Args:
            iteration: its number, from 0.
            loss: (B,) of the iterates.
            best_loss: (B,) highest so far.

        Returns:
            (B,) bool: whose step size is halved; None between checkpoints.
        """
        row = iteration + 1
        self._losses[row] = loss
        self._since += 1
        if self._since < self._interval:
            return None
        losses = self._losses[row - self._interval : row + 1]
        rises = (losses[1:] > losses[:-1]).sum(dim=0)
        stalled = rises <= STEP_DECAY_THRESHOLD * self._interval
        stuck = ~self._halved_at_check & (self._best_at_check >= best_loss)
        self._halved_at_check = stalled | stuck
        self._best_at_check = best_loss
        self._interval = max(self._interval - self._decrease, self._shortest)
        self._since = 0
        return self._halved_at_check
