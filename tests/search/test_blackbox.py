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


SCRIPT = """
import contextlib, io, json, logging, os, sys, tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as results, contextlib.redirect_stdout(io.StringIO()):
    os.environ["SYNETUNE_FOLDER"] = results  # read when Syne Tune is imported
    logging.disable(logging.WARNING)
    from ConfigSpace import ConfigurationSpace
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
    from syne_tune.blackbox_repository.blackbox_tabular import deserialize
    from syne_tune.blackbox_repository.simulated_tabular_backend import UserBlackboxBackend
    from syne_tune.optimizer.baselines import REA

    metric = "metric_error_clean"
    blackbox = deserialize(sys.argv[1])["cifar10"]
    tuner = Tuner(
        trial_backend=UserBlackboxBackend(blackbox=blackbox, elapsed_time_attr="metric_elapsed_time"),
        scheduler=REA(blackbox.configuration_space, metric=metric, random_seed=0),
        stop_criterion=StoppingCriterion(max_num_evaluations=600),
        n_workers=1, sleep_time=0, callbacks=[SimulatorCallback()], save_tuner=False, print_update_interval=1e9,
    )
    tuner.run()
    _, found = tuner.best_config()
    columns = blackbox.hyperparameters.columns
    errors = blackbox.objectives_evaluations[:, 0, 0, blackbox.objectives_names.index(metric)]
    space = ConfigurationSpace.from_json(Path(sys.argv[1]) / "cell_space.json")
    cells = {tuple(row) for row in blackbox.hyperparameters.itertuples(index=False)}
    draws = [tuple(str(draw[name]) for name in columns) for draw in space.sample_configuration(200)]
error = float(blackbox(found, fidelity={"hp_epoch": 1})[metric])
print(json.dumps([[found[name] for name in columns], error == errors.min(), len(cells), cells.issuperset(draws)]))
"""


def test_evolution_of_syne_tune_finds_the_optimum(blackbox: Path) -> None:
    python = os.environ.get(PYTHON)
    if not python:
        pytest.skip(f"{PYTHON} names no Python with syne-tune, fastparquet, huggingface_hub and ConfigSpace")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", SCRIPT, str(blackbox)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == [[*cell_operations(best_cell())], True, 15_625, True]
