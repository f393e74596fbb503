"""The blackbox against the dataset; and Syne Tune and ConfigSpace themselves, in an environment of their own."""

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
from robust201.tasks.columns import Values, steps_of
from tests.support.fabricated import LABELS, N_IMAGES, export, make_images, make_plan, make_unit, make_values
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
print(json.dumps([[found[name] for name in columns], bool(error == errors.min()), len(cells), cells.issuperset(draws)]))
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


ARCHITECTURES = evaluated_indices()[::300]


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> RobustnessDataset:
    """Results with outcomes and steps by image."""
    folder = tmp_path_factory.mktemp("stepped")
    plan = make_plan(ARCHITECTURES, ("clean", "pgd"), measurements=("accuracy", "predictions", "steps"))
    export(folder, plan, formats=("parquet",), outcomes="bits", images_of=lambda _plan, dataset: make_images(dataset))
    return RobustnessDataset(folder)


def read_blackbox(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of objectives, fidelities, and values (tasks, cells, fidelities, objectives)."""
    names = json.loads((folder / "metadata.json").read_text())["objectives_names"]
    values = np.load(folder / "objectives_evaluations.npy")
    assert values.shape[2] == 1
    return names, np.load(folder / "fidelities_values.npy"), values[:, :, 0]


def values_by_hand(architecture: int, key: str, strength: float) -> Values:
    return make_values(make_unit(architecture, "cifar10", key, (strength,)), strength)


@pytest.mark.parametrize("fidelity", ["images", "steps"])
def test_the_highest_fidelity_is_the_whole_evaluation(
    stepped: RobustnessDataset, tmp_path: Path, fidelity: Fidelity
) -> None:
    write_blackbox(stepped, tmp_path / "plain")
    write_blackbox(stepped, tmp_path / "fidelities", fidelity)
    names, _, plain = read_blackbox(tmp_path / "plain")
    found_names, fidelities, values = read_blackbox(tmp_path / "fidelities")
    assert found_names == names
    np.testing.assert_allclose(values[:, :, -1, :-1], plain[:, :, 0, :-1], atol=1e-6)
    np.testing.assert_allclose(values[0, 0, :, -1], fidelities)
    space = json.loads((tmp_path / "fidelities" / "fidelityspace.json").read_text())
    assert space[f"hp_{fidelity}"]["domain_kwargs"] == {"lower": fidelities[0], "upper": fidelities[-1]}


def test_errors_after_fewer_steps_follow_from_the_images_that_fall_later(
    stepped: RobustnessDataset, tmp_path: Path
) -> None:
    write_blackbox(stepped, tmp_path / "steps", "steps")
    names, fidelities, values = read_blackbox(tmp_path / "steps")
    assert fidelities.tolist() == [1, 2, 4, 8]
    table = pd.read_parquet(tmp_path / "steps" / "hyperparameters.parquet")
    cells = [cell_index(tuple(row)) for row in table.itertuples(index=False)]
    for architecture in ARCHITECTURES:
        steps = steps_of(values_by_hand(architecture, "pgd", 1.0)["steps"])
        found = values[0, cells.index(architecture)]
        expected = [(steps <= budget).mean() for budget in fidelities]
        np.testing.assert_allclose(found[:, names.index("metric_error_pgd_1")], expected, atol=1e-6)
        assert len(set(found[:, names.index("metric_error_clean")])) == 1


def test_errors_on_fewer_images_are_of_the_first_of_one_order(stepped: RobustnessDataset, tmp_path: Path) -> None:
    write_blackbox(stepped, tmp_path / "images", "images")
    names, fidelities, values = read_blackbox(tmp_path / "images")
    assert fidelities.tolist() == [10, 20, 40]
    table = pd.read_parquet(tmp_path / "images" / "hyperparameters.parquet")
    cells = [cell_index(tuple(row)) for row in table.itertuples(index=False)]
    order = np.random.default_rng(0).permutation(N_IMAGES)
    for architecture in ARCHITECTURES:
        right = values_by_hand(architecture, "pgd", 8.0)["predictions"] == LABELS
        expected = [1 - right[order[:count]].mean() for count in fidelities]
        found = values[0, cells.index(architecture), :, names.index("metric_error_pgd_8")]
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_fidelity_that_results_lack_is_refused(planted_folder: Path, tmp_path: Path) -> None:
    reader = RobustnessDataset(planted_folder)
    with pytest.raises(ConfigError, match="fidelity steps needs the measurement `steps` of an attack, and cifar10"):
        write_blackbox(reader, tmp_path / "steps", "steps")
    with pytest.raises(ConfigError, match="fidelity images needs per-image outcomes, and cifar10 has none"):
        write_blackbox(reader, tmp_path / "images", "images")
    with pytest.raises(ConfigError, match=r"expected one of its datasets, got 'cifar1'.*cifar10"):
        write_blackbox(reader, tmp_path / "data", data="cifar1")
    with pytest.raises(ConfigError, match="expected images or steps"):
        as_fidelity("step")


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


def test_a_scheduler_of_syne_tune_stops_cells_at_low_fidelities(stepped: RobustnessDataset, tmp_path: Path) -> None:
    python = os.environ.get(PYTHON)
    if not python:
        pytest.skip(f"{PYTHON} names no Python with syne-tune, fastparquet, huggingface_hub and ConfigSpace")
    write_blackbox(stepped, tmp_path / "steps", "steps")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", MULTI_FIDELITY_SCRIPT, str(tmp_path / "steps")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    resource, levels, n_cells, differ = json.loads(ended.stdout)
    assert (resource, levels) == ("hp_steps", [1, 2, 4, 8])
    assert n_cells > 0
    assert differ
