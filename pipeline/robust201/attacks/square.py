"""Square attack in Linf, L2 and L1 balls.

Source: Andriushchenko et al., "Square Attack: a query-efficient black-box adversarial attack via random search",
ECCV 2020, algorithms 1 to 3; Croce and Hein, ICML 2021, appendix (L1); `pyautoattack.square.SquareAttack`. In Linf, the
search starts with vertical stripes of ±epsilon, and each query proposes to change the pixels of a random square by ±2
epsilon, clipped to the ball. For L2 and L1, see `square_moves`. A proposal is accepted if it decreases the margin (the
label's logit minus the largest other logit). The search ends when the image is misclassified. The side of the squares
depends on the index of the query, not on its fraction of `queries` (AutoAttack's `resc_schedule=False`).

A query changes the same windows in every sample. Misclassified samples are removed, and the remaining samples of all
epsilons and images share full batches.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from robust201.attacks.batching import BatchedModel
from robust201.attacks.context import slices
from robust201.attacks.random_numbers import ImageShape, Window
from robust201.attacks.samples import Samples
from robust201.attacks.square_moves import Moves, MoveSearch
from robust201.tasks.attacks import Square

_FRACTION_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Queries after which the fraction of pixels in a square is halved (Andriushchenko et al., 2020, section 5.1). This is
AutoAttack's schedule for 10,000 queries, used for any number of queries (`resc_schedule=False`)."""


def attack(model: BatchedModel, samples: Samples, options: Square) -> torch.Tensor:
    """Return each image's last accepted proposal, or its starting point if none was accepted."""
    proposals = _Squares(model, samples) if options.norm == "Linf" else Moves(model, samples, options.norm)
    images = proposals.starting_points()
    margins = _margins(model.logits(images), samples.labels)
    query = 0
    while query < options.queries:
        active = np.flatnonzero((margins > 0).cpu().numpy())
        if len(active) == 0:
            break
        stop = min(options.queries, query + queries_per_check(query))
        sides = [side_of(number, options.p_init, samples.shape, options.norm) for number in range(query, stop)]
        proposals.draw(query, sides, active)
        active_rows = torch.from_numpy(active).to(margins.device)
        for batch in slices(len(active), model.batch_size):
            rows = active_rows[batch]
            search = proposals.search(rows, batch, images[rows])
            margins[rows] = _make_queries(search, stop - query, margins[rows], samples.labels[rows])
            images[rows] = search.images
        query = stop
    return images


def queries_per_check(query: int) -> int:
    """Return the number of queries until the next check for fooled images.

    A check stalls the device, but without checks, queries are wasted on images that are already fooled. The probability
    that a query fools an image decreases as 1 / (queries so far). If the interval between checks is proportional to the
    queries so far, the wasted fraction is constant; it is below 1%.
    """
    return min(max(1, query // 32), 64)


def _make_queries(
    search: "_SquareSearch | MoveSearch", n_queries: int, margins: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Make consecutive queries for one batch of samples, and return the margins (B,) of the accepted images.

    A misclassified sample does not change any more: its margin is at most 0, so no proposal is accepted.
    """
    for query in range(n_queries):
        proposed_margins = _margins(search.propose(query), labels)
        accepted = (proposed_margins < margins) & (margins > 0)
        margins = torch.where(accepted, proposed_margins, margins)
        search.accept(accepted)
    return margins


def _margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the label's logit minus the largest other logit: (B,)."""
    is_label = torch.arange(logits.shape[1], device=logits.device) == labels[:, None]
    return logits.gather(1, labels[:, None])[:, 0] - logits.masked_fill(is_label, -math.inf).amax(dim=1)


def side_of(query: int, p_init: float, shape: ImageShape, norm: str) -> int:
    """Return the side in pixels of the window in query number `query` (from 0): 1 to the image's smaller dimension.

    In L2 and L1, it is odd and at least 3, unless the image is too small. `p_init` is the fraction of pixels inside the
    first windows.
    """
    channels, height, width = shape
    fraction = p_init / 2 ** sum(query > halving for halving in _FRACTION_HALVINGS)
    # Multiply and divide by the channels, as AutoAttack does, because this affects rounding.
    side = round(math.sqrt(fraction * (channels * height * width) / channels))
    side = max(side, 1) if norm == "Linf" else max(side, 3) // 2 * 2 + 1
    return min(side, height, width)


class _Squares:
    """Starting points in Linf, and proposals that each change one square of an image."""

    def __init__(self, model: BatchedModel, samples: Samples) -> None:
        self._model, self._samples = model, samples
        self._windows: list[Window] = []

    def starting_points(self) -> torch.Tensor:
        """Return the starting points: (B, C, H, W)."""
        samples = self._samples
        stripes = samples.random_numbers.stripes(samples.run, samples.indices, samples.shape)
        return (samples.clean + samples.epsilons * samples.on_device(stripes)).clamp_(0, 1)

    def draw(self, first_query: int, sides: Sequence[int], active: NDArray[np.int64]) -> None:
        """Draw the proposals of consecutive queries, one per side, for the samples `active` (b,) that still resist."""
        del active  # all samples share the windows and their signs
        samples = self._samples
        windows = samples.random_numbers.windows(samples.run, first_query, sides, samples.shape)
        # Copy the signs of all windows to the device in one transfer.
        signs = samples.on_device(torch.stack([window.signs for window in windows]))
        self._windows = [window._replace(signs=signs[i]) for i, window in enumerate(windows)]

    def search(self, rows: torch.Tensor, batch: slice, images: torch.Tensor) -> "_SquareSearch":
        """Return a search with the proposals drawn last, on the samples `rows` (b,), which are active[batch].

        The search may overwrite `images`, the accepted images (b, C, H, W).
        """
        del batch
        return _SquareSearch(self._model, self._samples, rows, images, self._windows)


class _SquareSearch:
    """Consecutive queries on one batch of samples; `images` are the accepted images (B, C, H, W)."""

    def __init__(
        self, model: BatchedModel, samples: Samples, rows: torch.Tensor, images: torch.Tensor, windows: list[Window]
    ) -> None:
        self.images, self._windows = images, windows
        self._clean, self._epsilons = samples.clean[rows], samples.epsilons[rows]
        self._search = model.start_search(images, [window.side for window in windows])
        self._accepted_window = self._proposed_window = self._window_view = images

    def propose(self, query: int) -> torch.Tensor:
        """Return the logits (B, C) of the proposals of a query, numbered from the start of the search."""
        window = self._windows[query]
        rows, columns = slice(window.row, window.row + window.side), slice(window.column, window.column + window.side)
        # Clip only the window, since the other pixels do not change and clipping is idempotent.
        clean = self._clean[:, :, rows, columns]
        self._window_view = self.images[:, :, rows, columns]
        self._accepted_window = self._window_view.clone()
        proposal = self._accepted_window + 2 * self._epsilons * window.signs
        lower, upper = clean - self._epsilons, clean + self._epsilons
        self._proposed_window = torch.minimum(torch.maximum(proposal, lower), upper).clamp_(0, 1)
        self._window_view.copy_(self._proposed_window)
        return self._search.logits(window.row, window.column, self._proposed_window)

    def accept(self, accepted: torch.Tensor) -> None:
        """Accept the last proposals of some samples: (B,) bool."""
        self._search.accept(accepted)
        self._window_view.copy_(torch.where(accepted.view(-1, 1, 1, 1), self._proposed_window, self._accepted_window))
