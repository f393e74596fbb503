"""`robust201 search` on the planted dataset and on small results."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from robust201.spaces.nasbench201.cells import isomorphs
from tests.conftest import RunCommand
from tests.support.fabricated import export, make_plan
from tests.support.small_results import write_results

FEW_QUERIES = ("--methods", "local,random", "--runs", 3, "--queries", 40)


@pytest.fixture(autouse=True)
def use_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0})


def test_search_writes_table_and_csv(robust201: RunCommand, planted_optimum_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    result = robust201(
        "search",
        planted_optimum_folder,
        "--data",
        "cifar10",
        "--table1",
        *FEW_QUERIES,
        "--out",
        out,
    )
    assert result.code == 0
    for expected_text in ("Search on cifar10 clean: 40 queries, 3 runs", "Optimum", "Local search"):
        assert expected_text in result.out
    assert "Clean optimum of the paper's table 1: 94.68%; in this dataset " in result.out
    assert "%, which differs." in result.out
    assert "Not reported, because cifar10 lacks these results: aa_apgd-ce:1, aa_square:1, corruption." in result.err
    frame = pd.read_csv(out)
    assert {*frame["objective"]} == {"clean", "fgsm:1"}
    assert {*frame["column"]} == {"clean", "fgsm:1", "pgd:1"}
    assert (frame["mean"] <= frame["optimum"] + 1e-12).all()


def test_search_json_is_reproducible(robust201: RunCommand, planted_optimum_folder: Path) -> None:
    arguments = (
        "search",
        planted_optimum_folder,
        "--data",
        "cifar100",
        "--objective",
        "pgd:1",
        *FEW_QUERIES,
        "--json",
    )
    result, repeated_result = (robust201(*arguments) for _ in range(2))
    assert result == repeated_result
    (search,) = json.loads(result.out)["searches"]
    assert search["objective"] == "pgd:1"
    assert [method["method"] for method in search["methods"]] == ["local", "random"]
    assert len(search["methods"][0]["regret_by_query"]["mean"]) == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "it has several image datasets: cifar10, cifar100. Choose one with --data."),
        (("--data", "cifar11"), "Did you mean 'cifar10'?"),
        (("--data", "cifar10", "--methods", "evolutoin"), "Did you mean 'evolution'?"),
        (("--data", "cifar10", "--objective", "fog:3"), "Looking up 'fog:3' failed for cifar10"),
        (
            ("--data", "cifar10", "--table1", "--objective", "clean"),
            "--table1 already sets the objectives",
        ),
        (("--data", "cifar10", "--objective", "0.5*clean"), "no such name; expected a score, a key"),
    ],
)
def test_search_rejects_invalid_options(
    robust201: RunCommand, planted_optimum_folder: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = robust201("search", planted_optimum_folder, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_search_rejects_dataset_without_accuracies(robust201: RunCommand, tmp_path: Path) -> None:
    result = robust201("search", write_results(tmp_path / "nothing", {}))
    assert result.code == 2
    assert "nothing: it has no accuracies. Add a folder with accuracies" in result.err


def test_search_accepts_keys_with_dots(robust201: RunCommand, tmp_path: Path) -> None:
    rows = {"clean": {"0": 0.8, "21": 0.7}, "my.attack": {"0": [0.4, 0.1], "21": [0.5, 0.2]}}
    meta = json.loads((write_results(tmp_path / "own", rows) / "meta.json").read_text())
    meta["epsilons"]["my.attack"] = [1.0, 8.0]
    (tmp_path / "own" / "meta.json").write_text(json.dumps(meta))
    for objective, expected_percent in (("my.attack:8", 20.0), ("my.attack", 35.0)):
        options = ("--methods", "random", "--runs", 1, "--queries", 2)
        result = robust201("search", tmp_path / "own", "--objective", objective, *options)
        assert result.code == 0, result.err
        assert f" {expected_percent:.2f} " in result.out


def test_search_rejects_architectures_that_are_not_cells(robust201: RunCommand, tmp_path: Path) -> None:
    export(tmp_path / "zoo", replace(make_plan(("resnet18", "wide"), ("clean",)), space_name="zoo"))
    result = robust201("search", tmp_path / "zoo")
    assert result.code == 2
    assert "its architectures belong to the space zoo, which has no cells" in result.err


def test_search_reads_parquet_export(robust201: RunCommand, tmp_path: Path) -> None:
    export(tmp_path / "dataset", make_plan([*set(isomorphs()[:40])]), formats=("parquet",))
    result = robust201("search", tmp_path / "dataset", "--objective", "fog", *FEW_QUERIES)
    assert result.code == 0
    assert "Search on cifar10 fog: 40 queries, 3 runs" in result.out
    assert "table 1" not in result.out
    assert "nan" not in robust201("search", tmp_path / "dataset", *FEW_QUERIES, "--runs", 1).out
