"""Conversion of JSON datasets to Parquet: equal results, and repeated conversion of changed files."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import ResultsError
from robust201.core.files import sha256_of
from robust201.export import conversion, parquet_files
from robust201.export.conversion import convert_dataset
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.listings import ListedFile, read_checksums, read_parquet_files
from tests.support import fabricated
from tests.support.fabricated import export, export_copy, make_plan
from tests.support.small_results import write_results, write_sweep_json

ARCHITECTURES = (0, 2, 10, 309, 991)
MEASURES = ("accuracy", "confidence", "cm", "predictions")


@pytest.fixture
def folder(tmp_path):
    export_copy(tmp_path / "data", make_plan(ARCHITECTURES, measurements=MEASURES))
    return tmp_path / "data"


def source_of(folder: Path, measure: str = "accuracy") -> str:
    data = RobustnessDataset(folder)
    return data.files.describe_source(data.data, data.keys_all, measure)


def test_convert_reports_size_limit_and_remedy_for_large_file(folder):
    (file,) = (folder / "cifar10").glob("pgd*_accuracy.json")
    os.truncate(file, 20 << 30)
    with pytest.raises(
        ResultsError, match=r"pgd_accuracy\.json: expected .* at most 17\.18 GB, got .* Compress a larger"
    ):
        convert_dataset(folder)


@pytest.mark.parametrize("options", [{}, {"compression": "zst"}, {"key_style": "published", "round_to": 3}])
@pytest.mark.parametrize("published", [False, True])
@pytest.mark.each_value
def test_converted_dataset_returns_same_results_as_json(tmp_path, monkeypatch, options, published):
    monkeypatch.setattr(parquet_files, "EXPORTED_GROUP_BYTES", 2000)
    folder = tmp_path / "data"
    plan = make_plan(ARCHITECTURES, severities=(1, 2, 3, 4, 5), measurements=MEASURES)
    export(folder, plan, **options)
    if published:
        (folder / "sweep.json").unlink()
    before = RobustnessDataset(folder)
    names = {"data": "cifar10", "key": ["clean", "fgsm", "pgd", "fog"]}
    expected = before.query(**names, measure=MEASURES)
    frame, values = before.to_frame(**names), [before.value(10, "cifar10", "pgd", measure) for measure in MEASURES]
    report = convert_dataset(folder)
    assert len(report.written) == 4
    after = RobustnessDataset(folder)
    for measure in MEASURES:
        assert after.files.describe_source(["cifar10"], names["key"], measure) == "Parquet"
    assert (after.data, after.keys_all, after.measures) == (before.data, before.keys_all, before.measures)
    assert after.query(**names, measure=MEASURES) == expected
    assert after.to_frame(**names).equals(frame)
    assert [after.value(10, "cifar10", "pgd", measure) for measure in MEASURES] == values
    assert max(pq.ParquetFile(folder / name).num_row_groups for name in report.written) > 1


def test_converted_file_has_layout_of_export(folder, tmp_path):
    convert_dataset(folder)
    export(tmp_path / "other", make_plan(ARCHITECTURES, measurements=MEASURES), formats=("parquet",))
    for key in ("clean", "pgd"):
        name = f"parquet/dataset=cifar10/key={key}/part-0.parquet"
        of_json, exported = (pq.read_table(root / name, partitioning=None) for root in (folder, tmp_path / "other"))
        assert of_json.schema.equals(exported.schema)
        unrecorded = ["protocol", "checkpoint_sha256"]
        assert of_json.drop(unrecorded).equals(exported.drop(unrecorded))
        assert all(of_json[column].null_count == len(of_json) for column in unrecorded)


def test_convert_keeps_existing_files_and_resumes(folder):
    first = convert_dataset(folder)
    (folder / first.written[1]).unlink()
    again = convert_dataset(folder)
    assert again.written == first.written[1:2]
    assert {*again.written, *again.kept} == {*first.written}


def test_changed_json_is_preferred_and_converted_again(folder):
    convert_dataset(folder)
    path = folder / "cifar10/fog_accuracy.json"
    assert source_of(folder) == "Parquet"
    later = path.stat().st_mtime_ns + 10**12
    os.utime(path, ns=(later, later))
    assert source_of(folder) == "Parquet"  # the time has changed, but not the content
    text = path.read_text()
    digit = text.index("0.") + 2
    path.write_text(text[:digit] + str((int(text[digit]) + 1) % 9) + text[digit + 1 :])
    later += 10**12
    os.utime(path, ns=(later, later))
    assert path.stat().st_size == len(text)
    assert source_of(folder) == "Parquet, but JSON of cifar10 fog"
    assert source_of(folder, "cm") == "Parquet"
    changed = RobustnessDataset(folder).query("cifar10", "fog", "accuracy")
    assert changed["cifar10"]["fog"]["accuracy"] == json.loads(path.read_text())["cifar10"]["fog"]["accuracy"]
    assert convert_dataset(folder).written == ("parquet/dataset=cifar10/key=fog/part-0.parquet",)
    assert source_of(folder) == "Parquet"
    assert RobustnessDataset(folder).query("cifar10", "fog", "accuracy") == changed


def test_convert_joins_files_by_id_if_their_orders_differ(folder):
    path = folder / "cifar10/pgd_cm.json"
    content = json.loads(path.read_text())
    rows = content["cifar10"]["pgd"]["cm"]
    content["cifar10"]["pgd"]["cm"] = dict(reversed(rows.items()))
    path.write_text(json.dumps(content))
    convert_dataset(folder)
    assert RobustnessDataset(folder).query("cifar10", "pgd", "cm")["cifar10"]["pgd"]["cm"] == rows


@pytest.mark.parametrize("change", ["lacks one", "has one more"])
def test_convert_rejects_files_with_different_architectures(folder, change):
    path = folder / "cifar10/pgd_cm.json"
    content = json.loads(path.read_text())
    rows = content["cifar10"]["pgd"]["cm"]
    rows.pop("10") if change == "lacks one" else rows.setdefault("21", rows["10"])
    path.write_text(json.dumps(content))
    with pytest.raises(ResultsError, match=r"Reading results failed for .*pgd_cm\.json: expected (#10 in it|no #21)"):
        convert_dataset(folder)
    assert not [file for file in (folder / "parquet/dataset=cifar10/key=pgd").iterdir() if file.is_file()]


def test_convert_handles_accuracies_only_and_missing_values(tmp_path):
    folder = write_results(tmp_path, {"clean": {"0": 0.5, "9": None}, "pgd": {"0": [0.5, None]}}, dataset="mine")
    expected = RobustnessDataset(folder).query("mine", ["clean", "pgd"], "accuracy")
    write_sweep_json(folder, {"mine": {"clean": [0], "pgd": [1, 8]}})
    assert len(convert_dataset(folder).written) == 2
    assert source_of(folder) == "Parquet"
    assert RobustnessDataset(folder).query() == expected


def test_convert_command_reports_written_files(folder, robust201):
    run = robust201("convert", folder)
    assert run.code == 0
    assert "Wrote 4 Parquet files" in run.out
    assert "4 already existed" in robust201("convert", folder).out
    line = robust201("convert", folder / "parquet").refusal(2)
    assert "expected JSON files" in line


def test_converted_export_passes_verification(finished, tmp_path, robust201):
    out = tmp_path / "out"
    robust201("export", finished, "--out", out, "--processes", 1)
    listing = out / "SHA256SUMS"
    before = listing.read_text(), listing.stat().st_mtime_ns
    report = convert_dataset(out)
    assert len(listing.read_text().splitlines()) == len(before[0].splitlines()) + len(report.written) + 1
    assert listing.stat().st_mtime_ns == before[1]  # readers rehash files that are newer
    assert robust201("verify", finished, "--export", out).code == 0
    listing.write_text(before[0])  # the state after a conversion was killed before it listed its files
    assert convert_dataset(out).written == ()
    file = out / "digits/fgsm_accuracy.json"
    file.write_text(file.read_text().replace("0.", "0.0", 1))
    assert len(convert_dataset(out).written) == 1
    (wrong, *_) = robust201("verify", finished, "--export", out).err.splitlines()
    assert "fgsm_accuracy.json" in wrong
    # Converted files belong to the export, and another export replaces them.
    result = robust201("export", finished, "--out", out, "--processes", 1)
    assert f"Removed {len(report.written) + 1} files of an earlier export" in result.err
    assert not (out / "parquet").exists()


def test_convert_keeps_parquet_of_export(tmp_path):
    export(tmp_path / "data", make_plan([0, 2]), formats=("json", "parquet"))
    report = convert_dataset(tmp_path / "data")
    assert report.written == ()
    assert len(report.kept) == 4


def _kill(*_: object) -> None:
    raise KeyboardInterrupt


def test_convert_resumes_after_kill_before_listing(folder, monkeypatch):
    convert_dataset(folder)
    path = folder / "cifar10/fog_accuracy.json"
    path.write_text(path.read_text().replace("0.", "0.0", 1))
    with monkeypatch.context() as killed:
        killed.setattr(conversion, "_add_to_listings", _kill)
        with pytest.raises(KeyboardInterrupt):
            convert_dataset(folder)
    expected = json.loads(path.read_text())["cifar10"]["fog"]["accuracy"]
    assert RobustnessDataset(folder).query("cifar10", "fog", "accuracy")["cifar10"]["fog"]["accuracy"] == expected
    convert_dataset(folder)
    listed, checksums = read_parquet_files(folder), read_checksums(folder)
    for name in convert_dataset(folder).kept:
        assert listed[name.removeprefix("parquet/")] == ListedFile.of(folder / name)
        assert checksums[name] == sha256_of(folder / name)
    assert checksums["parquet_files.json"] == sha256_of(folder / "parquet_files.json")


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("key", ["clean", "pgd"])
@pytest.mark.each_value
def test_convert_rewrites_file_that_differs_from_listing(tmp_path, key, published):
    folder = tmp_path / "data"
    export(folder, make_plan(ARCHITECTURES, ["clean", "pgd"]))
    name = f"parquet/dataset=cifar10/key={key}/part-0.parquet"
    if published:
        (folder / "sweep.json").unlink()
    convert_dataset(folder)
    right = RobustnessDataset(folder).query("cifar10", key, "accuracy")
    table = pq.ParquetFile(folder / name).read()
    pq.write_table(table.slice(1), folder / name)
    with pytest.raises(ResultsError, match=r"expected the \d+ rows .* run `robust201 convert`"):
        RobustnessDataset(folder).query("cifar10", key, "accuracy")
    assert convert_dataset(folder).written == (name,)
    assert RobustnessDataset(folder).query("cifar10", key, "accuracy") == right


def write_fractions(path: Path) -> None:
    content = json.loads(path.read_text())
    ((dataset, by_key),) = content.items()
    ((key, by_measure),) = by_key.items()
    rows = {
        name: (np.array(row) / np.array(row).sum(axis=-1, keepdims=True)).round(3).tolist()
        for name, row in by_measure["cm"].items()
    }
    path.write_text(json.dumps({dataset: {key: {"cm": rows}}}))


@pytest.mark.parametrize("measurements", [MEASURES, ("accuracy", "confidence", "cm")])
def test_convert_turns_fractions_to_counts_and_warns(tmp_path, monkeypatch, robust201, measurements):
    monkeypatch.setattr(fabricated, "N_IMAGES", 42)
    folder = tmp_path / "data"
    export(folder, make_plan([0, 2], ["clean", "pgd"], measurements=measurements))
    counts = RobustnessDataset(folder).query("cifar10", ["clean", "pgd"], "cm")
    for key in ("clean", "pgd"):
        write_fractions(folder / f"cifar10/{key}_cm.json")
    run = robust201("convert", folder)
    assert run.code == 0
    for key in ("clean", "pgd"):
        warning = f"warning: cifar10 {key}: rows of cm contain fractions, which were read as counts of 42 images."
        assert warning in run.err.replace("\n", " ")
    assert source_of(folder, "cm") == "Parquet"
    assert RobustnessDataset(folder).query("cifar10", ["clean", "pgd"], "cm") == counts


def test_convert_rejects_fractions_of_unknown_number_of_images(tmp_path, robust201):
    folder = write_results(tmp_path, {"clean": {"0": [[0.5, 0.5], [0.25, 0.75]]}}, dataset="mine", measure="cm")
    write_sweep_json(folder, {"mine": {"clean": [0]}}, measurements=("cm",))
    assert "sweep.json does not give the number of images" in robust201("convert", folder).refusal(2)
