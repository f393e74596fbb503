"""Predictions of accuracies that were not evaluated, on a fabricated dataset whose true accuracies are known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from robust201 import RobustnessDataset
from robust201.analysis.dataset_results import DatasetResults, read_results
from robust201.core.errors import ConfigError, ResultsError
from robust201.figures.regret_curves import save_regret_curves
from robust201.search.blackbox import write_blackbox
from robust201.search.cell_features import make_cell_features
from robust201.search.cell_predictions import (
    COLUMNS,
    CellPredictions,
    choose_next,
    predict_cells,
    read_predictions,
    write_predictions,
)
from robust201.search.objectives import TableValues
from robust201.search.repeated_searches import repeat_searches
from robust201.spaces.cell_space import CellSpace
from robust201.spaces.nasbench201 import evaluated_indices
from tests.conftest import RunCommand
from tests.support.planted import planted_accuracy, write_planted
from tests.support.small_results import write_results, write_sweep_json


@pytest.fixture(scope="module")
def partial_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with planted results of 60 of the 6,466 classes of cells."""
    cells = np.random.default_rng(0).permutation(evaluated_indices())[:60]
    return write_planted(tmp_path_factory.mktemp("some") / "planted", cells=sorted(cells.tolist()))


@pytest.fixture(scope="module")
def results(partial_folder: Path) -> DatasetResults:
    return read_results(RobustnessDataset(partial_folder))[0]


@pytest.fixture(scope="module")
def predictions(results: DatasetResults) -> CellPredictions:
    return predict_cells(results, ["clean", "pgd:1"])


def test_predict_cells_predicts_all_other_classes_accurately(
    predictions: CellPredictions, results: DatasetResults
) -> None:
    frame = predictions.frame
    assert tuple(frame.columns) == COLUMNS
    assert len(frame) == 2 * (6466 - 60)
    assert not set(frame["architecture"]) & set(results.architectures)
    for key, strength in (("clean", 0.0), ("pgd", 1.0)):
        rows = frame[(frame["key"] == key) & (frame["strength"] == strength)]
        accuracies = planted_accuracy(key, strength)[rows["architecture"]]
        assert kendalltau(rows["predicted_accuracy"], accuracies).statistic > 0.8
        is_covered = (rows["predicted_low"] <= accuracies) & (accuracies <= rows["predicted_high"])
        assert is_covered.mean() > 0.75
    assert not predictions.is_weak


def test_quality_on_left_out_cells_is_plausible(predictions: CellPredictions) -> None:
    assert [(quality.key, quality.strength) for quality in predictions.quality] == [("clean", 0.0), ("pgd", 1.0)]
    assert all(quality.kendall > 0.5 and 0.7 <= quality.coverage <= 1 for quality in predictions.quality)


def test_isomorphic_cells_have_equal_path_counts(space: CellSpace) -> None:
    features = make_cell_features(space)
    n_one_hot = len(space.edges) * len(space.operations)
    classes = pd.Series(np.asarray(space.isomorphs()))
    path_features = pd.DataFrame(features[:, n_one_hot : n_one_hot + 40]).round(9)
    assert (path_features.groupby(classes).nunique() == 1).all().all()


@pytest.mark.parametrize("name", ["predictions.csv", "predictions.parquet"])
def test_read_predictions_reads_a_written_file(predictions: CellPredictions, tmp_path: Path, name: str) -> None:
    write_predictions(tmp_path / name, predictions.frame)
    assert read_predictions(tmp_path / name, "cifar10").shape == (6406, 2)
    with pytest.raises(ConfigError, match="expected predictions for cifar100"):
        read_predictions(tmp_path / name, "cifar100")


