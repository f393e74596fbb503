"""Correlations of measures with accuracies: planted correlations, and measures of several folders."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.measure_correlations import CORRELATION_COLUMNS, MIN_ARCHITECTURES, correlate_measures
from robust201.analysis.measure_folders import read_measure_folders
from robust201.analysis.terms import collect_measures
from robust201.core.errors import ConfigError
from robust201.dataset.reader import Dataset
from robust201.figures.plots import save_plot
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


def test_correlate_measures_selects_keys_and_needs_enough_architectures(tmp_path):
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


ARCHITECTURES = [str(index) for index in cells.evaluated_indices()[:10]]
ACCURACIES = np.linspace(0.1, 0.9, len(ARCHITECTURES))
TEST_PROTOCOL = {"images": {"sha256": "0"}, "parameters": {"projections": 1}}
TRAIN_PROTOCOL = {
    "images": {"sha256": "1", "split": "train"},
    "parameters": {"mode": "training", "columns": ["squared_norm", "norm"]},
}


def write_folder(folder: Path, protocol: dict, columns: dict[str, np.ndarray]) -> Dataset:
    """Write an export with clean accuracies and a measure, whose sweep.json records the protocol."""
    write_results(folder, {"clean": dict(zip(ARCHITECTURES, ACCURACIES.tolist(), strict=True))})
    for column, values in columns.items():
        write_results(folder, {"jacobian": dict(zip(ARCHITECTURES, values.tolist(), strict=True))}, measurement=column)
    sweep_record = {
        "format": 1,
        "sweep": {"protocols": [{"dataset": "cifar10", "key": "jacobian", **protocol}]},
        "measurements": ["accuracy"],
        "strengths": {"cifar10": {"clean": [0], "jacobian": [0]}},
    }
    (folder / "sweep.json").write_text(json.dumps(sweep_record))
    return Dataset(folder)


@pytest.fixture
def folders(tmp_path: Path) -> list[Dataset]:
    rng = np.random.default_rng(0)
    first = write_folder(tmp_path / "first", TEST_PROTOCOL, {"squared_norm": -ACCURACIES})
    columns = {"squared_norm": ACCURACIES**2, "norm": rng.uniform(size=len(ARCHITECTURES))}
    second = write_folder(tmp_path / "second", TRAIN_PROTOCOL, columns)
    return [first, second]


def test_measure_rows_are_named_by_split_mode_and_weights(folders, tmp_path):
    path = save_plot(folders[0], "measure-correlations", tmp_path / "fig6.csv", measures=folders[1:])
    table = read_measure_folders(folders, "cifar10").set_index("architecture")
    expected = [
        "Jacobian squared norm (test, trained)",
        "Jacobian squared norm (train, training mode, trained)",
        "Jacobian norm (train, training mode, trained)",
    ]
    assert list(table) == expected
    assert table[expected[0]].tolist() == (-ACCURACIES).tolist()
    rows = pd.read_csv(path).set_index("measure")
    assert {*expected} <= {*rows.index}
    assert rows["kendall"][expected[:2]].tolist() == pytest.approx([-1, 1])
    assert rows["kendall"][expected[2]] == pytest.approx(kendalltau(table[expected[2]], ACCURACIES).statistic)


def test_equal_measure_names_end_with_their_folder(folders):
    first = folders[0]
    table = read_measure_folders([first, first], "cifar10")
    assert list(table)[1:] == ["Jacobian squared norm (test, trained)", "Jacobian squared norm (test, trained, first)"]
    with pytest.raises(ConfigError, match=r"Jacobian squared norm \(test, trained, first\) occurs twice"):
        read_measure_folders([first, first, first], "cifar10")


def test_measurements_are_the_recorded_columns_or_the_defaults(folders):
    assert folders[0].measurements("cifar10", "jacobian") == ["squared_norm", "squared_norm_sd"]
    assert folders[1].measurements("cifar10", "jacobian") == ["squared_norm", "norm"]
