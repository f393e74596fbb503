"""Files with invalid ids, values or rows: every reader rejects them with an error that names the file or network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import ResultsError
from robust201.dataset.folder import MissingFilesWarning
from robust201.dataset.reader import Dataset
from tests.conftest import RunCommand
from tests.support.fabricated import export, export_copy, make_plan
from tests.support.small_results import write_results

MATRIX = [[3, 1], [0, 4]]
CONFIDENCE = {"label": [[0.9, 0.1], [0.2, 0.8]], "argmax": [[0.9, 0.1], [0.2, 0.8]], "prediction": [0.9, None]}
VALID_VALUES: dict[str, Any] = {"accuracy": [0.6, 0.5], "cm": [MATRIX] * 2, "confidence": [CONFIDENCE] * 2}

INVALID_VALUES: dict[str, tuple[str, str, Any]] = {
    "an id that is not a number": ("accuracy", "foo", [0.5, 0.4]),
    "an id out of range": ("accuracy", "99999", [0.5, 0.4]),
    "an id with a leading zero": ("accuracy", "01", [0.5, 0.4]),
    "numbers as text": ("accuracy", "1", ["0.5", "0.4"]),
    "booleans": ("accuracy", "1", [True, False]),
    "nested accuracies": ("accuracy", "1", [[0.5], [0.4]]),
    "NaN": ("accuracy", "1", [0.5, float("nan")]),
    "above 1": ("accuracy", "1", [0.5, 1.5]),
    "below 0": ("accuracy", "1", [-0.5, 0.5]),
    "one strength too few": ("accuracy", "1", [0.5]),
    "one strength too many": ("accuracy", "1", [0.5, 0.4, 0.3]),
    "a matrix that is not square": ("cm", "1", [[[1, 2]], [[1, 2]]]),
    "a ragged matrix": ("cm", "1", [[[1, 2], [3]], MATRIX]),
    "a matrix of text": ("cm", "1", [[["a", "b"], ["c", "d"]], MATRIX]),
    "a confidence that lacks a field": ("confidence", "1", [{"label": MATRIX, "argmax": MATRIX}] * 2),
    "a field that is too long": ("confidence", "1", [CONFIDENCE | {"prediction": [0.1, 0.2, 0.3]}] * 2),
    "a list per field": ("confidence", "1", {name: [1, 2] for name in CONFIDENCE}),
}


@pytest.mark.parametrize("case", INVALID_VALUES)
def test_reader_rejects_invalid_id_or_value(tmp_path: Path, case: str) -> None:
    measurement, identifier, invalid_value = INVALID_VALUES[case]
    values_by_id = {str(index): VALID_VALUES[measurement] for index in (0, 2, 3)} | {identifier: invalid_value}
    dataset = Dataset(write_results(tmp_path, {"pgd": values_by_id}, measurement=measurement))
    readers: list[Callable[[], Any]] = [lambda: dataset.table]
    if measurement != "accuracy":
        readers = [
            lambda: list(dataset.iter_rows("cifar10", "pgd", measurement)),
            lambda: dataset.value(1, "cifar10", "pgd", measurement),
        ]
    for read_values in readers:
        with pytest.raises(ResultsError, match=rf"pgd_{measurement}\.json|#1 cifar10 pgd accuracy"):
            read_values()


@pytest.mark.parametrize(
    "fields",
    [
        {"format": None},
        {"strengths": 5},
        {"sweep": {"images": {"count": "1"}}},
        {"sweep": {"protocols": [{"key": 5}]}},
        {"weights": 5},
        {"round_to": "x"},
        {"measurements": [1]},
    ],
)
def test_reader_rejects_invalid_sweep_json(tmp_path: Path, fields: Any, robust201: RunCommand) -> None:
    folder = write_results(tmp_path / "dataset", {"pgd": {"0": [0.5, 0.4]}})
    sweep = {"format": 1, "strengths": {"cifar10": {"pgd": [1, 8]}}, "measurements": ["accuracy"], "sweep": {}}
    (folder / "sweep.json").write_text(json.dumps(sweep | fields))
    assert "sweep.json" in robust201("verify", folder, "--against", folder).error_line(exit_code=2)


# Parquet files that other programs have rewritten

FILES = {key: f"parquet/dataset=cifar10/key={key}/part-0.parquet" for key in ("clean", "pgd")}
Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_copy(tmp_path / "out", make_plan([0, 2, 10], ["clean", "pgd"]), formats=("parquet",))
    return tmp_path / "out"


def rewrite(path: Path, change: Change, row_group_size: int = 1000) -> None:
    table = pq.read_table(path, partitioning=None)
    pq.write_table(change(table), path, row_group_size=row_group_size)


@pytest.mark.parametrize("row_group_size", [1, 2, 1000])
@pytest.mark.parametrize("column", ["strength", "accuracy"])
@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.slow_combinations
def test_query_does_not_depend_on_order_of_rows(folder: Path, row_group_size: int, column: str, order: str) -> None:
    query_arguments = ("cifar10", "pgd", ["accuracy", "confidence", "cm"])
    expected = Dataset(folder).query(*query_arguments)
    rewrite(folder / FILES["pgd"], lambda table: table.sort_by([(column, order)]), row_group_size)
    assert Dataset(folder).query(*query_arguments) == expected


def replace_column(name: str, values: list[Any]) -> Change:
    return lambda table: table.set_column(table.schema.names.index(name), name, pa.array(values))


INVALID_ROWS: dict[str, tuple[str, Change]] = {
    "no column strength": ("pgd", lambda table: table.drop_columns(["strength"])),
    "architectures as text": ("pgd", replace_column("architecture", ["x"] * 9)),
    "architectures that are not integers": ("pgd", replace_column("architecture", [0.5] * 9)),
    "no architecture in a row": ("pgd", replace_column("architecture", [0] * 8 + [None])),
    "no strength in a row": ("pgd", replace_column("strength", [1.0] * 8 + [None])),
    "one strength for all": ("pgd", replace_column("strength", [1.0] * 9)),
    "every row twice": ("pgd", lambda table: pa.concat_tables([table, table])),
    "clean rows twice": ("clean", lambda table: pa.concat_tables([table, table])),
    "an accuracy above 1": ("pgd", replace_column("accuracy", [1.5] * 9)),
    "a missing row": ("pgd", lambda table: table.slice(1)),
    "results on no images": ("pgd", replace_column("n_images", [0] * 9)),
    "results of another key": ("pgd", replace_column("key", ["fgsm"] * 9)),
    "results on another dataset": ("pgd", replace_column("dataset", ["digits"] * 9)),
}


@pytest.mark.parametrize("case", INVALID_ROWS)
def test_reader_rejects_invalid_rows(folder: Path, robust201: RunCommand, case: str) -> None:
    key, change = INVALID_ROWS[case]
    rewrite(folder / FILES[key], change)
    with pytest.raises(ResultsError, match=r"part-0\.parquet|#0 "):
        Dataset(folder).read_table("cifar10", key)
    robust201("verify", folder, "--against", folder).error_line(exit_code=2)


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("formats", [("json",), ("parquet",)])
def test_reader_warns_of_missing_file(tmp_path: Path, robust201: RunCommand, formats: tuple[str, ...]) -> None:
    plan = make_plan([0, 2, 10], ["clean", "pgd"])
    export(tmp_path, plan, formats=formats)
    (tmp_path / (FILES["pgd"] if "parquet" in formats else "cifar10/pgd_accuracy.json")).unlink()
    with pytest.warns(MissingFilesWarning, match="pgd"):
        dataset = Dataset(tmp_path)
    with pytest.raises((ResultsError, FileNotFoundError)):
        dataset.query("cifar10", "pgd", "accuracy")
    assert dataset.accuracy(2, "cifar10", "clean")
    result = robust201("report", tmp_path, "--out", tmp_path / "page.html")
    assert (result.code, "warning: " in result.err) == (0, True)
