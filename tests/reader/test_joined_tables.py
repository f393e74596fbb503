"""Joins with other tables: published formats, identification of architectures, isomorphism classes and errors."""

import gzip
import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from robust201.core.errors import ArchitectureError, ConfigError, ResultsError
from robust201.reader import joined_tables
from robust201.reader.dataset import RobustnessDataset
from robust201.spaces.nasbench201 import cells
from robust201.spaces.nasbench201.published_tables import spec_from_naslib
from tests.support.small_results import write_results

ISOMORPH_OF_309 = 1832
"""Another member of the isomorphism class of #309."""


@pytest.fixture
def dataset(tmp_path: Path) -> RobustnessDataset:
    accuracies = {
        "clean": {"0": 0.8, "309": 0.7, "21": 0.9},
        "pgd": {"0": [0.4, 0.1], "309": [0.3, 0.0], "21": [0.5, 0.2]},
    }
    return RobustnessDataset(write_results(tmp_path / "dataset", accuracies))


def find_naslib_codes(index: int) -> tuple[int, ...]:
    """Return NASLib's codes of a cell, found by a search over all codes."""
    return next(
        codes for codes in itertools.product(range(5), repeat=6) if spec_from_naslib(codes) == cells.specs()[index]
    )


@pytest.mark.parametrize("table_form", ["csv", "parquet", "frame", "operations", "strings"])
def test_join_accepts_all_ways_to_identify_architectures(
    dataset: RobustnessDataset, tmp_path: Path, table_form: str
) -> None:
    frame = pd.DataFrame({"index": [0, 309], "latency": [1.5, 2.5], "note": ["a", "b"]})
    source: Any = tmp_path / f"table.{table_form}"
    if table_form == "csv":
        frame.to_csv(source, index=False)
    elif table_form == "parquet":
        frame.to_parquet(source)
    elif table_form == "frame":
        source = frame
    elif table_form == "operations":
        operations = [cells.parse(cells.specs()[index]) for index in frame["index"]]
        source = pd.DataFrame({"operations": operations, "latency": frame["latency"]})
    else:
        source = pd.DataFrame(
            {"arch_str": [cells.specs()[index] for index in frame["index"]], "latency": frame["latency"]}
        )
    joined = dataset.join(source)
    assert list(joined.columns) == ["architecture", "spec", "dataset", "clean", "pgd:1", "pgd:8", "latency"]
    rows = joined.set_index("architecture")
    assert rows["latency"].loc[[0, 309]].tolist() == [1.5, 2.5]
    assert np.isnan(rows["latency"].loc[21])
    assert rows.loc[309, "pgd:1"] == 0.3
    assert rows.loc[309, "spec"] == cells.specs()[309]


def test_join_uses_other_isomorphs_only_without_evaluated_architecture(dataset: RobustnessDataset) -> None:
    joined_with_both = dataset.join(pd.DataFrame({"index": [ISOMORPH_OF_309, 309], "energy": [9.0, 2.0]}), key="clean")
    assert joined_with_both.set_index("architecture")["energy"].loc[309] == 2.0
    joined_with_isomorph = dataset.join(pd.DataFrame({"index": [ISOMORPH_OF_309], "energy": [9.0]}), key="clean")
    assert joined_with_isomorph.set_index("architecture")["energy"].loc[309] == 9.0


def test_join_reads_nas_robbench_201(dataset: RobustnessDataset, tmp_path: Path) -> None:
    accuracies_by_seed = {"0": 0.5, "1": 0.6, "2": 0.7, "threeseed": 0.6}
    path = tmp_path / "NAS-RobBench-201_all.json"
    path.write_text(
        json.dumps(
            {"cifar10": {"309": {"val_pgd_8.0_acc": accuracies_by_seed}}, "imagenet": {"0": {"clean": {"0": 1}}}}
        )
    )
    row = dataset.join(path).set_index("architecture").loc[309]
    assert row["val_pgd_8.0_acc"] == 0.6
    assert row["val_pgd_8.0_acc (seed 2)"] == 0.7
    assert row["dataset"] == "cifar10"


def test_join_reads_nas_bench_suite_zero(dataset: RobustnessDataset, tmp_path: Path) -> None:
    path = tmp_path / "zc_nasbench201.json"
    proxies = {"synflow": {"score": 12.5, "time": 0.1}, "id": 3, "val_accuracy": 71.0}
    path.write_text(json.dumps({"cifar10": {str(find_naslib_codes(21)): proxies}}))
    row = dataset.join(path, key="pgd").set_index("architecture").loc[21]
    assert (row["synflow"], row["val_accuracy"], row["pgd:8"]) == (12.5, 71.0, 0.2)
    assert "id" not in row


def test_naslib_edges_are_ordered_by_source() -> None:
    # The edge from the first to the second inner node is the fourth in NASLib, but the third in a cell string.
    assert spec_from_naslib((1, 1, 1, 2, 1, 1)) == cells.format_spec(
        ["none", "none", "nor_conv_3x3", "none", "none", "none"]
    )
    with pytest.raises(ArchitectureError, match="six numbers from 0 to 4"):
        spec_from_naslib((5, 0, 0, 0, 0, 0))


