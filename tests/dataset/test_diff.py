"""Comparison of two result sets, from Python and with `robust201 verify --against`."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from robust201.core.errors import InputError
from robust201.dataset.diff import compare_results, read_numbers
from tests.support.fabricated import ChangedStore, export, make_plan

ARCHITECTURES = (0, 2, 10, 309, 991)


def change_accuracy(unit, strength, values):
    """Return a changed accuracy for architecture 10 under PGD at epsilon 8, and no changes for other evaluations."""
    is_changed_evaluation = (unit.key, unit.architecture, strength) == ("pgd", 10, 8.0)
    return {"accuracy": values["accuracy"] + 0.125} if is_changed_evaluation else {}


@pytest.fixture
def result_sets(tmp_path):
    export(tmp_path / "one", make_plan(ARCHITECTURES), key_style="published")
    export(tmp_path / "two", make_plan((*ARCHITECTURES[1:], 11)), ChangedStore(change=change_accuracy))
    return tmp_path / "one", tmp_path / "two"


def test_compare_results_reports_differences_and_rank_correlations(result_sets):
    report = compare_results(*result_sets, tolerance=0.1)
    assert not report.is_within_tolerance
    assert report.architectures == (1, 4, 1)
    comparisons = report.comparisons.set_index(["key", "strength"])
    assert [*comparisons.index][:3] == [("clean", 0.0), ("fgsm", 0.5), ("fgsm", 1.0)]
    assert len(comparisons) == 10
    changed_row = comparisons.loc[("pgd", 8.0)]
    accuracies = [
        read_numbers(folder).query("key == 'pgd' and strength == 8").set_index("architecture")["value"]
        for folder in result_sets
    ]
    assert changed_row["max_difference"] == report.max_difference == 0.125
    assert changed_row["mean_absolute_difference"] == pytest.approx(0.125 / 4)
    (largest,) = report.largest.to_dict("records")
    assert (largest["architecture"], largest["first"], largest["second"]) == (10, accuracies[0][10], accuracies[1][10])
    common = sorted({*accuracies[0].index} & {*accuracies[1].index})
    expected = kendalltau(accuracies[0][common], accuracies[1][common]).statistic
    assert changed_row["kendall_tau"] == pytest.approx(expected)
    unchanged_rows = comparisons.drop(("pgd", 8.0))
    assert (unchanged_rows[["max_difference", "mean_difference"]] == 0).all(axis=None)
    # Tau is NaN if all accuracies of a folder are equal.
    np.testing.assert_allclose(unchanged_rows["kendall_tau"].dropna(), 1)
    assert compare_results(*result_sets, tolerance=0.125).is_within_tolerance


def test_verify_against_reports_differences_and_exits_with_3_beyond_the_tolerance(result_sets, tmp_path, robust201):
    result = robust201("verify", result_sets[0], "--against", result_sets[1])
    assert result.code == 3
    assert "cifar10 pgd 8 10 0.35 0.475" in " ".join(result.out.split())
    assert result.out.startswith("largest difference 0.125, beyond the tolerance of 0; 1 of 10 rows with differences")
    assert "fgsm" not in result.out
    assert robust201("verify", result_sets[0], "--against", result_sets[1], "--tolerance", 0.2).code == 0
    assert "meta.json" in robust201("verify", result_sets[0], "--against", tmp_path).error_line(exit_code=2)


def test_compare_results_lists_strengths_in_only_one_set(tmp_path):
    keys = ["clean", "fgsm", "pgd"]
    export(tmp_path / "one", make_plan(ARCHITECTURES, [*keys, "fog"], epsilons=(1.0, 8.0, 12.0)))
    export(tmp_path / "two", make_plan(ARCHITECTURES, keys, epsilons=(0.1, 1.0, 8.0)))
    report = compare_results(tmp_path / "one", tmp_path / "two")
    assert report.only_first == ("cifar10 fgsm at 12", "cifar10 pgd at 12", "cifar10 fog")
    assert report.only_second == ("cifar10 fgsm at 0.1", "cifar10 pgd at 0.1")


def test_compare_results_rejects_sets_without_common_evaluations(tmp_path):
    export(tmp_path / "one", make_plan((0,), ["clean"]))
    export(tmp_path / "two", make_plan((0,), ["fog"]))
    with pytest.raises(InputError, match="they have no dataset, key, strength and architecture in common"):
        compare_results(tmp_path / "one", tmp_path / "two")
    assert np.isfinite(compare_results(tmp_path / "one", tmp_path / "one").max_difference)
