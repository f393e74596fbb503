"""Measures against accuracies: planted correlations come back, partial ones vanish where size explains them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.measure_correlations import CORRELATION_COLUMNS, FEWEST, correlate_measures
from robust201.analysis.terms import collect_measures
from robust201.figures import figure_data
from robust201.spaces.nasbench201 import cells
from robust201.spaces.nasbench201.space import NasBench201
from tests.support.small_results import results_of, write_results

N = 150
INDICES = cells.evaluated_indices()[:N]


def planted(tmp_path: Path, count: int = N) -> tuple[DatasetResults, pd.DataFrame]:
    """Accuracies that follow size and a quality, and proxies of either, of both and of nothing."""
    rng = np.random.default_rng(0)
    sizes = np.array([NasBench201().parameter_count(i, n_classes=10) for i in INDICES], np.float64)
    size, quality = np.argsort(np.argsort(sizes)) / N, rng.uniform(size=N)
    clean, robust = (0.1 + 0.4 * size + 0.1 * rng.uniform(size=N)), (0.1 + 0.2 * size + 0.6 * quality)
    rows = {
        "clean": {str(i): float(value) for i, value in zip(INDICES[:count], clean, strict=False)},
        "pgd": {str(i): [float(value), float(value) / 2] for i, value in zip(INDICES[:count], robust, strict=False)},
    }
    table = pd.DataFrame(
        {
            "index": INDICES,
            "quality": quality + 0.1 * rng.normal(size=N),
            "like size": size + 0.01 * rng.normal(size=N),
            "noise": rng.normal(size=N),
            "same": 1.0,
        }
    )
    results = results_of(write_results(tmp_path, rows))
    return results, results.reader.read_table(table)


def test_planted_correlations_come_back(tmp_path: Path) -> None:
    results, table = planted(tmp_path)
    found = correlate_measures(results, [table])
    assert tuple(found.columns) == CORRELATION_COLUMNS
    assert len(found) == 6 * 3
    rows = found.set_index(["measure", "key", "strength"])
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


def test_keys_are_chosen_and_few_architectures_have_no_rows(tmp_path: Path) -> None:
    results, table = planted(tmp_path / "few", FEWEST - 1)
    assert correlate_measures(results, [table]).empty
    results, table = planted(tmp_path / "enough", FEWEST)
    assert set(correlate_measures(results, [table], keys=["clean"])["key"]) == {"clean"}
    assert set(correlate_measures(results, [table], keys=["pgd@Linf"])["key"]) == {"pgd"}
    one = correlate_measures(results, [table], keys=["pgd:8"])
    assert set(zip(one["key"], one["strength"], strict=True)) == {("pgd", 8.0)}
    assert set(correlate_measures(results, [table], keys=["adversarial"])["strength"]) == {1.0, 8.0}


def test_architectures_without_a_measure_are_left_out_of_its_rows_only(tmp_path: Path) -> None:
    results, table = planted(tmp_path)
    half = table[["architecture", "quality"]].head(N // 2)
    counts = correlate_measures(results, [half], keys=["clean"]).set_index("measure")["n"]
    assert (counts["parameters"], counts["quality"]) == (N, N // 2)


def test_a_missing_accuracy_leaves_out_rows_of_its_key_only(tmp_path: Path) -> None:
    results, table = planted(tmp_path)
    results.accuracies.iloc[0, results.columns.index(("pgd", 8.0))] = np.nan
    found = correlate_measures(results, [table]).groupby("key")["n"].unique()
    assert (found["clean"].tolist(), found["pgd"].tolist()) == ([N], [N - 1])


def test_the_figure_names_measures_in_words(tmp_path: Path) -> None:
    results, table = planted(tmp_path)
    numbers = table.set_index("architecture")["quality"]
    vars(results)["measures"] = pd.DataFrame({("jacobian", "squared_norm", 0.0): numbers})
    assert list(collect_measures(results)) == ["parameters", "flops", "jacobian.squared_norm"]
    matrix = figure_data.correlation_matrix(figure_data.measure_correlations(results))
    assert list(matrix.index) == ["parameters", "FLOPs", "Jacobian squared norm"]
    assert list(matrix) == ["Clean", "PGD, ε = 1/255", "PGD, ε = 8/255"]


def test_sizes_are_the_spaces_own(tmp_path: Path) -> None:
    results, _ = planted(tmp_path)
    measures = collect_measures(results)
    assert list(measures) == ["parameters", "flops"]
    assert measures["parameters"].iloc[0] == 129306  # of #0, as the archive records it
    assert measures["flops"].iloc[0] == 15647370


def test_columns_of_a_table_may_have_any_name(tmp_path: Path) -> None:
    results, table = planted(tmp_path)
    strange = table.rename(columns={"quality": "0", "noise": "given clean", "like size": "given parameters"})
    names = ["measure", "key", "strength"]
    plain = correlate_measures(results, [table]).replace({"measure": {"quality": "0", "noise": "given clean"}})
    found = correlate_measures(results, [strange]).replace({"measure": {"given parameters": "like size"}})
    pd.testing.assert_frame_equal(found.set_index(names), plain.set_index(names))
