"""Export of a dataset as a blackbox, which is a tabular benchmark for Syne Tune, with a ConfigSpace of the cells.

The blackbox can be read by ``syne_tune.blackbox_repository.blackbox_tabular.deserialize`` (Syne Tune 0.16), and the
space of the cells by ``ConfigSpace.ConfigurationSpace.from_json`` (ConfigSpace 1.2). Writing needs neither library.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.files import atomic_write, check_output_file, write_text
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.outcomes import has_outcomes_of
from robust201.reader.result_files import paper_key
from robust201.reader.value_checks import CLEAN
from robust201.search.objectives import TableValues, cell_space_of, datasets_with_accuracies
from robust201.spaces.cell_space import CellSpace

BLACKBOX_FIDELITY = "hp_epoch"
"""Name of the fidelity if none is chosen. Syne Tune needs a fidelity, so one with the single value 1 is written."""

Fidelity = Literal["images"]
"""Kind of fidelity of a blackbox: number of images."""

FIDELITIES: tuple[Fidelity, ...] = ("images",)

_MIN_IMAGES = 10
"""Minimum number of images at the lowest fidelity."""

_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]

ELAPSED_TIME = "metric_elapsed_time"
"""Name of the simulated duration of an evaluation in seconds. The duration is 1, because training times are not
recorded; with a fidelity, it is one second per image."""

CONFIGSPACE_FILE = "cell_space.json"
"""File of the ConfigSpace. It is not named ``ConfigSpace.json``, because file systems that ignore case would confuse it
with Syne Tune's ``configspace.json``."""


def as_fidelity(name: str | None) -> Fidelity | None:
    """Parse the name of a fidelity; raise ConfigError if it is unknown."""
    if name is None:
        return None
    if name not in FIDELITIES:
        raise ConfigError(
            f"Writing a blackbox failed for fidelity {name!r}: it must be {' or '.join(FIDELITIES)}."
            f"{did_you_mean(name, FIDELITIES)}"
        )
    return next(fidelity for fidelity in FIDELITIES if fidelity == name)


def list_parameter_names(space: CellSpace) -> list[str]:
    """Return the hyperparameter name of each edge (``hp_x0``, …), as in Syne Tune's own blackbox of these cells."""
    return [f"hp_x{edge}" for edge in range(len(space.edges))]


def format_objective_name(key: str, strength: float) -> str:
    """Return the objective name of an error, such as ``metric_error_clean`` or ``metric_error_pgd_1``."""
    return f"metric_error_{key}" if key == CLEAN else f"metric_error_{key}_{strength:g}"


def write_blackbox(
    reader: RobustnessDataset,
    folder: Path,
    fidelity: Fidelity | None = None,
    data: str | None = None,
) -> list[Path]:
    """Write a blackbox with the error (1 - accuracy) of every cell.

    There is one objective for each key and strength that all datasets of the folder have. Each cell has the errors of
    its isomorphism class; cells of classes that were not evaluated are omitted. The datasets become Syne Tune's tasks.

    Args:
        reader: reader of the results folder.
        folder: folder to write: new, empty, or with an earlier blackbox.
        fidelity: with `images`, errors are computed on the first images of a fixed random permutation, and only
            objectives with per-image outcomes are written.
        data: the only dataset to write; by default all are written.

    Returns:
        Paths of the written files.

    Raises:
        ConfigError: the architectures are not cells, no key occurs in all datasets, the results lack the fidelity, or
            `folder` contains other files.
    """
    dataset_names = datasets_with_accuracies(reader)
    if data is not None:
        if data not in dataset_names:
            raise ConfigError(
                f"Writing a blackbox failed for {reader.path}: it has no results on {data!r}."
                f"{did_you_mean(data, dataset_names)}"
            )
        dataset_names = [data]
    tables = [TableValues(reader, name) for name in dataset_names]
    space = cell_space_of(reader)
    representatives = np.array(space.isomorphs())
    fidelities = _find_fidelities(tables, fidelity)
    errors_by_dataset = [_compute_errors(table, fidelity, fidelities) for table in tables]
    objectives = (
        [name for name in errors_by_dataset[0] if all(name in errors for errors in errors_by_dataset)]
        if errors_by_dataset
        else []
    )
    if not objectives:
        raise ConfigError(
            f"Writing a blackbox failed for {reader.path}: no key has accuracies on all of "
            f"{', '.join(dataset_names) or 'its datasets'}. Export more keys, or write one dataset at a time with "
            "--dataset."
        )
    # (tasks, objectives, n, fidelities)
    errors_by_class = np.stack([[errors[name] for name in objectives] for errors in errors_by_dataset])
    cells = np.flatnonzero(~np.isnan(errors_by_class[:, :, representatives]).any(axis=(0, 1, 3)))
    values = errors_by_class[:, :, representatives[cells]].transpose(0, 2, 3, 1)
    elapsed_times = np.broadcast_to(fidelities, values.shape[:3])[..., None]
    values = np.concatenate([values, elapsed_times], axis=3)
    fidelity_name = BLACKBOX_FIDELITY if fidelity is None else f"hp_{fidelity}"
    specs = space.specs()
    hyperparameters = pd.DataFrame(
        [space.parse(specs[cell]) for cell in cells.tolist()], columns=list_parameter_names(space)
    )
    domains = {
        name: _make_domain("Categorical", categories=list(space.operations)) for name in list_parameter_names(space)
    }
    json_files = {
        "configspace.json": domains,
        "fidelityspace.json": {
            fidelity_name: _make_domain("Integer", lower=int(fidelities[0]), upper=int(fidelities[-1]))
        },
        "metadata.json": {
            "objectives_names": [*objectives, ELAPSED_TIME],
            "task_names": dataset_names,
        },
        CONFIGSPACE_FILE: make_configspace(space),
    }
    arrays: dict[str, NDArray[Any]] = {
        # (tasks, cells, seeds, fidelities, objectives)
        "objectives_evaluations.npy": values[:, :, None].astype(np.float32),
        "fidelities_values.npy": fidelities,
    }
    file_names = [*json_files, *arrays, "hyperparameters.parquet"]
    check_output_file(folder / "metadata.json")
    folder.mkdir(parents=True, exist_ok=True)
    if other_files := sorted({path.name for path in folder.iterdir()} - {*file_names}):
        raise ConfigError(
            f"Writing a blackbox failed for {folder}: the folder contains {other_files[0]}, which is not part of a "
            "blackbox. Choose a new or empty folder."
        )
    for name, payload in json_files.items():
        write_text(folder / name, json.dumps(payload, indent=1))
    for name, array in arrays.items():
        with atomic_write(folder / name) as stream:
            np.save(stream, array, allow_pickle=False)
    with atomic_write(folder / "hyperparameters.parquet") as stream:
        hyperparameters.to_parquet(stream, index=False, compression="gzip")
    return [folder / name for name in file_names]