def test_read_predictions_rejects_other_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("architecture,accuracy\n1,0.5\n")
    with pytest.raises(ResultsError, match="without dataset"):
        read_predictions(tmp_path / "other.csv", "cifar10")
    with pytest.raises(ResultsError, match="got no file"):
        read_predictions(tmp_path / "missing.parquet", "cifar10")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("predicted_accuracy", "high", "must contain numbers"),
        ("predicted_accuracy", 50.0, "between 0 and 1"),
        ("architecture", 99_999, "expected indices of cells"),
    ],
)
def test_predictions_with_invalid_values_are_rejected(
    partial_folder: Path, predictions: CellPredictions, tmp_path: Path, column: str, value: Any, message: str
) -> None:
    frame = predictions.frame[predictions.frame["key"] == "pgd"].astype({column: object}).reset_index(drop=True)
    frame.loc[0, column] = value
    frame.to_csv(tmp_path / "changed.csv", index=False)
    with pytest.raises(ResultsError, match=message):
        TableValues(RobustnessDataset(partial_folder), "cifar10", tmp_path / "changed.csv")


def test_duplicate_predictions_are_rejected(predictions: CellPredictions, tmp_path: Path) -> None:
    pd.concat([predictions.frame, predictions.frame[-2:]]).to_csv(tmp_path / "twice.csv", index=False)
    with pytest.raises(ResultsError, match="one row per cell"):
        read_predictions(tmp_path / "twice.csv", "cifar10")


def test_unused_predictions_are_reported(
    partial_folder: Path, predictions: CellPredictions, tmp_path: Path, robust201: RunCommand
) -> None:
    write_predictions(tmp_path / "predictions.csv", predictions.frame)
    options = ["--methods", "random", "--queries", "5", "--runs", "2", "--predictions", tmp_path / "predictions.csv"]
    assert "No prediction was used" in robust201("search", partial_folder, "--objective", "fgsm:1", *options).err
    result = robust201("search", partial_folder, "--objective", "pgd:1", *options)
    assert "No prediction was used" not in result.err
    assert "lacks these results for all predicted cells: aa_apgd-ce:1, aa_square:1, corruption, fgsm:1." in result.err


def test_search_and_blackbox_mark_predictions(
    partial_folder: Path, predictions: CellPredictions, tmp_path: Path
) -> None:
    path = tmp_path / "predictions.parquet"
    write_predictions(path, predictions.frame)
    reader = RobustnessDataset(partial_folder)
    (search,) = repeat_searches(
        reader, "cifar10", ["pgd:1"], methods=["random"], n_queries=50, n_runs=2, report=["clean"], predictions=path
    )
    assert (search.n_members, search.n_predicted) == (15_625, 6406)
    assert search.to_payload()["n_predicted"] == 6406
    figure = save_regret_curves([search], tmp_path / "regret.svg").read_text()
    assert ">pgd:1 (partly predictions)<" in figure
    write_blackbox(reader, tmp_path / "blackbox", predictions=path)
    names = json.loads((tmp_path / "blackbox" / "metadata.json").read_text())["objectives_names"]
    assert names[:1] == ["metric_predicted_error_clean"]
    assert len(pd.read_parquet(tmp_path / "blackbox" / "hyperparameters.parquet")) < 15_625  # fgsm was not predicted


def test_search_omits_default_columns_without_predictions(
    partial_folder: Path, predictions: CellPredictions, tmp_path: Path
) -> None:
    path = tmp_path / "predictions.parquet"
    write_predictions(path, predictions.frame)
    reader = RobustnessDataset(partial_folder)
    options: dict[str, Any] = {"methods": ["random"], "n_queries": 5, "n_runs": 2, "predictions": path}
    (search,) = repeat_searches(reader, "cifar10", ["pgd:1"], **options)
    assert (search.n_members, search.n_predicted) == (15_625, 6406)
    assert search.columns == ("clean", "pgd:1")
    assert "fgsm:1" in search.absent
    (search,) = repeat_searches(reader, "cifar10", ["fgsm:1"], **options)  # the file has no predictions for fgsm:1
    assert search.n_predicted == 0
    assert "fgsm:1" in search.columns


