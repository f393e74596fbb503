"""Random intercept models match closed forms, two-group tests and statsmodels, and maximise the likelihood."""

import numpy as np
import pytest
from scipy import optimize, stats

from robust201.core.errors import ConfigError
from robust201.statistics.groups import summarise_group, welch_test
from robust201.statistics.mixed_model import combine_estimates, fit_random_intercept


def make_group_design(groups):
    """Return a design with one column of indicators per group."""
    return np.eye(max(groups) + 1)[list(groups)]


def fit_table(table):
    """Fit a model to a full table that has one row per cluster and one column per group."""
    clusters, groups = (index.ravel() for index in np.indices(table.shape))
    return fit_random_intercept(make_group_design(groups), table.ravel(), clusters)


def simulate_table(seed, n_clusters=6, n_groups=4, cluster_sd=1.0, residual_sd=0.7):
    """Return random values (clusters, groups) whose group means are 0, 1, 2 and so on."""
    rng = np.random.default_rng(seed)
    intercepts = cluster_sd * rng.normal(size=(n_clusters, 1))
    return np.arange(n_groups) + intercepts + residual_sd * rng.normal(size=(n_clusters, n_groups))


UNBALANCED_GROUPS = [0, 1, 2, 0, 1, 0, 2, 1, 2, 0, 1, 2, 0]
UNBALANCED_CLUSTERS = ["a", "a", "a", "b", "b", "c", "c", "d", "d", "e", "e", "e", "e"]
UNBALANCED_VALUES = [0.51, 0.32, 0.18, 0.62, 0.41, 0.38, 0.11, 0.27, 0.16, 0.49, 0.36, 0.2, 0.53]
"""Values of an unbalanced design, in which cluster e has two values of group 0."""

COEFFICIENTS, CLUSTER_VARIANCE, RESIDUAL_VARIANCE = [0.4946185, 0.3169217, 0.1885939], 0.00551231, 0.000512723
"""Results of MixedLM(UNBALANCED_VALUES, design, UNBALANCED_CLUSTERS).fit(reml=True) in statsmodels 0.15.0."""


@pytest.mark.parametrize("seed", range(5))
def test_balanced_fit_matches_the_analysis_of_variance(seed):
    table = simulate_table(seed)
    model = fit_table(table)
    cluster_means = table.mean(axis=1, keepdims=True)
    residuals = table - cluster_means - table.mean(axis=0) + table.mean()
    residual_variance = (residuals**2).sum() / (5 * 3)
    expected = {
        "cluster": cluster_means.var(ddof=1) - residual_variance / 4,
        "cluster x group": residual_variance,
    }
    assert expected["cluster"] > 0
    assert model.cluster_variance == pytest.approx(expected["cluster"], rel=1e-5)
    assert model.residual_variance == pytest.approx(expected["cluster x group"], rel=1e-5)
    assert model.coefficients == pytest.approx(table.mean(axis=0))
    difference, mean = model.estimate([1, -1, 0, 0]), model.estimate([0.25] * 4)
    assert difference.standard_error == pytest.approx(np.sqrt(2 * expected["cluster x group"] / 6), rel=1e-5)
    assert difference.df == pytest.approx(5 * 3, rel=1e-5)
    assert mean.df == pytest.approx(5, rel=1e-5)
    assert mean.standard_error == pytest.approx(table.mean(axis=1).std(ddof=1) / np.sqrt(6), rel=1e-5)


def test_fit_with_zero_cluster_variance_matches_least_squares():
    # Clusters with higher values in one group have lower values in the other.
    table = np.array([[0.0, 9.0], [1.0, 8.0], [2.0, 7.0], [3.0, 6.0]])
    model = fit_table(table)
    assert (model.cluster_variance, model.share, model.share_low) == (0, 0, 0)
    assert 0 < model.share_high < 1
    assert model.estimate([1, -1]).p_value == pytest.approx(stats.ttest_ind(table[:, 0], table[:, 1]).pvalue)


