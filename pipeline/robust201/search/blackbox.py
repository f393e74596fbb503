"""Export of a dataset as a tabular benchmark for Syne Tune, with a ConfigSpace of the cells; needs neither library.

The files are those that ``syne_tune.blackbox_repository.blackbox_tabular.deserialize`` of Syne Tune 0.16 reads, and
``ConfigSpace.ConfigurationSpace.from_json`` of ConfigSpace 1.2.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, closest
from robust201.core.files import atomic_write, check_output_file, write_text
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.outcomes import has_outcomes_of
from robust201.reader.result_files import paper_key
from robust201.reader.steps import has_steps, iter_steps
from robust201.reader.value_checks import CLEAN
from robust201.search.objectives import ObjectiveTerm, TableValues, cells_of, held_datasets
from robust201.spaces.cell_space import CellSpace
from robust201.statistics.steps import accuracies_after
from robust201.tasks.columns import STEPS

BLACKBOX_FIDELITY = "hp_epoch"
"""Syne Tune needs one fidelity; if none is chosen, a fidelity with the single value 1 is written."""

Fidelity = Literal["images", "steps"]
"""What can be evaluated less of: the images, or the steps (of Square: queries) of attacks. Syne Tune reads one."""

FIDELITIES: tuple[Fidelity, ...] = ("images", "steps")

_FEWEST_IMAGES = 10
"""Minimum number of images of the smallest fidelity."""

_Floats = NDArray[np.float64]
_Integers = NDArray[np.int64]

ELAPSED_TIME = "metric_elapsed_time"
"""Seconds that Syne Tune's simulator takes an evaluation for: 1, as results do not tell how long a training took; with
fidelities one second for each image or step."""

CONFIGSPACE_FILE = "cell_space.json"
"""Not ``ConfigSpace.json``: some file systems would take that for Syne Tune's ``configspace.json``."""


def as_fidelity(name: str | None) -> Fidelity | None:
    """Parse the name of a fidelity; raise ConfigError if it is unknown."""
    if name is None:
        return None
    if name not in FIDELITIES:
        raise ConfigError(
            f"Writing a blackbox failed for fidelity {name!r}: expected {' or '.join(FIDELITIES)}."
            f"{closest(name, FIDELITIES)}"
        )
    return next(one for one in FIDELITIES if one == name)


def parameter_names(space: CellSpace) -> list[str]:
    """Name the hyperparameter of each edge (``hp_x0``, …) as Syne Tune's own blackbox of these cells does."""
    return [f"hp_x{edge}" for edge in range(len(space.edges))]


def objective_name(key: str, strength: float) -> str:
    """Name an evaluation's error, such as ``metric_error_clean`` or ``metric_error_pgd_1``."""
    return f"metric_error_{key}" if key == CLEAN else f"metric_error_{key}_{strength:g}"


