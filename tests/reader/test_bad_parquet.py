"""Parquet files that other programs have rewritten: rows are read in any order, and malformed rows are rejected."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import ResultsError
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.listings import MissingFilesWarning
from tests.conftest import RunCommand
from tests.support.fabricated import export, export_copy, make_plan

FILES = {key: f"parquet/dataset=cifar10/key={key}/part-0.parquet" for key in ("clean", "pgd")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_copy(tmp_path / "out", make_plan([0, 2, 10], ["clean", "pgd"]), formats=("parquet",))
    return tmp_path / "out"


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], row_group_size: int = 1000) -> None:
    table = pq.read_table(path, partitioning=None)
    pq.write_table(change(table), path, row_group_size=row_group_size)


@pytest.mark.parametrize("row_group_size", [1, 2, 1000])
@pytest.mark.parametrize("column", ["strength", "accuracy"])
@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.slow_combinations
def test_query_does_not_depend_on_order_of_rows(folder: Path, row_group_size: int, column: str, order: str) -> None:
    query_arguments = ("cifar10", "pgd", ["accuracy", "confidence", "cm"])
    expected = RobustnessDataset(folder).query(*query_arguments)
    rewrite(folder / FILES["pgd"], lambda table: table.sort_by([(column, order)]), row_group_size)
    rewritten_dataset = RobustnessDataset(folder)
    assert rewritten_dataset.query(*query_arguments) == expected
    assert rewritten_dataset.accuracy(2, "cifar10", "pgd", 8.0) == expected["cifar10"]["pgd"]["accuracy"]["2"][-1]


@pytest.mark.parametrize("row_group_size", [1, 1000])
def test_reader_reads_strengths_from_all_rows_if_sweep_json_is_missing(folder: Path, row_group_size: int) -> None:
    expected = RobustnessDataset(folder).to_frame("cifar10", "pgd")
    rewrite(folder / FILES["pgd"], lambda table: table.sort_by("strength"), row_group_size)
    parquet_dataset = RobustnessDataset(folder / "parquet")
    assert parquet_dataset.strengths("cifar10", "pgd") == (0.5, 1.0, 8.0)
    assert parquet_dataset.meta["epsilons"] == {"pgd": [0.5, 1.0, 8.0]}
    assert parquet_dataset.to_frame("cifar10", "pgd")["value"].to_list() == expected["value"].to_list()


@pytest.mark.parametrize("is_parquet_folder", [False, True])
def test_accuracy_rejects_architecture_without_row_for_a_strength(folder: Path, is_parquet_folder: bool) -> None:
    """If the first row is missing, the first accuracy of #0 in the file is at the second strength."""
    rewrite(folder / FILES["pgd"], lambda table: table.slice(1))
    dataset = RobustnessDataset(folder / "parquet" if is_parquet_folder else folder)
    for strength in (0.5, 1.0, 8.0, None):
        with pytest.raises(ResultsError, match=r"#0 .* expected 3 values, .* got 2, at 1, 8"):
            dataset.accuracy(0, "cifar10", "pgd", strength)
    assert dataset.accuracy(2, "cifar10", "pgd", 1.0) == dataset.value(2, "cifar10", "pgd")[1]


def replace_column(name: str, values: pa.Array) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.names.index(name), name, values)


N_ROWS = {"clean": 3, "pgd": 9}
MALFORMED_ROWS: dict[str, tuple[str, Callable[[pa.Table], pa.Table], str]] = {
    **{
        f"no {name}": ("pgd", lambda table, name=name: table.drop_columns([name]), f"no column `{name}`")
        for name in ("architecture", "strength", "key")
    },
    **{
        f"{name} as text": ("pgd", replace_column(name, pa.array(["x"] * 9)), f"a column `{name}` of type string")
        for name in ("architecture", "strength")
    },
    "architectures that are not integers": (
        "pgd",
        replace_column("architecture", pa.array([0.5] * 9)),
        "of type double",
    ),
    "no architecture in a row": (
        "pgd",
        replace_column("architecture", pa.array([0] * 8 + [None])),
        "rows without an architecture or strength",
    ),
    "no strength in a row": (
        "pgd",
        replace_column("strength", pa.array([1.0] * 8 + [None])),
        "rows without an architecture or strength",
    ),
    "one strength for all": ("pgd", replace_column("strength", pa.array([1.0] * 9)), "at 1 twice"),
    "every row twice": ("pgd", lambda table: pa.concat_tables([table, table]), "at 0.5 twice"),
    "clean rows twice": ("clean", lambda table: pa.concat_tables([table, table]), "at 0 twice"),
    "clean at two strengths": (
        "clean",
        lambda table: pa.concat_tables([table, replace_column("strength", pa.array([1.0] * 3))(table)]),
        "2 values of #0, where clean images",
    ),
    "an accuracy above 1": ("pgd", replace_column("accuracy", pa.array([1.5] * 9)), "a fraction"),
    "a missing row": ("pgd", lambda table: table.slice(1), "expected 3 values"),
}


@pytest.mark.parametrize("case", MALFORMED_ROWS)
def test_reader_rejects_malformed_rows(folder: Path, robust201: RunCommand, case: str) -> None:
    key, change, message = MALFORMED_ROWS[case]
    rewrite(folder / FILES[key], change)
    with pytest.raises(ResultsError, match=message):
        RobustnessDataset(folder).to_frame("cifar10", key)
    assert message in robust201("verify", folder, "--against", folder).error_line(2)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_reader_rejects_file_that_is_not_parquet(folder: Path, robust201: RunCommand, content: bytes) -> None:
    (folder / FILES["pgd"]).write_bytes(content)
    assert "part-0.parquet" in robust201("report", folder, "--out", folder / "page.html").error_line(2)


def test_report_rejects_folder_of_empty_files(folder: Path, robust201: RunCommand) -> None:
    for name in FILES.values():
        rewrite(folder / name, lambda table: table.slice(0, 0))
    assert "it has no accuracies" in robust201("report", folder / "parquet").error_line(2)


# Listing of the files


@pytest.mark.parametrize("fault", ["deleted", "a folder"])
def test_reader_warns_of_missing_parquet_file(folder: Path, robust201: RunCommand, fault: str) -> None:
    (folder / FILES["pgd"]).unlink()
    if fault == "a folder":
        (folder / FILES["pgd"]).mkdir()
    with pytest.warns(
        MissingFilesWarning, match=r"1 listed file is not in .*key=pgd/part-0\.parquet\), because of deletion"
    ):
        dataset = RobustnessDataset(folder)
    assert "pgd" in dataset.keys_all
    with pytest.raises(ResultsError):
        dataset.accuracy(2, "cifar10", "pgd", 1.0)
    assert dataset.accuracy(2, "cifar10", "clean")
    result = robust201("report", folder, "--out", folder / "page.html")
    assert result.code == 0
    assert "warning: 1 listed file is not in" in result.err


def test_reader_warns_of_missing_json_unless_parquet_has_it(tmp_path: Path) -> None:
    plan = make_plan([0, 2, 10], ["clean", "pgd"])
    for name, formats in (("both", ("json", "parquet")), ("json", ("json",))):
        export(tmp_path / name, plan, formats=formats)
        (tmp_path / name / "cifar10" / "pgd_cm.json").unlink()
    RobustnessDataset(tmp_path / "both")
    with pytest.warns(MissingFilesWarning, match=r"\(cifar10/pgd_cm\.json\)"):
        RobustnessDataset(tmp_path / "json")
