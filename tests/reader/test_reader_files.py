"""Reading of all file formats, as a whole or one value at a time, and caching of file contents."""

import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from robust201.core.errors import ArchitectureError, ConfigError, ResultsError
from robust201.reader import file_cache, json_files
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.file_cache import RowCache
from robust201.reader.json_files import iter_json_values
from tests.support.fabricated import export, export_copy, make_plan
from tests.support.small_results import write_results

ARCHITECTURES = (0, 2, 10, 309, 991)
MEASURES = ("accuracy", "confidence", "cm")


@pytest.fixture
def folder(tmp_path) -> Path:
    export_copy(tmp_path / "data", make_plan(ARCHITECTURES))
    return tmp_path / "data"


@pytest.fixture
def parquet(tmp_path) -> Path:
    export_copy(tmp_path / "parquet", make_plan(ARCHITECTURES), formats=("parquet",))
    return tmp_path / "parquet"


def rows_of(folder: Path, key: str, measure: str) -> dict:
    return json.loads((folder / f"cifar10/{key}_{measure}.json").read_text())["cifar10"][key][measure]


def replace_keeping_length(path: Path) -> None:
    """Replace a file by one of equal size in which the names of the first two architectures are swapped."""
    text = path.read_text()
    other = text.replace('"2":', '"X":').replace('"0":', '"2":').replace('"X":', '"0":')
    assert len(other) == len(text) != sum(one == two for one, two in zip(other, text, strict=True))
    new = path.with_name("new")
    new.write_text(other)
    new.replace(path)


def test_reader_notices_replaced_file(folder):
    data, path = RobustnessDataset(folder), folder / "cifar10/pgd_cm.json"
    before = {i: data.value(i, "cifar10", "pgd", "cm") for i in (0, 2)}
    assert before[0] != before[2]
    replace_keeping_length(path)
    assert data.value(0, "cifar10", "pgd", "cm") == rows_of(folder, "pgd", "cm")["0"] == before[2]
    assert data.value(2, "cifar10", "pgd", "cm") == rows_of(folder, "pgd", "cm")["2"] == before[0]


def test_row_cache_is_bounded_and_keeps_last_file(tmp_path, monkeypatch):
    monkeypatch.setattr(file_cache, "MAX_CACHE_BYTES", 30)
    cache, reads = RowCache(), []
    for name in ("a", "b", "large"):
        (tmp_path / name).touch()

    def ask(name: str, value: str) -> None:
        cache.get(tmp_path / name, "cm", lambda: reads.append(name) or {"0": value})

    for name in ("a", "b", "a", "b"):
        ask(name, "x" * 10)
    assert reads == ["a", "b"]
    ask("large", "x" * 100)
    ask("large", "x" * 100)
    ask("a", "x" * 10)
    ask("large", "x" * 100)
    assert reads == ["a", "b", "large", "a", "large"]


def test_to_frame_and_rank_notice_replaced_file(folder):
    data, path = RobustnessDataset(folder), folder / "cifar10/pgd_accuracy.json"
    before = data.to_frame("cifar10", "pgd", wide=True)
    content = json.loads(path.read_text())
    content["cifar10"]["pgd"]["accuracy"]["0"] = [0.0, 0.0, 0.0]
    new = path.with_name("new.json")
    new.write_text(json.dumps(content))
    new.replace(path)
    after = data.to_frame("cifar10", "pgd", wide=True)
    assert not after.equals(before)
    assert after.equals(RobustnessDataset(folder).to_frame("cifar10", "pgd", wide=True))
    assert data.rank("cifar10", "pgd", 8.0)[0] == len(after)


