"""Leaderboards: the best networks and their ties, checked against independent tests on stored outcomes."""

import numpy as np
import pytest
from scipy import stats

from robust201.analysis.dataset_results import read_results
from robust201.analysis.leaderboard import default_names, make_leaderboard, nearest_strength
from robust201.core.errors import ConfigError
from robust201.dataset.reader import Dataset
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.significance import holm_adjust, mcnemar_p_values
from tests.support.small_results import results_of, write_results

NETWORKS = [21, 41, 3456, 13714]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset("benchmark_data/cells-cifar10").select(NETWORKS)


@pytest.fixture(scope="module")
def results(dataset):
    (results,) = read_results(dataset)
    return results


def test_default_names_use_the_nearest_epsilon(results):
    attacks = ["aa_apgd-ce", "aa_square", "fgsm", "pgd"]
    assert default_names(results) == ["clean", *(f"{key}:1" for key in attacks), "corruption"]
    assert nearest_strength("pgd", [0.5, 1.5, 8.0], 7) == 8.0
    assert nearest_strength("pgd", [0.5, 1.5]) == 0.5
    assert nearest_strength("fog", [1.0, 2.0, 5.0]) == 2.0


def test_standing_of_one_evaluation_has_mcnemar_ties(results, dataset):
    (standing,) = make_leaderboard(results, ["pgd:1"]).standings
    outcomes = dataset.outcomes("cifar10", "pgd", 1.0)
    correct = dict(zip(outcomes.architectures, outcomes.correct, strict=True))
    best, *other_networks = standing.accuracies.index
    assert (
        correct[best].mean()
        == standing.accuracies[best]
        == max(outcomes_of_network.mean() for outcomes_of_network in correct.values())
    )
    pairs = [
        ((correct[best] & ~correct[other]).sum(), (~correct[best] & correct[other]).sum()) for other in other_networks
    ]
    expected = holm_adjust([float(mcnemar_p_values(*pair)) for pair in pairs])
    assert standing.p_values[other_networks].tolist() == pytest.approx(expected)
    assert standing.tied == [other for other, p in zip(other_networks, expected, strict=True) if p > 0.05]
    low, high = accuracy_intervals(standing.accuracies, 500)
    np.testing.assert_allclose([standing.low, standing.high], [low, high])


def test_standing_of_a_mean_uses_paired_tests_over_images(results, dataset):
    (standing,) = make_leaderboard(results, ["corruption"]).standings
    evaluations = [column for column in results.columns if column[0] in results.keys("corruption")]
    fraction_by_image = np.mean(
        [dataset.outcomes("cifar10", *evaluation).correct for evaluation in evaluations], axis=0
    )
    scores = dict(zip(sorted(NETWORKS), fraction_by_image, strict=True))
    best, *other_networks = standing.accuracies.index
    assert standing.accuracies[best] == pytest.approx(
        max(means_of_network.mean() for means_of_network in fraction_by_image)
    )
    tests = [stats.ttest_rel(scores[best], scores[other]) for other in other_networks]
    assert standing.p_values[other_networks].tolist() == pytest.approx(holm_adjust([test.pvalue for test in tests]))
    interval = stats.ttest_1samp(scores[best], 0).confidence_interval()
    assert (standing.low[best], standing.high[best]) == pytest.approx((interval.low, interval.high))
    assert standing.is_paired


def test_answer_names_best_and_tied_networks(results):
    board = make_leaderboard(results, ["clean", "pgd:1"])
    pgd_standing = board.sort_standing
    low, high = (100 * float(series.iloc[0]) for series in (pgd_standing.low, pgd_standing.high))
    assert pgd_standing.name == "pgd:1"
    assert board.answer.startswith(
        f"On CIFAR-10, the most accurate network is #{pgd_standing.best} (PGD, ε = 1/255: "
        f"{pgd_standing.accuracies.iloc[0]:.1%}, 95% interval {low:.1f} to {high:.1f}), tied with "
    )
    assert "do not differ significantly from the best on these 500 images (paired tests" in board.basis
    assert "Holm's correction within each column, level 5%)" in board.basis


def test_leaderboard_without_number_of_images_has_no_intervals_or_ties(tmp_path):
    accuracies_by_key = {"clean": {"0": 0.9, "2": 0.8}, "pgd": {"0": [0.5, 0.25], "2": [0.75, 0.0]}}
    write_results(tmp_path, accuracies_by_key, dataset="mine")
    (tmp_path / "sweep.json").write_text(
        '{"format": 1, "measurements": ["accuracy"], "sweep": {}, "strengths": {"mine": {"clean": [0], "pgd": [1, 8]}}}'
    )
    board = make_leaderboard(results_of(tmp_path))
    assert board.answer == "On mine, the most accurate network is #2 (PGD, ε = 1/255: 75.0%)."
    assert "does not record the number of images" in board.basis
    assert board.to_frame()["low"].isna().all()
    assert r"\#2 & 80.0 & \textbf{75.0} \\" in board.latex


def test_leaderboard_marks_ties_and_sorts_by_the_first_attack(results):
    board = make_leaderboard(results, ["clean", "pgd:1"], max_networks=3)
    frame = board.to_frame()
    accuracies_under_pgd = results.column("pgd", 1.0).sort_values(ascending=False, kind="stable")
    assert frame["network"].tolist() == [*accuracies_under_pgd.index[:3]] * 2
    latex = board.latex
    for row in frame[frame["evaluation"] == "pgd:1"].to_dict("records"):
        percentage = f"{100 * row['accuracy']:.1f}"
        assert (rf"\textbf{{{percentage}}} {{\scriptsize" in latex) == row["tied"]
    assert r"Network & Clean & PGD, $\varepsilon$ = 1/255 \\" in latex
    with pytest.raises(ConfigError, match="it has no results under pgd at strength 5"):
        make_leaderboard(results, ["pgd:5"])
