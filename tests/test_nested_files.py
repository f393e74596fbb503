"""Confidences and confusion matrices as the figures read them: alike from JSON and Parquet, and by any processes."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.analysis import nested_files
from pipeline.analysis.nested_files import summarise_files
from pipeline.analysis.parquet_results import iter_matrices
from pipeline.analysis.reader import RobustnessDataset
from pipeline.analysis.reading_pool import map_jobs
from pipeline.analysis.result_files import ResultFiles
from pipeline.errors import ResultsError, StorageError
from tests.fabricated import export, make_plan

KEYS = ("clean", "pgd", "fog")
MEASURES = ("confidence", "cm")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dataset")
    export(out, make_plan([0, 1, 2, 9, 21], KEYS), formats=("json", "parquet"))
    return out


def summaries(path: Path, measure: str, processes: int = 1) -> dict[tuple[str, float], np.ndarray]:
    found = summarise_files(ResultFiles(path), "cifar10", KEYS, measure, processes=processes)
    return {(summary.key, strength): array for summary in found for strength, array in summary.by_strength.items()}


def assert_same(one: dict, other: dict) -> None:
    assert list(one) == list(other)
    assert {key for key, _ in one} == set(KEYS)
    for column, array in one.items():
        np.testing.assert_allclose(array, other[column], rtol=1e-12)


@pytest.mark.parametrize("measure", MEASURES)
def test_json_and_parquet_give_the_same(dataset, tmp_path, measure):
    alone = tmp_path / "json"
    alone.mkdir()
    for name in ("cifar10", "meta.json", "sweep.json"):
        (alone / name).symlink_to(dataset / name)
    assert_same(summaries(alone, measure), summaries(dataset / "parquet", measure))


@pytest.mark.parametrize("measure", MEASURES)
def test_summaries_are_what_the_reader_gives(dataset, measure):
    data = RobustnessDataset(dataset)
    found = summaries(dataset, measure)
    for key in KEYS:
        values = data.query("cifar10", key, measure)["cifar10"][key][measure].values()
        for place, strength in enumerate(data.strengths("cifar10", key)):
            own = [value if key == "clean" else value[place] for value in values]
            if measure == "cm":
                np.testing.assert_array_equal(found[key, strength], np.sum(own, axis=0))
            else:
                labels = np.array([value["label"] for value in own], dtype=float)
                predictions = np.array([value["prediction"] for value in own], dtype=float)
                np.testing.assert_array_equal(found[key, strength][:, :2], predictions)
                true = [np.mean([x for x in np.diag(label) if not np.isnan(x)]) for label in labels]
                np.testing.assert_allclose(found[key, strength][:, 2], true, rtol=1e-12)


def test_of_both_forms_parquet_is_read(dataset, tmp_path):
    for name in ("meta.json", "sweep.json", "parquet"):
        (tmp_path / name).symlink_to(dataset / name)
    (tmp_path / "cifar10").mkdir()
    for key in KEYS:
        (tmp_path / "cifar10" / f"{key}_cm.json").write_text("no JSON")
    assert_same(summaries(tmp_path, "cm"), summaries(dataset, "cm"))


def test_several_processes_give_the_same(dataset, monkeypatch):
    expected = summaries(dataset, "confidence")
    monkeypatch.setattr(nested_files, "MIN_POOLED_BYTES", 0)
    assert_same(summaries(dataset, "confidence", processes=2), expected)


def halve(number: int) -> tuple[int, float]:
    if number == 0:
        raise ResultsError("Halving failed for 0: expected another number, got 0. Halve that.")
    if number < 0:
        os._exit(1)
    return os.getpid(), number / 2


def test_jobs_are_done_in_their_order_and_elsewhere():
    answers = map_jobs(halve, [4, 2, 8, 6], 2)
    assert [half for _, half in answers] == [2, 1, 4, 3]
    assert os.getpid() not in {pid for pid, _ in answers}
    assert {pid for pid, _ in map_jobs(halve, [4, 2], 1)} == {os.getpid()}


def test_what_a_job_raises_and_its_death_are_told():
    with pytest.raises(ResultsError, match="Halving failed for 0"):
        map_jobs(halve, [4, 0, 8], 2)
    with pytest.raises(StorageError, match="expected it to read its file, got its death"):
        map_jobs(halve, [4, -1, 8], 2)


def write_matrices(path: Path, values: list, kind: pa.DataType | None = None) -> Path:
    column = pa.array(values, kind or pa.list_(pa.list_(pa.float64())))
    strengths = [float(place) for place in range(len(values))]
    pq.write_table(pa.table({"strength": strengths, "cm": column}), path, row_group_size=2)
    return path


@pytest.mark.parametrize("kind", [None, pa.large_list(pa.large_list(pa.int32())), pa.list_(pa.list_(pa.int64(), 2), 2)])
def test_matrices_of_any_list_type_are_read_and_rows_without_one_are_left_out(tmp_path, kind):
    one, two, three = [[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 0], [1, 2]]
    path = write_matrices(tmp_path / "m.parquet", [one, None, two, three, None, None], kind)
    found = list(iter_matrices(path, "cm", ["strength"], missing_ok=False))
    assert [numbers.tolist() for numbers, _ in found] == [[[0.0]], [[2.0, 3.0]]]
    assert np.concatenate([matrices for _, matrices in found]).tolist() == [one, two, three]


@pytest.mark.parametrize(
    "values",
    [
        [[[1.0, 2.0], [3.0]]],
        [[[1.0, 2.0]]],
        [[[1.0, 2.0], [3.0, 4.0]], [[1.0]]],
        [[[1.0, 2.0], [3.0, float("inf")]]],
        [[[1.0, 2.0], [3.0, None]]],
        [[[1.0, 2.0], None]],
        [[]],
    ],
)
def test_what_is_no_square_matrix_is_refused(tmp_path, values):
    path = write_matrices(tmp_path / "m.parquet", values)
    with pytest.raises(ResultsError, match=r"Reading cm failed for .*m\.parquet: expected square matrices"):
        list(iter_matrices(path, "cm", ["strength"], missing_ok=False))


def test_a_mean_over_no_image_stays_missing(tmp_path):
    path = write_matrices(tmp_path / "m.parquet", [[[None, 2.0], [3.0, 4.0]]])
    ((_, matrices),) = iter_matrices(path, "cm", [], missing_ok=True)
    np.testing.assert_array_equal(matrices, [[[np.nan, 2], [3, 4]]])
