"""Comparison of two result sets."""

import json

import numpy as np
import pytest
from scipy.stats import kendalltau

from robust201.core.errors import InputError
from robust201.export.diff import compare_results, read_result_set
from robust201.reader.dataset import RobustnessDataset
from tests.support.fabricated import ChangedStore, export, make_plan

ARCHITECTURES = (0, 2, 10, 309, 991)


def moved_comparison(unit, strength, values):
    """Change the accuracy of #10 under PGD at 8."""
    is_it = (unit.key, unit.architecture, strength) == ("pgd", 10, 8.0)
    return {"accuracy": values["accuracy"] + 0.125} if is_it else {}


@pytest.fixture
def sets(tmp_path):
    export(tmp_path / "one", make_plan(ARCHITECTURES), key_style="published")
    export(tmp_path / "two", make_plan((*ARCHITECTURES[1:], 11)), ChangedStore(change=moved_comparison))
    return tmp_path / "one", tmp_path / "two"


def test_compare_results_reports_differences_ranks_and_moved_architectures(sets):
    report = compare_results(*sets, tolerance=0.1)
    assert not report.within
    assert report.architectures == (1, 4, 1)
    assert [(row.key, row.strength) for row in report.comparisons][:3] == [("clean", 0.0), ("fgsm", 0.5), ("fgsm", 1.0)]
    by_evaluation = {(row.key, row.strength): row for row in report.comparisons}
    assert len(by_evaluation) == 10
    moved_comparison = by_evaluation["pgd", 8.0]
    first_numbers, second_numbers = (read_result_set(folder).by_weights[""]["cifar10", "pgd", 8.0] for folder in sets)
    assert moved_comparison.max_difference == report.max_difference == 0.125
    assert moved_comparison.mean_absolute_difference == pytest.approx(0.125 / 4)
    assert moved_comparison.moved_most == ((10, first_numbers[10], second_numbers[10]),)
    common = sorted(first_numbers.keys() & second_numbers.keys())
    expected = kendalltau([first_numbers[i] for i in common], [second_numbers[i] for i in common]).statistic
    assert moved_comparison.kendall_tau == pytest.approx(expected)
    for evaluation, row in by_evaluation.items():
        if evaluation != ("pgd", 8.0):
            assert (row.max_difference, row.mean_difference, row.moved_most) == (0, 0, ())
            assert row.kendall_tau is None or row.kendall_tau == pytest.approx(1)  # None: all numbers are equal
    assert compare_results(*sets, tolerance=0.125).within


def test_diff_command_reports_differences_and_exits_by_tolerance(sets, tmp_path, robust201):
    run = robust201("diff", *sets)
    assert run.code == 3
    assert "cifar10 pgd 8" in run.out
    assert "#10" in run.out
    assert "largest difference 0.125, beyond the tolerance of 0" in run.out
    assert run.out.startswith("largest difference 0.125, beyond the tolerance of 0; 1 of 10 rows differs, 9 are")
    assert "fgsm" not in run.out
    assert "--tolerance" not in run.err
    everything = robust201("diff", *sets, "--all").out
    assert everything.startswith(run.out.splitlines()[0])
    assert "cifar10 fgsm 0.5" in everything
    assert robust201("diff", *sets, "--tolerance", 0.2).code == 0
    assert "meta.json" in robust201("diff", sets[0], tmp_path).refusal(2)


@pytest.mark.parametrize(("values", "n_values"), [([0.5], 1), (0.5, 1), ([0.5, 0.4, 0.3, 0.2], 4)])
def test_diff_rejects_row_with_wrong_number_of_values(sets, values, n_values, robust201):
    path = sets[1] / "cifar10/pgd_accuracy.json"
    content = json.loads(path.read_text())
    content["cifar10"]["pgd"]["accuracy"]["10"] = values
    path.write_text(json.dumps(content))
    refusal = robust201("diff", *sets).refusal(2)
    assert f"#10 cifar10 pgd accuracy: expected 3 values, one per strength, got {n_values}" in refusal


def test_diff_reports_and_accepts_evaluations_of_one_set(tmp_path, robust201):
    export(tmp_path / "whole", make_plan(ARCHITECTURES))
    export(tmp_path / "part", make_plan(ARCHITECTURES[:2], ["clean", "pgd"]))
    run = robust201("diff", tmp_path / "whole", tmp_path / "part")
    assert run.code == 0
    assert "architectures: 2 in both, 3 only in the first, 0 only in the second" in run.out
    assert "only in the first: cifar10 fgsm, cifar10 fog" in run.out