@pytest.mark.parametrize("form", ["parquet", "bare parquet", "gz", "zst"])
def test_all_formats_give_same_results(folder, tmp_path, form):
    expected = RobustnessDataset(folder)
    out = tmp_path / "other"
    if form in ("gz", "zst"):
        export(out, make_plan(ARCHITECTURES), compression=form)
    else:
        export(out, make_plan(ARCHITECTURES), formats=("parquet",))
    data = RobustnessDataset(out / "parquet" if form == "bare parquet" else out)
    assert data.data == ["cifar10"]
    assert data.keys_all == expected.keys_all
    assert data.measures == expected.measures
    assert data.query() == expected.query()
    for key in data.keys_all:
        assert data.strengths("cifar10", key) == expected.strengths("cifar10", key)
        for measure in MEASURES:
            assert data.value(10, "cifar10", key, measure) == expected.value(10, "cifar10", key, measure)
    assert data.accuracy(991, "cifar10", "pgd", 8.0) == expected.accuracy(991, "cifar10", "pgd", 8.0)
    assert data.to_frame().equals(expected.to_frame())
    with pytest.raises(ArchitectureError):
        data.accuracy(13_433, "cifar10", "pgd")
    with pytest.raises(ResultsError):
        data.query("cifar10", "pgd", "predictions")


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".parquet"])
@pytest.mark.parametrize("damage", ["cut short", "changed"])
@pytest.mark.each_value
def test_error_names_damaged_file(tmp_path, suffix, damage):
    if suffix == ".parquet":
        export(tmp_path, make_plan(range(40), ["pgd"]), formats=("parquet",))
        path = tmp_path / "parquet/dataset=cifar10/key=pgd/part-0.parquet"
    else:
        export(tmp_path, make_plan(range(40), ["pgd"]), compression=suffix[1:] or None)
        path = tmp_path / f"cifar10/pgd_cm.json{suffix}"
    content = bytearray(path.read_bytes())
    if damage == "cut short":
        del content[-9:]
    else:
        content[: len(content) - 4] = b"\xff" * (len(content) - 4)
    data = RobustnessDataset(tmp_path)
    strengths = data.strengths("cifar10", "pgd")
    assert len(strengths) == 3
    path.write_bytes(content)
    with pytest.raises(ResultsError, match=path.name):
        list(data.files.iter_values("cifar10", "pgd", "cm"))
    with pytest.raises(ResultsError, match=path.name):
        data.query("cifar10", "pgd", "cm")


@pytest.mark.parametrize(
    "text",
    [
        '{"cifar10": {"pgd": {"cm": {"x": [1]}}}}',
        '{"cifar10": {"fog": {"cm": {"1": [1]}}}}',
        '{"cifar10": {"pgd": {"cm": {"1": [1,]}}}}',
        '{"cifar10": {"pgd": {"cm": {"1": [1]',
        '{"cifar10": {"pgd": {"cm": {"1": [1] "2": [1]}}}}',
        '{"cifar10": {"pgd": {"cm": {"1": [1], "x": [1], "2": [1]}}}}',
        '{"cifar10": {"pgd": {"cm": {[1], "2": [1]}}}}',
        '{"cifar10": {"pgd": {"cm": {1}}}}',
        '{"cifar10": {"pgd": {"cm": {"1": [1], "2": [1], "1": [1]}}}}',
        "[]",
    ],
)
def test_iter_json_values_rejects_other_content(tmp_path, text):
    path = tmp_path / "pgd_cm.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match="Export or download it again"):
        list(iter_json_values(path, "cifar10", ("pgd", "pgd@Linf"), "cm"))


@pytest.mark.parametrize("indent", [None, 1])
def test_iter_json_values_equals_whole_file(folder, monkeypatch, indent):
    monkeypatch.setattr(json_files, "PIECE_BYTES", 97)
    monkeypatch.setattr(json_files, "HEAD_BYTES", 97)
    for key in ("pgd", "fog", "clean"):
        for measure in MEASURES:
            path = folder / f"cifar10/{key}_{measure}.json"
            path.write_text(json.dumps(json.loads(path.read_text()), indent=indent))
            assert dict(iter_json_values(path, "cifar10", (key,), measure)) == rows_of(folder, key, measure)


def test_iter_json_values_of_file_without_ids_is_empty(tmp_path):
    path = tmp_path / "pgd_cm.json"
    path.write_text('{"cifar10": {"pgd": {"cm": {}}}}')
    assert list(iter_json_values(path, "cifar10", ("pgd",), "cm")) == []


def test_iter_json_values_limits_size_of_value(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "PIECE_BYTES", 64)
    monkeypatch.setattr(json_files, "MAX_VALUE_BYTES", 256)
    path = tmp_path / "pgd_cm.json"
    path.write_text('{"cifar10": {"pgd": {"cm": {"1": [' + 9000 * "1, ")
    with pytest.raises(ResultsError, match="without the end of a value"):
        list(iter_json_values(path, "cifar10", ("pgd",), "cm"))


