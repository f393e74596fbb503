"""Rank correlations of many columns match SciPy, a bootstrap and formulas."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kendalltau

from robust201.statistics.rank_correlation import correlate_ranks, kendall_taus


def tied_columns(n: int, seed: int = 0) -> NDArray[np.float64]:
    """Return four columns (n, 4); the first three are correlated, and the last two are rounded and have many ties."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=n)
    columns = [base, base + rng.normal(size=n), np.round(-base + rng.normal(size=n)), np.round(2 * rng.normal(size=n))]
    return np.stack(columns, axis=1)


def test_correlate_ranks_matches_scipy_with_ties():
    columns = tied_columns(60)
    result = correlate_ranks(columns)
    for i in range(4):
        for j in range(4):
            first, second = columns[:, i], columns[:, j]
            assert result.values[i, j] == pytest.approx(kendalltau(first, second).statistic, abs=1e-6)


def test_correlate_ranks_does_not_depend_on_blocks(monkeypatch):
    single_block_result = correlate_ranks(tied_columns(50))
    # Blocks of seven rows. Each row needs 50 × 4 signs in float32, each of 4 bytes.
    monkeypatch.setattr("robust201.statistics.rank_correlation._BLOCK_BYTES", 4 * 50 * 4 * 7)
    blockwise_result = correlate_ranks(tied_columns(50))
    np.testing.assert_allclose(single_block_result.values, blockwise_result.values, atol=1e-6)
    np.testing.assert_allclose(single_block_result.influence, blockwise_result.influence, atol=1e-5)


def test_intervals_match_a_bootstrap_over_rows():
    columns, rng = tied_columns(120, seed=3), np.random.default_rng(0)
    result = correlate_ranks(columns)
    samples = [correlate_ranks(columns[rng.integers(0, 120, 120)]) for _ in range(150)]

    def bootstrap_error(estimates: list[float]) -> float:
        return float(np.std(estimates))

    def standard_error(low: float, high: float) -> float:
        return (high - low) / (2 * 1.96)

    pair, partial, gain = result.interval(0, 2), result.partial_correlation(0, 1, [2, 3]), result.gain(1, 2, 0)
    assert gain.value == abs(result.values[1, 0]) - abs(result.values[2, 0])
    assert standard_error(pair.low, pair.high) == pytest.approx(
        bootstrap_error([sample.values[0, 2] for sample in samples]), rel=0.2
    )
    assert standard_error(partial.low, partial.high) == pytest.approx(
        bootstrap_error([sample.partial_correlation(0, 1, [2, 3]).value for sample in samples]), rel=0.2
    )
    assert standard_error(gain.low, gain.high) == pytest.approx(
        bootstrap_error([sample.gain(1, 2, 0).value for sample in samples]), rel=0.2
    )


def test_partial_tau_matches_kendalls_formula():
    result = correlate_ranks(tied_columns(80))
    xy, xz, yz = result.values[0, 1], result.values[0, 2], result.values[1, 2]
    expected = (xy - xz * yz) / np.sqrt((1 - xz**2) * (1 - yz**2))
    assert result.partial_correlation(0, 1, [2]).value == pytest.approx(expected)


def test_correlation_with_a_constant_column_is_nan():
    columns = np.column_stack([np.arange(5.0), np.ones(5), [2.0, 1, 4, 3, 5]])
    result = correlate_ranks(columns)
    assert np.isnan(result.interval(0, 1)).all()
    assert np.isnan(result.partial_correlation(0, 2, [1])).all()
    assert result.interval(0, 2).value == pytest.approx(0.6)
    # A control that is itself one of the two columns is ignored.
    assert result.partial_correlation(0, 2, [0, 2]).value == pytest.approx(0.6)


@pytest.mark.parametrize("columns", [np.ones((2, 2)), np.array([[1.0, np.nan]] * 4), np.ones(4)])
def test_correlate_ranks_rejects_invalid_columns(columns):
    with pytest.raises(ValueError, match="without NaN"):
        correlate_ranks(columns)


def test_kendall_taus_match_scipy_with_ties_and_missing_values():
    columns = tied_columns(40)
    columns[:5, 1] = np.nan
    taus = kendall_taus(columns)
    for i, j in itertools.combinations(range(4), 2):
        pair = columns[5 * (1 in (i, j)) :, [i, j]]
        assert taus[i, j] == taus[j, i] == pytest.approx(kendalltau(*pair.T).statistic, abs=1e-12)
    assert np.isnan(kendall_taus([[0.1, 0.2], [0.1, 0.3]])[0]).all()
    assert np.isnan(kendall_taus(np.empty((0, 2)))).all()
