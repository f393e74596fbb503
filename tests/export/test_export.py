"""Exports: the published layout, reproducible bytes, and no partial files."""

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robust201.core.errors import ConfigError, IncompleteError, StorageError, StorageFullError
from robust201.export import export_dataset, meta_file_text
from robust201.tasks import PAPER_KEYS, TASKS
from tests.conftest import read_tree
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
TOLD = {f"{name}.json" for name in ("meta", "sweep", "versions", "weights", "croissant")}
SIDE_FILES = {*TOLD, "sweep.yaml", "README.md", "SHA256SUMS"}


def load(out: Path, name: str) -> dict:
    return json.loads((out / name).read_text())


def test_export_writes_published_layout_for_every_measurement(tmp_path):
    measurements = ("accuracy", "confidence", "cm", "predictions")
    report = export(tmp_path / "out", make_plan(ARCHITECTURES, measurements=measurements))
    names = {f"cifar10/{key}_{name}.json" for key in ("clean", "fgsm", "pgd", "fog") for name in measurements}
    assert set(report.files) == names | SIDE_FILES == set(read_tree(tmp_path / "out"))
    assert (report.n_units, report.n_evaluations, report.complete) == (16, 4 * (1 + 3 + 3 + 3), True)
    for key, strengths in (("clean", None), ("pgd", (0.5, 1.0, 8.0)), ("fog", (1.0, 3.0, 5.0))):
        for name in measurements:
            content = load(tmp_path / "out", f"cifar10/{key}_{name}.json")
            assert list(content) == ["cifar10"]
            assert list(content["cifar10"]) == [key]
            assert list(content["cifar10"][key]) == [name]
            rows = content["cifar10"][key][name]
            assert list(rows) == ["0", "2", "10", "309"]  # ascending as numbers, not as text
            assert all(strengths is None or len(row) == len(strengths) for row in rows.values())


def test_export_writes_stored_doubles_and_integer_counts(tmp_path):
    export(tmp_path, make_plan(ARCHITECTURES))
    for key, strengths in (("clean", (0.0,)), ("pgd", (0.5, 1.0, 8.0))):
        for architecture in ARCHITECTURES:
            unit = make_unit(architecture, "cifar10", key, strengths)
            for position, strength in enumerate(strengths):
                stored = make_values(unit, strength)
                read = {
                    name: load(tmp_path, f"cifar10/{key}_{name}.json")["cifar10"][key][name][str(architecture)]
                    for name in ("accuracy", "confidence", "cm")
                }
                if key != "clean":
                    read = {name: values[position] for name, values in read.items()}
                assert read["accuracy"] == float(stored["accuracy"])
                assert read["cm"] == stored["cm"].tolist()
                assert all(type(count) is int for row in read["cm"] for count in row)
                assert list(read["confidence"]) == ["label", "argmax", "prediction"]
                for field, values in read["confidence"].items():
                    np.testing.assert_array_equal(np.array(values, dtype=np.float64), stored[f"confidence_{field}"])


def store_of(accuracy=0.5):
    """A store with one accuracy for all, and the missing confidences of a constant classifier."""
    changed = {
        "accuracy": np.array(accuracy),
        "confidence_argmax": np.array([[1.0, 0.0, 0.0], [np.nan] * 3, [np.nan] * 3]),
        "confidence_prediction": np.array([0.5, np.nan]),
    }
    return ChangedStore(change=lambda *_arguments: changed)


def test_export_writes_null_for_means_over_no_image(tmp_path):
    export(tmp_path, make_plan([10], ["pgd"]), store_of())
    text = (tmp_path / "cifar10/pgd_confidence.json").read_text()
    assert "NaN" not in text
    first = json.loads(text)["cifar10"]["pgd"]["confidence"]["10"][0]
    assert first["argmax"] == [[1.0, 0.0, 0.0], [None] * 3, [None] * 3]
    assert first["prediction"] == [0.5, None]


@settings(max_examples=15)
@given(accuracy=st.floats(0, 1))
def test_export_round_trips_doubles_and_rounds_on_request(tmp_path_factory, accuracy):
    folder = tmp_path_factory.mktemp("doubles")
    plan = make_plan([10], ["clean"], measurements=("accuracy",))
    for out, round_to, expected in ((folder / "full", None, accuracy), (folder / "rounded", 3, round(accuracy, 3))):
        export(out, plan, store_of(accuracy), round_to=round_to)
        assert load(out, "cifar10/clean_accuracy.json")["cifar10"]["clean"]["accuracy"]["10"] == expected


