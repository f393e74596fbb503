"""APGD on the cross-entropy loss, all epsilons together.

Source and semantics: `tasks.perturbations.apgd`. Images that are classified correctly are attacked; those that were
fooled go on, because the last misclassified iterate is what AutoAttack returns, and images that resist come back clean.
Nothing is dropped, so nothing is looked up in the loop, and the device is never waited for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks import ApgdParameters
from robust201.tasks.perturbations.contract import Context, Perturbed
from robust201.tasks.perturbations.fused.job import Job, Samples, attack_correct, job_of
from robust201.tasks.perturbations.fused.model import gradient_of

_MOMENTUM = 0.75
_DECAY_THRESHOLD = 0.75  # rho


def perturb(
    context: Context,
    parameters: ApgdParameters,
    strengths: Sequence[float],
    *,
    images: torch.Tensor,
    labels: torch.Tensor,
    indices: NDArray[np.int64],
) -> Iterator[Perturbed]:
    """Attack every image that is classified correctly (see `tasks.perturbations.contract` for the contract).

    Args:
        context: what surrounds the attack.
        parameters: iterations and restarts.
        strengths: (S,) epsilons in units of 1/255.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        indices: (N,) rows of the test split, which name the random starts.

    Yields:
        Batches of images: perturbed where the attack succeeded, else clean.
    """
    yield from attack(job_of(context, strengths, images=images, labels=labels, indices=indices), parameters)


def attack(job: Job, parameters: ApgdParameters) -> Iterator[Perturbed]:
    """Attack the images of a job that are classified correctly (see `perturb`)."""

    def run(job: Job, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
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


def _single_run(job: Job, samples: Samples, restart: int, n_steps: int) -> tuple[torch.Tensor, torch.Tensor]:
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


def _start(job: Job, samples: Samples, restart: int) -> _State:
    """Start at clean + epsilon * t / max |t|, t uniform in [-1, 1)."""
    direction = job.draws.uniforms(restart, samples.images, job.shape).to(samples.clean.device)
    direction = direction.mul_(2).sub_(1)
    largest = direction.abs().flatten(1).amax(dim=1).view(-1, 1, 1, 1)
    images = direction.div_(largest + 1e-12).mul_(samples.epsilons).add_(samples.clean).clamp_(0, 1)
    logits, loss, gradient = gradient_of(job.model, job.batching, images, samples.labels, samples.strengths)
    wrong = logits.argmax(dim=1) != samples.labels
    return _State(images, gradient, loss, wrong, images, gradient, loss, images, wrong)


def _look(job: Job, samples: Samples, state: _State) -> None:
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
        stalled = rises <= _DECAY_THRESHOLD * self._interval
        stuck = ~self._halved_at_check & (self._best_at_check >= best_loss)
        self._halved_at_check = stalled | stuck
        self._best_at_check = best_loss
        self._interval = max(self._interval - self._decrease, self._shortest)
        self._since = 0
        return self._halved_at_check
