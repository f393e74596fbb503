"""Pareto fronts and their hypervolumes, for objectives to maximise."""

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]


def front_indices(values: _Floats) -> NDArray[np.int64]:
    """Return the indices of the non-dominated points.

    Args:
        values: (n, m) points with m objectives. A point is dominated if another point is at least as good in all
            objectives and better in at least one.

    Returns:
        Ascending indices; duplicates are represented by their first occurrence.
    """
    distinct, first_indices = np.unique(values, axis=0, return_index=True)
    # Points are visited in descending lexicographic order, so that no point is dominated by a later point.
    order = np.lexsort(-distinct.T[::-1])
    front = np.empty(len(distinct), dtype=np.int64)
    front_size = 0
    for point in order:
        if not (distinct[front[:front_size]] >= distinct[point]).all(axis=1).any():
            front[front_size] = point
            front_size += 1
    return np.sort(first_indices[front[:front_size]])


def non_dominated_mask(values: _Floats) -> NDArray[np.bool_]:
    """Return a mask (n,) of the non-dominated points; equal points have equal results.

    Args:
        values: (n, m) points; a point with a NaN is never on the front.
    """
    is_on_front = np.zeros(len(values), dtype=bool)
    complete_indices = np.flatnonzero(~np.isnan(values).any(axis=1))
    distinct, distinct_indices = np.unique(values[complete_indices], axis=0, return_inverse=True)
    is_distinct_point_on_front = np.zeros(len(distinct), dtype=bool)
    is_distinct_point_on_front[front_indices(distinct)] = True
    is_on_front[complete_indices] = is_distinct_point_on_front[distinct_indices.reshape(-1)]
    return is_on_front


def hypervolume(values: _Floats) -> float:
    """Return the volume between 0 and the front of points (n, m); points with an objective of 0 or less add nothing.

    Each point adds the volume of its box minus the part that the boxes of later points cover (While, Bradstreet and
    Barone, "A Fast Way of Calculating Exact Hypervolumes", IEEE TEC 16, 2012).
    """
    positive = values[(values > 0).all(axis=1)]
    return _volume(positive) if len(positive) else 0.0


def _volume(points: _Floats) -> float:
    """Return the volume of the union of the boxes between 0 and each positive point."""
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
