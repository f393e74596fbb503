"""`robust201 correlate` and `robust201 design` on a synthetic dataset of the paper's size."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from scipy.stats import kendalltau

from robust201.core.records import Weights
from robust201.spaces import SPACES
from robust201.spaces.nasbench201 import cells
from tests.conftest import RunCommand
from tests.support.fabricated import FabricatedPlan, FabricatedStore, export, make_unit, make_values
from tests.support.small_results import write_results


def robust_share(index: int) -> float:
    operations = cells.parse(cells.specs()[index])
    return 0.1 + 0.05 * operations.count("nor_conv_3x3") + 0.1 * (operations[3] == "skip_connect")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    robust = {index: robust_share(index) for index in cells.evaluated_indices()}
    rows = {
        "clean": {str(index): round(0.5 + value / 2, 4) for index, value in robust.items()},
        "pgd": {str(index): [round(value, 4), round(value / 2, 4)] for index, value in robust.items()},
    }
    write_results(folder, rows)
    latency = {index: 10.0 - cells.parse(cells.specs()[index]).count("none") for index in robust}
    pd.DataFrame({"index": latency.keys(), "latency": latency.values()}).to_csv(folder / "latency.csv", index=False)
    return folder


def test_design_recovers_planted_effects(dataset: Path, robust201: RunCommand, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("robust201.analysis.design.TRAINING_SIZES", (50,))
    monkeypatch.setattr("robust201.analysis.design.N_REPEATS", 1)
    join = ("--join", dataset / "latency.csv", "--minimise", "latency")
    result = robust201("design", dataset, "--score", "pgd:1", *join, "--maximise", "clean", "--out", tmp_path, "--json")
    assert result.code == 0, result.err
    tables = json.loads(result.out)["cifar10"]
    best = max(tables["effects"], key=lambda row: row["effect"])
    assert (best["edge"], best["operation"]) == ("in→out", "skip")
    everything = [robust_share(isomorph) for isomorph in cells.isomorphs()]
    having = [v for v, spec in zip(everything, cells.specs(), strict=True) if cells.parse(spec)[3] == "skip_connect"]
    assert best["effect"] == pytest.approx(sum(having) / len(having) - sum(everything) / len(everything), abs=1e-4)
    assert sum(row["share"] for row in tables["variance"]) == pytest.approx(1)
    assert tables["tree"][0].startswith("|--- in→out is")
    assert len(pd.read_csv(tmp_path / "cifar10-effects.csv")) == 30
    assert {row["latency"] for row in tables["pareto"]} <= set(range(4, 11))
    shown = robust201("design", dataset, "--score", "pgd:1")
    assert shown.code == 0, shown.err
    assert "architectures on the Pareto front of clean, adversarial, parameters" in shown.out


def test_correlate_compares_measures_with_parameters(dataset: Path, robust201: RunCommand, tmp_path: Path) -> None:
    result = robust201("correlate", dataset, "--keys", "pgd", "--join", dataset / "latency.csv", "--json")
    assert result.code == 0, result.err
    rows = {(row["measure"], row["strength"]): row for row in json.loads(result.out)["correlations"]}
    assert {measure for measure, _ in rows} == {"parameters", "flops", "latency"}
    assert rows["parameters", 1.0]["kendall"] > 0.3
    assert rows["parameters", 1.0]["gain"] == 0
    assert not rows["latency", 8.0]["beats_parameters"]
    shown = robust201("correlate", dataset, "--keys", "clean", "--out", tmp_path)
    assert shown.code == 0, shown.err
    assert "cifar10: parameters" in shown.out
    assert list(pd.read_csv(tmp_path / "correlations.csv")["key"].unique()) == ["clean"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("design", "--datasets", "cifar11"), "Did you mean 'cifar10'"),
        (("design", "--score", "pdg"), "expected a score, a key, or a key at a strength"),
        (("design", "--score", "flops"), "expected a score, a key, or a key at a strength"),
        (("design", "--maximise", "clean", "--minimise", "clean"), "two different objectives"),
        (("design", "--maximise", "clean,latency"), "expected a score, a key, a measure, a cost or a joined column"),
        (("design", "--maximise", "pgd:1,pgd:1", "--minimise", "pgd:1"), "pgd:1 is listed more than once"),
        (("correlate", "--join", "nothing.csv"), "expected a file, got none"),
        (("correlate", "--keys", "clean,fog"), "Looking up 'fog' failed for cifar10"),
        (("correlate", "--keys", "pgd:2"), "it has no strength 2 of pgd. Choose one of 1, 8."),
        (("correlate", "--out", "/dev/null"), "which is not a folder"),
    ],
)
def test_analyses_reject_wrong_names(dataset: Path, robust201: RunCommand, arguments, message: str) -> None:
    command, *options = arguments
    result = robust201(command, dataset, *options)
    assert result.code in {2, 4}, result.err
    assert message in " ".join(result.err.split())


@pytest.mark.parametrize("rows", ["index,x\n0,1\n", "index,dataset,x\n2,cifar100,1\n"])
def test_correlate_rejects_join_table_without_evaluated_architectures(
    robust201: RunCommand, tmp_path: Path, rows: str
) -> None:
    write_results(tmp_path / "few", {"clean": {"2": 0.8, "3": 0.7}})
    (tmp_path / "other.csv").write_text(rows)
    result = robust201("correlate", tmp_path / "few", "--join", tmp_path / "other.csv")
    assert result.code == 2
    assert "it has no architecture that was evaluated on cifar10" in result.err


def test_plot_writes_numbers_as_csv(dataset: Path, robust201: RunCommand, tmp_path: Path) -> None:
    for name in ("attacks", "rank-correlation", "best-cells"):
        result = robust201("plot", name, dataset, "--out", tmp_path / f"{name}.csv")
        assert result.code == 0, result.err
    assert list(pd.read_csv(tmp_path / "attacks.csv"))[:3] == ["key", "strength", "low"]
    assert list(pd.read_csv(tmp_path / "best-cells.csv", index_col=0).index) == [
        *("clean", "mean adversarial", "mean PGD"),
    ]
    assert "PGD, ε = 1/255" in (tmp_path / "rank-correlation.csv").read_text()


ARCHITECTURES = (0, 2, 9, 10, 21, 55, 309, 991, 1462, 9930)
STRENGTHS = {"clean": (0.0,), "pgd": (1.0, 8.0), "jacobian": (0.0,)}


def plan_of(keys: Sequence[str], names: Sequence[str] = ("",)) -> FabricatedPlan:
    units = [
        make_unit(index, "cifar10", key, STRENGTHS[key], weights=name)
        for key in keys
        for index in ARCHITECTURES
        for name in names
    ]
    weights = {name: Weights("w" * 64, epochs=200, seed=seed) for seed, name in enumerate(names) if name}
    return FabricatedPlan(tuple(units), weights=weights)


def jacobians(name: str = "") -> list[float]:
    """Return the squared norms that `make_values` gives the architectures, in order."""
    units = [make_unit(index, "cifar10", "jacobian", (0.0,), weights=name) for index in ARCHITECTURES]
    return [float(make_values(unit, 0.0)["squared_norm"]) for unit in units]


def accuracies(name: str = "") -> list[float]:
    units = [make_unit(index, "cifar10", "pgd", (1.0, 8.0), weights=name) for index in ARCHITECTURES]
    return [float(make_values(unit, 1.0)["accuracy"]) for unit in units]


def correlations(robust201: RunCommand, *arguments: object) -> pd.DataFrame:
    result = robust201("correlate", *arguments, "--json")
    assert result.code == 0, result.err
    rows = pd.DataFrame(json.loads(result.out)["correlations"])
    return rows[rows["measure"] == "jacobian.squared_norm"].set_index(["key", "strength"])


def test_correlate_combines_measures_and_accuracies_of_two_folders(robust201: RunCommand, tmp_path: Path) -> None:
    export(tmp_path / "accuracies", plan_of(["clean", "pgd"]))
    export(tmp_path / "measures", plan_of(["jacobian"]), formats=("parquet",))
    rows = correlations(robust201, tmp_path / "accuracies", tmp_path / "measures", "--keys", "clean,pgd:1")
    assert list(rows.index) == [("clean", 0.0), ("pgd", 1.0)]
    assert rows.loc[("pgd", 1.0), "kendall"] == pytest.approx(kendalltau(jacobians(), accuracies()).statistic)
    alone = robust201("correlate", tmp_path / "measures")
    assert alone.code == 2
    assert "it has no accuracies. Add a folder" in alone.err


def test_correlate_pairs_accuracies_with_measures_of_other_weights(robust201: RunCommand, tmp_path: Path) -> None:
    export(tmp_path / "both", plan_of(list(STRENGTHS), ("e200-s0", "e200-s1")), formats=("parquet",))
    unnamed = robust201("correlate", tmp_path / "both", "--measure-weights-name", "e200-s0")
    assert unnamed.code == 2
    assert "expected weights 'e200-s0' or 'e200-s1', got no name" in unnamed.err
    for of_measures in ("e200-s0", "e200-s1"):
        weights_options = ("--weights-name", "e200-s0", "--measure-weights-name", of_measures)
        rows = correlations(robust201, tmp_path / "both", *weights_options)
        expected = kendalltau(jacobians(of_measures), accuracies("e200-s0")).statistic
        assert rows.loc[("pgd", 1.0), "kendall"] == pytest.approx(expected)


def test_correlate_uses_all_weights_of_an_architecture(robust201: RunCommand, tmp_path: Path) -> None:
    names = ("e200-s0", "e200-s1")
    export(tmp_path / "both", plan_of(list(STRENGTHS), names), formats=("parquet",))
    (tmp_path / "table.csv").write_text(
        "index,latency\n" + "\n".join(f"{index},{index % 7}" for index in ARCHITECTURES)
    )
    arguments = ("correlate", tmp_path / "both", "--join", tmp_path / "table.csv", "--keys", "pgd:1", "--json")
    rows = pd.DataFrame(json.loads(robust201(*arguments).out)["correlations"]).set_index("measure")
    assert (rows["n"] == len(ARCHITECTURES) * len(names)).all()
    measured = {name: jacobians(name) for name in names}
    accurate = [value for name in names for value in accuracies(name)]
    space = SPACES["nasbench201"]
    expected = {
        "jacobian.squared_norm": [value for name in names for value in measured[name]],
        "parameters": [space.parameter_count(index, n_classes=10) for _ in names for index in ARCHITECTURES],
        "latency": [index % 7 for _ in names for index in ARCHITECTURES],
    }
    for measure, numbers in expected.items():
        assert rows.loc[measure, "kendall"] == pytest.approx(kendalltau(numbers, accurate).statistic)
    for command in ("design", "search"):
        result = robust201(command, tmp_path / "both")
        assert "expected weights 'e200-s0' or 'e200-s1', got no name" in result.refusal(2)
        assert "--weights-name" in result.err


def test_correlate_combines_folders_with_different_weights(robust201: RunCommand, tmp_path: Path) -> None:
    export(tmp_path / "trained", plan_of(["clean", "pgd"], ("e200-s0",)), formats=("parquet",))
    export(tmp_path / "new", plan_of(["jacobian"], ("random-s0", "random-s1")), formats=("parquet",))
    weights_options = ("--weights-name", "e200-s0", "--measure-weights-name", "random-s1")
    rows = correlations(robust201, tmp_path / "trained", tmp_path / "new", *weights_options)
    expected = kendalltau(jacobians("random-s1"), accuracies("e200-s0")).statistic
    assert rows.loc[("pgd", 1.0), "kendall"] == pytest.approx(expected)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_correlate_uses_available_results_of_partial_export(robust201: RunCommand, tmp_path: Path, form: str) -> None:
    missing = {(0, "pgd", 8.0), (21, "jacobian", 0.0)}
    export(tmp_path, plan_of(list(STRENGTHS)), FabricatedStore(lacking=missing), partial=True, formats=(form,))
    rows = correlations(robust201, tmp_path)
    counts = {row: int(n) for row, n in rows["n"].items()}
    assert counts == {("clean", 0.0): 9, ("pgd", 1.0): 8, ("pgd", 8.0): 8}
