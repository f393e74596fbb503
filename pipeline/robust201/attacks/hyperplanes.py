"""Projection onto the intersection of a hyperplane with the cube [0, 1]^D, along the shortest path in a norm.

Source: Croce and Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack", ICML 2020,
section 2.1; `pyautoattack.fab_projections`, whose order of operations this module follows. The library selects the
points to which each case applies. Here all cases are computed for every point, and results that do not apply are
discarded, so the host never waits for the device.

Points t are (B, D); hyperplanes w · x = b have w (B, D) and b (B,). Projections return the difference (B, D) from t to
the nearest point of the hyperplane in the cube. If the hyperplane does not intersect the cube, they return the
difference to the point of the cube that is closest to the hyperplane. In the code, `is_near` means that the hyperplane
is reached before any entry reaches 0 or 1. `is_between` means that it is reached after some entries (in L1, possibly
none), but not all, have reached 0 or 1.
"""

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from robust201.networks.device import cumulative_sum

_INFINITE_RATIO = 1e12
"""Number that stands for an infinite ratio."""

_MIN_WEIGHT = 1e-8
"""Minimum absolute weight. Projections in L2 and L1 do not move entries of t with a smaller weight in w."""


def project_linf(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Project in the Linf norm: all entries with a weight move by the same length, until they reach 0 or 1."""
    w, b = _oriented(t, w, b)
    ends = (w < 0).float()
    to_end = (ends - t) * (w != 0).float()
    distances_to_end = ends - t * (2 * ends - 1)
    order = torch.argsort(distances_to_end, dim=1)
    offset = b - (w * t).sum(1)
    height_at_end = (w * to_end).sum(1)
    # If all entries move by a length L, w · x changes by heights[i] - slopes[i] * L, where the i + 1 entries with the
    # longest distances still move, and the other entries have reached 0 or 1.
    backwards = order.flip((1,))
    weights = w.gather(1, backwards)
    slopes = cumulative_sum(weights.abs(), dim=1)
    heights = cumulative_sum(-weights * to_end.gather(1, backwards), dim=1) + height_at_end.unsqueeze(1)
    height_at_first_end = heights[:, -1] - slopes[:, -1] * distances_to_end.gather(1, order[:, 0:1]).squeeze(1)
    is_near = offset - height_at_first_end > 0
    is_between = (offset - height_at_end > 0) & ~is_near

    def is_below(index: torch.Tensor) -> torch.Tensor:
        current = order.gather(1, order.shape[1] - 1 - index)
        height = heights.gather(1, index) - slopes.gather(1, index) * distances_to_end.gather(1, current)
        return offset[:, None] - height > 0

    index = bisect(is_below, w, w.shape[1] - 1)
    near_length = torch.clamp_min((offset - heights[:, -1]) / -slopes[:, -1], min=0).unsqueeze(-1)
    length = torch.clamp_min((offset[:, None] - heights.gather(1, index)) / -slopes.gather(1, index), min=0)
    between_moves = torch.minimum(length, to_end) * ends + torch.maximum(-length, to_end) * (1 - ends)
    other_moves = torch.where(is_near[:, None], (2 * ends - 1) * near_length, to_end)
    return torch.where(is_between[:, None], between_moves, other_moves) * (w != 0).float()


def project_l2(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Project in the L2 norm: entries move along w, until they reach 0 or 1."""
    w, c = _oriented_with_distance(t, w, b)
    ratios = torch.maximum(t / w, (t - 1) / w).clamp(min=-_INFINITE_RATIO, max=_INFINITE_RATIO)
    ratios = ratios.masked_fill(w.abs() < _MIN_WEIGHT, _INFINITE_RATIO)
    ratios = torch.where(ratios == -_INFINITE_RATIO, -ratios, ratios)
    ordered, order = torch.sort(ratios, dim=1)
    following = functional.pad(ordered[:, 1:], (0, 1))
    ordered = ordered.masked_fill(ordered == _INFINITE_RATIO, 0)
    following = following.masked_fill(following == _INFINITE_RATIO, 0)
    squares = (w**2).gather(1, order)
    total = squares.sum(dim=1, keepdim=True)
    slopes = total - cumulative_sum(squares, dim=1)
    to_end = -(ratios * w) * (w.abs() > _MIN_WEIGHT).float()
    # `heights` are the changes of w · x when entries have moved along -w by the lengths `ordered`, at which they reach
    # 0 or 1.
    first_height = -total * ordered[:, 0:1]
    heights = torch.cat((first_height, cumulative_sum((-following + ordered) * slopes, dim=1) + first_height), 1)
    is_near = heights[:, 0] + c < 0
    is_beyond = (to_end * w).sum(dim=1) + c > 0
    is_between = ~(is_near | is_beyond)
    index = bisect(lambda index: heights.gather(1, index) + c[:, None] > 0, w, w.shape[1] - 1)
    near_moves = -(c / total.squeeze(-1)).unsqueeze(-1) * w
    slope = slopes.gather(1, index)
    length = (heights.gather(1, index) + c[:, None]) / slope + ordered.gather(1, index)
    length = length.masked_fill(slope == 0, 0)
    is_at_end = (length > ratios).float()
    between_moves = to_end * is_at_end - length * w * (1 - is_at_end)
    other_moves = torch.where(is_near[:, None], near_moves, to_end)
    return torch.where(is_between[:, None], between_moves, other_moves) * (w.abs() > _MIN_WEIGHT).float()


def project_l1(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Project in the L1 norm: entries move to 0 or 1 by decreasing absolute weight, until the hyperplane is reached."""
    w, c = _oriented_with_distance(t, w, b)
    order = torch.argsort((1 / w).abs().clamp_max(_INFINITE_RATIO), dim=1)
    ranks = torch.argsort(order)
    to_end = (-t + (w < 0).float()) * (w != 0).float()
    gains = torch.minimum(-w * t, w * (1 - t)).gather(1, order)
    # `heights` are the values of w · x - b after 0, 1, … entries have moved to 0 or 1.
    heights = cumulative_sum(torch.cat((c.unsqueeze(-1), gains), 1), dim=1)
    is_between = heights[:, -1] < 0
    index = bisect(lambda index: heights.gather(1, index) > 0, w, heights.shape[1])
    # In rows that do not reach the hyperplane, the index may be beyond the last entry. Their moves are discarded below.
    index = index.clamp_max(w.shape[1] - 1)
    last_entry = order.gather(1, index)
    length = -heights.gather(1, index) / w.gather(1, last_entry)
    between_moves = (to_end * (ranks < index).float()).scatter(1, last_entry, length)
    return torch.where(is_between[:, None], between_moves, to_end) * (w.abs() > _MIN_WEIGHT).float()


def _oriented(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flip the signs of hyperplanes so that no point is on the negative side."""
    sign = 2 * ((w * t).sum(1) - b >= 0) - 1
    return w * sign.unsqueeze(1), b * sign


def _oriented_with_distance(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Flip signs as `_oriented` does, but return w · t - b instead of b."""
    c = (w * t).sum(1) - b
    sign = 2 * (c >= 0) - 1
    return w * sign.unsqueeze(1), c * sign


def bisect(is_below: Callable[[torch.Tensor], torch.Tensor], w: torch.Tensor, high: int) -> torch.Tensor:
    """Return the last index (B, 1) below `high` for which `is_below` is true, or 0, in log2(w.shape[1]) bisections."""
    low = torch.zeros(len(w), 1, dtype=torch.int64, device=w.device)
    top = torch.full_like(low, high)
    for _ in range(math.ceil(math.log2(w.shape[1]))):
        middle = (low + top) // 2
        middle_is_below = is_below(middle)
        low, top = torch.where(middle_is_below, middle, low), torch.where(middle_is_below, top, middle)
    return low
