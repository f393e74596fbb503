"""CSV files preserve numbers, and mark text that spreadsheets would evaluate as a formula."""

import csv
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.core.csv_files import write_csv
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1", "a;=1", "a\n+b", "＝1", "-1 to 2"],
)
def test_write_csv_marks_formulas_as_text(text: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({text: [text, "plain"], "kind": pd.Categorical([text, "plain"])}, index=[text, "row"])
    frame.index.name = text
    write_csv(tmp_path / "a.csv", frame, index=True)
    with (tmp_path / "a.csv").open(newline="") as stream:
        header, formula_row, plain_row = csv.reader(stream)
    cells = [*header[:2], *formula_row]
    assert all("'" in cell and cell.replace("'", "") == text.replace("'", "") for cell in cells), cells
    assert not any(re.search(r"(^|[;\t\r\n])\s*[=+\-@＝＋－＠]", cell) for cell in cells)
    assert plain_row == ["row", "plain", "plain"]
    assert frame.iloc[0, 0] == text  # the table itself is unchanged


def test_write_csv_preserves_numbers_and_other_text(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "float": [-0.5, float("nan"), -np.inf],
            "float32": np.float32([0.1, -0.2, 3]),
            "int": [-3, 0, 2**60],
            "mixed": [-0.1, "-1e-3", "+4"],
            "text": ["a-b", "-", "x=y"],
            "empty": [None, "", "–"],
        }
    )
    write_csv(tmp_path / "a.csv", frame)
    assert (tmp_path / "a.csv").read_text() == frame.to_csv(index=False)
    write_csv(tmp_path / "a.csv", frame.iloc[:0])
    assert (tmp_path / "a.csv").read_text() == frame.iloc[:0].to_csv(index=False)


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_write_csv_keeps_every_digit(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = tmp_path_factory.getbasetemp() / "numbers.csv"
    write_csv(path, pd.DataFrame({"x": values}))
    assert [float(line) for line in path.read_text().splitlines()[1:]] == values


def test_write_csv_accepts_duplicate_column_names(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", pd.DataFrame([[1, "=2"], [3, "b"]], columns=["a", "a"]))
    assert (tmp_path / "a.csv").read_text() == "a,a\n1,'=2\n3,b\n"


def test_only_csv_files_module_writes_csv() -> None:
    source_paths = (REPOSITORY / "pipeline/robust201").rglob("*.py")
    modules_writing_csv = {
        path.name for path in source_paths if re.search(r"\.to_csv\(|csv\.writer|DictWriter", path.read_text())
    }
    assert modules_writing_csv == {"csv_files.py"}
