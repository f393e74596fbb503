"""Conversion of JSON datasets to Parquet: equal results, and repeated conversion of changed files."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import ResultsError
from robust201.export import parquet_files
from robust201.export.conversion import convert_dataset
from robust201.reader.dataset import RobustnessDataset
from tests.support import fabricated
from tests.support.fabricated import export, export_copy, make_plan

ARCHITECTURES = (0, 2, 10, 309, 991)
MEASUREMENTS = ("accuracy", "confidence", "cm", "predictions")


@pytest.fixture
def folder(tmp_path):
    export_copy(tmp_path / "data", make_plan(ARCHITECTURES, measurements=MEASUREMENTS))
    return tmp_path / "data"


def describe_source(folder: Path, measurement: str = "accuracy") -> str:
    dataset = RobustnessDataset(folder)
    return dataset.files.describe_source(dataset.data, dataset.keys_all, measurement)


@pytest.mark.parametrize("options", [{}, {"key_style": "published", "round_to": 3}])
@pytest.mark.parametrize("without_sweep_json", [False, True])
@pytest.mark.slow_combinations
def test_converted_dataset_returns_same_results_as_json(tmp_path, monkeypatch, options, without_sweep_json):
    monkeypatch.setattr(parquet_files, "MIN_ROW_GROUP_BYTES", 2000)
    folder = tmp_path / "data"
    plan = make_plan(ARCHITECTURES, severities=(1, 2, 3, 4, 5), measurements=MEASUREMENTS)
    export(folder, plan, **options)
    if without_sweep_json:
        (folder / "sweep.json").unlink()
    json_dataset = RobustnessDataset(folder)
    selection = {"data": "cifar10", "key": ["clean", "fgsm", "pgd", "fog"]}
    expected = json_dataset.query(**selection, measure=MEASUREMENTS)
    expected_frame, expected_values = (
        json_dataset.to_frame(**selection),
        [json_dataset.value(10, "cifar10", "pgd", measurement) for measurement in MEASUREMENTS],
    )
    report = convert_dataset(folder)
    assert len(report.written_files) == 4
    converted_dataset = RobustnessDataset(folder)
    for measurement in MEASUREMENTS:
        assert converted_dataset.files.describe_source(["cifar10"], selection["key"], measurement) == "Parquet"
    assert (converted_dataset.data, converted_dataset.keys_all, converted_dataset.measures) == (
        json_dataset.data,
        json_dataset.keys_all,
        json_dataset.measures,
    )
    assert converted_dataset.query(**selection, measure=MEASUREMENTS) == expected
    assert converted_dataset.to_frame(**selection).equals(expected_frame)
    assert [
        converted_dataset.value(10, "cifar10", "pgd", measurement) for measurement in MEASUREMENTS
    ] == expected_values
    assert max(pq.ParquetFile(folder / name).num_row_groups for name in report.written_files) > 1


def test_converted_file_has_layout_of_export(folder, tmp_path):
    convert_dataset(folder)
    export(tmp_path / "other", make_plan(ARCHITECTURES, measurements=MEASUREMENTS), formats=("parquet",))
    for key in ("clean", "pgd"):
        name = f"parquet/dataset=cifar10/key={key}/part-0.parquet"
        converted_table, exported_table = (
            pq.read_table(root / name, partitioning=None) for root in (folder, tmp_path / "other")
        )
        assert converted_table.schema.equals(exported_table.schema)
        unknown_columns = ["protocol", "checkpoint_sha256"]
        assert converted_table.drop(unknown_columns).equals(exported_table.drop(unknown_columns))
        assert all(converted_table[column].null_count == len(converted_table) for column in unknown_columns)


def test_changed_json_is_preferred_and_converted_again(folder):
    convert_dataset(folder)
    path = folder / "cifar10/fog_accuracy.json"
    assert describe_source(folder) == "Parquet"
    text = path.read_text()
    digit = text.index("0.") + 2
    path.write_text(text[:digit] + str((int(text[digit]) + 1) % 9) + text[digit + 1 :])
    os.utime(path, (0, 0))  # older than the conversion, as a restored file may be
    assert path.stat().st_size == len(text)
    assert describe_source(folder) == "Parquet, except JSON for cifar10 fog"
    changed_results = RobustnessDataset(folder).query("cifar10", "fog", "accuracy")
    assert changed_results["cifar10"]["fog"]["accuracy"] == json.loads(path.read_text())["cifar10"]["fog"]["accuracy"]
    assert convert_dataset(folder).written_files == ("parquet/dataset=cifar10/key=fog/part-0.parquet",)
    assert describe_source(folder) == "Parquet"
    assert RobustnessDataset(folder).query("cifar10", "fog", "accuracy") == changed_results


def test_added_measurement_is_read_from_json_and_converted(folder, tmp_path):
    (folder / "SHA256SUMS").unlink()  # which lists the file that is absent at first
    (folder / "cifar10/fog_cm.json").rename(tmp_path / "cm.json")
    convert_dataset(folder)
    (tmp_path / "cm.json").rename(folder / "cifar10/fog_cm.json")
    assert describe_source(folder, "cm") == "Parquet, except JSON for cifar10 fog"
    assert convert_dataset(folder).written_files == ("parquet/dataset=cifar10/key=fog/part-0.parquet",)
    assert describe_source(folder, "cm") == "Parquet"


def test_convert_matches_rows_by_id_if_order_differs(folder):
    path = folder / "cifar10/pgd_cm.json"
    content = json.loads(path.read_text())
    rows = content["cifar10"]["pgd"]["cm"]
    content["cifar10"]["pgd"]["cm"] = dict(reversed(rows.items()))
    path.write_text(json.dumps(content))
    convert_dataset(folder)
    assert RobustnessDataset(folder).query("cifar10", "pgd", "cm")["cifar10"]["pgd"]["cm"] == rows


@pytest.mark.parametrize("change", ["lacks an architecture", "has an additional architecture"])
def test_convert_rejects_files_with_different_architectures(folder, change):
    path = folder / "cifar10/pgd_cm.json"
    content = json.loads(path.read_text())
    rows = content["cifar10"]["pgd"]["cm"]
    rows.pop("10") if change == "lacks an architecture" else rows.setdefault("21", rows["10"])
    path.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match=r"Reading results failed for .*pgd_cm\.json: expected (#10 in this|no #21)"):
        convert_dataset(folder)
    assert not [path for path in (folder / "parquet/dataset=cifar10/key=pgd").iterdir() if path.is_file()]


def test_converted_export_passes_verification(finished_results, tmp_path, robust201):
    out = tmp_path / "out"
    robust201("export", finished_results, "--out", out)
    listing = out / "SHA256SUMS"
    original_text = listing.read_text()
    report = convert_dataset(out)
    assert len(listing.read_text().splitlines()) == len(original_text.splitlines()) + len(report.written_files)
    assert robust201("verify", finished_results, "--export", out).code == 0
    listing.write_text(original_text)  # as if the conversion had been killed before it listed its files
    assert convert_dataset(out).written_files == ()
    path = out / "digits/fgsm_accuracy.json"
    path.write_text(path.read_text().replace("0.", "0.0", 1))
    assert len(convert_dataset(out).written_files) == 1
    (error_line, *_) = robust201("verify", finished_results, "--export", out).err.splitlines()
    assert "fgsm_accuracy.json" in error_line
    # Converted files belong to the export, so a new export removes them, but not the changed file.
    assert "fgsm_accuracy.json was changed" in robust201("export", finished_results, "--out", out).error_line(2)
    path.unlink()
    result = robust201("export", finished_results, "--out", out)
    assert f"Removed {len(report.written_files)} files of an earlier export" in result.err
    assert not (out / "parquet").exists()


def write_fractions(path: Path) -> None:
    content = json.loads(path.read_text())
    ((dataset, content_by_key),) = content.items()
    ((key, content_by_measurement),) = content_by_key.items()
    fractions = {
        architecture: (np.array(matrix) / np.array(matrix).sum(axis=-1, keepdims=True)).round(3).tolist()
        for architecture, matrix in content_by_measurement["cm"].items()
    }
    path.write_text(json.dumps({dataset: {key: {"cm": fractions}}}))


@pytest.mark.parametrize("measurements", [MEASUREMENTS, ("accuracy", "confidence", "cm")])
def test_convert_writes_counts_for_fractions_and_warns(tmp_path, monkeypatch, measurements):
    monkeypatch.setattr(fabricated, "N_IMAGES", 42)
    folder = tmp_path / "data"
    export(folder, make_plan([0, 2], ["clean", "pgd"], measurements=measurements))
    expected = RobustnessDataset(folder).query("cifar10", ["clean", "pgd"], "cm")
    for key in ("clean", "pgd"):
        write_fractions(folder / f"cifar10/{key}_cm.json")
    report = convert_dataset(folder)
    for key in ("clean", "pgd"):
        assert f"cifar10 {key}: rows of cm contain fractions, which were read as counts of 42 images" in report.remarks
    assert RobustnessDataset(folder).query("cifar10", ["clean", "pgd"], "cm") == expected
