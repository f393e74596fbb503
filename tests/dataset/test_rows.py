"""Rows of units, merged from the shards of their slices."""

import json

import numpy as np
import pytest

from robust201.core.errors import IncompleteError
from robust201.core.records import EvaluationResult, Part
from robust201.dataset.export import export_dataset
from robust201.dataset.shard_rows import KeyRows, read_shard
from robust201.store.names import content_hash, shard_name
from robust201.store.shards import encode
from robust201.sweep.plan import open_results
from tests.support.runs import run_inline


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
    key_rows = KeyRows(folder, plan.keys[1], folder.list())
    assert (plan.keys[1].n_slices > 1).all()
    for network, (unit, rows) in enumerate(key_rows):
        architecture = str(unit.architecture)
        for position, strength in enumerate(unit.strengths):
            cm = np.array(published["fgsm_cm"]["fgsm"]["cm"][architecture][position])
            accuracy = published["fgsm_accuracy"]["fgsm"]["accuracy"][architecture][position]
            assert np.array_equal(rows[strength]["cm"], cm)
            assert (cm.sum(), accuracy) == (10, np.trace(cm) / 10)
            # Without the matrices, an accuracy follows from those of the slices.
            assert key_rows.read(network, ["accuracy"], [strength]) == {strength: {"accuracy": accuracy}}
            assert len(rows[strength]["predictions"]) == 10


def rewrite(folder, name, pixels):
    """Replace a shard by one with the same rows and other corrupted images."""
    shard = read_shard(folder, name)
    part = Part(shard.unit, shard.unit.strengths, shard.start, shard.stop)
    content = encode([EvaluationResult(part, *row, 1.0, {}) for row in shard.rows.items()], pixels=pixels)
    (folder.storage.root / name.path).unlink()
    folder.write(name._replace(hash=content_hash(content)), content)


def test_vanished_files_and_other_corrupted_images_are_rejected(make_sweep):
    config = make_sweep(keys={"brightness": {"severities": [1, 5]}})
    run_inline(config)
    plan, folder = open_results(config.results)
    names = folder.list()["digits"]
    rows = KeyRows(folder, plan.keys[0], folder.list())
    for name in names:
        rewrite(folder, shard_name("digits", name), ["same", "images"])
    with pytest.raises(IncompleteError, match=r"digits brightness.* has vanished"):
        list(rows)
    assert len(list(KeyRows(folder, plan.keys[0], folder.list()))) == 2
    rewrite(folder, shard_name("digits", folder.list()["digits"][0]), ["same", "other"])
    with pytest.raises(IncompleteError, match="verify"):
        list(KeyRows(folder, plan.keys[0], folder.list()))
