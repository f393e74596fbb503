"""Kendall's tau-b of many columns against SciPy's."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kendalltau

from robust201.statistics.kendall import kendall_taus


def scipy_taus(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute tau-b pair by pair, as figures did before."""
    n_columns = columns.shape[1]
    taus = np.full((n_columns, n_columns), np.nan)
    for i, j in itertools.combinations_with_replacement(range(n_columns), 2):
        both = columns[:, [i, j]]
        both = both[~np.isnan(both).any(axis=1)]
        if len(both) and (both.min(axis=0) < both.max(axis=0)).all():
            # SciPy divides by zero in the p-value of two rows.
            method = "auto" if len(both) > 2 else "exact"
            taus[i, j] = taus[j, i] = 1.0 if i == j else kendalltau(both[:, 0], both[:, 1], method=method).statistic
    return taus


@given(
    st.integers(1, 150), st.integers(0, 4), st.sampled_from([1, 2, 5, 10_000]), st.floats(0, 1), st.integers(0, 1 << 32)
)
def test_taus_are_scipys_with_ties_missing_numbers_and_constant_columns(n_rows, n_columns, n_values, missing, seed):
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, n_values, (n_rows, n_columns)) / 10_000
    columns[rng.random(columns.shape) < missing] = np.nan
    columns[:, :1] = np.sort(columns[:, :1], axis=0)
    np.testing.assert_array_equal(kendall_taus(columns), scipy_taus(columns))


@pytest.mark.parametrize("n_rows", [6466, 40_000, 70_000])  # ranks of 16 bits with positions of 16 and more, of 32 bits
@pytest.mark.parametrize("decimals", [1, 3, 12])
def test_taus_of_many_rows_are_scipys(n_rows, decimals):
    rng = np.random.default_rng(n_rows)
    shared = rng.random(n_rows)
    columns = np.round(np.stack([shared + scale * rng.random(n_rows) for scale in (0, 0.1, 2)], axis=1), decimals)
    columns[:, 2] *= -1
    columns[:5, 1] = np.nan
    np.testing.assert_array_equal(kendall_taus(columns), scipy_taus(columns))


def test_taus_of_two_rows_and_of_none():
    assert kendall_taus([[0.1, 0.2], [0.3, 0.1]])[0, 1] == -1
    assert math.isnan(kendall_taus([[0.1, 0.2], [0.1, 0.3]])[0, 1])
    assert kendall_taus(np.empty((0, 2))).shape == (2, 2)
    assert np.isnan(kendall_taus(np.empty((0, 2)))).all()
