"""Variance components match the analysis of variance and are unbiased."""

import numpy as np
import pytest

from robust201.core.errors import ConfigError
from robust201.statistics.variance import summarise_seeds, variance_components


def test_summarise_seeds_returns_deviation_of_each_architecture_and_pooled_deviation() -> None:
    accuracies = np.array([[0.9, 0.92, 0.94], [0.8, np.nan, 0.9], [0.7, np.nan, np.nan], [np.nan] * 3])
    deviations, pooled_deviation = summarise_seeds(accuracies)
    np.testing.assert_allclose(deviations[:2], [np.std(accuracies[0], ddof=1), np.std([0.8, 0.9], ddof=1)])
    assert np.isnan(deviations[2:]).all()
    assert pooled_deviation == pytest.approx(
        np.sqrt((2 * np.var(accuracies[0], ddof=1) + np.var([0.8, 0.9], ddof=1)) / 3)
    )
    assert np.isnan(summarise_seeds([[0.5]])[1])


def test_variance_components_of_two_factors_match_mean_squares() -> None:
    values = np.random.default_rng(0).normal(size=(3, 7))
    mean, row_means, column_means = values.mean(), values.mean(axis=1), values.mean(axis=0)
    ms_rows = 7 * ((row_means - mean) ** 2).sum() / 2
    ms_columns = 3 * ((column_means - mean) ** 2).sum() / 6
    ms_residual = ((values - row_means[:, None] - column_means + mean) ** 2).sum() / 12
    result = variance_components(values, ("seed", "image"))
    assert result == pytest.approx(
        {"seed": (ms_rows - ms_residual) / 7, "image": (ms_columns - ms_residual) / 3, "seed x image": ms_residual}
    )


def test_variance_components_are_unbiased() -> None:
    rng = np.random.default_rng(1)
    true_components = {"seed": 0.5, "draw": 0.2, "image": 2.0, "seed x image": 1.0, "seed x draw x image": 0.3}
    factors, sizes = ("seed", "draw", "image"), (3, 4, 5)
    estimates = []
    for _ in range(400):
        values = np.zeros(sizes)
        for name, variance in true_components.items():
            shape = [size if factor in name.split(" x ") else 1 for factor, size in zip(factors, sizes, strict=True)]
            values = values + rng.normal(0, np.sqrt(variance), shape)
        estimates.append(variance_components(values, factors))
    mean_estimates = {name: np.mean([estimate[name] for estimate in estimates]) for name in estimates[0]}
    assert mean_estimates == pytest.approx({name: true_components.get(name, 0.0) for name in mean_estimates}, abs=0.15)


@pytest.mark.parametrize(("shape", "names"), [((3,), ("a", "b")), ((1, 4), ("a", "b")), ((), ())])
def test_variance_components_reject_too_few_levels(shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="expected an axis with at least two levels"):
        variance_components(np.zeros(shape), names)