def test_rounding_applies_to_means_but_not_counts_and_nulls(tmp_path):
    plan = make_plan(ARCHITECTURES)
    export(tmp_path / "full", plan)
    export(tmp_path / "rounded", plan, round_to=3)

    def rounded(value):
        if isinstance(value, dict):
            return {name: rounded(item) for name, item in value.items()}
        if isinstance(value, list):
            return [rounded(item) for item in value]
        return round(value, 3) if isinstance(value, float) else value

    for name in ("accuracy", "confidence", "cm"):
        file = f"cifar10/pgd_{name}.json"
        full = load(tmp_path / "full", file)
        assert load(tmp_path / "rounded", file) == rounded(full)
        assert (rounded(full) != full) == (name == "confidence")  # the fabricated accuracies have three decimals


def test_export_of_equal_results_has_equal_bytes(tmp_path):
    plan = make_plan(ARCHITECTURES, datasets=("cifar10", "cifar100"))
    for out in ("one", "two", "two"):  # the third replaces the second
        export(tmp_path / out, plan)
    assert read_tree(tmp_path / "one") == read_tree(tmp_path / "two")
    # Like the published files, they have the bytes of json.dumps for the whole nested value.
    for name, data in read_tree(tmp_path / "one").items():
        if name.startswith("cifar"):
            assert json.dumps(json.loads(data)).encode() == data


def test_key_styles_differ_only_in_file_names_and_keys(tmp_path):
    plan = make_plan(ARCHITECTURES)
    export(tmp_path / "paper", plan)
    export(tmp_path / "published", plan, key_style="published")
    paper, published = load(tmp_path / "paper", "meta.json"), load(tmp_path / "published", "meta.json")
    assert paper["epsilons"] == {"fgsm": [0.5, 1.0, 8.0], "pgd": [0.5, 1.0, 8.0]}
    assert published["epsilons"] == {"fgsm@Linf": [0.5, 1.0, 8.0], "pgd@Linf": [0.5, 1.0, 8.0]}
    assert paper["ids"] == published["ids"]
    assert len(paper["ids"]) == 15_625
    for key, spelled in (("pgd", "pgd@Linf"), ("fog", "fog"), ("clean", "clean")):
        paper_values = load(tmp_path / "paper", f"cifar10/{key}_cm.json")["cifar10"][key]
        assert load(tmp_path / "published", f"cifar10/{spelled}_cm.json")["cifar10"][spelled] == paper_values
    assert not (tmp_path / "published/cifar10/pgd_cm.json").exists()


def test_meta_json_of_paper_sweep_equals_published_file(tmp_path):
    strengths = {key: TASKS[key].parameters().strengths for key in PAPER_KEYS}
    units = tuple(make_unit(0, "cifar10", key, strengths[key]) for key in PAPER_KEYS)
    export(tmp_path, FabricatedPlan(units, ("accuracy",)), key_style="published")
    assert hashlib.sha256((tmp_path / "meta.json").read_bytes()).hexdigest() == PUBLISHED_META_SHA256
    text = meta_file_text(strengths, "published")
    assert text.encode() == (tmp_path / "meta.json").read_bytes()


def test_sweep_json_records_protocols_and_strengths(tmp_path):
    export(tmp_path, make_plan(ARCHITECTURES), key_style="published", round_to=3)
    sweep = load(tmp_path, "sweep.json")
    assert sweep["sweep"]["images"] == {"count": 40, "seed": 3}
    assert sweep["strengths"]["cifar10"] == {
        "clean": [0.0],
        "fgsm@Linf": [0.5, 1.0, 8.0],
        "pgd@Linf": [0.5, 1.0, 8.0],
        "fog": [1.0, 3.0, 5.0],
    }
    assert (sweep["key_style"], sweep["round_to"]) == ("published", 3)


def test_weights_json_lists_hashes_of_weights(tmp_path):
    plan = make_plan([0, 309], ["clean", "pgd"], datasets=("cifar10", "cifar100"))
    export(tmp_path, plan, FabricatedStore(lacking={(309, "pgd", 8.0)}), partial=True)
    assert load(tmp_path, "weights.json") == {
        name: dict.fromkeys(("0", "309"), "c" * 64) for name in ("cifar10", "cifar100")
    }


def test_export_contains_only_evaluations_of_plan(tmp_path):
    export(tmp_path / "all", make_plan(ARCHITECTURES))
    export(tmp_path / "some", make_plan([2, 309], ["pgd"], epsilons=(1.0,)))
    everything = load(tmp_path / "all", "cifar10/pgd_accuracy.json")["cifar10"]["pgd"]["accuracy"]
    some = load(tmp_path / "some", "cifar10/pgd_accuracy.json")["cifar10"]["pgd"]["accuracy"]
    assert some == {i: [everything[i][1]] for i in ("2", "309")}
    assert sorted(path.name for path in (tmp_path / "some/cifar10").iterdir()) == [
        "pgd_accuracy.json",
        "pgd_cm.json",
        "pgd_confidence.json",
    ]


