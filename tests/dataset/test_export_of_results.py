"""Exports of results folders: merged rows, missing and damaged files, outcomes, recorded and measured accuracies."""

import json
import pickle
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from robust201.core.errors import DatasetError, IncompleteError, ShardDamagedError
from robust201.dataset.export import export_dataset, load_evaluated_images
from robust201.dataset.shard_rows import KeyRows
from robust201.dataset.verify_results import check_clean_accuracy
from robust201.store.names import shard_name
from robust201.sweep.filters import Filters
from robust201.sweep.plan import make_plan, open_results
from tests.conftest import read_tree
from tests.support.runs import run_inline, store_variant

KEYS = {"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}}


def test_incomplete_results_are_exported_only_with_partial(make_sweep, tmp_path, robust201):
    run_inline(make_sweep(keys=KEYS), Filters(keys=("clean",)))
    arguments = ("export", tmp_path / "results", "--out", tmp_path / "out")
    assert "digits fgsm at strength 1 is missing" in robust201(*arguments).error_line(exit_code=3)
    assert not (tmp_path / "out").exists()
    result = robust201(*arguments, "--partial")
    assert (result.code, "missing: 4 evaluations of digits fgsm" in result.err) == (3, True)
    assert (tmp_path / "out/missing.json").exists()
    run_inline(make_sweep(keys=KEYS))
    assert robust201(*arguments).code == 0
    assert not (tmp_path / "out/missing.json").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_damaged_file_is_moved_aside_and_computed_again(make_sweep, tmp_path, processes):
    config = make_sweep(keys=KEYS)
    run_inline(config)
    export_dataset(*open_results(config.results), tmp_path / "out", processes=processes)
    tree_before = read_tree(tmp_path / "out")
    path = sorted(config.results.rglob("shards/**/*.parquet"))[0]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ShardDamagedError, match=path.name) as error_info:
        export_dataset(*open_results(config.results), tmp_path / "out", processes=processes)
    assert error_info.value.exit_code == 3
    assert read_tree(tmp_path / "out") == tree_before
    assert [damaged.name for damaged in (config.results / "damaged").rglob("*.parquet")] == [path.name]
    run_inline(config)
    shutil.rmtree(tmp_path / "out")
    export_dataset(*open_results(config.results), tmp_path / "out")
    assert read_tree(tmp_path / "out") == tree_before


def test_outcomes_come_from_predictions_and_labels(make_sweep, tmp_path):
    config = make_sweep(keys=KEYS, measurements=["accuracy", "predictions"])
    run_inline(config)
    plan, folder = open_results(config.results)
    export_dataset(plan, folder, tmp_path / "out", formats=("parquet",), outcomes="classes")
    labels = pq.read_table(tmp_path / "out/images/dataset=digits/part-0.parquet")["label"].to_numpy()
    for key in KEYS:
        table = pq.read_table(tmp_path / f"out/parquet/dataset=digits/key={key}/part-0.parquet")
        for bits, predicted in zip(table["correct_bits"].to_pylist(), table["predictions"].to_pylist(), strict=True):
            assert bits == np.packbits(np.array(predicted) == labels).tobytes()
    shutil.rmtree(config.results / "images")  # as in a merged folder; the images are loaded from their source
    export_dataset(plan, folder, tmp_path / "again", formats=("parquet",), outcomes="classes")
    assert read_tree(tmp_path / "again") == read_tree(tmp_path / "out")
    plan = make_plan(make_sweep(keys=KEYS, images={"count": 5}), plan.facts, folder.slices)
    with pytest.raises(DatasetError, match="digits"):
        load_evaluated_images(plan, "digits")


def test_clean_accuracies_are_compared_with_recorded_ones(make_sweep):
    config = make_sweep(keys={"clean": {}})
    run_inline(config)
    plan, folder = open_results(config.results)
    assert check_clean_accuracy(plan, folder).n_checked == 0
    measured_accuracies = {}
    for unit, columns in KeyRows(folder, plan.keys[0], folder.list()):
        measured_accuracies[unit.checkpoint_sha256] = float(columns["accuracy"][0])
    plan.facts.recorded_accuracies.update(measured_accuracies)
    check = check_clean_accuracy(plan, folder)
    assert (check.n_checked, check.unexpected) == (2, ())
    plan.facts.recorded_accuracies.update(dict.fromkeys(measured_accuracies, 1.0))
    assert len(check_clean_accuracy(plan, folder).unexpected) == 2


def test_results_folder_is_never_replaced(finished_results, robust201):
    tree_before = read_tree(finished_results)
    for out in (finished_results, finished_results / "out"):
        robust201("export", finished_results, "--out", out).error_line(exit_code=2)
    assert read_tree(finished_results) == tree_before


def test_exported_files_have_the_merged_rows_of_slices(make_sweep, tmp_path):
    execution = {"device": "cpu", "gmacs_per_second": 1e-5}
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}}, execution=execution)
    run_inline(config)
    plan, folder = open_results(config.results)
    export_dataset(plan, folder, tmp_path / "out")
    paths = list((tmp_path / "out/digits").iterdir())
    names = {f"{key}_{name}.json" for key in ("clean", "fgsm") for name in ("accuracy", "confidence", "cm")}
    assert {path.name for path in paths} == names
    exported = {path.stem: json.loads(path.read_text())["digits"] for path in paths}
    key_rows = KeyRows(folder, plan.keys[1], folder.list())
    assert (plan.keys[1].n_slices > 1).all()
    for network, (unit, columns) in enumerate(key_rows):
        architecture = str(unit.architecture)
        for position, strength in enumerate(unit.strengths):
            cm = np.array(exported["fgsm_cm"]["fgsm"]["cm"][architecture][position])
            accuracy = exported["fgsm_accuracy"]["fgsm"]["accuracy"][architecture][position]
            assert np.array_equal(columns["cm"][position], cm)
            assert (cm.sum(), accuracy) == (10, np.trace(cm) / 10)
            # If matrices are not read, an accuracy is computed from the accuracies of the slices.
            assert key_rows.read(network, ["accuracy"], [strength]) == {"accuracy": accuracy}
            assert len(columns["predictions"][position]) == 10
    for key in plan.keys:  # pickled rows keep only the shard names of their key, and read the same values
        key_rows = KeyRows(folder, key, folder.list())
        unpickled = pickle.loads(pickle.dumps(key_rows))
        for network in range(len(key.networks)):
            accuracies = [rows.read(network, ["accuracy"])["accuracy"].tolist() for rows in (key_rows, unpickled)]
            assert accuracies[0] == accuracies[1]


def replace_shard(folder, row, digest):
    """Replace a shard with one that has the same rows and another hash of corrupted images."""
    name = shard_name("digits", row)
    store_variant(folder, name, pixels={1.0: "same", 5.0: digest})
    (folder.storage.root / name.path).unlink()


def test_rows_reject_vanished_files_and_different_corrupted_images(make_sweep):
    config = make_sweep(keys={"brightness": {"severities": [1, 5]}})
    run_inline(config)
    plan, folder = open_results(config.results)
    names = folder.list()["digits"]
    rows = KeyRows(folder, plan.keys[0], folder.list())
    for name in names:
        replace_shard(folder, name, "images")
    with pytest.raises(IncompleteError, match=r"digits brightness.* has vanished"):
        list(rows)
    assert len(list(KeyRows(folder, plan.keys[0], folder.list()))) == 2
    replace_shard(folder, folder.list()["digits"][0], "other")
    with pytest.raises(IncompleteError, match="verify"):
        list(KeyRows(folder, plan.keys[0], folder.list()))
