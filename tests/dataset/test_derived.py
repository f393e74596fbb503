"""Derived metrics, which are computed from stored results, and the requirements of missing metrics."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robust201.cli.evaluate import to_json_rows
from robust201.core.errors import ResultsError
from robust201.dataset.derived import DerivedMetrics
from robust201.dataset.reader import Dataset
from robust201.statistics.robustness import robustness_r
from tests.conftest import RunCommand
from tests.dataset.test_outcomes import ARCHITECTURES, make_expected_outcomes
from tests.support.fabricated import (
    ChangedStore,
    export,
    make_plan,
)

KEYS = ("clean", "fgsm", "pgd", "fog", "frost")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("derived")
    plan = make_plan(ARCHITECTURES, KEYS, measurements=("accuracy", "confidence", "cm", "predictions"))
    export(out, plan, formats=("parquet",), outcomes="bits")
    return out


@pytest.fixture(scope="module")
def derived_metrics(folder: Path) -> DerivedMetrics:
    return Dataset(folder).metrics()


def get_metric_values(
    derived_metrics: DerivedMetrics, metric: str, key: str, strength: float = math.nan
) -> "pd.Series[float]":
    table = derived_metrics.table
    has_strength = table["strength"].isna() if math.isnan(strength) else table["strength"] == strength
    return table[(table["metric"] == metric) & (table["key"] == key) & has_strength].set_index("network")["value"]


def test_robustness_r_integrates_curve_from_clean_accuracy(derived_metrics: DerivedMetrics) -> None:
    series = get_metric_values(derived_metrics, "robustness_r", "pgd")
    strengths = (0.0, 0.5, 1.0, 8.0)
    for cell in ARCHITECTURES:
        curve = [
            make_expected_outcomes(cell, "clean" if strength == 0 else "pgd", strength).mean() for strength in strengths
        ]
        assert series[cell] == pytest.approx(float(robustness_r(strengths, curve).value))
        for strength, accuracy in zip(strengths[1:], curve[1:], strict=True):
            relative_change = get_metric_values(derived_metrics, "relative_change", "pgd", strength)[cell]
            assert relative_change == pytest.approx((accuracy - curve[0]) / curve[0])


def test_success_rate_and_worst_case_use_per_image_outcomes(derived_metrics: DerivedMetrics, folder: Path) -> None:
    success_rates, worst_cases = (
        get_metric_values(derived_metrics, "attack_success_rate", "pgd", 1.0),
        get_metric_values(derived_metrics, "worst_case_accuracy", "fgsm+pgd", 1.0),
    )
    for cell in ARCHITECTURES:
        clean, fgsm, pgd = (
            make_expected_outcomes(cell, key, strength)
            for key, strength in (("clean", 0.0), ("fgsm", 1.0), ("pgd", 1.0))
        )
        assert success_rates[cell] == (clean & ~pgd).sum() / clean.sum()
        assert worst_cases[cell] == (fgsm & pgd).mean()


def test_metrics_list_requirements_of_missing_metrics(tmp_path: Path) -> None:
    export(tmp_path, make_plan(ARCHITECTURES[:2], ("clean", "fgsm", "pgd", "fog"), measurements=("accuracy", "cm")))
    derived_metrics = Dataset(tmp_path).metrics()
    assert {*derived_metrics.table["metric"]} >= {"robustness_r", "relative_change"}
    assert {*derived_metrics.table["metric"]}.isdisjoint(derived_metrics.needs)
    for name in ("attack_success_rate", "worst_case_accuracy"):
        assert "--outcomes bits" in derived_metrics.needs[name]
    assert "robustness_r, relative_change" in Dataset(tmp_path).metrics(keys="fog").needs


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
    assert len(pd.read_csv(tmp_path / "metrics.csv")) == len(metrics.table)
    payload = json.loads(robust201("rank", folder, "--metrics", "--json").out)
    assert payload["metrics"] == to_json_rows(Dataset(folder).metrics().table)
    assert robust201("rank", folder, "--metrics", "--keys", "nothing").code == 2
    for keys, message in (("pgd:1/255", "Leave out the strength"), ("clean,clean", "'clean,clean'")):
        assert message in robust201("rank", folder, "--metrics", "--keys", keys).error_line(exit_code=2)