@pytest.mark.parametrize("aim", ["ranking", "best"])
def test_choose_next_returns_allowed_cells_without_results(results: DatasetResults, aim: str) -> None:
    allowed = evaluated_indices()[:300]
    cells = choose_next(results, ["clean"], 5, aim, allowed=allowed)  # type: ignore[arg-type]
    assert len(set(cells)) == 5
    assert set(cells) <= set(allowed) - set(results.architectures)
    if aim == "best":
        accuracies = planted_accuracy("clean", 0.0)
        assert accuracies[cells].mean() > np.quantile(accuracies[list(allowed)], 0.9)
    with pytest.raises(ConfigError, match="--next must be at most"):
        choose_next(results, ["clean"], 301, aim, allowed=allowed)  # type: ignore[arg-type]


def test_choose_next_takes_standard_errors_into_account(results: DatasetResults) -> None:
    zero_errors = pd.DataFrame(0.0, index=results.accuracies.index, columns=results.accuracies.columns)
    cells = choose_next(results, ["clean"], 5, "ranking", standard_errors=zero_errors)
    assert cells == choose_next(results, ["clean"], 5, "ranking")
    assert choose_next(results, ["clean"], 5, "ranking", standard_errors=zero_errors + 0.1) != cells


def test_predict_cells_rejects_too_few_cells(tmp_path: Path) -> None:
    folder = write_planted(tmp_path / "few", cells=evaluated_indices()[:9])
    with pytest.raises(ResultsError, match="at least 10 cells"):
        predict_cells(read_results(RobustnessDataset(folder))[0], ["clean"])


def test_predict_rejects_unknown_keys_and_constant_accuracies(tmp_path: Path, robust201: RunCommand) -> None:
    folder = write_planted(tmp_path / "few", cells=evaluated_indices()[:12])
    assert "expected a score, a key" in robust201("predict", folder, "--keys", "pdg").error_line(2)
    path = folder / "cifar10" / "clean_accuracy.json"
    rows = json.loads(path.read_text())
    rows["cifar10"]["clean"]["accuracy"] = dict.fromkeys(rows["cifar10"]["clean"]["accuracy"], 0.5)
    path.write_text(json.dumps(rows))
    assert "all cells have the same accuracy under clean (0.5)" in robust201(
        "predict", folder, "--keys", "clean"
    ).error_line(2)


def test_predict_reports_weak_predictions(tmp_path: Path, robust201: RunCommand) -> None:
    folder = write_planted(tmp_path / "few", cells=evaluated_indices()[:10])
    path = folder / "cifar10" / "clean_accuracy.json"
    rows = json.loads(path.read_text())
    noise = np.random.default_rng(0).random(10).round(6).tolist()
    ids = rows["cifar10"]["clean"]["accuracy"]
    rows["cifar10"]["clean"]["accuracy"] = dict(zip(ids, noise, strict=True))
    path.write_text(json.dumps(rows))
    result = robust201("predict", folder, "--keys", "clean", "--out", tmp_path / "p.csv")
    assert result.code == 0
    assert "predictions are weak" in result.err
    assert json.loads(robust201("predict", folder, "--keys", "clean", "--json").out)["is_weak"] is True


def set_accuracies(folder: Path, key: str, values: list[Any]) -> None:
    """Replace the accuracies under a key in a planted folder."""
    path = folder / "cifar10" / f"{key}_accuracy.json"
    payload = json.loads(path.read_text())
    rows = payload["cifar10"][key]["accuracy"]
    payload["cifar10"][key]["accuracy"] = dict(zip(rows, values, strict=True))
    path.write_text(json.dumps(payload))


