"""Comparison of two result sets, from Python and with `robust201 verify --against`."""

import json

import numpy as np
import pytest
from scipy.stats import kendalltau

from robust201.core.errors import InputError
from robust201.export.diff import compare_results, read_result_set
from robust201.reader.dataset import RobustnessDataset
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
    assert [(comparison.key, comparison.strength) for comparison in report.comparisons][:3] == [
        ("clean", 0.0),
        ("fgsm", 0.5),
        ("fgsm", 1.0),
    ]
    comparisons = {(comparison.key, comparison.strength): comparison for comparison in report.comparisons}
    assert len(comparisons) == 10
    changed_comparison = comparisons["pgd", 8.0]
    first_accuracies, second_accuracies = (
        read_result_set(folder).by_weights[""]["cifar10", "pgd", 8.0] for folder in result_sets
    )
    assert changed_comparison.max_difference == report.max_difference == 0.125
    assert changed_comparison.mean_absolute_difference == pytest.approx(0.125 / 4)
    assert changed_comparison.moved_most == ((10, first_accuracies[10], second_accuracies[10]),)
    common_architectures = sorted(first_accuracies.keys() & second_accuracies.keys())
    expected = kendalltau(
        [first_accuracies[architecture] for architecture in common_architectures],
        [second_accuracies[architecture] for architecture in common_architectures],
    ).statistic
    assert changed_comparison.kendall_tau == pytest.approx(expected)
    for evaluation, comparison in comparisons.items():
        if evaluation != ("pgd", 8.0):
            assert (comparison.max_difference, comparison.mean_difference, comparison.moved_most) == (0, 0, ())
            # Tau is None if all numbers of a set are equal.
            assert comparison.kendall_tau is None or comparison.kendall_tau == pytest.approx(1)
    assert compare_results(*result_sets, tolerance=0.125).is_within_tolerance


def test_against_reports_differences_and_exit_code_depends_on_tolerance(result_sets, tmp_path, robust201):
    result = robust201("verify", result_sets[0], "--against", result_sets[1])
    assert result.code == 3
    assert "cifar10 pgd 8" in result.out
    assert "#10" in result.out
    assert "largest difference 0.125, beyond the tolerance of 0" in result.out
    assert result.out.startswith("largest difference 0.125, beyond the tolerance of 0; 1 of 10 rows differs, 9 are")
    assert "fgsm" not in result.out
    assert "--tolerance" not in result.err
    assert robust201("verify", result_sets[0], "--against", result_sets[1], "--tolerance", 0.2).code == 0
    assert "meta.json" in robust201("verify", result_sets[0], "--against", tmp_path).error_line(2)


def divide_by_three(_unit, _strength, values):
    """Return accuracies that have no finite decimal representation."""
    return {"accuracy": values["accuracy"] / 3}


def test_against_suggests_tolerance_for_rounding(tmp_path, robust201):
    folders = {name: tmp_path / name for name in ("exact", "rounded", "published", "coarse")}
    for name, decimals in zip(folders, (None, 3, 3, 2), strict=True):
        export(
            folders[name],
            make_plan(ARCHITECTURES, ["clean", "fgsm", "pgd"]),
            ChangedStore(change=divide_by_three),
            round_to=decimals,
        )
    (folders["published"] / "sweep.json").unlink()  # the published dataset has no sweep.json
    for rounded_folder in ("rounded", "published"):
        result = robust201("verify", folders["exact"], "--against", folders[rounded_folder])
        assert result.code == 3
        assert "Accuracies have all decimals in the first set and 3 decimals in the second." in result.err
        assert result.err.endswith("accept them with: --tolerance 0.0005\n")
        assert (
            robust201("verify", folders["exact"], "--against", folders[rounded_folder], "--tolerance", 0.0005).code == 0
        )
    assert robust201("verify", folders["rounded"], "--against", folders["published"]).code == 0
    result = robust201("verify", folders["rounded"], "--against", folders["coarse"])
    assert "--tolerance 0.0055" in result.err
    report = compare_results(folders["rounded"], folders["coarse"], tolerance=0.0055)
    assert report.is_within_tolerance
    assert report.to_payload()["decimals"] == [3, 2]


def test_compare_results_rejects_sets_without_common_evaluations(tmp_path):
    export(tmp_path / "one", make_plan((0,), ["clean"]))
    export(tmp_path / "two", make_plan((0,), ["fog"]))
    with pytest.raises(InputError, match="they have no dataset, key, strength and architecture in common"):
        compare_results(tmp_path / "one", tmp_path / "two")
    assert np.isfinite(compare_results(tmp_path / "one", tmp_path / "one").max_difference)


def test_against_reports_sources_and_changed_files(tmp_path, robust201):
    plan, export_in_both_formats = make_plan(ARCHITECTURES), tmp_path / "both"
    export(export_in_both_formats, plan, formats=("json", "parquet"))
    export(tmp_path / "parquet", plan, formats=("parquet",))
    result = robust201("verify", export_in_both_formats, "--against", tmp_path / "parquet")
    assert "files read from the first set: Parquet; from the second: Parquet" in result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    # A JSON file that was changed after the export is preferred to the Parquet file.
    pgd_path = export_in_both_formats / "cifar10/pgd_accuracy.json"
    pgd_path.write_text(pgd_path.read_text().replace("0.", "0.0", 1))
    (export_in_both_formats / "cifar10/fog_accuracy.json").unlink()
    result = robust201("verify", export_in_both_formats, "--against", tmp_path / "parquet")
    assert result.code == 3
    expected_source = "Parquet, except JSON for cifar10 pgd"
    assert f"files read from the first set: {expected_source}; from the second: Parquet" in result.out.splitlines()
    changed_warning, missing_warning = result.err.splitlines()
    assert changed_warning.startswith(
        f"warning: 1 of 3 files read from {export_in_both_formats} do not match its SHA256SUMS, such as cifar10/pgd"
    )
    assert missing_warning.endswith("lists are missing, such as cifar10/fog_accuracy.json.")
    payload = json.loads(robust201("verify", export_in_both_formats, "--against", tmp_path / "parquet", "--json").out)
    assert payload["sources"] == [expected_source, "Parquet"]
    assert len(payload["remarks"]) == 2
    assert f"; {expected_source}>" in repr(RobustnessDataset(export_in_both_formats))
    assert repr(RobustnessDataset(tmp_path / "parquet")).endswith("4 keys, 5 architectures>")
