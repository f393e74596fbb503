"""The blackbox against the dataset; and Syne Tune and ConfigSpace themselves, in an environment of their own."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robust201 import RobustnessDataset
from robust201.search.blackbox import CONFIGSPACE_FILE, write_blackbox
from robust201.spaces.nasbench201 import OPERATIONS, cell_index, cell_operations
from tests.support.planted import best_cell, planted_accuracy, write_planted

PYTHON = "ROBUST201_SYNE_TUNE_PYTHON"
"""Variable that names a Python with syne-tune, fastparquet, huggingface_hub and ConfigSpace."""


@pytest.fixture(scope="module")
def blackbox(planted_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blackbox") / "planted"
    write_blackbox(RobustnessDataset(planted_folder), folder)
    return folder


def test_all_cells_have_the_errors_of_their_class(blackbox: Path) -> None:
    table = pd.read_parquet(blackbox / "hyperparameters.parquet")
    errors = np.load(blackbox / "objectives_evaluations.npy")
    metadata = json.loads((blackbox / "metadata.json").read_text())
    assert metadata["task_names"] == ["cifar10", "cifar100"]
    names = metadata["objectives_names"]
    assert errors.shape == (2, 15_625, 1, 1, len(names))
    assert [cell_index(tuple(row)) for row in table.iloc[:50].itertuples(index=False)] == list(range(50))
    for task, dataset in enumerate(metadata["task_names"]):
        for key, strength, name in (("clean", 0.0, "metric_error_clean"), ("pgd", 4.0, "metric_error_pgd_4")):
            found = errors[task, :, 0, 0, names.index(name)]
            np.testing.assert_allclose(found, 1 - planted_accuracy(key, strength, dataset), atol=2e-6)
    assert (errors[..., names.index("metric_elapsed_time")] == 1).all()


def test_cells_without_results_are_left_out(tmp_path: Path) -> None:
    reader = RobustnessDataset(write_planted(tmp_path / "few", cells=(0, 1)))
    write_blackbox(reader, tmp_path / "blackbox")
    n_rows = len(pd.read_parquet(tmp_path / "blackbox" / "hyperparameters.parquet"))
    isomorphs = [reader.get_uid(cell) for cell in range(15_625)]
    assert n_rows == isomorphs.count("0") + isomorphs.count("1")


def test_the_spaces_have_a_choice_per_edge(blackbox: Path) -> None:
    for path in ("configspace.json", CONFIGSPACE_FILE):
        assert (blackbox / path).read_text().count(OPERATIONS[3]) == 6


def test_evolution_of_syne_tune_finds_the_optimum(blackbox: Path) -> None:
    python = os.environ.get(PYTHON)
    if not python:
        pytest.skip(f"{PYTHON} names no Python with syne-tune, fastparquet, huggingface_hub and ConfigSpace")
    script = Path(__file__).with_name("syne_tune_evolution.py")
    command = [python, str(script), str(blackbox), "--queries", "600"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["cells"] == 15_625
    assert found["error"] == found["optimum"]
    assert tuple(found["found"]) == cell_operations(best_cell())
    assert found["configspace_draws_in_table"] == "200 of 200"
