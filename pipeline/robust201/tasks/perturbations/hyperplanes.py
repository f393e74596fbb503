"""Projection to a hyperplane inside of [0, 1] by the shortest way in a norm.

Source: Croce and Hein, "Minimally distorted adversarial examples with a fast adaptive boundary attack", ICML 2020,
section 2.1; `pyautoattack.fab_projections`, in whose order of operations this is. There some rows are chosen for a part
of the work; here every row does all of it and what does not apply to it is left aside, so that no device is waited for.

Points t are (B, D), hyperplanes w · x = b have w (B, D) and b (B,). What comes back is the difference (B, D) to the
nearest point, or to the one that comes closest where the hyperplane does not meet [0, 1].
"""

import math
from collections.abc import Callable

import torch
from torch.nn import functional

_FAR = 1e12
_FLAT = 1e-8
"""Entries of w below which L2 and L1 projections do not move."""


def project_linf(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Project in the Linf norm: all entries move by the same length until they reach 0 or 1."""
    w, b = _turned(t, w, b)
    ends = (w < 0).float()
    to_end = (ends - t) * (w != 0).float()
    room = ends - t * (2 * ends - 1)
    order = torch.argsort(room, dim=1)
    offset = b - (w * t).sum(1)
    at_end = (w * to_end).sum(1)
    backwards = order.flip((1,))
    weights = w.gather(1, backwards)
    slopes = torch.cumsum(weights.abs(), dim=1)
    heights = torch.cumsum(-weights * to_end.gather(1, backwards), dim=1) + at_end.unsqueeze(1)
    least = heights[:, -1] - slopes[:, -1] * room.gather(1, order[:, 0:1]).squeeze(1)
    is_near = offset - least > 0
    is_between = (offset - at_end > 0) & ~is_near

    def is_below(place: torch.Tensor) -> torch.Tensor:
        current = order.gather(1, order.shape[1] - 1 - place)
        height = heights.gather(1, place) - slopes.gather(1, place) * room.gather(1, current)
        return offset[:, None] - height > 0

    place = _search(is_below, w, w.shape[1] - 1)
    near = torch.clamp_min((offset - heights[:, -1]) / -slopes[:, -1], min=0).unsqueeze(-1)
    length = torch.clamp_min((offset[:, None] - heights.gather(1, place)) / -slopes.gather(1, place), min=0)
    between = torch.minimum(length, to_end) * ends + torch.maximum(-length, to_end) * (1 - ends)
    moved = torch.where(is_near[:, None], (2 * ends - 1) * near, to_end)
    return torch.where(is_between[:, None], between, moved) * (w != 0).float()


def project_l2(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Project in the L2 norm: entries move along w until they reach 0 or 1."""
    w, c = _turned_with_distance(t, w, b)
    ratios = torch.maximum(t / w, (t - 1) / w).clamp(min=-_FAR, max=_FAR)
    ratios = ratios.masked_fill(w.abs() < _FLAT, _FAR)
    ratios = torch.where(ratios == -_FAR, -ratios, ratios)
    ordered, order = torch.sort(ratios, dim=1)
    following = functional.pad(ordered[:, 1:], (0, 1))
    ordered = ordered.masked_fill(ordered == _FAR, 0)
    following = following.masked_fill(following == _FAR, 0)
    squares = (w**2).gather(1, order)
    total = squares.sum(dim=1, keepdim=True)
    slopes = total - torch.cumsum(squares, dim=1)
    to_end = -(ratios * w) * (w.abs() > _FLAT).float()
    first = -total * ordered[:, 0:1]
    heights = torch.cat((first, torch.cumsum((-following + ordered) * slopes, dim=1) + first), 1)
    is_near = heights[:, 0] + c < 0
    is_beyond = (to_end * w).sum(dim=1) + c > 0
    is_between = ~(is_near | is_beyond)
    place = _search(lambda place: heights.gather(1, place) + c[:, None] > 0, w, w.shape[1] - 1)
    near = -(c / total.squeeze(-1)).unsqueeze(-1) * w
    slope = slopes.gather(1, place)
    length = (heights.gather(1, place) + c[:, None]) / slope + ordered.gather(1, place)
    length = length.masked_fill(slope == 0, 0)
    is_ended = (length > ratios).float()
    between = to_end * is_ended - length * w * (1 - is_ended)
    moved = torch.where(is_near[:, None], near, to_end)
    return torch.where(is_between[:, None], between, moved) * (w.abs() > _FLAT).float()


def project_l1(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Project in the L1 norm: one entry after the other goes to 0 or 1, that of the largest weight first."""
    w, c = _turned_with_distance(t, w, b)
    order = torch.argsort((1 / w).abs().clamp_max(_FAR), dim=1)
    ranks = torch.argsort(order)
    to_end = (-t + (w < 0).float()) * (w != 0).float()
    gains = torch.minimum(-w * t, w * (1 - t)).gather(1, order)
    heights = torch.cumsum(torch.cat((c.unsqueeze(-1), gains), 1), dim=1)
    is_between = heights[:, -1] < 0
    place = _search(lambda place: heights.gather(1, place) > 0, w, heights.shape[1])
    # Rows that do not reach the hyperplane may end behind the last entry; they take none of this.
    place = place.clamp_max(w.shape[1] - 1)
    last = order.gather(1, place)
    length = -heights.gather(1, place) / w.gather(1, last)
    between = (to_end * (ranks < place).float()).scatter(1, last, length)
    return torch.where(is_between[:, None], between, to_end) * (w.abs() > _FLAT).float()


def _turned(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn hyperplanes so that no point lies on their negative side."""
    sign = 2 * ((w * t).sum(1) - b >= 0) - 1
    return w * sign.unsqueeze(1), b * sign


def _turned_with_distance(t: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, and w · t - b instead of b."""
    c = (w * t).sum(1) - b
    sign = 2 * (c >= 0) - 1
    return w * sign.unsqueeze(1), c * sign


def _search(is_below: Callable[[torch.Tensor], torch.Tensor], w: torch.Tensor, high: int) -> torch.Tensor:
    """Find the last place (B, 1) that is below, by halving as often as w has entries for."""
    low = torch.zeros(len(w), 1, dtype=torch.int64, device=w.device)
    top = torch.full_like(low, high)
    for _ in range(math.ceil(math.log2(w.shape[1]))):
        middle = (low + top) // 2
        below = is_below(middle)
        low, top = torch.where(below, middle, low), torch.where(below, top, middle)
    return low
