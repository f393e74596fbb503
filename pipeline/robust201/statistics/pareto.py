"""Pareto fronts, for objectives to maximise."""

import numpy as np
from numpy.typing import NDArray


def non_dominated_mask(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask (n,) of the non-dominated points; equal points have equal results.

    Args:
        values: (n, m) points with m objectives. A point is dominated if another point is at least as good in all
            objectives and better in at least one. A point with a NaN is never on the front.
    """
    is_complete = ~np.isnan(values).any(axis=1)
    points, point_of_row = np.unique(values[is_complete], axis=0, return_inverse=True)
    is_on_front = np.zeros(len(points), dtype=bool)
    # Points are visited in descending lexicographic order, so that no point is dominated by a later point.
    for number in reversed(range(len(points))):
        is_on_front[number] = not (points[is_on_front] >= points[number]).all(axis=1).any()
    mask = np.zeros(len(values), dtype=bool)
    mask[is_complete] = is_on_front[point_of_row.reshape(-1)]
    return mask
