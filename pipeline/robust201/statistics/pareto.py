"""Pareto fronts and the hypervolume that they dominate; higher values are better."""

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]


def front_indices(values: _Floats) -> NDArray[np.int64]:
    """Return the indices of the non-dominated points (no other is at least as good everywhere and better somewhere).

    Args:
        values: (n, m) points in m objectives.

    Returns:
        Ascending indices; duplicates are represented by their first occurrence.
    """
    distinct, first_indices = np.unique(values, axis=0, return_index=True)
    order = np.lexsort(-distinct.T[::-1])  # best in the first objective first, so that no later point dominates
    front = np.empty(len(distinct), dtype=np.int64)
    count = 0
    for point in order:
        if not (distinct[front[:count]] >= distinct[point]).all(axis=1).any():
            front[count] = point
            count += 1
    return np.sort(first_indices[front[:count]])


def on_front(values: _Floats) -> NDArray[np.bool_]:
    """Mark the non-dominated points. Duplicates are marked alike; points with a NaN are never marked.

    Args:
        values: (n, m) points, NaN for missing numbers.
    """
    is_on_front = np.zeros(len(values), dtype=bool)
    complete = np.flatnonzero(~np.isnan(values).any(axis=1))
    distinct, members = np.unique(values[complete], axis=0, return_inverse=True)
    best = np.zeros(len(distinct), dtype=bool)
    best[front_indices(distinct)] = True
    is_on_front[complete] = best[members.reshape(-1)]
    return is_on_front


def hypervolume(values: _Floats) -> float:
    """Return the volume between 0 and the front of points (n, m); points below 0 in any objective add nothing.

    Each point adds its box minus the part that later points' boxes cover (While, Bradstreet and Barone, "A Fast Way of
    Calculating Exact Hypervolumes", IEEE TEC 16, 2012).
    """
    positive = values[(values > 0).all(axis=1)]
    return _volume(positive) if len(positive) else 0.0


def _volume(points: _Floats) -> float:
    """Return the volume of the union of boxes between 0 and positive points."""
    if points.shape[1] == 1:
        return float(points.max())
    points = points[front_indices(points)]
    if points.shape[1] == 2:
        points = points[np.argsort(-points[:, 0])]
        heights = np.diff(points[:, 1], prepend=0.0)
        return float(points[:, 0] @ heights)
    points = points[np.argsort(points[:, -1])]
    volume = float(np.prod(points[-1]))
    for index, point in enumerate(points[:-1]):
        volume += float(np.prod(point)) - _volume(np.minimum(points[index + 1 :], point))
    return volume
