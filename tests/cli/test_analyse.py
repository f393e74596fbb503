"""`robust201 analyse` on synthetic datasets; one has as many cells as the paper's dataset."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import kendalltau

from robust201.core.records import Weights
from robust201.networks.nb201 import cells
from robust201.networks.spaces import SPACES
from tests.conftest import RunCommand
from tests.support.fabricated import FabricatedPlan, FabricatedStore, export, make_unit, make_values
from tests.support.small_results import write_results


def compute_planted_accuracy(index: int) -> float:
    """Return an accuracy that depends only on 3 × 3 convolutions and on a skip connection from input to output."""
    operations = cells.parse(cells.specs()[index])
    return 0.1 + 0.05 * operations.count("nor_conv_3x3") + 0.1 * (operations[3] == "skip_connect")


def write_dataset(folder: Path, step: int = 1) -> Path:
    """Write planted accuracies of every `step`-th cell."""
    accuracies = {index: compute_planted_accuracy(index) for index in cells.evaluated_indices()[::step]}
    clean = {str(index): round(0.5 + accuracy / 2, 4) for index, accuracy in accuracies.items()}
    pgd = {str(index): [round(accuracy, 4), round(accuracy / 2, 4)] for index, accuracy in accuracies.items()}
    return write_results(folder, {"clean": clean, "pgd": pgd})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def test_analyse_design_prints_and_writes_planted_effects(dataset, robust201, tmp_path):
    options = ("--score", "pgd:1/255", "--out", tmp_path)
    tables = json.loads(robust201("analyse", "design", dataset, *options, "--json").out)["cifar10"]
    largest_effect = max(tables["effects"], key=lambda row: row["effect"])
    assert (largest_effect["edge"], largest_effect["operation"]) == ("in→out", "skip")
    assert len(pd.read_csv(tmp_path / "cifar10-effects.csv")) == 6 * 5  # six edges, five operations
    assert "effects of operations on pgd:1/255" in robust201("analyse", "design", dataset, *options).out


def test_analyse_measures_compares_measures_with_parameter_count(robust201, tmp_path):
    options = ("--keys", "pgd", "--out", tmp_path)
    text = robust201("analyse", "measures", write_dataset(tmp_path / "dataset", step=10), *options).out
    assert "pgd:8/255" in text
    assert "cifar10: parameters" in text
    table = pd.read_csv(tmp_path / "correlations.csv")
    assert list(table["key"].unique()) == ["pgd"]
    rows = {(row["measure"], row["strength"]): row for row in table.to_dict("records")}
    assert {measure for measure, _ in rows} == {"parameters", "flops"}
    assert rows["parameters", 1.0]["kendall"] > 0.3
    assert rows["parameters", 1.0]["gain"] == 0
    assert not rows["flops", 8.0]["beats_parameters"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("design", "--score", "pdg"), "expected a score, a key, or a key at a strength"),
        (
            ("measures", "--keys", "pgd:2/255"),
            "it has no results under pgd at this strength. Choose one of pgd:1/255, pgd:8/255.",
        ),
        (("measures", "--out", "/dev/null"), "/dev/null"),
    ],
)
def test_analyse_rejects_invalid_options(dataset, robust201, arguments, message):
    command, *options = arguments
    result = robust201("analyse", command, dataset, *options)
    assert result.code in {2, 4}, result.err
    assert message in " ".join(result.err.split())


ARCHITECTURES = (0, 2, 9, 10, 21, 55, 309, 991, 1462, 9930)
STRENGTHS = {"clean": (0.0,), "pgd": (1.0, 8.0), "jacobian": (0.0,)}


def make_plan(keys: Sequence[str], weights_names: Sequence[str] = ("",)) -> FabricatedPlan:
    units = [
        make_unit(index, "cifar10", key, STRENGTHS[key], weights=name)
        for key in keys
        for index in ARCHITECTURES
        for name in weights_names
    ]
    weights = {name: Weights("w" * 64, epochs=200, seed=seed) for seed, name in enumerate(weights_names) if name}
    return FabricatedPlan(tuple(units), weights=weights)


def compute_jacobian_norms(weights_name: str = "") -> list[float]:
    """Return the squared norms from `make_values`, in the order of `ARCHITECTURES`."""
    units = [make_unit(index, "cifar10", "jacobian", (0.0,), weights=weights_name) for index in ARCHITECTURES]
    return [float(make_values(unit, 0.0)["squared_norm"]) for unit in units]


def compute_pgd_accuracies(weights_name: str = "") -> list[float]:
    units = [make_unit(index, "cifar10", "pgd", (1.0, 8.0), weights=weights_name) for index in ARCHITECTURES]
    return [float(make_values(unit, 1.0)["accuracy"]) for unit in units]


def correlate_jacobian_norms(robust201: RunCommand, *arguments: object) -> pd.DataFrame:
    result = robust201("analyse", "measures", *arguments, "--json")
    assert result.code == 0, result.err
    rows = pd.DataFrame(json.loads(result.out)["correlations"])
    return rows[rows["measure"] == "jacobian.squared_norm"].set_index(["key", "strength"])


def test_analyse_measures_combines_measures_and_accuracies_of_two_folders(robust201, tmp_path):
    export(tmp_path / "accuracies", make_plan(["clean", "pgd"]))
    export(tmp_path / "measures", make_plan(["jacobian"]), formats=("parquet",))
    rows = correlate_jacobian_norms(
        robust201, tmp_path / "accuracies", tmp_path / "measures", "--keys", "clean,pgd:1/255"
    )
    assert list(rows.index) == [("clean", 0.0), ("pgd", 1.0)]
    assert rows.loc[("pgd", 1.0), "kendall"] == pytest.approx(
        kendalltau(compute_jacobian_norms(), compute_pgd_accuracies()).statistic
    )
    result_without_accuracies = robust201("analyse", "measures", tmp_path / "measures")
    assert result_without_accuracies.code == 2
    assert "it has no accuracies. Add a folder" in result_without_accuracies.err


def test_analyse_measures_uses_all_weights_of_an_architecture(robust201, tmp_path):
    weights_names = ("e200-s0", "e200-s1")
    export(tmp_path / "both", make_plan(list(STRENGTHS), weights_names), formats=("parquet",))
    arguments = ("analyse", "measures", tmp_path / "both", "--keys", "pgd:1/255", "--json")
    rows = pd.DataFrame(json.loads(robust201(*arguments).out)["correlations"]).set_index("measure")
    assert (rows["n"] == len(ARCHITECTURES) * len(weights_names)).all()
    norms_by_weights = {name: compute_jacobian_norms(name) for name in weights_names}
    expected_accuracies = [value for name in weights_names for value in compute_pgd_accuracies(name)]
    space = SPACES["nasbench201"]
    expected = {
        "jacobian.squared_norm": [value for name in weights_names for value in norms_by_weights[name]],
        "parameters": [space.parameter_count(index, n_classes=10) for _ in weights_names for index in ARCHITECTURES],
    }
    for measure, measure_values in expected.items():
        assert rows.loc[measure, "kendall"] == pytest.approx(kendalltau(measure_values, expected_accuracies).statistic)
    for command in (("analyse", "design"), ("search",)):
        result = robust201(*command, tmp_path / "both")
        assert "expected weights 'e200-s0' or 'e200-s1', got no name" in result.error_line(exit_code=2)
        assert "--weights-name" in result.err


@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_analyse_measures_uses_available_results_of_partial_export(robust201, tmp_path, file_format):
    # A correlation excludes #21, which has no measure, and under pgd also #0, which has results at one strength only.
    missing_values = {(0, "pgd", 8.0), (21, "jacobian", 0.0)}
    export(
        tmp_path,
        make_plan(list(STRENGTHS)),
        FabricatedStore(missing=missing_values),
        partial=True,
        formats=(file_format,),
    )
    rows = correlate_jacobian_norms(robust201, tmp_path)
    n_by_evaluation = {evaluation: int(n) for evaluation, n in rows["n"].items()}
    assert n_by_evaluation == {("clean", 0.0): 9, ("pgd", 1.0): 8, ("pgd", 8.0): 8}