def test_predict_omits_and_reports_strengths_with_constant_accuracy(tmp_path: Path, robust201: RunCommand) -> None:
    folder = write_planted(tmp_path / "few", cells=evaluated_indices()[:20])
    payload = json.loads((folder / "cifar10" / "pgd@Linf_accuracy.json").read_text())
    rows = payload["cifar10"]["pgd@Linf"]["accuracy"].values()
    set_accuracies(folder, "pgd@Linf", [[*row[:-1], 0.0] for row in rows])
    result = robust201("predict", folder, "--keys", "pgd", "--out", tmp_path / "p.csv")
    assert result.code == 0, result.err
    assert "Not predicted, because all evaluated cells have the same accuracy: pgd:4 0" in result.err
    assert set(pd.read_csv(tmp_path / "p.csv")["strength"]) == {0.5, 1.0}
    payload = json.loads(robust201("predict", folder, "--keys", "pgd", "--json").out)
    assert payload["constant"] == [{"key": "pgd", "strength": 4.0, "accuracy": 0.0}]
    assert [quality["strength"] for quality in payload["quality"]] == [0.5, 1.0]
    assert "all cells have the same accuracy under pgd:4 (0)" in robust201(
        "predict", folder, "--keys", "pgd:4"
    ).error_line(2)


def test_predict_uses_measures(tmp_path: Path, robust201: RunCommand) -> None:
    cells = evaluated_indices()
    accuracies = np.random.default_rng(0).uniform(0.2, 0.8, len(cells)).round(6)
    folder = write_planted(tmp_path / "few", cells=cells[::100])
    set_accuracies(folder, "clean", accuracies[::100].tolist())
    measures = {str(cell): float(np.exp(9 * accuracy)) for cell, accuracy in zip(cells, accuracies, strict=True)}
    protocol = {"dataset": "cifar10", "key": "jacobian", "images": {"sha256": "0"}, "parameters": {"columns": ["norm"]}}

    def write_measures(measures_folder: Path, values: dict[str, float]) -> Path:
        write_results(measures_folder, {"jacobian": values}, measure="norm")
        return write_sweep_json(measures_folder, {"cifar10": {"jacobian": [0]}}, {"protocols": [protocol]})

    def measure_tau(*options: object) -> float:
        result = robust201("predict", folder, "--keys", "clean", *options, "--json")
        assert result.code == 0, result.err
        return float(json.loads(result.out)["quality"][0]["kendall"])

    assert measure_tau() < 0.4
    assert measure_tau("--measures", write_measures(tmp_path / "measures", measures)) > 0.8
    incomplete_folder = write_measures(tmp_path / "too-few", dict([*measures.items()][:100]))
    error_line = robust201("predict", folder, "--keys", "clean", "--measures", incomplete_folder).error_line(2)
    assert "but covers 100 of 6,466" in error_line
    assert "have no measures" in robust201("predict", folder, "--keys", "clean", "--measures", folder).error_line(2)


def test_predict_cells_gives_less_weight_to_accuracies_with_standard_errors(results: DatasetResults) -> None:
    clean_column = ("clean", 0.0)
    rng = np.random.default_rng(1)
    accuracies = results.accuracies.copy()
    uncertain_cells = rng.permutation(accuracies.index)[:25]
    errors = pd.DataFrame({clean_column: 0.0}, index=accuracies.index)
    errors.loc[uncertain_cells, [clean_column]] = 0.1
    accuracies[clean_column] = np.clip(
        accuracies[clean_column] + rng.normal(0, 1, len(accuracies)) * errors[clean_column], 0.01, 0.99
    )
    noisy_results = replace(results, accuracies=accuracies)
    frames = [
        predict_cells(noisy_results, ["clean"], standard_errors=standard_errors).frame
        for standard_errors in (None, 0 * errors, errors)
    ]
    expected = planted_accuracy("clean", 0.0)[frames[0]["architecture"]]
    default_error, zero_error, weighted_error = (
        float(np.abs(frame["predicted_accuracy"] - expected).mean()) for frame in frames
    )
    assert zero_error == pytest.approx(default_error, rel=1e-6)
    assert weighted_error < 0.7 * default_error