def test_join_reads_hw_nas_bench(dataset: RobustnessDataset, tmp_path: Path) -> None:
    path = tmp_path / "HW-NAS-Bench-v1_0.pickle"
    indices = [309, 0]
    metrics = {
        "config": [{"arch_str": cells.specs()[index], "C": 16} for index in indices],
        "edgegpu_latency": [4.5, np.float64(5.5)],
    }
    path.write_bytes(pickle.dumps({"nasbench201": {"cifar10": metrics}, "fbnet": {}}))
    rows = dataset.join(path, key="clean").set_index("architecture")
    assert rows["edgegpu_latency"].loc[[309, 0]].tolist() == [4.5, 5.5]


@pytest.mark.parametrize(
    "metrics",
    [
        {"config": [{"arch_str": cells.specs()[0]}], "latency": []},
        {"config": [{"arch_str": cells.specs()[0]}], "latency": [10**400]},
        {"config": [{"arch_str": cells.specs()[0]}] * 2, "latency": [1, 2]},
    ],
)
def test_join_rejects_pickle_with_wrong_columns(
    dataset: RobustnessDataset, tmp_path: Path, metrics: dict[str, Any]
) -> None:
    path = tmp_path / "table.pickle"
    path.write_bytes(pickle.dumps({"nasbench201": {"cifar10": metrics}}))
    with pytest.raises(ResultsError, match="it does not have the structure of HW-NAS-Bench"):
        dataset.join(path)


def test_join_limits_decompressed_size(
    dataset: RobustnessDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.DataFrame({"index": np.zeros(5000, np.int64), "x": np.zeros(5000)})
    frame.to_parquet(tmp_path / "bomb.parquet")
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    monkeypatch.setattr(joined_tables, "MAX_TABLE_BYTES", 10_000)
    for name in ("bomb.parquet", "bomb.csv.gz"):
        assert (tmp_path / name).stat().st_size < 10_000
        with pytest.raises(ConfigError, match="expected at most 10,000 bytes after decompression"):
            dataset.join(tmp_path / name)


def test_join_does_not_execute_code_in_pickle(dataset: RobustnessDataset, tmp_path: Path) -> None:
    path = tmp_path / "table.pickle"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ResultsError, match=r"it names os\.system"):
        dataset.join(path)
    path.write_bytes(pickle.dumps({"nasbench201": {"cifar10": {"latency": [1]}}}))
    with pytest.raises(ResultsError, match="it does not have the structure of HW-NAS-Bench"):
        dataset.join(path)


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"name": [1], "x": [1.0]}, ConfigError, r"no column identifies the architectures \(columns: name, x\)"),
        ({"index": [1], "x": ["fast"]}, ConfigError, "the table has no column of numbers"),
        ({"index": [], "x": []}, ConfigError, "the table has no rows"),
        ({"index": [0, 0], "x": [1.0, 2.0]}, ConfigError, "several rows are for the architecture 0"),
        ({"index": [15625], "x": [1.0]}, ArchitectureError, "got 15625"),
        ({"index": [0.5], "x": [1.0]}, ArchitectureError, "got 0.5"),
        ({"arch_str": ["|none~0|"], "x": [1.0]}, ArchitectureError, "expected an id or a cell string"),
        (
            {"operations": ["(0, 1, 2, 3, 4, 0)"], "x": [1.0]},
            ArchitectureError,
            "on the six edges, such as 'none'",
        ),
        (
            {"operations": ["[" + "-" * 100_000 + "1]"], "x": [1.0]},
            ArchitectureError,
            "on the six edges, such as 'none'",
        ),
        ({"index": [0, 21], "dataset": ["cifar10", None], "x": [1.0, 2.0]}, ConfigError, "some rows have no name"),
    ],
)
def test_join_rejects_invalid_tables(
    dataset: RobustnessDataset, table: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        dataset.join(pd.DataFrame(table))


@pytest.mark.parametrize(
    ("file_name", "content", "message"),
    [
        ("missing.csv", None, "the file does not exist"),
        ("table.json", b"{", "the file is damaged"),
        ("table.json", b'{"a": 1}', "neither CSV, Parquet nor a published table"),
        ("table.json", b'{"cifar10": {"99999": {"x": {"0": 1}}}}', "neither CSV, Parquet nor a published table"),
        ("table.parquet", b"PAR1", "the file is damaged"),
        ("table.csv", b"", "the file is damaged"),
        (
            "table.csv",
            b"index,x\n0,1\n1,inf\n",
            "the column x contains infinity in row 2",
        ),
        ("table.csv.gz", gzip.compress(b"index,x\n0,1\n", mtime=0)[:-6], "ended before the end-of-stream"),
        ("table.json", b'{"cifar10": {"7": {"x": 1}, "07": {"x": 2}}}', "neither CSV, Parquet nor a published table"),
        (
            "table.json",
            b'{"cifar10": {"(1,1,1,1,1,1)": {"x": 1}, "(1, 1,1,1,1,1)": {"x": 2}}}',
            "neither CSV, Parquet nor a published table",
        ),
        (
            "table.json",
            b'{"cifar10": {"7": {"x": 1' + b"0" * 400 + b"}}}",
            "neither CSV, Parquet nor a published table",
        ),
        ("table.txt", b"1", "neither CSV, Parquet nor a published table"),
    ],
)
def test_join_rejects_damaged_and_unknown_files(
    dataset: RobustnessDataset, tmp_path: Path, file_name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / file_name).write_bytes(content)
    with pytest.raises((ConfigError, ResultsError), match=message):
        dataset.join(tmp_path / file_name)