def restricted_log_likelihood(cluster_variance, residual_variance):
    x, y = make_group_design(UNBALANCED_GROUPS), np.array(UNBALANCED_VALUES)
    same_cluster = np.array([[first == second for second in UNBALANCED_CLUSTERS] for first in UNBALANCED_CLUSTERS])
    variance = residual_variance * np.eye(len(y)) + cluster_variance * same_cluster
    inverse = np.linalg.inv(variance)
    residuals = y - x @ np.linalg.solve(x.T @ inverse @ x, x.T @ inverse @ y)
    log_determinants = [np.linalg.slogdet(matrix)[1] for matrix in (variance, x.T @ inverse @ x)]
    return -(sum(log_determinants) + residuals @ inverse @ residuals) / 2


def profile_log_likelihood(cluster_fraction):
    def negative_log_likelihood(log_total):
        total = np.exp(log_total)
        return -restricted_log_likelihood(cluster_fraction * total, (1 - cluster_fraction) * total)

    return -optimize.minimize_scalar(negative_log_likelihood, bounds=(-12, 2)).fun


def test_unbalanced_fit_maximises_the_likelihood_and_has_a_profile_likelihood_interval():
    model = fit_random_intercept(make_group_design(UNBALANCED_GROUPS), UNBALANCED_VALUES, UNBALANCED_CLUSTERS)
    maximum = restricted_log_likelihood(model.cluster_variance, model.residual_variance)
    for factor in (0.95, 1.05):
        assert restricted_log_likelihood(factor * model.cluster_variance, model.residual_variance) < maximum
        assert restricted_log_likelihood(model.cluster_variance, factor * model.residual_variance) < maximum
    assert model.share == pytest.approx(model.cluster_variance / (model.cluster_variance + model.residual_variance))
    assert 0 < model.share_low < model.share < model.share_high < 1
    for bound in (model.share_low, model.share_high):
        assert maximum - profile_log_likelihood(bound) == pytest.approx(stats.chi2.ppf(0.95, 1) / 2, abs=1e-3)


def test_unbalanced_fit_matches_statsmodels():
    model = fit_random_intercept(make_group_design(UNBALANCED_GROUPS), UNBALANCED_VALUES, UNBALANCED_CLUSTERS)
    assert model.coefficients == pytest.approx(COEFFICIENTS, abs=1e-5)
    assert model.cluster_variance == pytest.approx(CLUSTER_VARIANCE, rel=1e-3)
    assert model.residual_variance == pytest.approx(RESIDUAL_VARIANCE, rel=1e-3)
    assert (model.n, model.n_clusters) == (13, 5)


def test_combined_estimates_match_welch_test():
    tables = [simulate_table(1, n_clusters=7), simulate_table(2, n_clusters=5, cluster_sd=0.5, residual_sd=0.2)]
    result = combine_estimates([fit_table(table).estimate([0.25] * 4) for table in tables], [1, -1])
    expected = welch_test(*(summarise_group(table.mean(axis=1)) for table in tables))
    assert result.value == pytest.approx(expected.difference)
    assert result.df == pytest.approx(expected.df, rel=1e-3)
    assert result.p_value == pytest.approx(expected.p_value, rel=1e-3)


@pytest.mark.parametrize("clusters", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_fit_is_nan_if_the_values_do_not_determine_the_variances(clusters):
    model = fit_random_intercept(make_group_design([0, 0, 1, 1]), [1.0, 2.0, 4.0, 3.0], clusters)
    assert np.isnan([model.cluster_variance, model.residual_variance, model.share]).all()
    assert np.isnan(model.estimate([1, -1])).all()


def test_fit_of_equal_values_has_zero_variance_and_nan_p_value():
    model = fit_table(np.tile([0.1, 0.3], (3, 1)))
    assert (model.cluster_variance, model.residual_variance) == (0, 0)
    difference = model.estimate([-1, 1])
    assert (difference.value, difference.standard_error) == (pytest.approx(0.2), 0)
    assert np.isnan(difference.p_value)


@pytest.mark.parametrize(
    ("design", "values", "message"),
    [
        (np.eye(3), [1, 2], r"got values of shape \(2,\) and clusters of shape \(3,\)"),
        (np.eye(3), [1, np.nan, 2], "a finite value.*Remove missing values"),
        (np.ones((3, 2)), [1, 2, 3], "its rank is only 1"),
    ],
)
def test_fit_rejects_invalid_input_with_a_one_line_error(design, values, message):
    with pytest.raises(ConfigError, match=message) as error:
        fit_random_intercept(design, values, [0, 0, 1])
    assert "\n" not in str(error.value)
