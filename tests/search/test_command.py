"""`robust201 search` on planted results."""

import json

import pandas as pd
import pytest

FEW_QUERIES = ("--methods", "local,random", "--runs", 3, "--queries", 40)


@pytest.fixture(autouse=True)
def use_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0})


def test_search_prints_table_and_writes_csv(robust201, planted_optimum_folder, tmp_path):
    out = tmp_path / "table.csv"
    result = robust201(
        "search",
        planted_optimum_folder,
        "--data",
        "cifar10",
        *("--objective", "clean", "--objective", "fgsm:1/255"),
        *FEW_QUERIES,
        "--out",
        out,
    )
    assert result.code == 0
    for expected_text in ("Search on cifar10 clean: 40 queries, 3 runs", "Optimum", "Local search"):
        assert expected_text in result.out
    assert (
        "Not reported, because cifar10 lacks these results: aa_apgd-ce:1/255, aa_square:1/255, corruption."
        in result.err
    )
    frame = pd.read_csv(out)
    assert {*frame["objective"]} == {"clean", "fgsm:1/255"}
    assert {*frame["column"]} == {"clean", "fgsm:1/255", "pgd:1/255"}
    assert (frame["mean"] <= frame["optimum"] + 1e-12).all()


def test_search_json_is_reproducible(robust201, planted_optimum_folder):
    arguments = (
        "search",
        planted_optimum_folder,
        "--data",
        "cifar100",
        "--objective",
        "pgd:1/255",
        *FEW_QUERIES,
        "--json",
    )
    result, repeated_result = (robust201(*arguments) for _ in range(2))
    assert result == repeated_result
    payload = json.loads(result.out)
    assert {(row["objective"], row["method"]) for row in payload["rows"]} == {
        ("pgd:1/255", "local"),
        ("pgd:1/255", "random"),
    }
    assert len(payload["found"]["pgd:1/255"]["local"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "cifar10, cifar100"),
        (("--data", "cifar10", "--methods", "evolutoin"), "'evolutoin'"),
        (("--data", "cifar10", "--objective", "0.5*clean"), "no such name; expected a score, a key"),
    ],
)
def test_search_rejects_invalid_options(robust201, planted_optimum_folder, arguments, message):
    result = robust201("search", planted_optimum_folder, *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert len(result.err.splitlines()) == 1
