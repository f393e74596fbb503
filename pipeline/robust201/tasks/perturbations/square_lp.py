"""Square attack in L2 and L1 balls.

Source: Andriushchenko et al., ECCV 2020, algorithm 3 (L2); Croce and Hein, ICML 2021, appendix (L1);
`pyautoattack.square.SquareAttack`. The search starts with a tiling of small patterns with random signs. A query moves
the perturbation of one window to another, adds a pattern there, and scales the result to the ball. The result is
accepted if the margin decreases. The search ends when the image is misclassified. The side of the windows depends on
the number of the query (AutoAttack's `resc_schedule=False`). It is odd and at least 3, if the image is large enough.
"""

import functools
import math
from collections.abc import Iterator, Sequence

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import logits_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.attack_kit.random_numbers import ImageShape, WindowMove
from robust201.tasks.parameters import Square
from robust201.tasks.perturbations.l1_projection import correction_to_l1
from robust201.tasks.perturbations.square import SearchState, covered_pixels, margins_of, pooled_samples, square_batches

_MIN_LENGTH = 1e-12


def reference(context: Context, parameters: Square, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    yield from square_batches(context, parameters, request)


def fused(job: AttackJob, parameters: Square) -> Iterator[Perturbed]:
    """Attack images at all epsilons together (see `square.fused`)."""
    yield from attack_correct(job, functools.partial(pooled_samples, job), single_run(parameters), parameters.restarts)


def single_run(parameters: Square) -> SingleRun:
    """Return a function that runs the attack once."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _run_square(job, samples, restart, parameters)

    return run


def _run_square(
    job: AttackJob, samples: Samples, restart: int, parameters: Square
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run Square once, and return the images (B, 3, H, W) and whether they are misclassified (B,)."""
    ball = _L1Ball(job, samples) if parameters.norm == "L1" else _L2Ball(samples)
    start_images = ball.project(samples.clean, _tiling(job, samples, restart, parameters.norm), slice(None))
    margins = margins_of(logits_of(job.model, job.batching, start_images, samples.strength_indices), samples.labels)
    state = SearchState(start_images, margins)
    query = 0
    while query < parameters.queries:
        active = (state.margins > 0).nonzero().flatten()
        if len(active) == 0:
            break
        stop = min(parameters.queries, query + job.batching.queries_per_check(query))
        sides = [odd_side_of(query_number, parameters.p_init, job.shape) for query_number in range(query, stop)]
        active_samples = active.cpu().numpy()
        window_moves = job.random_numbers.window_moves(
            restart, query, samples.dataset_indices[active_samples], sides, job.shape
        )
        for batch in job.batching.slices(samples.strength_indices[active_samples]):
            moves = [window_move.for_images(batch, active.device) for window_move in window_moves]
            _search(job, samples, state, active[batch], moves, ball)
        query = stop
    misclassified = (
        logits_of(job.model, job.batching, state.accepted_images, samples.strength_indices).argmax(dim=1)
        != samples.labels
    )
    return state.accepted_images, misclassified


def odd_side_of(query: int, p_init: float, shape: ImageShape) -> int:
    """Return the side of the windows in a query: odd and 3 or more, but at most the image's shorter side."""
    _, height, width = shape
    side = max(round(math.sqrt(covered_pixels(query, p_init, shape))), 3)
    return min(side + 1 - side % 2, height, width)


def _search(
    job: AttackJob,
    samples: Samples,
    state: SearchState,
    active: torch.Tensor,
    moves: Sequence[WindowMove],
    ball: "_L2Ball | _L1Ball",
) -> None:
    """Make consecutive queries for one batch of samples (see `square`)."""
    clean, labels = samples.clean[active], samples.labels[active]
    accepted_images, margins = state.accepted_images[active], state.margins[active]
    for window_move in moves:
        proposal = ball.propose(clean, accepted_images, window_move, active)
        proposed_margins = margins_of(job.model.logits(proposal), labels)
        accepted = (proposed_margins < margins) & (margins > 0)
        margins = torch.where(accepted, proposed_margins, margins)
        accepted_images = torch.where(accepted.view(-1, 1, 1, 1), proposal, accepted_images)
    state.accepted_images[active] = accepted_images
    state.margins[active] = margins


class _L2Ball:
    """Moves and projections of perturbations in L2, in AutoAttack's order of operations."""

    def __init__(self, samples: Samples) -> None:
        self._epsilons = samples.epsilons

    def project(self, clean: torch.Tensor, difference: torch.Tensor, rows: "torch.Tensor | slice") -> torch.Tensor:
        lengths = (difference**2).flatten(1).sum(-1).sqrt().view(-1, 1, 1, 1)
        return (clean + difference / (lengths + _MIN_LENGTH) * self._epsilons[rows]).clamp(0.0, 1.0)

    def propose(
        self, clean: torch.Tensor, images: torch.Tensor, window_move: WindowMove, rows: torch.Tensor
    ) -> torch.Tensor:
        difference = images - clean
        destination = window_move.window()
        in_destination, in_windows = difference[destination], _inside_windows(difference, window_move)
        destination_length = (in_destination**2).sum(dim=(-2, -1), keepdim=True).sqrt()
        window_lengths = (in_windows**2).sum(dim=(-2, -1), keepdim=True).sqrt()
        image_length = (difference**2).flatten(1).sum(-1).sqrt().view(-1, 1, 1, 1)
        signed_pattern = pattern("L2", window_move.side, window_move.is_turned, images.device) * window_move.signs
        new_window = signed_pattern + in_destination / (_MIN_LENGTH + destination_length)
        unused_length = torch.clamp_min(self._epsilons[rows] ** 2 - image_length**2, 0) / clean.shape[1]
        new_window = (
            new_window
            / (_MIN_LENGTH + (new_window**2).sum(dim=(-2, -1), keepdim=True).sqrt())
            * (unused_length + window_lengths**2).sqrt()
        )
        difference[window_move.source_window()] = 0.0
        difference[destination] = new_window
        return self.project(clean, difference, rows)


class _L1Ball:
    """Moves and projections of perturbations in L1, in AutoAttack's order of operations."""

    def __init__(self, job: AttackJob, samples: Samples) -> None:
        self._epsilons = samples.epsilons
        self._radii = samples.scaled_epsilons(1.0 - 1e-6, job.epsilons)

    def project(self, clean: torch.Tensor, difference: torch.Tensor, rows: "torch.Tensor | slice") -> torch.Tensor:
        return clean + difference + correction_to_l1(clean, difference, self._radii[rows])

    def propose(
        self, clean: torch.Tensor, images: torch.Tensor, window_move: WindowMove, rows: torch.Tensor
    ) -> torch.Tensor:
        """Return the image that a query proposes."""
        difference, channels = images - clean, clean.shape[1]
        destination = window_move.window()
        in_destination, in_windows = difference[destination], _inside_windows(difference, window_move)
        destination_length = in_destination.abs().sum(dim=(-2, -1), keepdim=True)
        window_lengths = in_windows.abs().sum(dim=(-2, -1), keepdim=True)
        image_length = difference.abs().flatten(1).sum(dim=-1).view(-1, 1, 1, 1)
        signed_pattern = pattern("L1", window_move.side, window_move.is_turned, images.device) * window_move.signs
        new_window = signed_pattern + in_destination / (_MIN_LENGTH + destination_length)
        unused_length = torch.clamp_min(self._epsilons[rows] - image_length, 0) / channels
        new_window = (
            new_window
            / (_MIN_LENGTH + new_window.abs().sum(dim=(-2, -1), keepdim=True))
            * (unused_length + window_lengths)
            * channels
        )
        difference[window_move.source_window()] = 0.0
        difference[destination] = new_window
        return self.project(clean, difference, rows)


def _inside_windows(difference: torch.Tensor, window_move: WindowMove) -> torch.Tensor:
    """Return the difference inside of the two windows, and 0 elsewhere."""
    mask = torch.zeros_like(difference)
    mask[window_move.window()] = 1.0
    mask[window_move.source_window()] = 1.0
    return difference * mask


def _tiling(job: AttackJob, samples: Samples, restart: int, norm: str) -> torch.Tensor:
    """Return the perturbation (B, 3, H, W) at the start: a tiling of patterns whose side is a fifth of the height."""
    channels, height, width = job.shape
    side = height // 5
    margin = (height - side * 5) // 2
    corners = [
        (margin + row * side, margin + column * side)
        for row in range(height // side)
        for column in range(width // side)
    ]
    is_turned, signs = job.random_numbers.tiles(restart, samples.dataset_indices, len(corners), channels)
    signs = signs.to(samples.clean.device)
    difference = torch.zeros_like(samples.clean)
    for tile_index, (row, column) in enumerate(corners):
        tile = pattern(norm, side, is_turned[tile_index], samples.clean.device) * signs[tile_index]
        # If the height is not a multiple of 5, the last tiles extend beyond the edge.
        region = difference[:, :, row : row + side, column : column + side]
        region += tile[:, :, : region.shape[2], : region.shape[3]]
    return difference


@functools.lru_cache(maxsize=512)
def pattern(norm: str, side: int, is_turned: bool, device: torch.device) -> torch.Tensor:
    """Return the pattern (side, side) that a query adds to a window, scaled to norm 1.

    The upper half is a positive bump, and the lower half a negative one. If turned, they are the left and right halves.
    """
    power, half = 2 if norm == "L2" else 4, side // 2
    # Leave inference mode, since the cached result is also used outside of it.
    with torch.inference_mode(mode=False):
        window_pattern = torch.zeros(side, side)
        window_pattern[:half] = _bump(norm, power, half, side)
        window_pattern[half:] = -1.0 * _bump(norm, power, side - half, side)
        window_pattern /= _length(norm, window_pattern)
        # The transpose must be contiguous, since the last bit of sums over windows depends on the memory layout.
        return (window_pattern.T.contiguous() if is_turned else window_pattern).to(device)


def _bump(norm: str, power: int, height: int, width: int) -> torch.Tensor:
    """Return a sum of nested rectangles, which decreases from the centre to the edges, scaled to norm 1."""
    bump = torch.zeros(height, width)
    row, column = height // 2, width // 2
    for ring in range(max(height // 2, width // 2) + 1):
        rows = slice(max(row, 0), min(row + 2 * ring + 1, height))
        columns = slice(max(column, 0), min(column + 2 * ring + 1, width))
        bump[rows, columns] += 1.0 / torch.tensor([float(ring + 1)]) ** power
        row -= 1
        column -= 1
    return bump / _length(norm, bump)


def _length(norm: str, values: torch.Tensor) -> torch.Tensor:
    return (values**2).sum().sqrt() if norm == "L2" else values.abs().sum()
