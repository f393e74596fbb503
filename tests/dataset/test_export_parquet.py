"""Parquet files of exports, which other libraries can read; the card and metadata that describe them; sweep.yaml."""

import json
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml

from robust201.dataset.side_files import sweep_yaml_text
from robust201.networks.nb201 import cells as nasbench201
from robust201.sweep.config import CheckpointsSection, CorruptionsSection, SweepConfig
from robust201.sweep.loading import parse_config
from robust201.sweep.sweep_record import portable_fields
from robust201.tasks import TASKS
from tests.conftest import read_tree
from tests.support.fabricated import export, make_plan, make_unit, make_values

ARCHITECTURES = (0, 2, 10, 309)
KEYS = {"clean": (0.0,), "fgsm": (0.5, 1.0, 8.0), "pgd": (0.5, 1.0, 8.0), "fog": (1.0, 3.0, 5.0)}


@pytest.fixture(scope="module", params=["paper", "published"])
def folder(request, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("parquet")
    plan = make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100"), measurements=MEASUREMENTS)
    export(out, plan, key_style=request.param, formats=("json", "parquet"))
    return out


MEASUREMENTS = ("accuracy", "confidence", "cm", "predictions")


def spell_pgd(folder: Path) -> str:
    return "pgd@Linf" if (folder / "cifar10/pgd@Linf_cm.json").exists() else "pgd"


def check_accuracies(rows: list[tuple], folder: Path) -> None:
    """Check that rows (dataset, key, architecture, strength, accuracy) match the stored values."""
    key_spellings = {"pgd": spell_pgd(folder), "fgsm": spell_pgd(folder).replace("pgd", "fgsm")}
    expected = {
        (dataset, key_spellings.get(key, key), architecture, strength): float(
            make_values(make_unit(architecture, dataset, key, strengths), strength)["accuracy"]
        )
        for dataset in ("cifar10", "cifar100")
        for key, strengths in KEYS.items()
        for architecture in ARCHITECTURES
        for strength in strengths
    }
    assert {tuple(row[:4]): row[4] for row in rows} == expected
    assert len(rows) == len(expected)


COLUMNS = ["dataset", "key", "architecture", "strength", "accuracy"]


def test_pandas_reads_parquet_export(folder):
    frame = pd.read_parquet(folder / "parquet", columns=COLUMNS)
    check_accuracies(list(frame[COLUMNS].itertuples(index=False, name=None)), folder)
    pgd_frame = pd.read_parquet(
        folder / "parquet", filters=[("dataset", "==", "cifar100"), ("key", "==", spell_pgd(folder))]
    )
    assert len(pgd_frame) == 12
    pgd_row = pgd_frame[(pgd_frame["architecture"] == 10) & (pgd_frame["strength"] == 8.0)].iloc[0]
    stored_values = make_values(make_unit(10, "cifar100", "pgd", (8.0,)), 8.0)
    np.testing.assert_array_equal(np.stack(pgd_row["cm"]), stored_values["cm"])
    np.testing.assert_array_equal(np.stack(pgd_row["confidence_argmax"]), stored_values["confidence_argmax"])
    np.testing.assert_array_equal(np.stack(pgd_row["confidence_label"]), stored_values["confidence_label"])
    assert pgd_row["confidence_correct"] == stored_values["confidence_prediction"][0]
    assert pd.isna(pgd_row["confidence_incorrect"]) == bool(np.isnan(stored_values["confidence_prediction"][1]))
    np.testing.assert_array_equal(pgd_row["predictions"], stored_values["predictions"])
    assert pgd_row["cell"] == nasbench201.specs()[10]
    assert [architecture for architecture in range(15_625) if nasbench201.isomorphs()[architecture] == 10] == list(
        pgd_row["isomorphs"]
    )


def test_polars_reads_parquet_export(folder):
    frame = pl.scan_parquet(folder / "parquet/**/*.parquet", hive_partitioning=True).select(COLUMNS).collect()
    check_accuracies(frame.rows(), folder)
    assert pl.read_parquet(folder / "parquet").height == frame.height


def test_duckdb_reads_parquet_export(folder):
    pattern = folder / "parquet/**/*.parquet"
    rows = duckdb.sql(f"select {', '.join(COLUMNS)} from '{pattern}'").fetchall()
    check_accuracies(rows, folder)
    image_counts = duckdb.sql(
        f"select sum(list_sum(flatten(cm))) from read_parquet('{pattern}', hive_partitioning = true) where key = 'fog'"
    ).fetchall()
    assert image_counts == [(2 * 4 * 3 * 40,)]  # datasets, architectures, severities and images


@pytest.mark.filterwarnings("ignore")  # warnings come from the library's dependencies
def test_hugging_face_datasets_reads_parquet_export(folder, tmp_path, monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    import datasets

    datasets.disable_progress_bars()
    dataset_rows = datasets.load_dataset(
        "parquet", data_dir=str(folder / "parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    check_accuracies([tuple(row[name] for name in COLUMNS) for row in dataset_rows.select_columns(COLUMNS)], folder)
    front_matter = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
    assert [configuration["config_name"] for configuration in front_matter["configs"]] == ["cifar10", "cifar100"]
    for configuration in front_matter["configs"]:
        data_files = [path for path in folder.glob(configuration["data_files"]) if path.is_file()]
        assert len(data_files) == 4
    # The Hub and the library load the configurations listed in the card.
    cifar100_rows = datasets.load_dataset(str(folder), "cifar100", split="train", cache_dir=str(tmp_path / "cache"))
    assert set(cifar100_rows["dataset"]) == {"cifar100"}


def test_card_has_licence_and_contents(tmp_path):
    plan = make_plan(ARCHITECTURES)
    export(tmp_path, plan, formats=("parquet",))
    tree = read_tree(tmp_path)
    assert not any(name.endswith(".json") and "/" in name for name in tree)
    card = tree["README.md"].decode()
    for name in tree:
        if name.startswith("parquet/"):
            assert all(column.metadata[b"description"] for column in pq.read_schema(tmp_path / name))
    assert yaml.safe_load(card.split("---")[1])["license"] == "mit"
    assert "| cifar10 | `fgsm` | attack | 0.5, 1, 8 | 4 |" in card
    assert all(f"`{name}" in card for name in tree if "/" not in name and name not in {"README.md", "meta.json"})
    versions = json.loads(tree["versions.json"])
    assert versions["computed_with"] == {"torch": ["1", "2"]}
    assert set(versions["exported_with"]) == {"robust201", "python", "numpy", "orjson", "pyarrow"}


def test_parquet_export_is_reproducible_with_several_processes(tmp_path):
    plan = make_plan(ARCHITECTURES)
    export(tmp_path / "one", plan, formats=("json", "parquet"))
    export(tmp_path / "two", plan, formats=("json", "parquet"), processes=2)
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "two")
    # An export without Parquet files removes the earlier export's Parquet files and their folders.
    export(tmp_path / "two", plan)
    assert not (tmp_path / "two/parquet").exists()


def test_exported_sweep_yaml_contains_all_defaults(make_sweep):
    keys_overriding_fog = {"pgd": {"steps": 3}, "fog": {"severities": [5]}, "corruptions": {}}
    for keys, has_group in (({"pgd": {"steps": 3}, "corruptions": {}}, True), (keys_overriding_fog, False)):
        config = make_sweep(keys=keys)
        payload = yaml.safe_load(sweep_yaml_text(portable_fields(config)))
        assert ("corruptions" in payload["keys"]) == has_group
        assert payload["keys"]["pgd"] == TASKS["pgd"].parameters(steps=3).model_dump(mode="json")
        assert parse_config(payload, "sweep.yaml").parameters == config.parameters
        for fields, model in (
            (payload, SweepConfig),
            (payload["checkpoints"], CheckpointsSection),
            (payload["datasets"]["digits"]["corruptions"], CorruptionsSection),
        ):
            # `weights` is written only for sweeps that have it.
            assert set(model.model_fields) - set(fields) <= {"execution", "shards", "weights"}
