"""Exports: the published layout, recorded and reproducible bytes, and no partial files."""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robust201.core.errors import ConfigError, IncompleteError, StorageFullError
from robust201.core.files import sha256_of
from robust201.tasks import PAPER_KEYS, TASKS
from tests.conftest import REPOSITORY, read_tree
from tests.golden.compare_demo import read_hashes
from tests.support.fabricated import (
    ChangedStore,
    FabricatedPlan,
    FabricatedStore,
    export,
    make_plan,
    make_unit,
    make_values,
)

PUBLISHED_META_SHA256 = "54b6d2c2780cfb63de98e9d67e72db9cb0c02be426191d429dbe02c898d4577e"
ARCHITECTURES = (0, 2, 10, 309)
JSON_SIDE_FILES = {f"{name}.json" for name in ("meta", "sweep", "versions", "weights")}
SIDE_FILES = {*JSON_SIDE_FILES, "sweep.yaml", "README.md", "SHA256SUMS"}


def load_json(out: Path, name: str) -> dict:
    return json.loads((out / name).read_text())


def test_export_writes_published_layout_for_every_measurement(tmp_path):
    measurements = ("accuracy", "confidence", "cm", "predictions")
    report = export(tmp_path / "out", make_plan(ARCHITECTURES, measurements=measurements))
    result_files = {f"cifar10/{key}_{name}.json" for key in ("clean", "fgsm", "pgd", "fog") for name in measurements}
    assert set(report.files) == result_files | SIDE_FILES == set(read_tree(tmp_path / "out"))
    assert (report.n_units, report.n_evaluations, report.is_complete) == (16, 4 * (1 + 3 + 3 + 3), True)
    for key, strengths in (("clean", None), ("pgd", (0.5, 1.0, 8.0)), ("fog", (1.0, 3.0, 5.0))):
        for name in measurements:
            content = load_json(tmp_path / "out", f"cifar10/{key}_{name}.json")
            assert list(content) == ["cifar10"]
            assert list(content["cifar10"]) == [key]
            assert list(content["cifar10"][key]) == [name]
            values_by_architecture = content["cifar10"][key][name]
            assert list(values_by_architecture) == ["0", "2", "10", "309"]  # ascending as numbers, not as text
            assert all(strengths is None or len(values) == len(strengths) for values in values_by_architecture.values())


def test_export_writes_stored_doubles_and_integer_counts(tmp_path):
    export(tmp_path, make_plan(ARCHITECTURES))
    for key, strengths in (("clean", (0.0,)), ("pgd", (0.5, 1.0, 8.0))):
        for architecture in ARCHITECTURES:
            unit = make_unit(architecture, "cifar10", key, strengths)
            for position, strength in enumerate(strengths):
                stored_values = make_values(unit, strength)
                exported_values = {
                    name: load_json(tmp_path, f"cifar10/{key}_{name}.json")["cifar10"][key][name][str(architecture)]
                    for name in ("accuracy", "confidence", "cm")
                }
                if key != "clean":
                    exported_values = {name: values[position] for name, values in exported_values.items()}
                assert exported_values["accuracy"] == float(stored_values["accuracy"])
                assert exported_values["cm"] == stored_values["cm"].tolist()
                assert all(type(count) is int for row in exported_values["cm"] for count in row)
                assert list(exported_values["confidence"]) == ["label", "argmax", "prediction"]
                for field, values in exported_values["confidence"].items():
                    np.testing.assert_array_equal(
                        np.array(values, dtype=np.float64), stored_values[f"confidence_{field}"]
                    )


def test_export_writes_null_for_means_over_zero_images(tmp_path):
    constant_values = {
        "confidence_argmax": np.array([[1.0, 0.0, 0.0], [np.nan] * 3, [np.nan] * 3]),
        "confidence_prediction": np.array([0.5, np.nan]),
    }
    export(tmp_path, make_plan([10], ["pgd"]), ChangedStore(change=lambda *_arguments: constant_values))
    content = (tmp_path / "cifar10/pgd_confidence.json").read_text()
    assert "NaN" not in content
    confidences = json.loads(content)["cifar10"]["pgd"]["confidence"]["10"][0]
    assert confidences["argmax"] == [[1.0, 0.0, 0.0], [None] * 3, [None] * 3]
    assert confidences["prediction"] == [0.5, None]


def test_rounding_applies_to_means_but_not_counts_and_nulls(tmp_path):
    plan = make_plan(ARCHITECTURES)
    export(tmp_path / "full", plan)
    export(tmp_path / "rounded", plan, round_to=3)

    def round_nested(value):
        if isinstance(value, dict):
            return {name: round_nested(element) for name, element in value.items()}
        if isinstance(value, list):
            return [round_nested(element) for element in value]
        return round(value, 3) if isinstance(value, float) else value

    for name in ("accuracy", "confidence", "cm"):
        file_name = f"cifar10/pgd_{name}.json"
        full_content = load_json(tmp_path / "full", file_name)
        assert load_json(tmp_path / "rounded", file_name) == round_nested(full_content)
        # The fabricated accuracies have only three decimals.
        assert (round_nested(full_content) != full_content) == (name == "confidence")


def test_export_of_equal_results_has_equal_bytes(tmp_path):
    plan = make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100"))
    for out in ("one", "two", "two"):  # the third export replaces the second
        export(tmp_path / out, plan)
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "two")
    # The files have the same bytes as json.dumps of their content, like the published files.
    tree = read_tree(tmp_path / "one")
    for name, content in tree.items():
        if name.startswith("cifar"):
            assert json.dumps(json.loads(content)).encode() == content
    listing = tree.pop("SHA256SUMS").decode()
    assert listing == "".join(f"{hashlib.sha256(tree[name]).hexdigest()}  {name}\n" for name in sorted(tree))


