"""Rankings: the best networks and their ties, checked against statistical tests of the stored outcomes."""

import numpy as np
import pytest
from scipy import stats

from robust201.analysis.dataset_results import read_results
from robust201.analysis.ranking import default_names, nearest_strength, rank_networks
from robust201.core.errors import ConfigError
from robust201.dataset.reader import Dataset
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.significance import holm_adjust, mcnemar_p_values
from tests.support.small_results import results_of, write_results, write_sweep_json

NETWORKS = [21, 41, 3456, 13714]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return Dataset("benchmark_data/cells-cifar10").select(NETWORKS)


@pytest.fixture(scope="module")
def results(dataset):
    (results,) = read_results(dataset)
    return results


def test_default_strengths_are_nearest_to_epsilon_1_and_severity_3(results):
    attacks = ["aa_apgd-ce", "aa_square", "fgsm", "pgd"]
    assert default_names(results) == ["clean", *(f"{key}:1/255" for key in attacks), "corruption"]
    assert nearest_strength("pgd", [0.5, 1.5]) == 0.5
    assert nearest_strength("fog", [1.0, 2.0, 5.0]) == 2.0


def test_ranking_by_one_evaluation_finds_ties_with_mcnemar_tests(results, dataset):
    table = rank_networks(results, ["pgd:1/255"]).table.set_index("network")
    outcomes = dataset.outcomes("cifar10", "pgd", 1.0)
    correct = dict(zip(outcomes.architectures, outcomes.correct, strict=True))
    best, *other_networks = table.index
    assert (
        correct[best].mean()
        == table["accuracy"][best]
        == max(outcomes_of_network.mean() for outcomes_of_network in correct.values())
    )
    pairs = [
        ((correct[best] & ~correct[other]).sum(), (~correct[best] & correct[other]).sum()) for other in other_networks
    ]
    expected = holm_adjust([float(mcnemar_p_values(*pair)) for pair in pairs])
    assert table["p_value"][other_networks].tolist() == pytest.approx(expected)
    assert table["tied"].tolist() == [True, *(p > 0.05 for p in expected)]
    low, high = accuracy_intervals(table["accuracy"], 500)
    np.testing.assert_allclose(table[["low", "high"]].T, [low, high])


def test_ranking_by_a_mean_uses_paired_tests_over_images(results, dataset):
    ranking = rank_networks(results, ["corruption"])
    table = ranking.table.set_index("network")
    evaluations = [column for column in results.columns if column[0] in results.keys("corruption")]
    correct_fractions = np.mean(
        [dataset.outcomes("cifar10", *evaluation).correct for evaluation in evaluations], axis=0
    )
    fractions_by_network = dict(zip(sorted(NETWORKS), correct_fractions, strict=True))
    best, *other_networks = table.index
    assert table["accuracy"][best] == pytest.approx(
        max(fractions_of_network.mean() for fractions_of_network in correct_fractions)
    )
    tests = [stats.ttest_rel(fractions_by_network[best], fractions_by_network[other]) for other in other_networks]
    assert table["p_value"][other_networks].tolist() == pytest.approx(holm_adjust([test.pvalue for test in tests]))
    interval = stats.ttest_1samp(fractions_by_network[best], 0).confidence_interval()
    assert tuple(table.loc[best, ["low", "high"]]) == pytest.approx((interval.low, interval.high))
    assert "(paired tests," in ranking.basis


def test_summary_names_best_and_tied_networks(results):
    ranking = rank_networks(results, ["clean", "pgd:1/255"])
    best = ranking.table[ranking.table["evaluation"] == "pgd:1/255"].iloc[0]
    accuracy, low, high = (100 * best[name] for name in ("accuracy", "low", "high"))
    assert ranking.summary.startswith(
        f"On CIFAR-10, the most robust network is #{best['network']} (PGD, ε = 1/255: {accuracy:.1f}% "
        f"[{low:.1f}, {high:.1f}]), tied with "
    )
    assert "do not differ significantly from the best on these 500 images (paired tests" in ranking.basis


