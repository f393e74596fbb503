"""Summaries of confidences and confusion matrices, which are equal for JSON and Parquet."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.analysis.class_summaries import summarise_classes
from robust201.core.errors import ResultsError
from robust201.dataset.parquet_rows import iter_parquet_rows
from robust201.dataset.reader import Dataset
from tests.support.fabricated import export, make_plan

KEYS = ("clean", "pgd", "fog")
MEASURES = ("confidence", "cm")


@pytest.fixture(scope="module")
def dataset_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    export(folder, make_plan([0, 1, 2, 9, 21], KEYS), formats=("json", "parquet"))
    return folder


def read_summaries(path: Path, measure: str) -> dict[tuple[str, float], np.ndarray]:
    return summarise_classes(Dataset(path), "cifar10", KEYS, measure)


def assert_equal_summaries(first: dict, second: dict) -> None:
    assert list(first) == list(second)
    assert {key for key, _ in first} == set(KEYS)
    for column, array in first.items():
        np.testing.assert_allclose(array, second[column], rtol=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_summaries_agree_between_json_and_parquet(dataset_folder, tmp_path, measure):
    json_only = tmp_path / "json"
    json_only.mkdir()
    for name in ("cifar10", "meta.json", "sweep.json"):
        (json_only / name).symlink_to(dataset_folder / name)
    assert_equal_summaries(read_summaries(json_only, measure), read_summaries(dataset_folder, measure))


@pytest.mark.parametrize("measure", MEASURES)
def test_summaries_agree_with_queried_values(dataset_folder, measure):
    data = Dataset(dataset_folder)
    summaries_by_column = read_summaries(dataset_folder, measure)
    for key in KEYS:
        values = data.query("cifar10", key, measure)["cifar10"][key][measure].values()
        for index, strength in enumerate(data.strengths("cifar10", key)):
            values_at_strength = [value if key == "clean" else value[index] for value in values]
            if measure == "cm":
                np.testing.assert_array_equal(summaries_by_column[key, strength], np.sum(values_at_strength, axis=0))
            else:
                labels = np.array([value["label"] for value in values_at_strength], dtype=float)
                predictions = np.array([value["prediction"] for value in values_at_strength], dtype=float)
                np.testing.assert_array_equal(summaries_by_column[key, strength][:, :2], predictions)
                true_class_means = [np.mean([x for x in np.diag(label) if not np.isnan(x)]) for label in labels]
                np.testing.assert_allclose(summaries_by_column[key, strength][:, 2], true_class_means, rtol=1e-12)
                argmaxes = np.array([value["argmax"] for value in values_at_strength], dtype=float)
                expected_by_class = [
                    np.hstack([np.diag(label), np.diag(argmax)]) for label, argmax in zip(labels, argmaxes, strict=True)
                ]
                np.testing.assert_array_equal(summaries_by_column[key, strength][:, 3:], expected_by_class)


def edit_column(path: Path, name: str, edit: Callable[[list], None]) -> None:
    table = pq.read_table(path, partitioning=None)
    column_values = table[name].to_pylist()
    edit(column_values)
    index = table.schema.names.index(name)
    pq.write_table(
        table.set_column(index, table.schema.field(name), pa.array(column_values, table.schema.field(name).type)), path
    )


def set_number(number: float) -> Callable[[list], None]:
    return lambda rows: rows[1][0].__setitem__(0, number)


@pytest.mark.parametrize(
    ("measure", "column", "edit", "message"),
    [
        ("cm", "cm", set_number(-1), "a count"),
        ("confidence", "confidence_label", set_number(7.5), "not fractions"),
        ("confidence", "confidence_correct", lambda rows: rows.__setitem__(1, -0.5), "not fractions"),
        ("cm", "architecture", lambda rows: rows.__setitem__(slice(None), [0] * len(rows)), "expected 3 values"),
        ("cm", "strength", lambda rows: rows.__setitem__(1, 77.0), "expected 3 values"),
    ],
)
def test_summaries_reject_invalid_numbers_in_parquet(dataset_folder, tmp_path, measure, column, edit, message):
    shutil.copytree(dataset_folder, tmp_path / "copy")
    edit_column(tmp_path / "copy/parquet/dataset=cifar10/key=pgd/part-0.parquet", column, edit)
    with pytest.raises(ResultsError, match=message):
        read_summaries(tmp_path / "copy", measure)


@pytest.mark.parametrize(("measure", "invalid_number"), [("cm", "0.5"), ("confidence", "7.5")])
def test_summaries_reject_invalid_numbers_in_json(dataset_folder, tmp_path, measure, invalid_number):
    shutil.copytree(dataset_folder, tmp_path / "copy", ignore=shutil.ignore_patterns("parquet"))
    path = tmp_path / f"copy/cifar10/pgd_{measure}.json"
    path.write_text(re.sub(r"\[\[[\d.]+", f"[[{invalid_number}", path.read_text(), count=1))
    with pytest.raises(ResultsError, match=r"expected .* of (counts|fractions)"):
        read_summaries(tmp_path / "copy", measure)


def write_matrices(path: Path, values: list, column_type: pa.DataType | None = None) -> Path:
    column = pa.array(values, column_type or pa.list_(pa.list_(pa.float64())))
    strengths = [float(index) for index in range(len(values))]
    columns = {"architecture": [0] * len(values), "key": ["pgd"] * len(values), "strength": strengths, "cm": column}
    path.parent.mkdir()
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


@pytest.mark.parametrize(
    "column_type", [None, pa.large_list(pa.large_list(pa.int32())), pa.list_(pa.list_(pa.int64(), 2), 2)]
)
def test_matrices_of_any_list_type_are_read_and_null_rows_skipped(tmp_path, column_type):
    first, second, third = [[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 0], [1, 2]]
    path = write_matrices(tmp_path / "key=pgd/m.parquet", [first, None, second, third, None, None], column_type)
    blocks = list(iter_parquet_rows(path, "cm"))
    assert [rows.strengths.tolist() for rows in blocks] == [[0.0], [2.0, 3.0]]
    assert np.concatenate([rows.columns["cm"] for rows in blocks]).tolist() == [first, second, third]


INVALID_MATRICES = ([[[1, 2], [3]]], [[[1, 2]]], [[[1, 2], [3, 4]], [[1]]], [[[1, 2], [3, float("inf")]]])
INCOMPLETE_MATRICES = ([[[1, 2], [3, None]]], [[[1, 2], None]], [[]])


@pytest.mark.parametrize("values", [*INVALID_MATRICES, *INCOMPLETE_MATRICES])
def test_parquet_rows_reject_invalid_or_incomplete_matrices(tmp_path, values):
    path = write_matrices(tmp_path / "key=pgd/m.parquet", values)
    with pytest.raises(ResultsError, match=r"Reading .*cm failed for .*m\.parquet: expected"):
        list(iter_parquet_rows(path, "cm"))
