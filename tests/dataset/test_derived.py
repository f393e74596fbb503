"""Derived metrics, which are computed from stored results, and the requirements of missing metrics."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robust201.core.errors import ConfigError, ResultsError
from robust201.core.records import Weights
from robust201.dataset.derived import DerivedMetrics
from robust201.dataset.reader import Dataset
from robust201.statistics.robustness import robustness_r
from robust201.tasks import TASKS
from tests.conftest import RunCommand
from tests.dataset.test_outcomes import ARCHITECTURES, make_expected_outcomes
from tests.support.fabricated import (
    ChangedStore,
    FabricatedPlan,
    export,
    make_plan,
    make_unit,
    make_values,
)
from tests.support.small_results import write_results

KEYS = ("clean", "fgsm", "pgd", "fog", "frost")
JOINED_CORRUPTIONS = "+".join(sorted(KEYS[3:], key=list(TASKS).index))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("derived")
    plan = make_plan(ARCHITECTURES, KEYS, measurements=("accuracy", "confidence", "cm", "predictions"))
    export(out, plan, formats=("parquet",), outcomes="bits")
    return out


@pytest.fixture(scope="module")
def derived_metrics(folder: Path) -> DerivedMetrics:
    return Dataset(folder).metrics(reference=2)


def get_metric_values(
    derived_metrics: DerivedMetrics, metric: str, key: str, strength: float | None = None
) -> pd.Series:
    (metric_row,) = [
        metric_row
        for metric_row in derived_metrics.metrics
        if (metric_row.metric, metric_row.key, metric_row.strength) == (metric, key, strength)
    ]
    return metric_row.values


def test_robustness_r_integrates_curve_from_clean_accuracy(derived_metrics: DerivedMetrics) -> None:
    series = get_metric_values(derived_metrics, "robustness_r", "pgd")
    strengths = (0.0, 0.5, 1.0, 8.0)
    for cell in ARCHITECTURES:
        curve = [
            make_expected_outcomes(cell, "clean" if strength == 0 else "pgd", strength).mean() for strength in strengths
        ]
        assert series[cell] == pytest.approx(float(robustness_r(strengths, curve).value))
        for strength, accuracy in zip(strengths[1:], curve[1:], strict=True):
            change = get_metric_values(derived_metrics, "relative_change", "pgd", strength)[cell]
            assert change == pytest.approx((accuracy - curve[0]) / curve[0])


def test_success_rate_and_worst_case_use_per_image_outcomes(derived_metrics: DerivedMetrics, folder: Path) -> None:
    success, worst_case = (
        get_metric_values(derived_metrics, "attack_success_rate", "pgd", 1.0),
        get_metric_values(derived_metrics, "worst_case_accuracy", "fgsm+pgd", 1.0),
    )
    for cell in ARCHITECTURES:
        clean, fgsm, pgd = (
            make_expected_outcomes(cell, key, strength)
            for key, strength in (("clean", 0.0), ("fgsm", 1.0), ("pgd", 1.0))
        )
        assert success[cell] == (clean & ~pgd).sum() / clean.sum()
        assert worst_case[cell] == (fgsm & pgd).mean()


def test_corruption_errors_are_relative_to_reference(derived_metrics: DerivedMetrics) -> None:
    errors = {
        key: {
            cell: sum(1 - make_expected_outcomes(cell, key, severity).mean() for severity in (1.0, 3.0, 5.0))
            for cell in ARCHITECTURES
        }
        for key in ("fog", "frost")
    }
    for cell in ARCHITECTURES:
        ratios = [errors[key][cell] / errors[key][2] for key in ("fog", "frost")]
        assert get_metric_values(derived_metrics, "corruption_error", "fog")[cell] == pytest.approx(ratios[0])
        assert get_metric_values(derived_metrics, "mean_corruption_error", JOINED_CORRUPTIONS)[cell] == pytest.approx(
            np.mean(ratios)
        )
    assert get_metric_values(derived_metrics, "relative_mean_corruption_error", JOINED_CORRUPTIONS)[2] == 1


def test_corruption_errors_are_undefined_for_reference_without_errors(tmp_path: Path) -> None:
    accuracies = {
        "clean": {"0": 1.0, "1": 0.9},
        "fog": {"0": [0.8] * 5, "1": [0.7] * 5},
        "snow": {"0": [1.0] * 5, "1": [0.6] * 5},
    }
    derived_metrics = Dataset(write_results(tmp_path, accuracies)).metrics(reference=0)
    undefined = {(row.metric, row.key): row.note for row in derived_metrics.metrics if row.values.isna().all()}
    assert {*undefined} == {
        ("corruption_error", "snow"),
        ("mean_corruption_error", "fog+snow"),
        ("relative_mean_corruption_error", "fog+snow"),
    }
    assert all("undefined: the reference" in note for note in undefined.values())
    assert get_metric_values(derived_metrics, "corruption_error", "fog").to_dict() == pytest.approx({0: 1.0, 1: 1.5})


def test_metrics_list_requirements_of_missing_metrics(tmp_path: Path) -> None:
    export(tmp_path, make_plan(ARCHITECTURES[:2], ("clean", "fgsm", "pgd", "fog"), measurements=("accuracy", "cm")))
    derived_metrics = Dataset(tmp_path).metrics()
    assert {metric_row.metric for metric_row in derived_metrics.metrics} == {"robustness_r", "relative_change"}
    for name in ("attack_success_rate", "worst_case_accuracy"):
        assert "--outcomes bits" in derived_metrics.needs[name]
    assert "reference" in derived_metrics.needs["corruption_error, mean_corruption_error"]
    assert "training seeds" in derived_metrics.needs["training_seed_deviation"]
    with pytest.raises(ConfigError, match="the reference #10 has no results"):
        Dataset(tmp_path).metrics(reference=10)


def test_metrics_compare_training_seeds(tmp_path: Path) -> None:
    weights_by_name = {f"e200-s{seed}": Weights("w" * 64, epochs=200, seed=seed) for seed in (777, 888, 999)}
    units = [make_unit(cell, "cifar10", "pgd", (1.0, 8.0), weights=name) for cell in (0, 2) for name in weights_by_name]
    export(tmp_path, FabricatedPlan(tuple(units), weights=weights_by_name), formats=("parquet",))
    derived_metrics = Dataset(tmp_path, weights="e200-s777").metrics()
    series = get_metric_values(derived_metrics, "training_seed_deviation", "pgd", 8.0)
    for cell in (0, 2):
        accuracies = [make_values(unit, 8.0)["accuracy"] for unit in units if unit.architecture == cell]
        assert series[cell] == pytest.approx(np.std(accuracies, ddof=1))
    assert "training_seed_deviation" not in derived_metrics.needs


def test_metrics_reject_outcomes_of_other_evaluations(folder: Path, tmp_path: Path) -> None:
    plan = make_plan(ARCHITECTURES, ("clean", "pgd"), measurements=("accuracy",))
    export(tmp_path, plan, ChangedStore(change=lambda *_: {"accuracy": np.array(0.25)}), formats=("parquet",))
    overlay = Dataset(folder, tmp_path)
    with pytest.raises(ResultsError, match="the per-image outcomes of"):
        overlay.metrics()


def test_rank_command_prints_metrics(robust201: RunCommand, folder: Path, tmp_path: Path) -> None:
    result = robust201("rank", folder, "--metrics", "--keys", "clean,pgd", "--out", tmp_path / "metrics.csv")
    assert result.code == 0, result.err
    assert "robustness_r" in result.out
    metrics = Dataset(folder).metrics(keys=["clean", "pgd"])
    assert len(pd.read_csv(tmp_path / "metrics.csv")) == len(metrics.to_frame())
    payload = json.loads(robust201("rank", folder, "--metrics", "--json").out)
    assert {metric_row["metric"] for metric_row in payload["metrics"]} == {
        *("robustness_r", "relative_change", "attack_success_rate", "worst_case_accuracy"),
    }
    assert robust201("rank", folder, "--metrics", "--keys", "nothing").code == 2
    assert "'clean,clean'" in robust201("rank", folder, "--metrics", "--keys", "clean,clean").error_line(2)