def test_key_styles_differ_only_in_file_names_and_keys(tmp_path):
    plan = make_plan(ARCHITECTURES)
    export(tmp_path / "paper", plan)
    export(tmp_path / "published", plan, key_style="published")
    paper_meta, published_meta = (load_json(tmp_path / folder, "meta.json") for folder in ("paper", "published"))
    assert paper_meta["epsilons"] == {"fgsm": [0.5, 1.0, 8.0], "pgd": [0.5, 1.0, 8.0]}
    assert published_meta["epsilons"] == {"fgsm@Linf": [0.5, 1.0, 8.0], "pgd@Linf": [0.5, 1.0, 8.0]}
    assert paper_meta["ids"] == published_meta["ids"]
    assert len(paper_meta["ids"]) == 15_625
    for key, published_key in (("pgd", "pgd@Linf"), ("fog", "fog"), ("clean", "clean")):
        paper_values = load_json(tmp_path / "paper", f"cifar10/{key}_cm.json")["cifar10"][key]
        assert (
            load_json(tmp_path / "published", f"cifar10/{published_key}_cm.json")["cifar10"][published_key]
            == paper_values
        )
    assert not (tmp_path / "published/cifar10/pgd_cm.json").exists()


def test_meta_json_of_paper_sweep_equals_published_file(tmp_path):
    strengths = {key: TASKS[key].parameters().strengths for key in PAPER_KEYS}
    units = tuple(make_unit(0, "cifar10", key, strengths[key]) for key in PAPER_KEYS)
    export(tmp_path, FabricatedPlan(units, ("accuracy",)), key_style="published")
    assert hashlib.sha256((tmp_path / "meta.json").read_bytes()).hexdigest() == PUBLISHED_META_SHA256


MISSING_EVALUATIONS = {(2, "pgd", 8.0), (10, "pgd", 0.5), (10, "pgd", 1.0), *((i, "fog", 3.0) for i in ARCHITECTURES)}


def test_partial_export_writes_complete_rows_and_lists_missing(tmp_path):
    plan = make_plan(ARCHITECTURES)
    export(tmp_path / "full", plan)
    store = FabricatedStore(missing=set(MISSING_EVALUATIONS))
    with pytest.raises(IncompleteError, match=r"expected 40 evaluations, got 33.*#2 cifar10 pgd at strength 8"):
        export(tmp_path / "out", plan, store)
    assert not (tmp_path / "out").exists()
    report = export(tmp_path / "out", plan, store, partial=True)
    assert not report.is_complete
    # Architectures that lack a strength are not exported.
    assert report.missing == {("cifar10", "pgd"): 6, ("cifar10", "fog"): 12}
    full_values = load_json(tmp_path / "full", "cifar10/pgd_cm.json")["cifar10"]["pgd"]["cm"]
    assert load_json(tmp_path / "out", "cifar10/pgd_cm.json")["cifar10"]["pgd"]["cm"] == {
        architecture: full_values[architecture] for architecture in ("0", "309")
    }
    assert not list((tmp_path / "out/cifar10").glob("fog_*"))
    assert load_json(tmp_path / "out", "missing.json") == {
        "cifar10": {
            "pgd": {"2": [8.0], "10": [0.5, 1.0]},
            "fog": {str(architecture): [3.0] for architecture in ARCHITECTURES},
        }
    }
    # When the results are complete, another export to the folder gives the same files as a new export.
    export(tmp_path / "out", plan)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "full")


def test_export_to_full_disk_leaves_no_partial_file(tmp_path, monkeypatch):
    def raise_disk_full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("robust201.core.files.os.fsync", raise_disk_full)
    with pytest.raises(StorageFullError, match="the disk is full"):
        export(tmp_path, make_plan([0]))
    assert read_tree(tmp_path) == {}


def test_export_rejects_datasets_with_different_epsilons(tmp_path):
    units = (make_unit(0, "cifar10", "pgd", (1.0,)), make_unit(0, "cifar100", "pgd", (1.0, 8.0)))
    with pytest.raises(ConfigError, match="results of these datasets in separate folders"):
        export(tmp_path / "out", FabricatedPlan(units))
    assert not (tmp_path / "out").exists()


RECORDED_VERSION = "0.1.0"
LISTING = REPOSITORY / "tests" / "golden" / "export.sha256"
VERSION_DEPENDENT_FILES = {"README.md", "SHA256SUMS", "versions.json"}
"""Files that contain installed versions, or hashes of such files; they are not listed."""

EXPORT_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"formats": ("json", "parquet")},
    "round": {"key_style": "published", "round_to": 3},
}


@pytest.mark.parametrize("name", EXPORT_OPTIONS)
def test_exports_have_recorded_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("robust201.dataset.side_files.__version__", RECORDED_VERSION)
    export(tmp_path, make_plan((0, 2, 10, 309), datasets=("cifar10", "cifar100")), **EXPORT_OPTIONS[name])
    paths = [path for path in tmp_path.rglob("*") if path.is_file() and path.name not in VERSION_DEPENDENT_FILES]
    hashes = {f"{name}/{path.relative_to(tmp_path).as_posix()}": sha256_of(path) for path in paths}
    assert hashes == {file: digest for file, digest in read_hashes(LISTING).items() if file.startswith(f"{name}/")}
