"""Pareto fronts and the volume that they dominate; higher values are better."""

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]


def front_places(values: _Floats) -> NDArray[np.int64]:
    """Find the points that no other dominates: is at least as good in all objectives and better in one.

    Args:
        values: (n, m).

    Returns:
        Ascending places of the first of each distinct point of the front.
    """
    distinct, places = np.unique(values, axis=0, return_index=True)
    order = np.lexsort(-distinct.T[::-1])  # the best in the first objective first, so that nothing later dominates
    kept = np.empty(len(distinct), dtype=np.int64)
    count = 0
    for place in order:
        if not (distinct[kept[:count]] >= distinct[place]).all(axis=1).any():
            kept[count] = place
            count += 1
    return np.sort(places[kept[:count]])


def on_front(values: _Floats) -> NDArray[np.bool_]:
    """Mark the points that no other dominates; of equal points all or none, and none that lacks a number.

    Args:
        values: (n, m), NaN where a number is missing.
    """
    marked = np.zeros(len(values), dtype=bool)
    held = np.flatnonzero(~np.isnan(values).any(axis=1))
    distinct, members = np.unique(values[held], axis=0, return_inverse=True)
    best = np.zeros(len(distinct), dtype=bool)
    best[front_places(distinct)] = True
    marked[held] = best[members.reshape(-1)]
    return marked


def hypervolume(values: _Floats) -> float:
    """Measure the volume between 0 and the front of some points (n, m); those below 0 in an objective add nothing.

    Each point adds its box, less what the boxes of later points cover of it (While, Bradstreet and Barone, "A Fast Way
    of Calculating Exact Hypervolumes", IEEE TEC 16, 2012).
    """
    above = values[(values > 0).all(axis=1)]
    return _volume(above) if len(above) else 0.0


def _volume(points: _Floats) -> float:
    """Measure the volume of the boxes between zero and positive points."""
    if points.shape[1] == 1:
        return float(points.max())
    points = points[front_places(points)]
    if points.shape[1] == 2:
        points = points[np.argsort(-points[:, 0])]
        heights = np.diff(points[:, 1], prepend=0.0)
        return float(points[:, 0] @ heights)
    points = points[np.argsort(points[:, -1])]
    volume = float(np.prod(points[-1]))
    for place, point in enumerate(points[:-1]):
        volume += float(np.prod(point)) - _volume(np.minimum(points[place + 1 :], point))
    return volume
