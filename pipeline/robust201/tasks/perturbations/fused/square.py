"""Square attack, all epsilons and images side by side.

Source and semantics: `tasks.perturbations.square`. A query proposes the same window, at the same place and with the
same signs, to every sample; what differs is the size of the change, twice the sample's epsilon. Samples that are fooled
are dropped, and the survivors of all epsilons and images share full batches.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.tasks import SquareParameters
from robust201.tasks.perturbations.contract import Context, Perturbed
from robust201.tasks.perturbations.fused.draws import ImageShape, Window
from robust201.tasks.perturbations.fused.job import Job, Samples, attack_correct, job_of
from robust201.tasks.perturbations.fused.model import logits_of, start_search

SHARE_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries after which the share of the pixels that a square covers is halved (Andriushchenko et al., 2020, section
5.1): AutoAttack's schedule for 10,000 queries, kept for any number of them (`resc_schedule=False`)."""


def perturb(
    context: Context,
    parameters: SquareParameters,
    strengths: Sequence[float],
    *,
    images: torch.Tensor,
    labels: torch.Tensor,
    indices: NDArray[np.int64],
) -> Iterator[Perturbed]:
    """Attack every image that is classified correctly (see `tasks.perturbations.contract` for the contract).

    Args:
        context: what surrounds the attack.
        parameters: queries, restarts and the first share of pixels that a square covers.
        strengths: (S,) epsilons in units of 1/255.
        images: (N, 3, H, W) uint8.
        labels: (N,) int64.
        indices: (N,) rows of the test split, which name the stripes.

    Yields:
        Batches of images: perturbed where the attack succeeded, else clean.
    """
    yield from attack(job_of(context, strengths, images=images, labels=labels, indices=indices), parameters)


def attack(job: Job, parameters: SquareParameters) -> Iterator[Perturbed]:
    """Attack the images of a job that are classified correctly (see `perturb`)."""

    def run(job: Job, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _single_run(job, samples, restart, parameters)

    yield from attack_correct(job, functools.partial(_pools, job), run, parameters.restarts)


def _pools(job: Job, positions: NDArray[np.int64]) -> Iterator[Samples]:
    """Cut images, with all their epsilons, into pools: small and large epsilons together keep batches full longest."""
    n_strengths = len(job.epsilons)
    n_images = len(positions) if job.batching.as_library else max(1, job.batching.pool // n_strengths)
    for start in range(0, len(positions), max(1, n_images)):
        chosen = positions[start : start + n_images]
        yield job.samples(np.arange(n_strengths).repeat(len(chosen)), np.tile(chosen, n_strengths))


@dataclass
class _State:
    """Where each sample stands.

    Attributes:
        best: (B, 3, H, W) what the search has accepted.
        margins: (B,) its label's logit minus the largest other; above 0 while the search goes on.
    """

    best: torch.Tensor
    margins: torch.Tensor


def _single_run(
    job: Job, samples: Samples, restart: int, parameters: SquareParameters
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run Square once, Andriushchenko et al. (2020), algorithm 1: the last images, and which are misclassified."""
    stripes = job.draws.stripes(restart, samples.images, job.shape).to(samples.clean.device)
    best = (samples.clean + samples.epsilons * stripes).clamp_(0, 1)
    state = _State(best, _margins(logits_of(job.model, job.batching, best, samples.strengths), samples.labels))
    query = 0
    while query < parameters.queries:
        active = (state.margins > 0).nonzero().flatten()
        if len(active) == 0:
            break
        stop = min(parameters.queries, query + job.batching.queries_together(query))
        sides = [side_of(number, parameters.p_init, job.shape) for number in range(query, stop)]
        windows = _moved(job.draws.windows(restart, query, sides, job.shape), active.device)
        for piece in job.batching.slices(samples.strengths[active.cpu().numpy()]):
            _search(job, samples, state, active[piece], windows)
        query = stop
    logits = logits_of(job.model, job.batching, state.best, samples.strengths)
    return state.best, logits.argmax(dim=1) != samples.labels


def side_of(query: int, p_init: float, shape: ImageShape) -> int:
    """Side of the square in a query.

    Args:
        query: number of the query, from 0.
        p_init: share of the pixels that the first squares cover.
        shape: of an image.

    Returns:
        Pixels, at least 1 and at most the image's shorter side.
    """
    channels, height, width = shape
    share = p_init / 2 ** sum(query > after for after in SHARE_HALVINGS)
    # Multiplied and divided by the channels because AutoAttack does, and rounding may see it.
    return min(max(round(math.sqrt(share * (channels * height * width) / channels)), 1), height, width)


def _moved(windows: Sequence[Window], device: torch.device) -> list[Window]:
    """Move the signs of all windows to the device at once."""
    signs = torch.stack([window.signs for window in windows]).to(device)
    return [window._replace(signs=signs[i]) for i, window in enumerate(windows)]


def _search(job: Job, samples: Samples, state: _State, active: torch.Tensor, windows: Sequence[Window]) -> None:
    """Make some queries for one batch of samples.

    A sample that is fooled on the way stays as it is: its margin is at or below 0, and nothing is accepted any more.
    """
    clean, labels, epsilons = samples.clean[active], samples.labels[active], samples.epsilons[active]
    best, margins = state.best[active], state.margins[active]
    search = start_search(job.model, best, [window.side for window in windows])
    for window in windows:
        rows, columns = slice(window.row, window.row + window.side), slice(window.column, window.column + window.side)
        # Outside of the window nothing moves: clipping what was clipped before changes no bit.
        around = clean[:, :, rows, columns]
        before = best[:, :, rows, columns].clone()
        proposal = before + 2 * epsilons * window.signs
        proposal = torch.minimum(torch.maximum(proposal, around - epsilons), around + epsilons).clamp_(0, 1)
        best[:, :, rows, columns] = proposal
        found = _margins(search.logits(window.row, window.column, proposal), labels)
        accepted = (found < margins) & (margins > 0)
        margins = torch.where(accepted, found, margins)
        search.accept(accepted)
        best[:, :, rows, columns] = torch.where(accepted.view(-1, 1, 1, 1), proposal, before)
    state.best[active] = best
    state.margins[active] = margins


def _margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Label's logit minus the largest other: (B,)."""
    own = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]
    return logits.gather(1, labels[:, None])[:, 0] - logits.masked_fill(own, -math.inf).amax(dim=1)
