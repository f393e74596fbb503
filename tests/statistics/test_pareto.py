"""Pareto fronts and hypervolumes match brute force."""

import itertools

import numpy as np
import pytest

from robust201.statistics.pareto import front_indices, hypervolume


def hypervolume_of_grid_boxes(points: np.ndarray, size: int) -> float:
    """Count the unit boxes of a grid that any point dominates; the count is the hypervolume of integer points."""
    corners = np.array(list(itertools.product(range(1, size + 1), repeat=points.shape[1])))
    return float((points[:, None] >= corners[None]).all(axis=2).any(axis=0).sum())


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_front_and_hypervolume_match_brute_force(m: int, seed: int) -> None:
    rng = np.random.default_rng([seed, m])
    points = rng.integers(-1, 7, size=(12, m)).astype(float)
    assert hypervolume(points) == hypervolume_of_grid_boxes(points, 6)
    front = points[front_indices(points)]
    is_dominated = [any((other >= point).all() and (other > point).any() for other in points) for point in points]
    expected = {tuple(point) for point, is_worse in zip(points, is_dominated, strict=True) if not is_worse}
    assert {tuple(point) for point in front} == expected
    assert len(np.unique(front, axis=0)) == len(front)


def test_hypervolume_ignores_points_with_a_nonpositive_objective() -> None:
    assert hypervolume(np.array([[5.0, 0.0], [-1.0, 9.0]])) == 0.0
    assert hypervolume(np.empty((0, 2))) == 0.0
