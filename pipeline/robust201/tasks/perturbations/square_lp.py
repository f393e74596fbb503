"""Square attack in L2 and L1 balls.

Source: Andriushchenko et al., ECCV 2020, algorithm 3 (L2); Croce and Hein, ICML 2021, appendix (L1);
`pyautoattack.square.SquareAttack`. The start is a tiling of small patterns with random signs. A query takes the
perturbation out of one window and puts it into another, together with a pattern there, and scales what results to the
ball; it is kept where the margin shrinks. An image drops out when it is misclassified. The side of the windows follows
the number of the query (AutoAttack's `resc_schedule=False`), and is odd and at least 3 as long as it fits.
"""

import functools
import math
from collections.abc import Iterator, Sequence

import torch

from robust201.tasks.attack_kit.attack_job import AttackJob, Samples, SingleRun, attack_correct
from robust201.tasks.attack_kit.batching import logits_of
from robust201.tasks.attack_kit.context import Context, Perturbed, Request
from robust201.tasks.attack_kit.draws import ImageShape, Swap
from robust201.tasks.attack_kit.step_log import RunLog
from robust201.tasks.parameters import Square
from robust201.tasks.perturbations.l1_projection import correction_to_l1
from robust201.tasks.perturbations.square import SearchState, margins_of, pools, share_of, square_batches

_SMALLEST = 1e-12


def reference(context: Context, parameters: Square, request: Request) -> Iterator[Perturbed]:
    """Attack with AutoAttack."""
    yield from square_batches(context, parameters, request)


def fused(job: AttackJob, parameters: Square) -> Iterator[Perturbed]:
    """Attack images and epsilons side by side (see `square.fused`)."""
    yield from attack_correct(job, functools.partial(pools, job), single_run(parameters), parameters.restarts)


def single_run(parameters: Square) -> SingleRun:
    """Make a run."""

    def run(job: AttackJob, samples: Samples, restart: int) -> tuple[torch.Tensor, torch.Tensor]:
        return _single_run(job, samples, restart, parameters)

    return run


