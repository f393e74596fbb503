"""Random intercepts: against closed forms of balanced values, tests of two groups, statsmodels, and simulations."""

import numpy as np
import pytest
from scipy import optimize, stats

from robust201.core.errors import ConfigError
from robust201.statistics.groups import summarise_group, welch_test
from robust201.statistics.mixed_model import combine_estimates, fit_random_intercept
from robust201.statistics.variance import variance_components


def design_of(groups):
    return np.eye(max(groups) + 1)[list(groups)]


def fit_table(table):
    """Fit a full table, one row per cluster and one column per group."""
    clusters, groups = (place.ravel() for place in np.indices(table.shape))
    return fit_random_intercept(design_of(groups), table.ravel(), clusters)


def simulate(seed, n_clusters=6, n_groups=4, of_clusters=1.0, of_residuals=0.7):
    draws = np.random.default_rng(seed)
    intercepts = of_clusters * draws.normal(size=(n_clusters, 1))
    return np.arange(n_groups) + intercepts + of_residuals * draws.normal(size=(n_clusters, n_groups))


GROUPS = [0, 1, 2, 0, 1, 0, 2, 1, 2, 0, 1, 2, 0]
CLUSTERS = ["a", "a", "a", "b", "b", "c", "c", "d", "d", "e", "e", "e", "e"]
VALUES = [0.51, 0.32, 0.18, 0.62, 0.41, 0.38, 0.11, 0.27, 0.16, 0.49, 0.36, 0.2, 0.53]
"""A table with gaps, and one cell twice."""

COEFFICIENTS, OF_CLUSTERS, OF_RESIDUALS = [0.4946185, 0.3169217, 0.1885939], 0.00551231, 0.000512723
"""Of MixedLM(VALUES, design, CLUSTERS).fit(reml=True) in statsmodels 0.15.0."""


@pytest.mark.parametrize("seed", range(5))
def test_variances_of_a_full_table_are_those_of_the_analysis_of_variance(seed):
    table = simulate(seed)
    found, wanted = fit_table(table), variance_components(table, ("cluster", "group"))
    assert wanted["cluster"] > 0
    assert found.cluster_variance == pytest.approx(wanted["cluster"], rel=1e-5)
    assert found.residual_variance == pytest.approx(wanted["cluster x group"], rel=1e-5)
    assert found.coefficients == pytest.approx(table.mean(axis=0))
    difference, mean = found.estimate([1, -1, 0, 0]), found.estimate([0.25] * 4)
    assert difference.error == pytest.approx(np.sqrt(2 * wanted["cluster x group"] / 6), rel=1e-5)
    assert difference.degrees == pytest.approx(5 * 3, rel=1e-5)
    assert mean.degrees == pytest.approx(5, rel=1e-5)
    assert mean.error == pytest.approx(table.mean(axis=1).std(ddof=1) / np.sqrt(6), rel=1e-5)


def test_clusters_without_a_variance_leave_least_squares():
    table = np.array(
        [[0.0, 9.0], [1.0, 8.0], [2.0, 7.0], [3.0, 6.0]]
    )  # the higher in one group, the lower in the other
    found = fit_table(table)
    assert (found.cluster_variance, found.share, found.share_low) == (0, 0, 0)
    assert 0 < found.share_high < 1
    assert found.estimate([1, -1]).p_value == pytest.approx(stats.ttest_ind(table[:, 0], table[:, 1]).pvalue)


def restricted_likelihood(of_clusters, of_residuals):
    x, y = design_of(GROUPS), np.array(VALUES)
    together = np.array([[one == other for other in CLUSTERS] for one in CLUSTERS])
    variance = of_residuals * np.eye(len(y)) + of_clusters * together
    inverse = np.linalg.inv(variance)
    rest = y - x @ np.linalg.solve(x.T @ inverse @ x, x.T @ inverse @ y)
    logs = [np.linalg.slogdet(matrix)[1] for matrix in (variance, x.T @ inverse @ x)]
    return -(sum(logs) + rest @ inverse @ rest) / 2


def profile(share):
    def likelihood(log_total):
        return restricted_likelihood(share * np.exp(log_total), (1 - share) * np.exp(log_total))

    return -optimize.minimize_scalar(lambda log_total: -likelihood(log_total), bounds=(-12, 2)).fun


def test_a_table_with_gaps_has_the_greatest_likelihood_and_its_profile():
    found = fit_random_intercept(design_of(GROUPS), VALUES, CLUSTERS)
    best = restricted_likelihood(found.cluster_variance, found.residual_variance)
    for factor in (0.95, 1.05):
        assert restricted_likelihood(factor * found.cluster_variance, found.residual_variance) < best
        assert restricted_likelihood(found.cluster_variance, factor * found.residual_variance) < best
    assert found.share == pytest.approx(found.cluster_variance / (found.cluster_variance + found.residual_variance))
    assert 0 < found.share_low < found.share < found.share_high < 1
    for end in (found.share_low, found.share_high):
        assert best - profile(end) == pytest.approx(stats.chi2.ppf(0.95, 1) / 2, abs=1e-3)


def test_a_table_with_gaps_has_the_numbers_of_statsmodels():
    found = fit_random_intercept(design_of(GROUPS), VALUES, CLUSTERS)
    assert found.coefficients == pytest.approx(COEFFICIENTS, abs=1e-5)
    assert found.cluster_variance == pytest.approx(OF_CLUSTERS, rel=1e-3)
    assert found.residual_variance == pytest.approx(OF_RESIDUALS, rel=1e-3)
    assert (found.n, found.n_clusters) == (13, 5)


def test_independent_estimates_combine_as_in_welchs_test():
    tables = [simulate(1, n_clusters=7), simulate(2, n_clusters=5, of_clusters=0.5, of_residuals=0.2)]
    found = combine_estimates([fit_table(table).estimate([0.25] * 4) for table in tables], [1, -1])
    wanted = welch_test(*(summarise_group(table.mean(axis=1)) for table in tables))
    assert found.value == pytest.approx(wanted.difference)
    assert found.degrees == pytest.approx(wanted.degrees, rel=1e-3)
    assert found.p_value == pytest.approx(wanted.p_value, rel=1e-3)


@pytest.mark.parametrize("clusters", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_what_cannot_be_told_apart_is_not_a_number(clusters):
    found = fit_random_intercept(design_of([0, 0, 1, 1]), [1.0, 2.0, 4.0, 3.0], clusters)
    assert np.isnan([found.cluster_variance, found.residual_variance, found.share]).all()
    assert np.isnan(found.estimate([1, -1])).all()


def test_equal_values_have_no_variance_and_no_test():
    found = fit_table(np.tile([0.1, 0.3], (3, 1)))
    assert (found.cluster_variance, found.residual_variance) == (0, 0)
    difference = found.estimate([-1, 1])
    assert (difference.value, difference.error) == (pytest.approx(0.2), 0)
    assert np.isnan(difference.p_value)


@pytest.mark.parametrize(
    ("design", "values", "message"),
    [
        (np.eye(3), [1, 2], r"got \(2,\) values and \(3,\) clusters"),
        (np.eye(3), [1, np.nan, 2], "a finite value.*Leave out missing values"),
        (np.ones((3, 2)), [1, 2, 3], "expected as many that no other ones determine, got 1"),
    ],
)
def test_wrong_input_is_one_line(design, values, message):
    with pytest.raises(ConfigError, match=message) as caught:
        fit_random_intercept(design, values, [0, 0, 1])
    assert "\n" not in str(caught.value)
