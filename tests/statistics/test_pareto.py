"""Pareto fronts match brute force."""

import numpy as np
import pytest

from robust201.statistics.pareto import non_dominated_mask


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_front_matches_brute_force(m: int, seed: int) -> None:
    rng = np.random.default_rng([seed, m])
    points = rng.integers(-1, 7, size=(12, m)).astype(float)
    points[3], points[4, 0] = points[2], np.nan
    expected = [
        not np.isnan(point).any() and not any((other >= point).all() and (other > point).any() for other in points)
        for point in points
    ]
    assert non_dominated_mask(points).tolist() == expected
