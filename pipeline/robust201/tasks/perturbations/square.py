"""Square attack.

Source: Andriushchenko et al., "Square Attack: a query-efficient black-box adversarial attack via random search",
ECCV 2020, algorithms 1 and 2; `pyautoattack.square.SquareAttack`. The search starts with vertical stripes of ±epsilon.
Each query proposes to change the pixels of a random square by ±2 epsilon, clipped to the ball. The proposal is accepted
if it decreases the margin (the label's logit minus the largest other logit). The search ends when the image is
misclassified. The side of the squares depends on the number of the query, not on its fraction of `queries`
(AutoAttack's `resc_schedule=False`). Only correctly classified images are attacked; images that resist are returned
unchanged.
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
from robust201.tasks.attack_kit.random_numbers import ImageShape, Window
from robust201.tasks.constraints import CONSTRAINTS
from robust201.tasks.parameters import Square

if TYPE_CHECKING:
    from pyautoattack import AutoAttack

FRACTION_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries after which the fraction of pixels in a square is halved (Andriushchenko et al., 2020, section 5.1). This is
AutoAttack's schedule for 10,000 queries, used for any number of queries (`resc_schedule=False`)."""


def reference(context: Context, parameters: Square, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    yield from square_batches(context, parameters, request)


def square_batches(context: Context, parameters: Square, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack's Square."""
    # Import here, so that the fused engine does not import libraries that it does not use.
    from robust201.tasks.perturbations.autoattack_engine import autoattack_batches

    def configure(adversary: "AutoAttack") -> None:
        configure_library(adversary, context, parameters)

    constraint = CONSTRAINTS[parameters.norm]
    yield from autoattack_batches(context, request, constraint, names=("square",), configure=configure)


def configure_library(adversary: "AutoAttack", context: Context, parameters: Square) -> None:
    """Replace AutoAttack's Square object with one that has these parameters."""
    from pyautoattack.square import SquareAttack

    class SquareWithTiesMisclassified(SquareAttack):  # type: ignore[misc]  # the library has no types
        """Treats a margin of 0 or NaN as misclassified, since the library can otherwise fail in L2 and L1."""

        def margin_and_loss(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            margins, losses = super().margin_and_loss(x, y)
            return torch.where(margins > 0, margins, -1.0), losses

    attack_class = SquareAttack if adversary.norm == "Linf" else SquareWithTiesMisclassified
    adversary.square = attack_class(
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
    """Attack images at all epsilons together.

    A query proposes the same window with the same signs to every sample. Only the size of the change differs: it is
    twice the sample's epsilon. Misclassified samples are removed, and the remaining samples of all epsilons and images
    share full batches.
    """
    yield from attack_correct(job, functools.partial(pooled_samples, job), single_run(parameters), parameters.restarts)


def single_run(parameters: Square) -> SingleRun:
    """Return a function that runs the attack once."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _run_square(job, samples, restart, parameters)

    return run


def pooled_samples(job: AttackJob, positions: NDArray[np.int64]) -> Iterator[Samples]:
    """Split images into pools, and yield the samples of each pool.

    A pool contains its images at all epsilons. This keeps batches full for as long as possible.
    """
    n_strengths = len(job.epsilons)
    n_images = len(positions) if job.batching.uses_library_batches else max(1, job.batching.pool_size // n_strengths)
    for start in range(0, len(positions), max(1, n_images)):
        pool = positions[start : start + n_images]
        yield job.samples(np.arange(n_strengths).repeat(len(pool)), np.tile(pool, n_strengths))


@dataclass
class SearchState:
    """State of the search for each sample.

    Attributes:
        accepted_images: (B, 3, H, W) last accepted image.
        margins: (B,) label's logit minus the largest other logit; the search continues while it is above 0.
    """

    accepted_images: torch.Tensor
    margins: torch.Tensor


def _run_square(
    job: AttackJob, samples: Samples, restart: int, parameters: Square
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run Square once (Andriushchenko et al., 2020, algorithm 1).

    Returns:
        Images (B, 3, H, W), and whether they are misclassified (B,).
    """
    stripes = job.random_numbers.stripes(restart, samples.dataset_indices, job.shape).to(samples.clean.device)
    accepted_images = (samples.clean + samples.epsilons * stripes).clamp_(0, 1)
    state = SearchState(
        accepted_images,
        margins_of(logits_of(job.model, job.batching, accepted_images, samples.strength_indices), samples.labels),
    )
    query = 0
    while query < parameters.queries:
        active = (state.margins > 0).nonzero().flatten()
        if len(active) == 0:
            break
        stop = min(parameters.queries, query + job.batching.queries_per_check(query))
        sides = [side_of(query_number, parameters.p_init, job.shape) for query_number in range(query, stop)]
        windows = _to_device(job.random_numbers.windows(restart, query, sides, job.shape), active.device)
        for batch in job.batching.slices(samples.strength_indices[active.cpu().numpy()]):
            _search(job, samples, state, active[batch], windows)
        query = stop
    misclassified = (
        logits_of(job.model, job.batching, state.accepted_images, samples.strength_indices).argmax(dim=1)
        != samples.labels
    )
    return state.accepted_images, misclassified


def side_of(query: int, p_init: float, shape: ImageShape) -> int:
    """Return the side of the square in a query.

    Args:
        query: number of the query, from 0.
        p_init: fraction of the pixels in the first squares.
        shape: shape of an image.

    Returns:
        Side in pixels, at least 1 and at most the image's shorter side.
    """
    _, height, width = shape
    return min(max(round(math.sqrt(covered_pixels(query, p_init, shape))), 1), height, width)


def covered_pixels(query: int, p_init: float, shape: ImageShape) -> float:
    """Return the number of pixels that a square covers in a query, not rounded (see `side_of`)."""
    channels, height, width = shape
    fraction: float = p_init / 2 ** sum(query > halving for halving in FRACTION_HALVINGS)
    # Multiply and divide by the channels, as AutoAttack does, because this affects rounding.
    return fraction * (channels * height * width) / channels


def _to_device(windows: Sequence[Window], device: torch.device) -> list[Window]:
    """Copy the signs of all windows to the device in one transfer."""
    signs = torch.stack([window.signs for window in windows]).to(device)
    return [window._replace(signs=signs[i]) for i, window in enumerate(windows)]


def _search(
    job: AttackJob,
    samples: Samples,
    state: SearchState,
    active: torch.Tensor,
    windows: Sequence[Window],
) -> None:
    """Make consecutive queries for one batch of samples.

    A misclassified sample does not change any more: its margin is at most 0, so no proposal is accepted.
    """
    clean, labels, epsilons = samples.clean[active], samples.labels[active], samples.epsilons[active]
    accepted_images, margins = state.accepted_images[active], state.margins[active]
    search = start_search(job.model, accepted_images, [window.side for window in windows])
    for window in windows:
        rows, columns = slice(window.row, window.row + window.side), slice(window.column, window.column + window.side)
        # Clip only the window, since the other pixels do not change and clipping is idempotent.
        clean_window = clean[:, :, rows, columns]
        window_before = accepted_images[:, :, rows, columns].clone()
        proposal = window_before + 2 * epsilons * window.signs
        proposal = torch.minimum(torch.maximum(proposal, clean_window - epsilons), clean_window + epsilons).clamp_(0, 1)
        accepted_images[:, :, rows, columns] = proposal
        proposed_margins = margins_of(search.logits(window.row, window.column, proposal), labels)
        accepted = (proposed_margins < margins) & (margins > 0)
        margins = torch.where(accepted, proposed_margins, margins)
        search.accept(accepted)
        accepted_images[:, :, rows, columns] = torch.where(accepted.view(-1, 1, 1, 1), proposal, window_before)
    state.accepted_images[active] = accepted_images
    state.margins[active] = margins


def margins_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the label's logit minus the largest other logit: (B,)."""
    is_label = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]
    return logits.gather(1, labels[:, None])[:, 0] - logits.masked_fill(is_label, -math.inf).amax(dim=1)
