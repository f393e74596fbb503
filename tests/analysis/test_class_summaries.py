"""Confidences and confusion matrices as the figures read them: alike from JSON and Parquet."""

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robust201.analysis.class_summaries import summarise_classes
from robust201.core.errors import ResultsError
from robust201.core.processes import holding_interrupts
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.parquet_results import iter_matrices
from robust201.reader.result_files import ResultFiles
from tests.support.fabricated import export, make_plan

KEYS = ("clean", "pgd", "fog")
MEASURES = ("confidence", "cm")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dataset")
    export(out, make_plan([0, 1, 2, 9, 21], KEYS), formats=("json", "parquet"))
    return out


def summaries(path: Path, measure: str) -> dict[tuple[str, float], np.ndarray]:
    return summarise_classes(ResultFiles(path), "cifar10", KEYS, measure)


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
                argmaxes = np.array([value["argmax"] for value in own], dtype=float)
                by_class = [np.hstack([np.diag(one), np.diag(two)]) for one, two in zip(labels, argmaxes, strict=True)]
                np.testing.assert_array_equal(found[key, strength][:, 3:], by_class)


def test_of_both_forms_parquet_is_read(dataset, tmp_path):
    for name in ("meta.json", "sweep.json", "parquet"):
        (tmp_path / name).symlink_to(dataset / name)
    (tmp_path / "cifar10").mkdir()
    for key in KEYS:
        (tmp_path / "cifar10" / f"{key}_cm.json").write_text("no JSON")
    assert_same(summaries(tmp_path, "cm"), summaries(dataset, "cm"))


def test_interrupts_wait_for_processes_to_be_started():
    steps = []
    with pytest.raises(KeyboardInterrupt), holding_interrupts():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        steps.append("after")
    assert steps == ["after"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with holding_interrupts():
        code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"True\n"


def change_column(path: Path, name: str, change: Callable[[list], None]) -> None:
    table = pq.read_table(path, partitioning=None)
    values = table[name].to_pylist()
    change(values)
    place = table.schema.names.index(name)
    pq.write_table(
        table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type)), path
    )
    (path.parents[3] / "parquet_files.json").unlink()  # which tells of the file as it was


CHANGED = {
    "a negative count": ("cm", "cm", lambda rows: rows[1][0].__setitem__(0, -1), "counts"),
    "a confidence above 1": (
        "confidence",
        "confidence_label",
        lambda rows: rows[1][0].__setitem__(0, 7.5),
        "confidences",
    ),
    "a confidence in the predicted class above 1": (
        "confidence",
        "confidence_argmax",
        lambda rows: rows[1][0].__setitem__(0, 7.5),
        "confidences",
    ),
    "a mean below 0": ("confidence", "confidence_correct", lambda rows: rows.__setitem__(1, -0.5), "confidences"),
    "an architecture twice": (
        "cm",
        "architecture",
        lambda rows: rows.__setitem__(slice(None), [0] * len(rows)),
        "once",
    ),
    "an unknown strength": ("cm", "strength", lambda rows: rows.__setitem__(1, 77.0), "the strengths of"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_numbers_that_cannot_be_are_refused_in_parquet(dataset, tmp_path, what):
    measure, column, change, told = CHANGED[what]
    shutil.copytree(dataset, tmp_path / "copy")
    change_column(tmp_path / "copy/parquet/dataset=cifar10/key=pgd/part-0.parquet", column, change)
    with pytest.raises(ResultsError, match=told):
        summaries(tmp_path / "copy", measure)


@pytest.mark.parametrize(
    ("measure", "number"), [("cm", "-1"), ("cm", "0.5"), ("confidence", "7.5"), ("confidence", "-0.5")]
)
def test_numbers_that_cannot_be_are_refused_in_json(dataset, tmp_path, measure, number):
    shutil.copytree(dataset, tmp_path / "copy", ignore=shutil.ignore_patterns("parquet"))
    path = tmp_path / f"copy/cifar10/pgd_{measure}.json"
    path.write_text(re.sub(r"\[\[[\d.]+", f"[[{number}", path.read_text(), count=1))
    with pytest.raises(ResultsError, match=r"expected .* of (counts|fractions)"):
        summaries(tmp_path / "copy", measure)


@pytest.mark.parametrize("measure", MEASURES)
def test_a_flipped_bit_of_a_parquet_page_is_noticed(dataset, tmp_path, measure):
    shutil.copytree(dataset, tmp_path / "copy")
    path = tmp_path / "copy/parquet/dataset=cifar10/key=pgd/part-0.parquet"
    sound, expected = path.read_bytes(), summaries(dataset, measure)
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        chunks = [group.column(number) for number in range(group.num_columns)]
    first = min(chunk.data_page_offset for chunk in chunks)
    noticed = 0
    for place in range(first, first + sum(chunk.total_compressed_size for chunk in chunks), 211):
        content = bytearray(sound)
        content[place] ^= 4
        path.write_bytes(content)
        try:
            assert_same(summaries(tmp_path / "copy", measure), expected)
        except ResultsError:
            noticed += 1
    assert noticed > 0
    path.write_bytes(sound.replace(b"element", b"elemen\xf4"))
    with pytest.raises(ResultsError, match="cannot be decoded"):
        summaries(tmp_path / "copy", measure)


def write_matrices(path: Path, values: list, kind: pa.DataType | None = None) -> Path:
    column = pa.array(values, kind or pa.list_(pa.list_(pa.float64())))
    strengths = [float(place) for place in range(len(values))]
    pq.write_table(pa.table({"strength": strengths, "cm": column}), path, row_group_size=2)
    return path


@pytest.mark.parametrize("kind", [None, pa.large_list(pa.large_list(pa.int32())), pa.list_(pa.list_(pa.int64(), 2), 2)])
def test_matrices_of_any_list_type_are_read_and_rows_without_one_are_left_out(tmp_path, kind):
    one, two, three = [[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 0], [1, 2]]
    path = write_matrices(tmp_path / "m.parquet", [one, None, two, three, None, None], kind)
    found = list(iter_matrices(path, ["cm"], ["strength"], missing_ok=False))
    assert [[column.tolist() for column in beside] for beside, _ in found] == [[[0.0]], [[2.0, 3.0]]]
    assert np.concatenate([matrices for _, (matrices,) in found]).tolist() == [one, two, three]


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
        list(iter_matrices(path, ["cm"], ["strength"], missing_ok=False))


def test_a_mean_over_no_image_stays_missing(tmp_path):
    path = write_matrices(tmp_path / "m.parquet", [[[None, 2.0], [3.0, 4.0]]])
    ((_, (matrices,)),) = iter_matrices(path, ["cm"], [], missing_ok=True)
    np.testing.assert_array_equal(matrices, [[[np.nan, 2], [3, 4]]])