def _single_run(
    job: AttackJob, samples: Samples, restart: int, parameters: Square
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run Square once: the last images, and which are misclassified."""
    ball = _L1Ball(job, samples) if parameters.norm == "L1" else _L2Ball(samples)
    best = ball.into(samples.clean, _tiling(job, samples, restart, parameters.norm), slice(None))
    margins = margins_of(logits_of(job.model, job.batching, best, samples.strengths), samples.labels)
    state = SearchState(best, margins)
    log = job.run_log(samples, parameters.queries, restart)
    log.mark(1, state.margins <= 0)
    query = 0
    while query < parameters.queries:
        active = (state.margins > 0).nonzero().flatten()
        if len(active) == 0:
            break
        stop = min(parameters.queries, query + job.batching.queries_together(query))
        sides = [odd_side_of(number, parameters.p_init, job.shape) for number in range(query, stop)]
        rows = active.cpu().numpy()
        swaps = job.draws.swaps(restart, query, samples.images[rows], sides, job.shape)
        for piece in job.batching.slices(samples.strengths[rows]):
            numbered = [(number, swap.of(piece, active.device)) for number, swap in enumerate(swaps, start=query + 1)]
            _search(job, samples, state, active[piece], numbered, ball, log)
        query = stop
    wrong = logits_of(job.model, job.batching, state.best, samples.strengths).argmax(dim=1) != samples.labels
    log.write(wrong)
    return state.best, wrong


def odd_side_of(query: int, p_init: float, shape: ImageShape) -> int:
    """Side of the windows in a query: odd and 3 or more, but at most the image's shorter side."""
    _, height, width = shape
    side = max(round(math.sqrt(share_of(query, p_init, shape))), 3)
    return min(side + 1 - side % 2, height, width)


def _search(
    job: AttackJob,
    samples: Samples,
    state: SearchState,
    active: torch.Tensor,
    swaps: Sequence[tuple[int, Swap]],
    ball: "_L2Ball | _L1Ball",
    log: RunLog,
) -> None:
    """Make some queries for one batch of samples (see `square`)."""
    clean, labels = samples.clean[active], samples.labels[active]
    best, margins = state.best[active], state.margins[active]
    for number, swap in swaps:
        proposal = ball.proposal(clean, best, swap, active)
        found = margins_of(job.model.logits(proposal), labels)
        accepted = (found < margins) & (margins > 0)
        margins = torch.where(accepted, found, margins)
        if log.is_on:
            log.mark(number, margins <= 0, active)
        best = torch.where(accepted.view(-1, 1, 1, 1), proposal, best)
    state.best[active] = best
    state.margins[active] = margins


class _L2Ball:
    """How perturbations are moved and scaled in L2, in AutoAttack's order of operations."""

    def __init__(self, samples: Samples) -> None:
        self._epsilons = samples.epsilons

    def into(self, clean: torch.Tensor, difference: torch.Tensor, rows: "torch.Tensor | slice") -> torch.Tensor:
        lengths = (difference**2).flatten(1).sum(-1).sqrt().view(-1, 1, 1, 1)
        return (clean + difference / (lengths + _SMALLEST) * self._epsilons[rows]).clamp(0.0, 1.0)

    def proposal(self, clean: torch.Tensor, best: torch.Tensor, swap: Swap, rows: torch.Tensor) -> torch.Tensor:
        difference = best - clean
        here = swap.window()
        at_window, in_windows = difference[here], _only(difference, swap)
        of_window = (at_window**2).sum(dim=(-2, -1), keepdim=True).sqrt()
        of_windows = (in_windows**2).sum(dim=(-2, -1), keepdim=True).sqrt()
        of_image = (difference**2).flatten(1).sum(-1).sqrt().view(-1, 1, 1, 1)
        new = pattern("L2", swap.side, swap.is_turned, best.device) * swap.signs + at_window / (_SMALLEST + of_window)
        room = torch.clamp_min(self._epsilons[rows] ** 2 - of_image**2, 0) / clean.shape[1]
        new = new / (_SMALLEST + (new**2).sum(dim=(-2, -1), keepdim=True).sqrt()) * (room + of_windows**2).sqrt()
        difference[swap.other_window()] = 0.0
        difference[here] = new
        return self.into(clean, difference, rows)


class _L1Ball:
    """The same in L1."""

    def __init__(self, job: AttackJob, samples: Samples) -> None:
        self._epsilons = samples.epsilons
        self._radii = samples.scaled_epsilons(1.0 - 1e-6, job.epsilons)

    def into(self, clean: torch.Tensor, difference: torch.Tensor, rows: "torch.Tensor | slice") -> torch.Tensor:
        return clean + difference + correction_to_l1(clean, difference, self._radii[rows])

    def proposal(self, clean: torch.Tensor, best: torch.Tensor, swap: Swap, rows: torch.Tensor) -> torch.Tensor:
        """Make what a query shows."""
        difference, channels = best - clean, clean.shape[1]
        here = swap.window()
        at_window, in_windows = difference[here], _only(difference, swap)
        of_window = at_window.abs().sum(dim=(-2, -1), keepdim=True)
        of_windows = in_windows.abs().sum(dim=(-2, -1), keepdim=True)
        of_image = difference.abs().flatten(1).sum(dim=-1).view(-1, 1, 1, 1)
        new = pattern("L1", swap.side, swap.is_turned, best.device) * swap.signs + at_window / (_SMALLEST + of_window)
        room = torch.clamp_min(self._epsilons[rows] - of_image, 0) / channels
        new = new / (_SMALLEST + new.abs().sum(dim=(-2, -1), keepdim=True)) * (room + of_windows) * channels
        difference[swap.other_window()] = 0.0
        difference[here] = new
        return self.into(clean, difference, rows)


def _only(difference: torch.Tensor, swap: Swap) -> torch.Tensor:
    """Keep what lies in one of the two windows."""
    mask = torch.zeros_like(difference)
    mask[swap.window()] = 1.0
    mask[swap.other_window()] = 1.0
    return difference * mask


def _tiling(job: AttackJob, samples: Samples, restart: int, norm: str) -> torch.Tensor:
    """Tile images with patterns of a fifth of their height: (B, 3, H, W)."""
    channels, height, width = job.shape
    side = height // 5
    first = (height - side * 5) // 2
    corners = [
        (first + row * side, first + column * side) for row in range(height // side) for column in range(width // side)
    ]
    turned, signs = job.draws.tiles(restart, samples.images, len(corners), channels)
    signs = signs.to(samples.clean.device)
    difference = torch.zeros_like(samples.clean)
    for number, (row, column) in enumerate(corners):
        tile = pattern(norm, side, turned[number], samples.clean.device) * signs[number]
        # Where the height is no multiple of 5, the last tiles hang over the edge.
        place = difference[:, :, row : row + side, column : column + side]
        place += tile[:, :, : place.shape[2], : place.shape[3]]
    return difference


@functools.lru_cache(maxsize=512)
def pattern(norm: str, side: int, is_turned: bool, device: torch.device) -> torch.Tensor:
    """Make the pattern of a window: a bump above its negative, or beside it if turned, of length 1: (side, side)."""
    power, half = 2 if norm == "L2" else 4, side // 2
    # Outside of inference mode, since it is kept.
    with torch.inference_mode(mode=False):
        whole = torch.zeros(side, side)
        whole[:half] = _bump(norm, power, half, side)
        whole[half:] = -1.0 * _bump(norm, power, side - half, side)
        whole /= _length(norm, whole)
        # Contiguous: sums over windows that are laid out the other way round differ in the last bit.
        return (whole.T.contiguous() if is_turned else whole).to(device)


def _bump(norm: str, power: int, height: int, width: int) -> torch.Tensor:
    """Add up nested rectangles around the middle, each fainter than the one inside."""
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
