"""The blackbox has the values of the dataset, and Syne Tune and ConfigSpace can use it in a separate environment."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from robust201 import RobustnessDataset
from robust201.core.errors import ConfigError
from robust201.search.blackbox import CONFIGSPACE_FILE, Fidelity, as_fidelity, write_blackbox
from robust201.spaces.nasbench201 import OPERATIONS, cell_index, cell_operations, evaluated_indices
from robust201.tasks.columns import Values
from tests.support.fabricated import LABELS, N_IMAGES, export, make_images, make_plan, make_unit, make_values
from tests.support.planted import best_cell, planted_accuracy, write_planted

SYNE_TUNE_PYTHON_VARIABLE = "ROBUST201_SYNE_TUNE_PYTHON"
"""Environment variable with the path of a Python that has syne-tune, fastparquet, huggingface_hub and ConfigSpace."""


@pytest.fixture(scope="module")
def blackbox(planted_optimum_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blackbox") / "planted"
    write_blackbox(RobustnessDataset(planted_optimum_folder), folder)
    return folder


def test_blackbox_cells_have_the_errors_of_their_isomorphism_class(blackbox: Path) -> None:
    hyperparameters = pd.read_parquet(blackbox / "hyperparameters.parquet")
    errors = np.load(blackbox / "objectives_evaluations.npy")
    metadata = json.loads((blackbox / "metadata.json").read_text())
    assert metadata["task_names"] == ["cifar10", "cifar100"]
    objectives = metadata["objectives_names"]
    assert errors.shape == (2, 15_625, 1, 1, len(objectives))
    assert [cell_index(tuple(row)) for row in hyperparameters.iloc[:50].itertuples(index=False)] == list(range(50))
    for task, dataset in enumerate(metadata["task_names"]):
        for key, strength, name in (("clean", 0.0, "metric_error_clean"), ("pgd", 4.0, "metric_error_pgd_4")):
            dataset_errors = errors[task, :, 0, 0, objectives.index(name)]
            np.testing.assert_allclose(dataset_errors, 1 - planted_accuracy(key, strength, dataset), atol=2e-6)
    assert (errors[..., objectives.index("metric_elapsed_time")] == 1).all()


def test_blackbox_omits_cells_without_results(tmp_path: Path) -> None:
    reader = RobustnessDataset(write_planted(tmp_path / "few", cells=(0, 1)))
    write_blackbox(reader, tmp_path / "blackbox")
    n_rows = len(pd.read_parquet(tmp_path / "blackbox" / "hyperparameters.parquet"))
    representatives = [reader.get_uid(cell) for cell in range(15_625)]
    assert n_rows == representatives.count("0") + representatives.count("1")


def test_blackbox_spaces_have_one_hyperparameter_per_edge(blackbox: Path) -> None:
    for file_name in ("configspace.json", CONFIGSPACE_FILE):
        assert (blackbox / file_name).read_text().count(OPERATIONS[3]) == 6


EVOLUTION_SCRIPT = """
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
    _, best = tuner.best_config()
    columns = blackbox.hyperparameters.columns
    errors = blackbox.objectives_evaluations[:, 0, 0, blackbox.objectives_names.index(metric)]
    space = ConfigurationSpace.from_json(Path(sys.argv[1]) / "cell_space.json")
    cells = {tuple(row) for row in blackbox.hyperparameters.itertuples(index=False)}
    samples = [tuple(str(sample[name]) for name in columns) for sample in space.sample_configuration(200)]
error = float(blackbox(best, fidelity={"hp_epoch": 1})[metric])
best_cell = [best[name] for name in columns]
print(json.dumps([best_cell, bool(error == errors.min()), len(cells), cells.issuperset(samples)]))
"""


def test_syne_tune_evolution_finds_the_optimum(blackbox: Path) -> None:
    python = os.environ.get(SYNE_TUNE_PYTHON_VARIABLE)
    if not python:
        pytest.skip(f"{SYNE_TUNE_PYTHON_VARIABLE} is not set")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", EVOLUTION_SCRIPT, str(blackbox)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == [[*cell_operations(best_cell())], True, 15_625, True]


ARCHITECTURES = evaluated_indices()[::300]


@pytest.fixture(scope="module")
def results_with_outcomes(tmp_path_factory: pytest.TempPathFactory) -> RobustnessDataset:
    """Return results with per-image outcomes."""
    folder = tmp_path_factory.mktemp("stepped")
    plan = make_plan(ARCHITECTURES, ("clean", "pgd"), measurements=("accuracy", "predictions"))
    export(folder, plan, formats=("parquet",), outcomes="bits", images_of=lambda _plan, dataset: make_images(dataset))
    return RobustnessDataset(folder)


def read_blackbox(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the objective names, fidelities, and values (tasks, cells, fidelities, objectives)."""
    names = json.loads((folder / "metadata.json").read_text())["objectives_names"]
    values = np.load(folder / "objectives_evaluations.npy")
    assert values.shape[2] == 1
    return names, np.load(folder / "fidelities_values.npy"), values[:, :, 0]


def make_fabricated_values(architecture: int, key: str, strength: float) -> Values:
    return make_values(make_unit(architecture, "cifar10", key, (strength,)), strength)


