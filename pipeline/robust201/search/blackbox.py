"""A dataset as a benchmark for others: Syne Tune's tabular blackbox, and a ConfigSpace of the cell; neither is needed.

The files are those that ``syne_tune.blackbox_repository.blackbox_tabular.deserialize`` of Syne Tune 0.16 reads, and
``ConfigSpace.ConfigurationSpace.from_json`` of ConfigSpace 1.2.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from robust201.core.errors import ConfigError
from robust201.core.files import atomic_write, check_output_file, write_text
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.result_files import paper_key
from robust201.reader.value_checks import CLEAN
from robust201.search.objectives import TableValues, cells_of, held_datasets
from robust201.spaces.cell_space import CellSpace

BLACKBOX_FIDELITY = "hp_epoch"
"""Syne Tune needs one fidelity; ours has the single value 1."""

ELAPSED_TIME = "metric_elapsed_time"
"""Seconds that Syne Tune's simulator takes an evaluation for: 1, as results do not tell how long a training took."""

CONFIGSPACE_FILE = "cell_space.json"
"""Not ``ConfigSpace.json``: some file systems would take that for Syne Tune's ``configspace.json``."""


def parameter_names(space: CellSpace) -> list[str]:
    """Name the hyperparameter of each edge (``hp_x0``, …) as Syne Tune's own blackbox of these cells does."""
    return [f"hp_x{edge}" for edge in range(len(space.edges))]


def objective_name(key: str, strength: float) -> str:
    """Name an evaluation's error, such as ``metric_error_clean`` or ``metric_error_pgd_1``."""
    return f"metric_error_{key}" if key == CLEAN else f"metric_error_{key}_{strength:g}"


def write_blackbox(reader: RobustnessDataset, folder: Path, predictions: Path | None = None) -> list[Path]:
    """Write all cells with the errors (1 - accuracy) of every key and strength that all datasets of a folder have.

    Cells have the values of their isomorphism class; those that were not evaluated are left out. The datasets are
    Syne Tune's tasks. With a file of predictions, cells that were not evaluated have their predicted errors, and every
    objective is named as a prediction.

    Returns:
        The files.

    Raises:
        ConfigError: the architectures are no cells, or no key is there on all datasets.
    """
    tasks = held_datasets(reader)
    datasets = [TableValues(reader, name, predictions) for name in tasks]
    space = cells_of(reader)
    isomorphs = np.array(space.isomorphs())
    per_dataset = [_errors(values) for values in datasets]
    names = [name for name in per_dataset[0] if all(name in one for one in per_dataset)] if per_dataset else []
    if not names:
        raise ConfigError(
            f"Writing a blackbox failed for {reader.path}: expected accuracies of a key that all of "
            f"{', '.join(tasks) or 'its datasets'} have, got none. Export more keys, or a dataset of its own."
        )
    stacked = np.stack([[errors[name] for name in names] for errors in per_dataset])  # (tasks, objectives, n)
    cells = np.flatnonzero(~np.isnan(stacked[:, :, isomorphs]).any(axis=(0, 1)))
    values = stacked[:, :, isomorphs[cells]].transpose(0, 2, 1)
    values = np.concatenate([values, np.ones((*values.shape[:2], 1))], axis=2)
    specs = space.specs()
    table = pd.DataFrame([space.parse(specs[cell]) for cell in cells.tolist()], columns=parameter_names(space))
    choices = {name: _domain("Categorical", categories=list(space.operations)) for name in parameter_names(space)}
    texts = {
        "configspace.json": choices,
        "fidelityspace.json": {BLACKBOX_FIDELITY: _domain("Integer", lower=1, upper=1)},
        "metadata.json": {
            "objectives_names": [*(names if predictions is None else map(_predicted_name, names)), ELAPSED_TIME],
            "task_names": tasks,
        },
        CONFIGSPACE_FILE: configspace(space),
    }
    arrays = {
        # tasks, cells, seeds, fidelities, objectives
        "objectives_evaluations.npy": values[:, :, None, None, :].astype(np.float32),
        "fidelities_values.npy": np.array([1]),
    }
    names_of_files = [*texts, *arrays, "hyperparameters.parquet"]
    check_output_file(folder / "metadata.json")
    folder.mkdir(parents=True, exist_ok=True)
    if foreign := sorted({path.name for path in folder.iterdir()} - {*names_of_files}):
        raise ConfigError(
            f"Writing a blackbox failed for {folder}: expected a new or empty folder, or an earlier blackbox, got "
            f"a folder with {foreign[0]}. Name another folder."
        )
    for name, payload in texts.items():
        write_text(folder / name, json.dumps(payload, indent=1))
    for name, array in arrays.items():
        with atomic_write(folder / name) as stream:
            np.save(stream, array, allow_pickle=False)
    with atomic_write(folder / "hyperparameters.parquet") as stream:
        table.to_parquet(stream, index=False, compression="gzip")
    return [folder / name for name in names_of_files]


def _predicted_name(name: str) -> str:
    """Name an objective some of whose values are predictions, such as ``metric_predicted_error_clean``."""
    return name.replace("metric_", "metric_predicted_", 1)


def configspace(space: CellSpace) -> dict[str, Any]:
    """Describe the cells as a ConfigSpace, in its JSON form: a categorical hyperparameter per edge."""
    return {
        "name": space.name,
        "hyperparameters": [
            {
                "type": "categorical",
                "name": name,
                "choices": list(space.operations),
                "weights": None,
                "default_value": space.operations[0],
                "meta": None,
            }
            for name in parameter_names(space)
        ],
        "conditions": [],
        "forbiddens": [],
        "format_version": 0.4,
    }


def _domain(kind: str, **arguments: Any) -> dict[str, Any]:
    return {"domain_cls": kind, "domain_kwargs": arguments, "sampler_cls": "Uniform", "sampler_kwargs": {}}


def _errors(values: TableValues) -> dict[str, Any]:
    reader = values.reader
    found = {}
    for key in (*reader.keys_clean, *reader.keys_adv, *reader.keys_cc):
        if reader.files.find(values.dataset, key, "accuracy") is None:
            continue
        repeats = key != CLEAN and reader.files.repeats_clean(values.dataset, key)
        for strength in reader.strengths(values.dataset, key):
            if not (repeats and strength == CLEAN_STRENGTH):
                found[objective_name(paper_key(key), strength)] = 1 - values.term(f"{key}:{strength}")[:, 0]
    return found
