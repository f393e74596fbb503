"""Proposals of the Square attack in L2 and L1 balls.

Sources: Andriushchenko et al., ECCV 2020, algorithm 3 (L2); Croce and Hein, ICML 2021, appendix (L1);
`pyautoattack.square.SquareAttack`, whose order of operations this module follows. The search starts with a tiling of
small patterns with random signs. A query sets the perturbation inside one window to 0 and adds a pattern to another
window. The other window then has the previous norm of both windows, increased by the unused part of the radius. Then
the whole perturbation is scaled to the radius (L2) or projected onto the ball (L1).
"""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.batching import BatchedModel
from robust201.attacks.l1_projection import correction_to_l1
from robust201.attacks.norms import norms, per_image
from robust201.attacks.random_numbers import WindowMove
from robust201.attacks.samples import Samples

_MIN_LENGTH = 1e-12


class Moves:
    """Proposals that change two windows each, in L2 or L1 balls; same interface as `square._Squares`."""

    def __init__(self, model: BatchedModel, samples: Samples, norm: str) -> None:
        self._model, self._samples, self._norm = model, samples, norm
        self._moves: list[WindowMove] = []

    def starting_points(self) -> torch.Tensor:
        return _Ball(self._samples, self._norm).project(_tiling(self._samples, self._norm))

    def draw(self, first_query: int, sides: Sequence[int], active: NDArray[np.int64]) -> None:
        samples = self._samples
        moves = samples.random_numbers.window_moves(
            samples.run, first_query, samples.indices[active], sides, samples.shape
        )
        # Copy the signs of all moves to the device in one transfer.
        signs = samples.on_device(torch.stack([move.signs for move in moves]))
        self._moves = [move._replace(signs=signs[i]) for i, move in enumerate(moves)]

    def search(self, rows: torch.Tensor, batch: slice, images: torch.Tensor) -> "MoveSearch":
        moves = [move._replace(signs=move.signs[batch]) for move in self._moves]
        return MoveSearch(self._model, _Ball(self._samples, self._norm, rows), images, moves)


class MoveSearch:
    """Consecutive queries on one batch; same interface as `square._SquareSearch`."""

    def __init__(self, model: BatchedModel, ball: "_Ball", images: torch.Tensor, moves: list[WindowMove]) -> None:
        self._model, self._ball, self._moves = model, ball, moves
        self.images = self._proposals = images

    def propose(self, query: int) -> torch.Tensor:
        self._proposals = self._ball.propose(self.images, self._moves[query])
        return self._model.logits(self._proposals)

    def accept(self, accepted: torch.Tensor) -> None:
        self.images = torch.where(per_image(accepted), self._proposals, self.images)


class _Ball:
    """Moves and projections of perturbations in L2 or L1 balls, for the samples `rows` (b,), or all if it is None."""

    def __init__(self, samples: Samples, norm: str, rows: torch.Tensor | None = None) -> None:
        self._clean, self._epsilons, self._norm = samples.clean, samples.epsilons, norm
        self._l1_radii = samples.per_sample((1.0 - 1e-6) * samples.radii)
        if rows is not None:
            self._clean, self._epsilons, self._l1_radii = (
                values[rows] for values in (self._clean, self._epsilons, self._l1_radii)
            )

    def project(self, difference: torch.Tensor) -> torch.Tensor:
        """Return images (b, C, H, W) with perturbations `difference`, projected (L1) or scaled to the radius (L2)."""
        if self._norm == "L1":
            return self._clean + difference + correction_to_l1(self._clean, difference, self._l1_radii)
        lengths = per_image(norms(difference, self._norm))
        return (self._clean + difference / (lengths + _MIN_LENGTH) * self._epsilons).clamp(0.0, 1.0)

    def propose(self, images: torch.Tensor, move: WindowMove) -> torch.Tensor:
        """Return the proposals (b, C, H, W) of a query."""
        difference, channels = images - self._clean, images.shape[1]
        destination = move.window
        in_destination = difference[destination]
        lengths_in_windows = self._lengths(_inside_windows(difference, move))
        signed_pattern = pattern(self._norm, move.side, move.is_turned, images.device) * move.signs
        new_window = signed_pattern + in_destination / (_MIN_LENGTH + self._lengths(in_destination))
        new_window = new_window / (_MIN_LENGTH + self._lengths(new_window))
        image_lengths = per_image(norms(difference, self._norm))
        if self._norm == "L2":
            unused = torch.clamp_min(self._epsilons**2 - image_lengths**2, 0) / channels
            new_window = new_window * (unused + lengths_in_windows**2).sqrt()
        else:
            unused = torch.clamp_min(self._epsilons - image_lengths, 0) / channels
            new_window = new_window * (unused + lengths_in_windows) * channels
        difference[move.source_window] = 0.0
        difference[destination] = new_window
        return self.project(difference)

    def _lengths(self, windows: torch.Tensor) -> torch.Tensor:
        """Return the length of each channel: (b, C, 1, 1)."""
        if self._norm == "L2":
            return (windows**2).sum(dim=(-2, -1), keepdim=True).sqrt()
        return windows.abs().sum(dim=(-2, -1), keepdim=True)


def _inside_windows(difference: torch.Tensor, window_move: WindowMove) -> torch.Tensor:
    """Return the difference inside of the two windows, and 0 elsewhere."""
    mask = torch.zeros_like(difference)
    mask[window_move.window] = 1.0
    mask[window_move.source_window] = 1.0
    return difference * mask


def _tiling(samples: Samples, norm: str) -> torch.Tensor:
    """Return the perturbation (B, C, H, W) at the start: a tiling of patterns whose side is a fifth of the height."""
    channels, height, width = samples.shape
    side = height // 5
    margin = (height - side * 5) // 2
    corners = [
        (margin + row * side, margin + column * side)
        for row in range(height // side)
        for column in range(width // side)
    ]
    is_turned, signs = samples.random_numbers.tiles(samples.run, samples.indices, len(corners), channels)
    signs = samples.on_device(signs)
    difference = torch.zeros_like(samples.clean)
    for tile_index, (row, column) in enumerate(corners):
        tile = pattern(norm, side, is_turned[tile_index], samples.clean.device) * signs[tile_index]
        # Unless the height is a multiple of 5, the last tiles may extend beyond the edge.
        region = difference[:, :, row : row + side, column : column + side]
        region += tile[:, :, : region.shape[2], : region.shape[3]]
    return difference


@functools.lru_cache(maxsize=512)
def pattern(norm: str, side: int, is_turned: bool, device: torch.device) -> torch.Tensor:
    """Return the pattern (side, side) that a query adds to a window, scaled to norm 1.

    The upper half is a positive bump, and the lower half a negative one. If `is_turned`, the pattern is transposed.
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