LACKING = {(2, "pgd", 8.0), (10, "pgd", 0.5), (10, "pgd", 1.0), *((i, "fog", 3.0) for i in ARCHITECTURES)}


def test_export_rejects_incomplete_sweep(tmp_path):
    with pytest.raises(IncompleteError) as caught:
        export(tmp_path / "out", make_plan(ARCHITECTURES), FabricatedStore(lacking=set(LACKING)))
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "expected 40 evaluations, got 33" in message
    assert "cifar10 pgd 3, cifar10 fog 4" in message
    assert "#2 cifar10 pgd at strength 8" in message
    assert not (tmp_path / "out").exists()


def test_partial_export_writes_complete_rows_and_lists_missing(tmp_path):
    plan = make_plan(ARCHITECTURES)
    export(tmp_path / "full", plan)
    report = export(tmp_path / "out", plan, FabricatedStore(lacking=set(LACKING)), partial=True)
    assert not report.complete
    # Rows that lack a strength are left out.
    assert report.missing == {("cifar10", "pgd"): 6, ("cifar10", "fog"): 12}
    full_values = load(tmp_path / "full", "cifar10/pgd_cm.json")["cifar10"]["pgd"]["cm"]
    assert load(tmp_path / "out", "cifar10/pgd_cm.json")["cifar10"]["pgd"]["cm"] == {
        i: full_values[i] for i in ("0", "309")
    }
    assert not list((tmp_path / "out/cifar10").glob("fog_*"))
    assert load(tmp_path / "out", "missing.json") == {
        "cifar10": {"pgd": {"2": [8.0], "10": [0.5, 1.0]}, "fog": {str(i): [3.0] for i in ARCHITECTURES}}
    }
    # Once the results are complete, another export to the folder gives the same files as a new export.
    assert export(tmp_path / "out", plan).removed == ("missing.json",)
    assert read_tree(tmp_path / "out") == read_tree(tmp_path / "full")


def test_export_to_full_disk_leaves_no_partial_file(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("robust201.core.files.os.fsync", full)
    with pytest.raises(StorageFullError, match="free space"):
        export(tmp_path, make_plan([0]))
    assert read_tree(tmp_path) == {}


def test_listing_contains_hash_of_every_file(tmp_path):
    export(tmp_path, make_plan(ARCHITECTURES))
    tree = read_tree(tmp_path)
    listing = tree.pop("SHA256SUMS").decode()
    assert listing == "".join(f"{hashlib.sha256(tree[name]).hexdigest()}  {name}\n" for name in sorted(tree))


class ForgetfulStore(FabricatedStore):
    """A store that returns fewer or more rows than its inventory lists."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def iter_values(self, units, inventory, measurements):
        rows = list(super().iter_values(units, inventory, measurements))
        if self.fault == "a unit":
            rows.pop()
        elif self.fault == "a strength":
            rows[1][1].popitem()
        elif self.fault == "one too many":
            rows.append(rows[0])
        elif self.fault == "the order":
            rows.reverse()
        return iter(rows)


@pytest.mark.parametrize("fault", ["a unit", "a strength", "one too many", "the order"])
def test_export_rejects_store_that_contradicts_inventory(tmp_path, fault):
    with pytest.raises(StorageError, match="robust201 verify"):
        export(tmp_path, make_plan(ARCHITECTURES), ForgetfulStore(fault))
    assert not list(tmp_path.glob("cifar10/*.json"))


def test_export_rejects_datasets_with_different_epsilons(tmp_path):
    units = (make_unit(0, "cifar10", "pgd", (1.0,)), make_unit(0, "cifar100", "pgd", (1.0, 8.0)))
    with pytest.raises(ConfigError, match="results of the datasets in separate folders"):
        export(tmp_path / "out", FabricatedPlan(units))
    assert not (tmp_path / "out").exists()


def test_export_progress_counts_rows(tmp_path):
    seen: list[tuple[int, int]] = []
    store = FabricatedStore()
    export_dataset(
        make_plan([0, 2], ["clean", "pgd"]), store, store, tmp_path, progress=lambda *count: seen.append(count)
    )
    assert seen == [(row, 12) for row in range(1, 13)]  # four units, three files each


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("robust201.export", {"torch", "ray", "pandas", "matplotlib"}),
        ("robust201.reader.dataset, robust201.figures.report", {"torch", "ray", "pyarrow", "pandas", "matplotlib"}),
    ],
)
def test_export_and_reader_do_not_import_torch(modules, absent):
    code = (
        f"import sys, robust201, {modules}\n"
        "robust201.RobustnessDataset\n"
        f"print(sorted(set({sorted(absent)}).intersection(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"
