"""Square attack.

Source: Andriushchenko et al., "Square Attack: a query-efficient black-box adversarial attack via random search",
ECCV 2020, algorithms 1 and 2; `pyautoattack.square.SquareAttack`. Vertical stripes of ±epsilon to start with, then
random squares of ±2 epsilon (clipped to the ball), kept where the margin shrinks; an image drops out when it is
misclassified. The side of the squares follows the number of the query, not its share of `queries` (AutoAttack's
`resc_schedule=False`). Images that are classified correctly are attacked; those that resist come back clean.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.models.model import start_search
from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import logits_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.attack_kit.draws import ImageShape, Window
from robust201.tasks.attack_kit.step_log import RunLog
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Square

if TYPE_CHECKING:
    from pyautoattack import AutoAttack

SHARE_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries after which the share of the pixels that a square covers is halved (Andriushchenko et al., 2020, section
5.1): AutoAttack's schedule for 10,000 queries, kept for any number of them (`resc_schedule=False`)."""


def reference(context: Context, parameters: Square, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    yield from square_batches(context, parameters, request)


def square_batches(context: Context, parameters: Square, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack's Square."""
    # Imported here: the fused engine must not wait for a library that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import autoattack_batches

    def configure(adversary: "AutoAttack") -> None:
        configure_library(adversary, context, parameters)

    constraint = CONSTRAINTS[parameters.norm]
    yield from autoattack_batches(context, request, constraint, names=("square",), configure=configure)


def configure_library(adversary: "AutoAttack", context: Context, parameters: Square) -> None:
    """Give AutoAttack the attack with these parameters."""
    from pyautoattack.square import SquareAttack

    class UntiedSquare(SquareAttack):  # type: ignore[misc]  # the library has no types
        """In L2 and L1 the library fails where a start leaves no margin above 0 but one at 0, or NaN."""

        def margin_and_loss(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            margins, losses = super().margin_and_loss(x, y)
            return torch.where(margins > 0, margins, -1.0), losses

    kind = SquareAttack if adversary.norm == "Linf" else UntiedSquare
    adversary.square = kind(
        context.classifier,
        norm=adversary.norm,
        n_queries=parameters.queries,
        eps=adversary.epsilon,
        p_init=parameters.p_init,
        n_restarts=parameters.restarts,
        seed=adversary.seed,
        loss="margin",
        resc_schedule=False,
        device=adversary.device,
    )


def fused(job: AttackJob, parameters: Square) -> Iterator[Perturbed]:
    """Attack images and epsilons side by side.

    A query proposes the same window, at the same place and with the same signs, to every sample; what differs is the
    size of the change, twice the sample's epsilon. Samples that are fooled are dropped, and the survivors of all
    epsilons and images share full batches.
    """
    yield from attack_correct(job, functools.partial(pools, job), single_run(parameters), parameters.restarts)


def single_run(parameters: Square) -> SingleRun:
    """Make a run."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _single_run(job, samples, restart, parameters)

    return run


def pools(job: AttackJob, positions: NDArray[np.int64]) -> Iterator[Samples]:
    """Cut images, with all their epsilons, into pools: small and large epsilons together keep batches full longest."""
    n_strengths = len(job.epsilons)
    n_images = len(positions) if job.batching.as_library else max(1, job.batching.pool // n_strengths)
    for start in range(0, len(positions), max(1, n_images)):
        chosen = positions[start : start + n_images]
        yield job.samples(np.arange(n_strengths).repeat(len(chosen)), np.tile(chosen, n_strengths))


@dataclass
class SearchState:
    """Where each sample stands.

    Attributes:
        best: (B, 3, H, W) what the search has accepted.
        margins: (B,) its label's logit minus the largest other; above 0 while the search goes on.
    """

    best: torch.Tensor
    margins: torch.Tensor


def _single_run(
    job: AttackJob, samples: Samples, restart: int, parameters: Square
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run Square once, Andriushchenko et al. (2020), algorithm 1: the last images, and which are misclassified."""
    stripes = job.draws.stripes(restart, samples.images, job.shape).to(samples.clean.device)
    best = (samples.clean + samples.epsilons * stripes).clamp_(0, 1)
    state = SearchState(best, margins_of(logits_of(job.model, job.batching, best, samples.strengths), samples.labels))
    log = job.run_log(samples, parameters.queries, restart)
    log.mark(1, state.margins <= 0)
    query = 0
    while query < parameters.queries:
        active = (state.margins > 0).nonzero().flatten()
        if len(active) == 0:
            break
        stop = min(parameters.queries, query + job.batching.queries_together(query))
        sides = [side_of(number, parameters.p_init, job.shape) for number in range(query, stop)]
        windows = _moved(job.draws.windows(restart, query, sides, job.shape), active.device)
        for piece in job.batching.slices(samples.strengths[active.cpu().numpy()]):
            _search(job, samples, state, active[piece], windows, log, query)
        query = stop
    wrong = logits_of(job.model, job.batching, state.best, samples.strengths).argmax(dim=1) != samples.labels
    log.write(wrong)
    return state.best, wrong


def side_of(query: int, p_init: float, shape: ImageShape) -> int:
    """Side of the square in a query.

    Args:
        query: number of the query, from 0.
        p_init: share of the pixels that the first squares cover.
        shape: of an image.

    Returns:
        Pixels, at least 1 and at most the image's shorter side.
    """
    _, height, width = shape
    return min(max(round(math.sqrt(share_of(query, p_init, shape))), 1), height, width)


def share_of(query: int, p_init: float, shape: ImageShape) -> float:
    """Pixels that a square covers in a query, not rounded (see `side_of`)."""
    channels, height, width = shape
    share: float = p_init / 2 ** sum(query > after for after in SHARE_HALVINGS)
    # Multiplied and divided by the channels because AutoAttack does, and rounding may see it.
    return share * (channels * height * width) / channels


def _moved(windows: Sequence[Window], device: torch.device) -> list[Window]:
    """Move the signs of all windows to the device at once."""
    signs = torch.stack([window.signs for window in windows]).to(device)
    return [window._replace(signs=signs[i]) for i, window in enumerate(windows)]


def _search(
    job: AttackJob,
    samples: Samples,
    state: SearchState,
    active: torch.Tensor,
    windows: Sequence[Window],
    log: RunLog,
    query: int,
) -> None:
    """Make some queries, the first of this number, for one batch of samples.

    A sample that is fooled on the way stays as it is: its margin is at or below 0, and nothing is accepted any more.
    """
    clean, labels, epsilons = samples.clean[active], samples.labels[active], samples.epsilons[active]
    best, margins = state.best[active], state.margins[active]
    search = start_search(job.model, best, [window.side for window in windows])
    for number, window in enumerate(windows, start=query + 1):
        rows, columns = slice(window.row, window.row + window.side), slice(window.column, window.column + window.side)
        # Outside of the window nothing moves: clipping what was clipped before changes no bit.
        around = clean[:, :, rows, columns]
        before = best[:, :, rows, columns].clone()
        proposal = before + 2 * epsilons * window.signs
        proposal = torch.minimum(torch.maximum(proposal, around - epsilons), around + epsilons).clamp_(0, 1)
        best[:, :, rows, columns] = proposal
        found = margins_of(search.logits(window.row, window.column, proposal), labels)
        accepted = (found < margins) & (margins > 0)
        margins = torch.where(accepted, found, margins)
        if log.is_on:
            log.mark(number, margins <= 0, active)
        search.accept(accepted)
        best[:, :, rows, columns] = torch.where(accepted.view(-1, 1, 1, 1), proposal, before)
    state.best[active] = best
    state.margins[active] = margins


def margins_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Label's logit minus the largest other: (B,)."""
    own = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]
    return logits.gather(1, labels[:, None])[:, 0] - logits.masked_fill(own, -math.inf).amax(dim=1)
