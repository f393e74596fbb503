"""Derived metrics: values computed from stored results, and requirements of missing metrics."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from robust201.core.errors import ConfigError, ResultsError
from robust201.core.records import Weights
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.derived import DerivedMetrics
from robust201.statistics.intervals import accuracy_intervals
from robust201.statistics.robustness import robustness_r
from robust201.tasks import TASKS
from tests.conftest import RunCommand
from tests.reader.test_outcomes import ARCHITECTURES, expected
from tests.support.fabricated import (
    N_IMAGES,
    ChangedStore,
    FabricatedPlan,
    export,
    make_images,
    make_plan,
    make_unit,
    make_values,
)
from tests.support.small_results import write_results

KEYS = ("clean", "fgsm", "pgd", "fog", "frost")
JOINED = "+".join(sorted(KEYS[3:], key=list(TASKS).index))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("derived")
    plan = make_plan(ARCHITECTURES, KEYS, measurements=("accuracy", "confidence", "cm", "predictions"))
    export(out, plan, formats=("parquet",), outcomes="bits", images_of=lambda _plan, name: make_images(name))
    return out


@pytest.fixture(scope="module")
def derived_metrics(folder: Path) -> DerivedMetrics:
    return RobustnessDataset(folder).metrics(reference=2, n_draws=8)


def values(derived_metrics: DerivedMetrics, metric: str, key: str, strength: float | None = None) -> pd.Series:
    (row,) = [row for row in derived_metrics.metrics if (row.metric, row.key, row.strength) == (metric, key, strength)]
    return row.values


def test_robustness_r_integrates_curve_from_clean_accuracy(derived_metrics: DerivedMetrics) -> None:
    series = values(derived_metrics, "robustness_r", "pgd")
    strengths = (0.0, 0.5, 1.0, 8.0)
    for cell in ARCHITECTURES:
        curve = [expected(cell, "clean" if s == 0 else "pgd", s).mean() for s in strengths]
        assert series[cell] == pytest.approx(float(robustness_r(strengths, curve).value))
        for strength, accuracy in zip(strengths[1:], curve[1:], strict=True):
            change = values(derived_metrics, "relative_change", "pgd", strength)[cell]
            assert change == pytest.approx((accuracy - curve[0]) / curve[0])


def test_success_rate_and_worst_case_use_per_image_outcomes(derived_metrics: DerivedMetrics, folder: Path) -> None:
    success, worst = (
        values(derived_metrics, "attack_success_rate", "pgd", 1.0),
        values(derived_metrics, "worst_case_accuracy", "fgsm+pgd", 1.0),
    )
    for cell in ARCHITECTURES:
        clean, fgsm, pgd = (expected(cell, key, s) for key, s in (("clean", 0.0), ("fgsm", 1.0), ("pgd", 1.0)))
        assert success[cell] == (clean & ~pgd).sum() / clean.sum()
        assert worst[cell] == (fgsm & pgd).mean()
    data = RobustnessDataset(folder)
    some = data.worst_case("cifar10", [("clean", 0), ("fog", 5.0), ("pgd", 0.5)])
    for cell in ARCHITECTURES:
        assert (
            some[cell]
            == (expected(cell, "clean", 0.0) & expected(cell, "fog", 5.0) & expected(cell, "pgd", 0.5)).mean()
        )
    with pytest.raises(ConfigError, match="expected at least one task"):
        data.worst_case("cifar10", [])
    table = data.worst_case("cifar10", [("fog", 5.0), ("pgd", 0.5)], intervals=True)
    n_images = len(expected(0, "fog", 5.0))
    low, high = accuracy_intervals(table["accuracy"], n_images)
    assert (table["low"].tolist(), table["high"].tolist()) == (low.tolist(), high.tolist())


def test_calibration_uses_stored_means(derived_metrics: DerivedMetrics) -> None:
    stored = make_values(make_unit(309, "cifar10", "fog", (3.0,)), 3.0)
    right, accuracy = np.nan_to_num(stored["confidence_prediction"]), stored["accuracy"]
    assert values(derived_metrics, "overconfidence", "fog", 3.0)[309] == pytest.approx(
        accuracy * right[0] + (1 - accuracy) * right[1] - accuracy
    )
    assert (values(derived_metrics, "class_calibration_gap", "clean", 0.0) >= 0).all()
    assert "softmax of every image" in derived_metrics.needs["equal-mass and class-wise calibration error, brier, aurc"]
    assert derived_metrics.needs["ece, maximum_calibration_error"] == "the measurement `calibration`"


def test_corruption_errors_are_relative_to_reference(derived_metrics: DerivedMetrics) -> None:
    errors = {
        key: {cell: sum(1 - expected(cell, key, s).mean() for s in (1.0, 3.0, 5.0)) for cell in ARCHITECTURES}
        for key in ("fog", "frost")
    }
    for cell in ARCHITECTURES:
        ratios = [errors[key][cell] / errors[key][2] for key in ("fog", "frost")]
        assert values(derived_metrics, "corruption_error", "fog")[cell] == pytest.approx(ratios[0])
        assert values(derived_metrics, "mean_corruption_error", JOINED)[cell] == pytest.approx(np.mean(ratios))
    assert values(derived_metrics, "relative_mean_corruption_error", JOINED)[2] == 1


def test_corruption_errors_note_reference_without_errors(tmp_path: Path) -> None:
    rows = {
        "clean": {"0": 1.0, "1": 0.9},
        "fog": {"0": [0.8] * 5, "1": [0.7] * 5},
        "snow": {"0": [1.0] * 5, "1": [0.6] * 5},
    }
    notes = {
        (row.metric, row.key): row.note
        for row in RobustnessDataset(write_results(tmp_path, rows)).metrics(reference=0).metrics
    }
    assert notes["corruption_error", "fog"] == "relative to #0"
    assert notes["corruption_error", "snow"] == "relative to #0; undefined: the reference makes no error"
    assert notes["mean_corruption_error", "fog+snow"].endswith("; undefined: the reference makes no error under snow")
    ending = "; undefined: the reference loses no accuracy under snow"
    assert notes["relative_mean_corruption_error", "fog+snow"].endswith(ending)


@pytest.mark.parametrize("n_draws", [-1, 1, True, 2.5])
def test_metrics_rejects_invalid_number_of_draws(folder: Path, n_draws: Any) -> None:
    with pytest.raises(ConfigError, match="expected 0 or at least 2 bootstrap draws, got"):
        RobustnessDataset(folder).metrics(n_draws=n_draws)


def test_rankings_contain_intervals_and_ties(derived_metrics: DerivedMetrics, folder: Path) -> None:
    by_evaluation = {(ranking.key, ranking.strength): ranking for ranking in derived_metrics.rankings}
    assert len(by_evaluation) == len(derived_metrics.rankings) == 13
    clean = by_evaluation["clean", 0.0]
    ties = RobustnessDataset(folder).rank("cifar10", "clean", ties=0.05)
    assert clean.best == ties.index[0]
    assert {*clean.tied} == {*ties.index[ties["tied"]]}
    assert (clean.paired, clean.n_images) == (True, N_IMAGES)
    assert [*clean.bootstrap] == ["median"]
    assert [*by_evaluation["pgd", 1.0].bootstrap] == ["median", "kendall_tau_to_clean"]
    assert clean.ranks is not None
    assert clean.ranks["best_share"].max() > 0.5
    assert (clean.ranks["low"] <= clean.ranks["high"]).all()


def test_metrics_list_requirements_of_missing_metrics(tmp_path: Path) -> None:
    export(tmp_path, make_plan(ARCHITECTURES[:2], ("clean", "fgsm", "pgd", "fog"), measurements=("accuracy", "cm")))
    derived_metrics = RobustnessDataset(tmp_path).metrics()
    assert {row.metric for row in derived_metrics.metrics} == {"robustness_r", "relative_change"}
    assert not any(ranking.paired for ranking in derived_metrics.rankings)
    for name in ("attack_success_rate", "worst_case_accuracy"):
        assert "--outcomes bits" in derived_metrics.needs[name]
    assert "--reference" in derived_metrics.needs["corruption_error, mean_corruption_error"]
    assert "confidence" in derived_metrics.needs["overconfidence, class_calibration_gap"]
    assert "training seeds" in derived_metrics.needs["training_seed_deviation"]
    with pytest.raises(ConfigError, match="expected results of the reference #10, got none"):
        RobustnessDataset(tmp_path).metrics(reference=10)


def test_metrics_compare_training_seeds(tmp_path: Path) -> None:
    names = {f"e200-s{seed}": Weights("w" * 64, epochs=200, seed=seed) for seed in (777, 888, 999)}
    units = [make_unit(cell, "cifar10", "pgd", (1.0, 8.0), weights=name) for cell in (0, 2) for name in names]
    export(tmp_path, FabricatedPlan(tuple(units), weights=names), formats=("parquet",))
    derived_metrics = RobustnessDataset(tmp_path, weights="e200-s777").metrics()
    series = values(derived_metrics, "training_seed_deviation", "pgd", 8.0)
    for cell in (0, 2):
        accuracies = [make_values(unit, 8.0)["accuracy"] for unit in units if unit.architecture == cell]
        assert series[cell] == pytest.approx(np.std(accuracies, ddof=1))
    assert "training_seed_deviation" not in derived_metrics.needs


def test_metrics_command_prints_tables_or_json(robust201: RunCommand, folder: Path) -> None:
    result = robust201("metrics", folder, "--keys", "clean,pgd")
    assert result.code == 0, result.err
    assert "Rankings" in result.out
    assert "robustness_r" in result.out
    assert "brier, aurc: not computed; requires the softmax of every image" in result.err
    result = robust201("metrics", folder, "--reference", 2, "--bootstrap", 5, "--json")
    payload = json.loads(result.out)
    assert {row["metric"] for row in payload["metrics"]} == {
        *("robustness_r", "relative_change", "attack_success_rate", "worst_case_accuracy", "overconfidence"),
        *("class_calibration_gap", "corruption_error", "mean_corruption_error", "relative_mean_corruption_error"),
    }
    assert payload["rankings"][0].keys() >= {"best", "low", "high", "tied_with_best", "paired", "median", "ranks"}
    assert robust201("metrics", folder, "--keys", "nothing").code == 2
    assert "clean is listed more than once" in robust201("metrics", folder, "--keys", "clean,clean").refusal(2)
    assert "between 0 and 1, got nan" in robust201("metrics", folder, "--ties", "nan").refusal(2)
    assert "0 or at least 2 bootstrap draws, got 1" in robust201("metrics", folder, "--bootstrap", 1).refusal(2)
    for keys in ("clean", "fog"):
        assert robust201("metrics", folder, "--keys", keys, "--reference", "nobody").code == 2


def test_metrics_to_frame(derived_metrics: DerivedMetrics) -> None:
    frame = derived_metrics.to_frame()
    assert [*frame.columns] == ["dataset", "metric", "key", "strength", "architecture", "value"]
    assert len(frame) == sum(len(row.values) for row in derived_metrics.metrics)


def test_kendall_tau_to_clean_does_not_depend_on_order_of_keys(folder: Path) -> None:
    data = RobustnessDataset(folder)
    first, last = (
        {(ranking.key, ranking.strength): ranking.bootstrap for ranking in data.metrics(keys=keys, n_draws=4).rankings}
        for keys in (("clean", "pgd"), ("pgd", "clean"))
    )
    assert "kendall_tau_to_clean" in first["pgd", 1.0]
    assert last == first


def test_metrics_and_rank_reject_outcomes_of_other_evaluations(folder: Path, tmp_path: Path) -> None:
    plan = make_plan(ARCHITECTURES, ("clean", "pgd"), measurements=("accuracy",))
    export(tmp_path, plan, ChangedStore(change=lambda *_: {"accuracy": np.array(0.25)}), formats=("parquet",))
    mixed = RobustnessDataset(tmp_path, folder)
    with pytest.raises(ResultsError, match="the per-image outcomes of"):
        mixed.rank("cifar10", "pgd", 1.0, ties=0.05)
    with pytest.raises(ResultsError, match="the per-image outcomes of"):
        mixed.metrics()
    with pytest.raises(ConfigError, match="expected a level of ties between 0 and 1"):
        RobustnessDataset(folder).metrics(ties=1)


def test_metrics_report_unpaired_comparison_without_warning(tmp_path: Path) -> None:
    export(tmp_path, make_plan(ARCHITECTURES[:2], ("clean",), measurements=("accuracy",)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        derived_metrics = RobustnessDataset(tmp_path).metrics()
    assert [ranking.paired for ranking in derived_metrics.rankings] == [False]


def test_rankings_agree_if_clean_accuracies_are_equal(tmp_path: Path) -> None:
    cells = (0, 2, 3, 5, 9, 10, 11, 21, 41, 309)

    def alike(unit: Any, strength: float, _values: Any) -> dict[str, Any]:
        position = cells.index(unit.architecture)
        attacked = position if unit.key == "fgsm" else (7 * position) % 10
        return {"accuracy": np.array(0.9 if unit.key == "clean" else 0.05 * attacked + 0.01 / strength)}

    def graded(unit: Any, strength: float, _values: Any) -> dict[str, Any]:
        position = cells.index(unit.architecture)
        clean = 0.1 + 0.09 * position
        return {"accuracy": np.array(clean if unit.key == "clean" else clean * (0.9 - 0.07 * position))}

    for name, change, expected_tau in (("alike", alike, 1.0), ("graded", graded, None)):
        plan = make_plan(cells, ("clean", "fgsm"))
        export(tmp_path / name, plan, ChangedStore(change=change), formats=("parquet",))
        (row,) = RobustnessDataset(tmp_path / name).metrics().agreements
        assert (row.key, row.n, row.top) == ("fgsm", 10, 5)
        if expected_tau is not None:
            assert (row.kendall, row.overlap) == (pytest.approx(expected_tau), 5)
        else:  # R decreases with the position; the mean first increases and then decreases
            data = RobustnessDataset(tmp_path / name)
            r = data.metrics().metrics[0].values
            mean = data.to_frame("cifar10", "fgsm").query("strength > 0").groupby("architecture")["value"].mean()
            assert row.kendall == pytest.approx(kendalltau(r, mean.reindex(r.index)).statistic, abs=1e-6)
            assert row.low <= row.kendall <= row.high
            assert row.overlap == len({*r.nlargest(5).index} & {*mean.nlargest(5).index})
    assert json.loads(json.dumps(RobustnessDataset(tmp_path / "alike").metrics().to_payload()))["agreements"]


def test_metrics_command_shows_worst_case_of_keys(robust201: RunCommand, folder: Path) -> None:
    rows = json.loads(robust201("metrics", folder, "--worst-case", "clean,fog=5,pgd=0.5", "--json").out)
    data = RobustnessDataset(folder)
    table = data.worst_case("cifar10", [("clean", 0), ("fog", 5.0), ("pgd", 0.5)], intervals=True)
    derived_metrics = {row["architecture"]: (row["accuracy"], row["low"], row["high"]) for row in rows}
    assert derived_metrics == {
        cell: tuple(row) for cell, row in zip(table.index, table.to_numpy().tolist(), strict=True)
    }
    assert [row["accuracy"] for row in rows] == sorted(table["accuracy"], reverse=True)
    result = robust201("metrics", folder, "--worst-case", "fog=5,pgd=0.5")
    assert "worst of fog 5, pgd 0.5" in result.out
    assert "not of the form KEY=STRENGTH" in robust201("metrics", folder, "--worst-case", "fog=high").refusal(2)