@pytest.mark.parametrize("fidelity", ["images"])
def test_highest_fidelity_matches_a_blackbox_without_fidelity(
    results_with_outcomes: RobustnessDataset, tmp_path: Path, fidelity: Fidelity
) -> None:
    write_blackbox(results_with_outcomes, tmp_path / "without-fidelity")
    write_blackbox(results_with_outcomes, tmp_path / "fidelities", fidelity)
    expected_objectives, _, expected = read_blackbox(tmp_path / "without-fidelity")
    objectives, fidelities, values = read_blackbox(tmp_path / "fidelities")
    assert objectives == expected_objectives
    np.testing.assert_allclose(values[:, :, -1, :-1], expected[:, :, 0, :-1], atol=1e-6)
    np.testing.assert_allclose(values[0, 0, :, -1], fidelities)
    space = json.loads((tmp_path / "fidelities" / "fidelityspace.json").read_text())
    assert space[f"hp_{fidelity}"]["domain_kwargs"] == {"lower": fidelities[0], "upper": fidelities[-1]}


def test_fidelity_images_uses_the_first_images_of_one_permutation(
    results_with_outcomes: RobustnessDataset, tmp_path: Path
) -> None:
    write_blackbox(results_with_outcomes, tmp_path / "images", "images")
    objectives, fidelities, values = read_blackbox(tmp_path / "images")
    assert fidelities.tolist() == [10, 20, 40]
    hyperparameters = pd.read_parquet(tmp_path / "images" / "hyperparameters.parquet")
    cells = [cell_index(tuple(row)) for row in hyperparameters.itertuples(index=False)]
    order = np.random.default_rng(0).permutation(N_IMAGES)
    for architecture in ARCHITECTURES:
        is_correct = make_fabricated_values(architecture, "pgd", 8.0)["predictions"] == LABELS
        expected = [1 - is_correct[order[:count]].mean() for count in fidelities]
        errors = values[0, cells.index(architecture), :, objectives.index("metric_error_pgd_8")]
        np.testing.assert_allclose(errors, expected, atol=1e-6)


def test_write_blackbox_rejects_missing_fidelity_and_dataset(planted_optimum_folder: Path, tmp_path: Path) -> None:
    reader = RobustnessDataset(planted_optimum_folder)
    with pytest.raises(ConfigError, match="the fidelity `images` needs per-image outcomes, and cifar10 has none"):
        write_blackbox(reader, tmp_path / "images", "images")
    with pytest.raises(ConfigError, match=r"it has no results on 'cifar1'.*cifar10"):
        write_blackbox(reader, tmp_path / "data", data="cifar1")
    with pytest.raises(ConfigError, match="it must be images"):
        as_fidelity("image")


MULTI_FIDELITY_SCRIPT = """
import contextlib, io, json, logging, os, sys, tempfile

with tempfile.TemporaryDirectory() as results, contextlib.redirect_stdout(io.StringIO()):
    os.environ["SYNETUNE_FOLDER"] = results  # read when Syne Tune is imported
    logging.disable(logging.WARNING)
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
    from syne_tune.blackbox_repository.blackbox_tabular import deserialize
    from syne_tune.blackbox_repository.simulated_tabular_backend import UserBlackboxBackend
    from syne_tune.optimizer.baselines import ASHA

    blackbox = deserialize(sys.argv[1])["cifar10"]
    (resource,) = blackbox.fidelity_space
    levels = [int(value) for value in blackbox.fidelity_values]
    scheduler = ASHA(
        blackbox.configuration_space, metric="metric_error_pgd_1", time_attr=resource, max_t=levels[-1],
        grace_period=levels[0], reduction_factor=2, random_seed=0, points_to_evaluate=blackbox.all_configurations(),
    )
    tuner = Tuner(
        trial_backend=UserBlackboxBackend(blackbox=blackbox, elapsed_time_attr="metric_elapsed_time"),
        scheduler=scheduler, stop_criterion=StoppingCriterion(max_num_trials_started=len(blackbox.hyperparameters)),
        n_workers=2, sleep_time=0, callbacks=[SimulatorCallback()], save_tuner=False, print_update_interval=1e9,
    )
    tuner.run()
    reached = [row[resource] for row in tuner.tuning_status.trial_rows.values() if resource in row]
print(json.dumps([resource, levels, len(reached), len(set(reached)) > 1]))
"""


def test_syne_tune_scheduler_stops_cells_at_low_fidelities(
    results_with_outcomes: RobustnessDataset, tmp_path: Path
) -> None:
    python = os.environ.get(SYNE_TUNE_PYTHON_VARIABLE)
    if not python:
        pytest.skip(f"{SYNE_TUNE_PYTHON_VARIABLE} is not set")
    write_blackbox(results_with_outcomes, tmp_path / "images", "images")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", MULTI_FIDELITY_SCRIPT, str(tmp_path / "images")]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stderr
    resource, levels, n_cells, stops_at_different_levels = json.loads(process.stdout)
    assert (resource, levels) == ("hp_images", [10, 20, 40])
    assert n_cells > 0
    assert stops_at_different_levels