def make_configspace(space: CellSpace) -> dict[str, Any]:
    """Return the JSON form of a ConfigSpace of the cells, with one categorical hyperparameter per edge."""
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
            for name in list_parameter_names(space)
        ],
        "conditions": [],
        "forbiddens": [],
        "format_version": 0.4,
    }


def _make_domain(domain_class: str, **bounds: Any) -> dict[str, Any]:
    return {"domain_cls": domain_class, "domain_kwargs": bounds, "sampler_cls": "Uniform", "sampler_kwargs": {}}


def _find_fidelities(tables: Sequence[TableValues], fidelity: Fidelity | None) -> _Integers:
    """Return the fidelities, ascending; the last is the full evaluation. Raise ConfigError if results lack them."""
    if fidelity == "images":
        return _list_image_counts(tables)
    return np.array([1])


def _list_image_counts(tables: Sequence[TableValues]) -> _Integers:
    """Return the number of images, a half of it, a quarter and so on, down to `_MIN_IMAGES`, ascending."""
    files, n_by_dataset = tables[0].reader.files, {}
    for table in tables:
        if not any(has_outcomes_of(files, table.dataset, key) for key, _ in _iter_objectives(table)):
            raise ConfigError(
                f"Writing a blackbox failed for {files.path}: the fidelity `images` needs per-image outcomes, and "
                f"{table.dataset} has none. Measure `predictions`, and export with --parquet --outcomes bits."
            )
        n_by_dataset[table.dataset] = len(table.reader.images(table.dataset))
    if len(set(n_by_dataset.values())) > 1:
        raise ConfigError(
            f"Writing a blackbox failed for {files.path}: with the fidelity `images`, all datasets must have the same "
            f"number of images, but they have {', '.join(f'{name} {n:,}' for name, n in n_by_dataset.items())}. "
            "Choose one dataset with --dataset."
        )
    image_counts = [next(iter(n_by_dataset.values()))]
    while image_counts[0] // 2 >= _MIN_IMAGES:
        image_counts.insert(0, image_counts[0] // 2)
    return np.array(image_counts)


def _iter_objectives(table: TableValues) -> Iterator[tuple[str, float]]:
    """Yield the keys and strengths for which a dataset has accuracies, without attacks at strength 0."""
    reader = table.reader
    for key in (*reader.keys_clean, *reader.keys_adv, *reader.keys_cc):
        if reader.files.find(table.dataset, key, "accuracy") is None:
            continue
        uses_clean_at_zero = key != CLEAN and reader.files.uses_clean_at_zero(table.dataset, key)
        for strength in reader.strengths(table.dataset, key):
            if not (uses_clean_at_zero and strength == CLEAN_STRENGTH):
                yield key, strength


def _compute_errors(table: TableValues, fidelity: Fidelity | None, fidelities: _Integers) -> dict[str, _Floats]:
    """Return a dataset's errors (n, F) by objective name."""
    errors = {}
    for key, strength in _iter_objectives(table):
        name = format_objective_name(paper_key(key), strength)
        if fidelity == "images":
            if has_outcomes_of(table.reader.files, table.dataset, key):
                errors[name] = _compute_errors_on_images(table, key, strength, fidelities)
        else:
            errors[name] = (1 - table.term_values(f"{key}:{strength}")).repeat(len(fidelities), axis=1)
    return errors


def _compute_errors_on_images(table: TableValues, key: str, strength: float, fidelities: _Integers) -> _Floats:
    """Return errors (n, F) on the first images of a fixed random permutation; NaN for cells that have no outcomes."""
    outcomes = table.reader.outcomes(table.dataset, key, strength)
    order = np.random.default_rng(0).permutation(outcomes.n_images)
    n_correct = outcomes.correct[:, order].cumsum(axis=1)[:, fidelities - 1]
    errors = np.full((table.n_cells, len(fidelities)), np.nan)
    errors[np.array(outcomes.architectures, np.int64)] = 1 - n_correct / fidelities
    return errors
