"""Pareto fronts match brute force."""

import numpy as np
import pytest

from robust201.statistics.pareto import front_indices


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_front_matches_brute_force(m: int, seed: int) -> None:
    rng = np.random.default_rng([seed, m])
    points = rng.integers(-1, 7, size=(12, m)).astype(float)
    front = points[front_indices(points)]
    is_dominated = [any((other >= point).all() and (other > point).any() for other in points) for point in points]
    expected = {tuple(point) for point, is_worse in zip(points, is_dominated, strict=True) if not is_worse}
    assert {tuple(point) for point in front} == expected
    assert len(np.unique(front, axis=0)) == len(front)
