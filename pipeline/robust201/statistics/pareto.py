"""Pareto fronts, for objectives to maximise."""

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
