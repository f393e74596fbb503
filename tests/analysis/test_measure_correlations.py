"""Correlations of measures with accuracies: planted correlations are detected, and vanish if controlled for size."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.measure_correlations import CORRELATION_COLUMNS, MIN_ARCHITECTURES, correlate_measures
from robust201.analysis.terms import collect_measures
from robust201.networks.nb201 import cells
from robust201.networks.nb201.cell_space import NasBench201
from tests.support.small_results import results_of, write_results

N_ARCHITECTURES = 150
INDICES = cells.evaluated_indices()[:N_ARCHITECTURES]


def make_planted_results(tmp_path: Path, n_architectures: int = N_ARCHITECTURES) -> tuple[DatasetResults, pd.DataFrame]:
    """Return results whose accuracies depend on size and quality, and a table of measures."""
    rng = np.random.default_rng(0)
    sizes = np.array([NasBench201().parameter_count(i, n_classes=10) for i in INDICES], np.float64)
    size, quality = np.argsort(np.argsort(sizes)) / N_ARCHITECTURES, rng.uniform(size=N_ARCHITECTURES)
    clean, robust = (0.1 + 0.4 * size + 0.1 * rng.uniform(size=N_ARCHITECTURES)), (0.1 + 0.2 * size + 0.6 * quality)
    rows = {
        "clean": {str(i): float(accuracy) for i, accuracy in zip(INDICES[:n_architectures], clean, strict=False)},
        "pgd": {
            str(i): [float(accuracy), float(accuracy) / 2]
            for i, accuracy in zip(INDICES[:n_architectures], robust, strict=False)
        },
    }
    table = pd.DataFrame(
        {
            "architecture": INDICES,
            "quality": quality + 0.1 * rng.normal(size=N_ARCHITECTURES),
            "like size": size + 0.01 * rng.normal(size=N_ARCHITECTURES),
            "noise": rng.normal(size=N_ARCHITECTURES),
            "same": 1.0,
        }
    )
    results = results_of(write_results(tmp_path, rows))
    return results, table


def test_correlate_measures_finds_planted_correlations(tmp_path):
    results, table = make_planted_results(tmp_path)
    correlations = correlate_measures(results, table)
    assert tuple(correlations.columns) == CORRELATION_COLUMNS
    assert len(correlations) == 6 * 3
    rows = correlations.set_index(["measure", "key", "strength"])
    quality = rows.loc["quality", "pgd", 1.0]
    expected = kendalltau(table["quality"], results.column("pgd", 1.0)).statistic
    assert quality["kendall"] == pytest.approx(expected, abs=1e-6)
    assert quality["kendall_low"] < expected < quality["kendall_high"]
    assert quality["beats_parameters"]
    assert quality["partial"] > quality["kendall"]
    like_size = rows.loc["like size", "pgd", 1.0]
    assert like_size["kendall_low"] > 0
    assert like_size["partial_low"] < 0 < like_size["partial_high"]
    noise = rows.loc["noise", "pgd", 8.0]
    assert noise["kendall_low"] < 0 < noise["kendall_high"]
    assert not noise["beats_parameters"]
    assert not rows.loc["parameters", "pgd", 1.0]["beats_parameters"]
    assert np.isnan(rows.loc["same", "clean", 0.0]["kendall"])


def test_correlate_measures_selects_keys_and_skips_few_architectures(tmp_path):
    results, table = make_planted_results(tmp_path / "few", MIN_ARCHITECTURES - 1)
    assert correlate_measures(results, table).empty
    results, table = make_planted_results(tmp_path / "enough", MIN_ARCHITECTURES)
    assert set(correlate_measures(results, table, keys=["clean"])["key"]) == {"clean"}
    assert set(correlate_measures(results, table, keys=["pgd@Linf"])["key"]) == {"pgd"}
    correlations = correlate_measures(results, table, keys=["pgd:8/255"])
    assert set(zip(correlations["key"], correlations["strength"], strict=True)) == {("pgd", 8.0)}
    assert set(correlate_measures(results, table, keys=["adversarial"])["strength"]) == {1.0, 8.0}


def test_collect_measures_includes_parameters_and_flops(tmp_path):
    results, _ = make_planted_results(tmp_path)
    measures = collect_measures(results)
    assert list(measures) == ["parameters", "flops"]
    assert measures["parameters"].iloc[0] == 129306  # as published for cell #0
    assert measures["flops"].iloc[0] == 15647370


def test_correlate_measures_accepts_any_column_names(tmp_path):
    results, table = make_planted_results(tmp_path)
    renamed = table.rename(columns={"quality": "0", "noise": "given clean", "like size": "given parameters"})
    index_columns = ["measure", "key", "strength"]
    expected = correlate_measures(results, table).replace({"measure": {"quality": "0", "noise": "given clean"}})
    result = correlate_measures(results, renamed).replace({"measure": {"given parameters": "like size"}})
    pd.testing.assert_frame_equal(result.set_index(index_columns), expected.set_index(index_columns))
