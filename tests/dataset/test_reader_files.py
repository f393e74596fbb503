"""Reading of all file formats, completely or one value at a time, and caching of file contents."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from robust201.core.errors import ResultsError
from robust201.dataset import json_rows
from robust201.dataset.json_rows import iter_json_rows
from robust201.dataset.reader import Dataset
from tests.support.fabricated import export_copy, make_plan

ARCHITECTURES = (0, 2, 10, 309, 991)
MEASUREMENTS = ("accuracy", "confidence", "cm")


@pytest.fixture
def folder(tmp_path) -> Path:
    export_copy(tmp_path / "data", make_plan(ARCHITECTURES))
    return tmp_path / "data"


@pytest.fixture
def parquet_folder(tmp_path) -> Path:
    export_copy(tmp_path / "parquet", make_plan(ARCHITECTURES), formats=("parquet",))
    return tmp_path / "parquet"


def read_values_by_id(folder: Path, key: str, measure: str) -> dict:
    return json.loads((folder / f"cifar10/{key}_{measure}.json").read_text())["cifar10"][key][measure]


def swap_ids_in_new_file(path: Path) -> None:
    """Replace a file with another file of equal size, in which the ids 0 and 2 are swapped."""
    content = path.read_text()
    swapped_content = content.replace('"2":', '"X":').replace('"0":', '"2":').replace('"X":', '"0":')
    assert len(swapped_content) == len(content)
    assert swapped_content != content
    new_path = path.with_name("new")
    new_path.write_text(swapped_content)
    new_path.replace(path)


def test_reader_notices_replaced_file(folder):
    dataset, path = Dataset(folder), folder / "cifar10/pgd_cm.json"
    original = {architecture: dataset.value(architecture, "cifar10", "pgd", "cm") for architecture in (0, 2)}
    assert original[0] != original[2]
    swap_ids_in_new_file(path)
    assert dataset.value(0, "cifar10", "pgd", "cm") == read_values_by_id(folder, "pgd", "cm")["0"] == original[2]
    assert dataset.value(2, "cifar10", "pgd", "cm") == read_values_by_id(folder, "pgd", "cm")["2"] == original[0]


@pytest.mark.parametrize(
    "content",
    [
        '{"cifar10": {"pgd": {"cm": {"x": [1]}}}}',
        '{"cifar10": {"fog": {"cm": {"1": [1]}}}}',
        '{"cifar10": {"pgd": {"cm": {"1": [1,]}}}}',
        '{"cifar10": {"pgd": {"cm": {"1": [1]',
        '{"cifar10": {"pgd": {"cm": {"1": [1], "x": [1], "2": [1]}}}}',
        '{"cifar10": {"pgd": {"cm": {"1": [1], "2": [1], "1": [1]}}}}',
        "[]",
    ],
)
def test_json_rows_reject_malformed_content(tmp_path, content):
    path = tmp_path / "pgd_cm.json"
    path.write_text(content)
    with pytest.raises(ResultsError, match="Export or download it again"):
        list(iter_json_rows(path, ("cifar10", ("pgd", "pgd@Linf"), "cm"), (1.0,), is_single=False))


@pytest.mark.parametrize("indent", [None, 1])
def test_json_rows_contain_all_values_of_file(folder, monkeypatch, indent):
    monkeypatch.setattr(json_rows, "CHUNK_BYTES", 97)
    monkeypatch.setattr(json_rows, "HEAD_BYTES", 97)
    monkeypatch.setattr(json_rows, "_BYTES_PER_BLOCK", 1)
    for key in ("pgd", "fog", "clean"):
        for measure in MEASUREMENTS:
            path = folder / f"cifar10/{key}_{measure}.json"
            path.write_text(json.dumps(json.loads(path.read_text()), indent=indent))
            values = Dataset(folder).query("cifar10", key, measure)["cifar10"][key][measure]
            assert values == read_values_by_id(folder, key, measure)


def read_all_values(dataset: Dataset, reader_number: int) -> list:
    # Odd readers read keys in the order of the dataset, and even readers in reverse order.
    keys = dataset.keys_all[:: 1 if reader_number % 2 else -1]
    return sorted(
        (key, architecture, repr(dataset.value(architecture, "cifar10", key, "cm")))
        for key in keys
        for architecture in ARCHITECTURES
    )


@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_reader_is_thread_safe(folder, parquet_folder, file_format):
    dataset = Dataset(parquet_folder if file_format == "parquet" else folder)
    barrier = threading.Barrier(4)

    def read_in_thread(reader_number: int) -> list:
        barrier.wait()
        return read_all_values(dataset, reader_number)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(read_in_thread, range(4)))
    assert results.count(results[0]) == 4
    assert results[0] == read_all_values(Dataset(folder), 0)


@pytest.mark.parametrize("extra_content", ['"21": null', '"21": 0.5, "9": [[1]]', '"21"', "}"])
def test_reader_rejects_invalid_content_after_last_value(folder, extra_content):
    path = folder / "cifar10/pgd_cm.json"
    path.write_text(path.read_text().removesuffix("}}}}") + f", {extra_content}" + "}}}}")
    dataset = Dataset(folder)
    with pytest.raises(ResultsError, match="expected"):
        dataset.query("cifar10", "pgd", "cm")
    with pytest.raises(ResultsError, match="expected"):
        dataset.value(0, "cifar10", "pgd", "cm")


def test_tables_of_json_files_are_cached_until_the_file_changes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("robust201.dataset.table.MIN_CACHED_BYTES", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = Dataset(folder).table
    monkeypatch.setattr(json_rows, "_iter_values", lambda *_: pytest.fail("read again"))
    assert Dataset(folder).table.equals(expected)
    sweep = folder / "sweep.json"
    sweep.write_text(sweep.read_text().replace('"count": 40', '"count": 20'))
    assert set(Dataset(folder).table["n_images"]) == {20}  # this number is not in the cache
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    swap_ids_in_new_file(folder / "cifar10/pgd_accuracy.json")
    assert not Dataset(folder).table.equals(expected)
    monkeypatch.setattr("robust201.dataset.table.MIN_CACHED_BYTES", 1)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not Dataset(folder).table.equals(expected)  # an unwritable cache is not used