def test_iter_json_values_reads_python_json_lazily(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "PIECE_BYTES", 50)
    path = tmp_path / "pgd_cm.json"
    path.write_text('{"cifar10": {"pgd": {"cm": {"1": [NaN], "2": [[1]], "3": ' + 60 * " " + "[1,]}}}}")
    monkeypatch.setattr(json_files, "HEAD_BYTES", 40)
    rows = iter_json_values(path, "cifar10", ("pgd",), "cm")
    assert next(rows)[1] == pytest.approx([np.nan], nan_ok=True)
    assert next(rows) == ("2", [[1]])
    with pytest.raises(ResultsError, match="an invalid value for #3"):
        next(rows)


def read_all(data: RobustnessDataset, order: int) -> list:
    keys = data.keys_all[:: 1 if order % 2 else -1]
    return sorted((key, i, repr(data.value(i, "cifar10", key, "cm"))) for key in keys for i in ARCHITECTURES)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_reader_is_thread_safe(folder, parquet, form):
    data = RobustnessDataset(parquet if form == "parquet" else folder)
    barrier = threading.Barrier(4)

    def work(order: int) -> list:
        barrier.wait()
        return read_all(data, order)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(work, range(4)))
    assert answers.count(answers[0]) == 4
    assert answers[0] == read_all(RobustnessDataset(folder), 0)


def answer_in_child(data: RobustnessDataset, queue) -> None:
    queue.put(read_all(data, 1))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_reader_works_after_fork(folder, parquet, form):
    data = RobustnessDataset(parquet if form == "parquet" else folder)
    expected = read_all(data, 0)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=answer_in_child, args=(data, queue)) for _ in range(2)]
    for child in children:
        child.start()
    answers = [queue.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert answers == [expected, expected]


@pytest.mark.parametrize("more", ['"21": null', '"21": 0.5, "9": [[1]]', '"21"', "}"])
def test_reader_rejects_content_after_last_list(folder, more):
    path = folder / "cifar10/pgd_cm.json"
    path.write_text(path.read_text().removesuffix("}}}}") + f", {more}" + "}}}}")
    data = RobustnessDataset(folder)
    with pytest.raises(ResultsError, match="expected"):
        data.query("cifar10", "pgd", "cm")
    with pytest.raises(ResultsError, match="expected"):
        list(data.files.iter_values("cifar10", "pgd", "cm"))


def test_rank_orders_architectures(folder):
    data = RobustnessDataset(folder)
    accuracies = {i: data.accuracy(i, "cifar10", "pgd", 8.0) for i in ARCHITECTURES}
    ranks = data.rank("cifar10", "pgd", 8.0)
    assert {i: 1 + sum(other > accuracies[i] for other in accuracies.values()) for i in accuracies} == ranks.to_dict()
    assert ranks.iloc[0] == 1
    assert list(ranks) == sorted(ranks)
    means = {i: np.mean(data.accuracy(i, "cifar10", "pgd")) for i in ARCHITECTURES}
    assert data.rank("cifar10", "pgd").index[0] == max(means, key=means.get)
    everyone = data.rank("cifar10", "clean", isomorphs=True)
    assert len(everyone) > len(ranks)
    assert all(everyone[i] == everyone[int(data.get_uid(i))] for i in everyone.index)
    with pytest.raises(ConfigError, match=r"expected a strength of 0\.5, 1, 8, got 2"):
        data.rank("cifar10", "pgd", 2.0)


def test_rank_leaves_out_architecture_without_clean_value(tmp_path):
    data = RobustnessDataset(
        write_results(
            tmp_path, {"clean": {"0": 0.5, "9": 0.75}, "pgd": {"0": [0.5, 0.25], "2": [0.4, 0.2], "9": [0, 0]}}
        )
    )
    assert data.rank("cifar10", "pgd", 0).to_dict() == {9: 1, 0: 2}
    assert data.rank("cifar10", "pgd", 1.0).to_dict() == {0: 1, 2: 2, 9: 3}
    assert data.rank("cifar10", "pgd").to_dict() == {0: 1, 2: 2, 9: 3}