def write_blackbox(
    reader: RobustnessDataset,
    folder: Path,
    fidelity: Fidelity | None = None,
    data: str | None = None,
    predictions: Path | None = None,
    *,
    estimates: bool = False,
) -> list[Path]:
    """Write all cells with the errors (1 - accuracy) of every key and strength that all datasets of a folder have.

    Cells have the values of their isomorphism class; those that were not evaluated are left out. The datasets are Syne
    Tune's tasks. Of the fidelity `images`, an error is that of the first images in an order that is drawn once; every
    objective needs outcomes by image. With fidelity `steps`, an error is the one after that number of attack steps
    (see `statistics.steps`); objectives without steps, such as clean images, have the same error at all fidelities.
    With a file of predictions, cells that were not evaluated have their predicted errors, and every objective is named
    as a prediction; predictions have no fidelity. With `estimates`, errors that were not counted are those of
    estimates from samples of the images, and objectives with some are named as estimates; estimates have no fidelity
    either.

    Returns:
        Paths of the written files.

    Raises:
        ConfigError: the architectures are not cells, no key occurs in all datasets, or no key has this fidelity.
    """
    tasks = held_datasets(reader)
    without_fidelity = "estimates" if estimates else None if predictions is None else "predictions"
    if without_fidelity is not None and fidelity is not None:
        raise ConfigError(
            f"Writing a blackbox failed for {folder}: expected {without_fidelity} or a fidelity, got both. "
            f"{without_fidelity.capitalize()} are of accuracies on all images after all steps. Leave one out."
        )
    if data is not None:
        if data not in tasks:
            raise ConfigError(
                f"Writing a blackbox failed for {reader.path}: expected one of its datasets, got {data!r}."
                f"{closest(data, tasks)}"
            )
        tasks = [data]
    datasets = [TableValues(reader, name, predictions, estimates=estimates) for name in tasks]
    space = cells_of(reader)
    isomorphs = np.array(space.isomorphs())
    fidelities = _find_fidelities(datasets, fidelity)
    per_dataset = [_errors(values, fidelity, fidelities) for values in datasets]
    names = [name for name in per_dataset[0] if all(name in one for one in per_dataset)] if per_dataset else []
    if not names:
        raise ConfigError(
            f"Writing a blackbox failed for {reader.path}: expected accuracies of a key that all of "
            f"{', '.join(tasks) or 'its datasets'} have, got none. Export more keys, or a dataset of its own."
        )
    # tasks, objectives, n, fidelities
    stacked = np.stack([[errors[name] for name in names] for errors in per_dataset])
    cells = np.flatnonzero(~np.isnan(stacked[:, :, isomorphs]).any(axis=(0, 1, 3)))
    values = stacked[:, :, isomorphs[cells]].transpose(0, 2, 3, 1)
    elapsed = np.broadcast_to(fidelities, values.shape[:3])[..., None]
    values = np.concatenate([values, elapsed], axis=3)
    attribute = BLACKBOX_FIDELITY if fidelity is None else f"hp_{fidelity}"
    specs = space.specs()
    table = pd.DataFrame([space.parse(specs[cell]) for cell in cells.tolist()], columns=parameter_names(space))
    choices = {name: _domain("Categorical", categories=list(space.operations)) for name in parameter_names(space)}
    texts = {
        "configspace.json": choices,
        "fidelityspace.json": {attribute: _domain("Integer", lower=int(fidelities[0]), upper=int(fidelities[-1]))},
        "metadata.json": {
            "objectives_names": [*_mark_names(names, datasets, predictions), ELAPSED_TIME],
            "task_names": tasks,
        },
        CONFIGSPACE_FILE: configspace(space),
    }
    arrays: dict[str, NDArray[Any]] = {
        # tasks, cells, seeds, fidelities, objectives
        "objectives_evaluations.npy": values[:, :, None].astype(np.float32),
        "fidelities_values.npy": fidelities,
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


def _mark_names(names: Sequence[str], datasets: Sequence[TableValues], predictions: Path | None) -> list[str]:
    """Mark the names of objectives that contain estimated or predicted values.

    With predictions, all are named like ``metric_predicted_error_clean``; those with estimates on some dataset are
    named like ``metric_estimated_error_pgd_1``.
    """
    estimated = {
        objective_name(paper_key(key), strength)
        for values in datasets
        for key, strength in _objectives(values)
        if values.uses_estimates([ObjectiveTerm(1.0, f"{key}:{strength}")])
    }
    marked = (name.replace("metric_", "metric_estimated_", 1) if name in estimated else name for name in names)
    return [*marked] if predictions is None else [name.replace("metric_", "metric_predicted_", 1) for name in marked]


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


def _find_fidelities(datasets: Sequence[TableValues], fidelity: Fidelity | None) -> _Integers:
    """Return the fidelities in ascending order; the last is the full evaluation. ConfigError if data are missing."""
    if fidelity == "images":
        return _numbers_of_images(datasets)
    if fidelity == "steps":
        return _numbers_of_steps(datasets)
    return np.array([1])


def _numbers_of_images(datasets: Sequence[TableValues]) -> _Integers:
    """Return the number of images, half of it, and so on."""
    files, sizes = datasets[0].reader.files, {}
    for values in datasets:
        if not any(has_outcomes_of(files, values.dataset, key) for key, _ in _objectives(values)):
            raise ConfigError(
                f"Writing a blackbox failed for {files.path}: fidelity images needs per-image outcomes, and "
                f"{values.dataset} has none. Measure `predictions`, and export with --parquet --outcomes bits."
            )
        sizes[values.dataset] = len(values.reader.images(values.dataset))
    if len(set(sizes.values())) > 1:
        raise ConfigError(
            f"Writing a blackbox failed for {files.path}: with fidelity images, all datasets need as many images, but "
            f"they have {', '.join(f'{name} {size:,}' for name, size in sizes.items())}. Choose one with --dataset."
        )
    counts = [next(iter(sizes.values()))]
    while counts[0] // 2 >= _FEWEST_IMAGES:
        counts.insert(0, counts[0] // 2)
    return np.array(counts)


def _numbers_of_steps(datasets: Sequence[TableValues]) -> _Integers:
    """Return 1, 2, 4, …, and the last step at which any image is first misclassified."""
    last = 0.0
    for values in datasets:
        files = values.reader.files
        keys = _stepped_keys(values)
        if not keys:
            raise ConfigError(
                f"Writing a blackbox failed for {files.path}: fidelity steps needs the measurement `{STEPS}` of an "
                f"attack, and {values.dataset} has none. Evaluate attacks with it."
            )
        for network in (one for key in keys for one in iter_steps(files, values.dataset, key)):
            last = max(last, network.steps[np.isfinite(network.steps)].max(initial=1.0))
    powers = 2 ** np.arange(int(np.log2(last)) + 1)
    return np.union1d(powers, [int(last)])


def _stepped_keys(values: TableValues) -> list[str]:
    """List the attacks whose steps are recorded."""
    files, keys = values.reader.files, dict.fromkeys(key for key, _ in _objectives(values))
    return [key for key in keys if files.kind_of(key) == "attack" and has_steps(files, values.dataset, key)]


def _objectives(values: TableValues) -> Iterator[tuple[str, float]]:
    """List the keys and strengths that a dataset has accuracies of."""
    reader = values.reader
    for key in (*reader.keys_clean, *reader.keys_adv, *reader.keys_cc):
        if reader.files.find(values.dataset, key, "accuracy") is None:
            continue
        repeats = key != CLEAN and reader.files.repeats_clean(values.dataset, key)
        for strength in reader.strengths(values.dataset, key):
            if not (repeats and strength == CLEAN_STRENGTH):
                yield key, strength


def _errors(values: TableValues, fidelity: Fidelity | None, fidelities: _Integers) -> dict[str, _Floats]:
    """Compute the errors (n, F) of a dataset, by name of the objective."""
    stepped = _errors_by_steps(values, fidelities) if fidelity == "steps" else {}
    found = {}
    for key, strength in _objectives(values):
        name = objective_name(paper_key(key), strength)
        if fidelity == "images":
            if has_outcomes_of(values.reader.files, values.dataset, key):
                found[name] = _errors_by_images(values, key, strength, fidelities)
        elif name in stepped:
            found[name] = stepped[name]
        else:  # an objective without steps costs the same at every fidelity, so its error is repeated
            found[name] = (1 - values.term(f"{key}:{strength}")).repeat(len(fidelities), axis=1)
    return found


def _errors_by_images(values: TableValues, key: str, strength: float, fidelities: _Integers) -> _Floats:
    """Compute errors on the first images of a fixed random permutation."""
    outcomes = values.reader.outcomes(values.dataset, key, strength)
    order = np.random.default_rng(0).permutation(outcomes.n_images)
    right = outcomes.correct[:, order].cumsum(axis=1)[:, fidelities - 1]
    errors = np.full((values.n, len(fidelities)), np.nan)
    errors[np.array(outcomes.architectures, np.int64)] = 1 - right / fidelities
    return errors


def _errors_by_steps(values: TableValues, fidelities: _Integers) -> dict[str, _Floats]:
    """Compute the errors of attacks with recorded steps, after each number of steps."""
    files = values.reader.files
    found: dict[str, _Floats] = {}
    for key in _stepped_keys(values):
        for network in iter_steps(files, values.dataset, key):
            name = objective_name(paper_key(key), network.strength)
            errors = found.setdefault(name, np.full((values.n, len(fidelities)), np.nan))
            errors[int(network.architecture)] = 1 - accuracies_after(network.steps, fidelities)
    return found