def thirds(_unit, _strength, values):
    """Return accuracies that have no finite decimal representation."""
    return {"accuracy": values["accuracy"] / 3}


def test_diff_suggests_tolerance_for_rounding(tmp_path, robust201):
    folders = {name: tmp_path / name for name in ("exact", "rounded", "published", "coarse")}
    for name, decimals in zip(folders, (None, 3, 3, 2), strict=True):
        export(
            folders[name],
            make_plan(ARCHITECTURES, ["clean", "fgsm", "pgd"]),
            ChangedStore(change=thirds),
            round_to=decimals,
        )
    (folders["published"] / "sweep.json").unlink()  # the published dataset has no sweep.json
    for other in ("rounded", "published"):
        run = robust201("diff", folders["exact"], folders[other])
        assert run.code == 3
        assert "Accuracies have all decimals in the first set and 3 decimals in the second." in run.err
        assert run.err.endswith("accept them with: --tolerance 0.0005\n")
        assert robust201("diff", folders["exact"], folders[other], "--tolerance", 0.0005).code == 0
    assert robust201("diff", folders["rounded"], folders["published"]).code == 0
    run = robust201("diff", folders["rounded"], folders["coarse"])
    assert "--tolerance 0.0055" in run.err
    report = compare_results(folders["rounded"], folders["coarse"], tolerance=0.0055)
    assert report.within
    assert report.to_payload()["decimals"] == [3, 2]


def test_compare_results_rejects_sets_without_common_evaluations(tmp_path):
    export(tmp_path / "one", make_plan((0,), ["clean"]))
    export(tmp_path / "two", make_plan((0,), ["fog"]))
    with pytest.raises(InputError, match="got none"):
        compare_results(tmp_path / "one", tmp_path / "two")
    assert np.isfinite(compare_results(tmp_path / "one", tmp_path / "one").max_difference)


def test_diff_lists_strengths_of_one_set(tmp_path, robust201):
    keys = ["clean", "fgsm", "pgd"]
    export(tmp_path / "one", make_plan(ARCHITECTURES, [*keys, "fog"], epsilons=(1.0, 8.0, 12.0)))
    export(tmp_path / "two", make_plan(ARCHITECTURES, keys, epsilons=(0.1, 1.0, 8.0)))
    lines = robust201("diff", tmp_path / "one", tmp_path / "two").out.splitlines()
    assert "only in the first: cifar10 fgsm at 12, cifar10 pgd at 12, cifar10 fog" in lines
    assert "only in the second: cifar10 fgsm at 0.1, cifar10 pgd at 0.1" in lines


def test_diff_reports_sources_and_changed_files(tmp_path, robust201):
    plan, both = make_plan(ARCHITECTURES), tmp_path / "both"
    export(both, plan, formats=("json", "parquet"))
    export(tmp_path / "parquet", plan, formats=("parquet",))
    run = robust201("diff", both, tmp_path / "parquet")
    assert "read from the first set: Parquet; from the second: Parquet" in run.out.splitlines()
    assert (run.code, run.err) == (0, "")
    # A JSON file that was changed after the export is preferred to the Parquet file.
    pgd = both / "cifar10/pgd_accuracy.json"
    pgd.write_text(pgd.read_text().replace("0.", "0.0", 1))
    (both / "cifar10/fog_accuracy.json").unlink()
    run = robust201("diff", both, tmp_path / "parquet")
    assert run.code == 3
    source = "Parquet, but JSON of cifar10 pgd"
    assert f"read from the first set: {source}; from the second: Parquet" in run.out.splitlines()
    changed, gone = run.err.splitlines()
    assert changed.startswith(
        f"warning: 1 of 3 files read from {both} do not match its SHA256SUMS, such as cifar10/pgd"
    )
    assert gone.endswith("lists are missing, such as cifar10/fog_accuracy.json.")
    payload = json.loads(robust201("diff", both, tmp_path / "parquet", "--json").out)
    assert payload["sources"] == [source, "Parquet"]
    assert len(payload["remarks"]) == 2
    assert f"; {source}>" in repr(RobustnessDataset(both))
    assert repr(RobustnessDataset(tmp_path / "parquet")).endswith("4 keys, 5 architectures>")
