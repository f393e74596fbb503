"""Measures, which have columns of their own, and unknown keys, which do not count as attacks."""

from pathlib import Path

import pytest

from robust201.analysis.labels import strength_label
from robust201.dataset.layout import kind_of
from robust201.dataset.reader import Dataset
from robust201.figures.report import write_report
from tests.support.fabricated import export, make_plan
from tests.support.small_results import results_of, write_results, write_sweep_json

ARCHITECTURES = (0, 2, 10, 309)
COLUMNS = ["squared_norm", "squared_norm_sd"]


@pytest.fixture(scope="module", params=["json", "parquet"])
def folder(request, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp(request.param)
    export(out, make_plan(ARCHITECTURES, ["clean", "pgd", "pgd_l2", "jacobian"]), formats=(request.param,))
    return out


def test_measure_is_listed_separately_with_its_columns(folder):
    dataset = Dataset(folder)
    assert (dataset.keys_measure, dataset.keys_adv, dataset.keys_other) == (["jacobian"], ["pgd", "pgd_l2"], [])
    assert dataset.keys_all == ["clean", "pgd", "pgd_l2", "jacobian"]
    assert dataset.measurements("cifar10", "jacobian") == COLUMNS
    assert dataset.measurements("cifar10", "pgd") == dataset.measures == ["accuracy", "confidence", "cm"]
    assert dataset.strengths("cifar10", "jacobian") == (0.0,)


def test_measure_has_one_value_per_architecture(folder):
    dataset = Dataset(folder)
    results = dataset.query()["cifar10"]
    assert list(results["jacobian"]) == COLUMNS
    values_by_id = results["jacobian"]["squared_norm"]
    assert {type(value) for value in values_by_id.values()} == {float}
    assert dataset.value(2, "cifar10", "jacobian", "squared_norm") == values_by_id["2"]
    frame = dataset.read_table("cifar10", "jacobian", "squared_norm")
    assert frame["value"].dtype == "float64"
    assert dict(zip(frame["architecture"].astype(str), frame["value"], strict=True)) == values_by_id
    assert "jacobian" not in set(dataset.table["key"])


def test_custom_tasks_have_kind_declared_in_sweep_json(tmp_path):
    write_results(tmp_path, {"mine": {"0": 3.0, "2": 1.5}}, measurement="depth")
    write_results(tmp_path, {"gravity": {"0": [0.7, 0.1]}, "clean": {"0": 0.9}})
    protocols = [
        {"key": "mine", "parameters": {"kind": "measure", "norm": None, "columns": ["depth"]}},
        {"key": "gravity", "parameters": {"kind": "attack", "norm": "L2", "columns": []}},
    ]
    write_sweep_json(tmp_path, {"cifar10": {"clean": [0], "mine": [0], "gravity": [1, 9.81]}}, {"protocols": protocols})
    dataset = Dataset(tmp_path)
    assert (dataset.keys_measure, dataset.keys_adv, dataset.keys_other) == (["mine"], ["gravity"], [])
    assert dataset.value(2, "cifar10", "mine", "depth") == 1.5
    assert dataset.read_table("cifar10", "gravity")["strength"].tolist() == [1.0, 9.81]


def test_measure_with_several_strengths_has_value_per_strength(tmp_path):
    write_results(tmp_path, {"mine": {"0": [3.0, 4.0], "2": [1.5, 2.5]}}, measurement="depth")
    protocols = [{"key": "mine", "parameters": {"kind": "measure", "norm": None, "columns": ["depth"]}}]
    write_sweep_json(tmp_path, {"cifar10": {"mine": [1, 2]}}, {"protocols": protocols})
    dataset = Dataset(tmp_path)
    assert dataset.value(2, "cifar10", "mine", "depth") == [1.5, 2.5]
    frame = dataset.read_table("cifar10", "mine", "depth")
    assert frame[["strength", "value"]].to_numpy().tolist() == [[1, 3], [2, 4], [1, 1.5], [2, 2.5]]
    assert Dataset(tmp_path, tmp_path).query("cifar10", "mine") == dataset.query("cifar10", "mine")


@pytest.fixture
def folder_with_unknown_key(tmp_path: Path) -> Path:
    accuracies = {
        "clean": {"0": 0.9, "2": 0.8},
        "pgd": {"0": [0.5], "2": [0.4]},
        "gravity": {"0": [0.7, 0.1], "2": [0.6, 0.2]},
    }
    write_results(tmp_path / "data", accuracies)
    return write_sweep_json(tmp_path / "data", {"cifar10": {"clean": [0], "pgd": [1], "gravity": [0, 9.81]}})


def test_unknown_key_is_listed_separately_from_attacks(folder_with_unknown_key):
    dataset = Dataset(folder_with_unknown_key)
    assert kind_of("gravity") == "other"
    assert (dataset.keys_adv, dataset.keys_other, dataset.keys_all) == (
        ["pgd"],
        ["gravity"],
        ["clean", "pgd", "gravity"],
    )
    assert dataset.strengths("cifar10", "gravity") == (0.0, 9.81)
    # The value of `gravity` at strength 0 is not the clean accuracy, whereas strength 0 of `pgd` means clean images.
    assert dataset.accuracy(0, "cifar10", "gravity", 0) == 0.7
    assert dataset.accuracy(0, "cifar10", "pgd", 0) == 0.9
    assert dataset.read_table("cifar10", "gravity")["strength"].tolist() == [0.0, 9.81] * 2


def test_figures_show_unknown_key_without_unit(folder_with_unknown_key, tmp_path):
    assert strength_label(9.81, "") == "strength 9.81"
    results = results_of(folder_with_unknown_key)
    assert results.keys("attack") == ["pgd"]
    assert ("gravity", 0.0) in results.columns
    assert results.scores["adversarial"].to_dict() == {0: 0.5, 2: 0.4}
    assert strength_label(0.0, "") == ""
    page = write_report(Dataset(folder_with_unknown_key), tmp_path / "page.html").read_text()
    assert "gravity" in page
    assert "9.81/255" not in page
