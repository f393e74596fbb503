"""Variance components match the analysis of variance and are unbiased."""

import numpy as np
import pytest

from robust201.statistics.variance import summarise_seeds


def test_summarise_seeds_returns_deviation_of_each_architecture_and_pooled_deviation() -> None:
    accuracies = np.array([[0.9, 0.92, 0.94], [0.8, np.nan, 0.9], [0.7, np.nan, np.nan], [np.nan] * 3])
    deviations, pooled_deviation = summarise_seeds(accuracies)
    np.testing.assert_allclose(deviations[:2], [np.std(accuracies[0], ddof=1), np.std([0.8, 0.9], ddof=1)])
    assert np.isnan(deviations[2:]).all()
    assert pooled_deviation == pytest.approx(
        np.sqrt((2 * np.var(accuracies[0], ddof=1) + np.var([0.8, 0.9], ddof=1)) / 3)
    )
    assert np.isnan(summarise_seeds([[0.5]])[1])
