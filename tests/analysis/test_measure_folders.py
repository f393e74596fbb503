"""Measures of several folders in one figure: rows are named by split, mode and weights."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from robust201.analysis.measure_folders import read_measure_folders
from robust201.core.errors import ConfigError
from robust201.dataset.reader import Dataset
from robust201.figures.plots import save_plot
from robust201.networks.nb201 import cells
from tests.support.small_results import write_results

ARCHITECTURES = [str(index) for index in cells.evaluated_indices()[:10]]
ACCURACIES = np.linspace(0.1, 0.9, len(ARCHITECTURES))
TEST_PROTOCOL = {"images": {"sha256": "0"}, "parameters": {"projections": 1}}
TRAIN_PROTOCOL = {
    "images": {"sha256": "1", "split": "train"},
    "parameters": {"mode": "training", "columns": ["squared_norm", "norm"]},
}


def write_folder(folder: Path, protocol: dict, weights: list[str], columns: dict[str, np.ndarray]) -> Dataset:
    """Write an export with clean accuracies and a measure, whose sweep.json records protocol and weights."""
    write_results(folder, {"clean": dict(zip(ARCHITECTURES, ACCURACIES.tolist(), strict=True))})
    for column, values in columns.items():
        write_results(folder, {"jacobian": dict(zip(ARCHITECTURES, values.tolist(), strict=True))}, measure=column)
    sweep_record = {
        "format": 1,
        "sweep": {"protocols": [{"dataset": "cifar10", "key": "jacobian", **protocol}]},
        "measurements": ["accuracy"],
        "strengths": {"cifar10": {"clean": [0], "jacobian": [0]}},
    }
    (folder / "sweep.json").write_text(json.dumps(sweep_record | ({"weights": weights} if weights else {})))
    return Dataset(folder)


@pytest.fixture
def folders(tmp_path: Path) -> list[Dataset]:
    rng = np.random.default_rng(0)
    first = write_folder(tmp_path / "first", TEST_PROTOCOL, [], {"squared_norm": -ACCURACIES})
    columns = {"squared_norm": ACCURACIES**2, "norm": rng.uniform(size=len(ARCHITECTURES))}
    second = write_folder(tmp_path / "second", TRAIN_PROTOCOL, [], columns)
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


def test_measurements_are_the_columns_in_the_protocol(folders):
    assert folders[0].measurements("cifar10", "jacobian") == ["squared_norm", "squared_norm_sd"]
    assert folders[1].measurements("cifar10", "jacobian") == ["squared_norm", "norm"]
