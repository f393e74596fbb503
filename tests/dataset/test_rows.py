"""Rows of units, merged from the shards of their slices."""

import json

import numpy as np
import pytest

from robust201.core.errors import IncompleteError
from robust201.dataset.export import export_dataset
from robust201.dataset.shard_rows import KeyRows
from robust201.store.names import shard_name
from robust201.sweep.plan import open_results
from tests.support.runs import run_inline, store_variant


def test_files_have_the_merged_rows(make_sweep, tmp_path):
    execution = {"device": "cpu", "gmacs_per_second": 1e-5}
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}}, execution=execution)
    run_inline(config)
    plan, folder = open_results(config.results)
    export_dataset(plan, folder, tmp_path / "out")
    paths = list((tmp_path / "out/digits").iterdir())
    names = {f"{key}_{name}.json" for key in ("clean", "fgsm") for name in ("accuracy", "confidence", "cm")}
    assert {path.name for path in paths} == names
    published = {path.stem: json.loads(path.read_text())["digits"] for path in paths}
    for unit, rows in KeyRows(folder, plan.keys[1], folder.list()):
        architecture = str(unit.architecture)
        for position, strength in enumerate(unit.strengths):
            cm = np.array(published["fgsm_cm"]["fgsm"]["cm"][architecture][position])
            accuracy = published["fgsm_accuracy"]["fgsm"]["accuracy"][architecture][position]
            assert np.array_equal(rows[strength]["cm"], cm)
            assert (cm.sum(), accuracy) == (10, np.trace(cm) / 10)
            assert len(rows[strength]["predictions"]) == 10


def replace_images(folder, row, digest):
    """Replace a shard by one with the same rows and other corrupted images."""
    name = shard_name("digits", row)
    store_variant(folder, name, pixels={1.0: "same", 5.0: digest})
    (folder.storage.root / name.path).unlink()


def test_vanished_files_and_other_corrupted_images_are_rejected(make_sweep):
    config = make_sweep(keys={"brightness": {"severities": [1, 5]}})
    run_inline(config)
    plan, folder = open_results(config.results)
    names = folder.list()["digits"]
    rows = KeyRows(folder, plan.keys[0], folder.list())
    for name in names:
        replace_images(folder, name, "images")
    with pytest.raises(IncompleteError, match=r"digits brightness.* has vanished"):
        list(rows)
    assert len(list(KeyRows(folder, plan.keys[0], folder.list()))) == 2
    replace_images(folder, folder.list()["digits"][0], "other")
    with pytest.raises(IncompleteError, match="verify"):
        list(KeyRows(folder, plan.keys[0], folder.list()))
