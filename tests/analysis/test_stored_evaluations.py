"""Comparison of a dataset's networks by their stored outcomes."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import robust201
from robust201.analysis.stored_evaluations import read_evaluations
from robust201.core.errors import ConfigError
from robust201.dataset.reader import Dataset
from robust201.statistics.significance import mcnemar_p_values

CELLS = "benchmark_data/cells-cifar10"


def test_compare_uses_stored_per_image_outcomes():
    comparison = robust201.compare([f"{CELLS}:13714", f"{CELLS}:21"], keys=["clean", "pgd:1/255"])
    assert list(zip(comparison.table["key"], comparison.table["strength"], strict=True)) == [
        ("clean", 0.0),
        ("pgd", 1.0),
    ]
    outcomes = Dataset(CELLS).outcomes("cifar10", "pgd", 1.0).of([13714, 21]).correct
    pgd_row = comparison.table.iloc[1]
    discordant = (int((outcomes[0] & ~outcomes[1]).sum()), int((~outcomes[0] & outcomes[1]).sum()))
    assert (pgd_row["only_first"], pgd_row["only_second"]) == discordant
    assert pgd_row["p_value"] == pytest.approx(float(mcnemar_p_values(*discordant)))
    assert (pgd_row["first_accuracy"], pgd_row["second_accuracy"]) == tuple(outcomes.mean(axis=1))
    assert comparison.summary == (
        "13714 and 21 do not differ significantly in any of 2 evaluations (500 images, McNemar's exact test, Holm's "
        "correction, level 0.05)."
    )


def test_read_evaluations_uses_one_strength_per_key_by_default():
    (result,) = read_evaluations(Path(CELLS), "21").values()
    strengths = dict(zip(result.table["key"], result.table["strength"], strict=True))
    assert len(strengths) == len(result.table) == 20
    assert (strengths["clean"], strengths["pgd"], strengths["fog"]) == (0.0, 1.0, 3.0)
    assert np.array_equal(result.outcomes["pgd", 1.0].mean(), result.table.set_index("key")["accuracy"]["pgd"])


def test_compare_distinguishes_equal_names_and_rejects_different_parameters(tmp_path):
    copy = shutil.copytree(CELLS, tmp_path / "copy")
    comparison = robust201.compare([f"{CELLS}:21", f"{copy}:21"], keys="clean")
    assert comparison.table[["first", "second", "p_value"]].to_numpy().tolist() == [["21", f"{copy}:21", 1.0]]
    sweep = copy / "sweep.json"
    sweep.write_text(sweep.read_text().replace('"steps":', '"n_steps":'))
    with pytest.raises(ConfigError, match=r"pgd has different parameters \(parameters\)"):
        robust201.compare({"a": f"{CELLS}:21", "b": f"{copy}:21"}, keys=["pgd:1/255"])


def test_compare_command_accepts_networks_of_a_dataset(tmp_path, robust201):
    result = robust201("compare", f"{CELLS}:13714", f"{CELLS}:21", "--out", tmp_path / "table.tex")
    assert result.out.startswith(
        "13714 is significantly more accurate in 2 of 20 evaluations, with the largest difference for contrast:3"
    )
    assert (tmp_path / "table.tex").read_text().count("\\begin{tabular}{llrr}") == 1
