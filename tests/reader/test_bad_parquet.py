"""Parquet files that others wrote anew: rows in any order are read right, rows of another form are refused."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import ResultsError
from robust201.reader.dataset import RobustnessDataset
from tests.conftest import RunCommand
from tests.support.fabricated import export, make_plan

FILES = {key: f"parquet/dataset=cifar10/key={key}/part-0.parquet" for key in ("clean", "pgd")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export(tmp_path / "out", make_plan([0, 2, 10], ["clean", "pgd"]), formats=("parquet",))
    return tmp_path / "out"


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], row_group_size: int = 1000) -> None:
    table = pq.read_table(path, partitioning=None)
    pq.write_table(change(table), path, row_group_size=row_group_size)


@pytest.mark.parametrize("row_group_size", [1, 2, 1000])
@pytest.mark.parametrize("by", ["strength", "accuracy"])
@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_rows_in_any_order_give_the_same_values(folder: Path, row_group_size: int, by: str, order: str) -> None:
    asked = ("cifar10", "pgd", ["accuracy", "confidence", "cm"])
    before = RobustnessDataset(folder).query(*asked)
    rewrite(folder / FILES["pgd"], lambda table: table.sort_by([(by, order)]), row_group_size)
    after = RobustnessDataset(folder)
    assert after.query(*asked) == before
    assert after.accuracy(2, "cifar10", "pgd", 8.0) == before["cifar10"]["pgd"]["accuracy"]["2"][-1]


@pytest.mark.parametrize("row_group_size", [1, 1000])
def test_the_strengths_of_files_alone_are_those_of_all_rows(folder: Path, row_group_size: int) -> None:
    before = RobustnessDataset(folder).to_frame("cifar10", "pgd")
    rewrite(folder / FILES["pgd"], lambda table: table.sort_by("strength"), row_group_size)
    alone = RobustnessDataset(folder / "parquet")
    assert alone.strengths("cifar10", "pgd") == (0.5, 1.0, 8.0)
    assert alone.meta["epsilons"] == {"pgd": [0.5, 1.0, 8.0]}
    assert alone.to_frame("cifar10", "pgd")["value"].to_list() == before["value"].to_list()


@pytest.mark.parametrize("alone", [False, True])
def test_no_accuracy_is_given_for_another_strength(folder: Path, alone: bool) -> None:
    """Without its first row, the accuracies of #0 begin with the second strength."""
    rewrite(folder / FILES["pgd"], lambda table: table.slice(1))
    data = RobustnessDataset(folder / "parquet" if alone else folder)
    for strength in (0.5, 1.0, 8.0, None):
        with pytest.raises(ResultsError, match=r"#0 .* expected 3 values, .* got 2, at 1, 8"):
            data.accuracy(0, "cifar10", "pgd", strength)
    assert data.accuracy(2, "cifar10", "pgd", 1.0) == data.value(2, "cifar10", "pgd")[1]


def column_of(name: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.names.index(name), name, values)


N_ROWS = {"clean": 3, "pgd": 9}
WRONG: dict[str, tuple[str, Callable[[pa.Table], pa.Table], str]] = {
    **{
        f"no {name}": ("pgd", lambda t, name=name: t.drop_columns([name]), f"no {name}")
        for name in ("architecture", "strength", "key")
    },
    **{
        f"{name} as text": ("pgd", column_of(name, pa.array(["x"] * 9)), f"{name} as string")
        for name in ("architecture", "strength")
    },
    "architectures that are no whole numbers": ("pgd", column_of("architecture", pa.array([0.5] * 9)), "as double"),
    "no architecture in a row": ("pgd", column_of("architecture", pa.array([0] * 8 + [None])), "without one"),
    "no strength in a row": ("pgd", column_of("strength", pa.array([1.0] * 8 + [None])), "without one"),
    "one strength for all": ("pgd", column_of("strength", pa.array([1.0] * 9)), "at 1 twice"),
    "every row twice": ("pgd", lambda table: pa.concat_tables([table, table]), "at one strength twice"),
    "clean rows twice": ("clean", lambda table: pa.concat_tables([table, table]), "at one strength twice"),
    "clean at two strengths": (
        "clean",
        lambda t: pa.concat_tables([t, column_of("strength", pa.array([1.0] * 3))(t)]),
        "2 values of clean",
    ),
    "an accuracy above 1": ("pgd", column_of("accuracy", pa.array([1.5] * 9)), "a fraction"),
    "a row less": ("pgd", lambda table: table.slice(1), "expected 3 values"),
}


@pytest.mark.parametrize("what", WRONG)
def test_rows_of_another_form_are_refused(folder: Path, robust201: RunCommand, what: str) -> None:
    key, change, told = WRONG[what]
    rewrite(folder / FILES[key], change)
    with pytest.raises(ResultsError, match=told):
        RobustnessDataset(folder).to_frame("cifar10", key)
    assert told in robust201("compare", folder, folder).refusal(2)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_file_that_is_no_parquet_is_refused(folder: Path, robust201: RunCommand, content: bytes) -> None:
    (folder / FILES["pgd"]).write_bytes(content)
    assert "part-0.parquet" in robust201("report", folder, "--out", folder / "page.html").refusal(2)


def test_a_folder_of_empty_files_tells_that_there_is_nothing(folder: Path, robust201: RunCommand) -> None:
    for name in FILES.values():
        rewrite(folder / name, lambda table: table.slice(0, 0))
    assert "expected accuracies, got none" in robust201("report", folder / "parquet").refusal(2)