def test_ranking_without_number_of_images_has_no_intervals_or_ties(tmp_path):
    accuracies_by_key = {"clean": {"0": 0.9, "2": 0.8}, "pgd": {"0": [0.5, 0.25], "2": [0.75, 0.0]}}
    write_results(tmp_path, accuracies_by_key, dataset="mine")
    (tmp_path / "sweep.json").write_text(
        '{"format": 1, "measurements": ["accuracy"], "sweep": {}, "strengths": {"mine": {"clean": [0], "pgd": [1, 8]}}}'
    )
    ranking = rank_networks(results_of(tmp_path))
    assert ranking.summary == "On mine, the most robust network is #2 (PGD, ε = 1/255: 75.0%)."
    assert "does not record the number of images" in ranking.basis
    assert ranking.table["low"].isna().all()
    assert r"\#2 & 80.0 & \textbf{75.0} \\" in ranking.latex()


def test_ranking_marks_ties_and_sorts_by_the_first_attack(results):
    ranking = rank_networks(results, ["clean", "pgd:1/255"], max_networks=3)
    pgd_accuracies = results.column("pgd", 1.0).sort_values(ascending=False, kind="stable")
    assert ranking.table["network"].tolist() == [*pgd_accuracies.index[:3]] * 2
    latex, text = ranking.latex(), str(ranking)
    for row in ranking.table[ranking.table["evaluation"] == "pgd:1/255"].to_dict("records"):
        number = f"{100 * row['accuracy']:.1f}"
        assert (rf"\textbf{{{number}}} {{\scriptsize [" in latex) == (f"*{number} [" in text) == row["tied"]
    assert r"network & Clean & PGD, $\varepsilon$ = 1/255 \\" in latex
    assert r"\caption{Accuracy in percent; the best and tied networks are bold." in latex
    with pytest.raises(ConfigError, match="under pgd at this strength"):
        rank_networks(results, ["pgd:5/255"])


def test_ranking_is_sorted_by_attack_with_results_of_most_networks(tmp_path):
    fgsm, pgd = {"0": [0.6, 0.3], "2": [0.7, 0.2], "4": [0.5, 0.1]}, {"0": [0.2, 0.0], "4": [0.3, 0.1]}
    results = results_of(write_results(tmp_path, {"fgsm": fgsm, "pgd": pgd}))
    ranking = rank_networks(results)
    assert (ranking.order, [*ranking.networks]) == ("fgsm:1/255", [2, 0, 4])
    assert "the most robust network is #2 (FGSM, ε = 1/255: 70.0%" in ranking.summary
    assert "#4 (PGD, ε = 1/255, 2 of 3 networks: 30.0%" in rank_networks(results, ["pgd:1/255"]).summary


def test_ranking_order_ignores_attack_without_results_of_best_networks(tmp_path):
    fgsm, pgd = {"0": [0.6, 0.3], "2": [0.7, 0.2]}, {"4": [0.5, 0.1], "6": [0.1, 0.0]}
    ranking = rank_networks(results_of(write_results(tmp_path, {"fgsm": fgsm, "pgd": pgd})))
    assert (ranking.order, [*ranking.networks][:2]) == ("fgsm:1/255", [2, 0])  # though PGD's mean is lower
    assert "#2 (FGSM, ε = 1/255, 2 of 4 networks: 70.0%" in ranking.summary


def test_ranking_basis_states_the_range_of_the_numbers_of_images(tmp_path):
    for key, n_images in (("clean", 80), ("pgd", 40), ("fgsm", None)):
        write_results(tmp_path / key, {key: {"0": [0.5, 0.25], "2": [0.75, 0.5]} if n_images != 80 else {"0": 0.5}})
        record = {} if n_images is None else {"images": {"count": n_images, "seed": 0}}
        write_sweep_json(tmp_path / key, {"cifar10": {key: [0] if n_images == 80 else [1, 8]}}, record)
    (results,) = read_results(Dataset(tmp_path / "clean", tmp_path / "pgd"))
    assert "on these 40 to 80 images" in rank_networks(results).basis
    assert "unknown or varies" not in rank_networks(results).basis
    (results,) = read_results(Dataset(tmp_path / "fgsm", tmp_path / "pgd"))
    basis = rank_networks(results, ["fgsm:1/255", "pgd:1/255"]).basis
    assert "on these 40 images" in basis
    assert "unknown or varies" in basis
