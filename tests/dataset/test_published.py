"""The published layout, written from the shards of slices."""

import json

import numpy as np
import pytest

from robust201.core.errors import IncompleteError
from robust201.dataset.published import write_published
from robust201.dataset.rows import KeyRows
from robust201.run.inline import run_inline
from robust201.run.sweep import Filters
from robust201.store.folder import ResultsFolder
from robust201.sweep.inputs import load_plan
from robust201.sweep.plan import make_plan


def read_results(config):
    saved, facts = load_plan(config.results)
    folder = ResultsFolder.open(config.results)
    return make_plan(saved, facts, folder.slices), folder


def test_files_have_the_merged_rows(make_sweep, tmp_path):
    execution = {"device": "cpu", "gmacs_per_second": 1e-5}
    config = make_sweep(keys={"clean": {}, "fgsm": {"epsilons": ["1/255", "8/255"]}}, execution=execution)
    run_inline(config, Filters(keys=["clean"]))
    with pytest.raises(IncompleteError, match="fgsm"):
        write_published(*read_results(config), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    run_inline(config)
    plan, folder = read_results(config)
    paths = write_published(plan, folder, tmp_path / "out")
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
