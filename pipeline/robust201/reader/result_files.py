"""The files of an exported or published dataset: their paths, spellings of keys, and values."""

import copy
import errno
import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, FormatVersionError, ResultsError, did_you_mean
from robust201.core.records import CLEAN_STRENGTH
from robust201.reader.file_cache import RowCache
from robust201.reader.json_files import iter_json_values, read_json, read_object
from robust201.reader.listings import (
    MissingFilesWarning,
    describe_missing_files,
    key_of_parquet,
    read_checksums,
)
from robust201.reader.value_checks import (
    ADVICE,
    check_ids,
    check_json_values,
    is_valid_meta,
    is_valid_sweep,
    stack_values,
)
from robust201.spaces import DEFAULT_SPACE, cell_space
from robust201.tasks import CORRUPTIONS, TASKS, Task
from robust201.tasks.columns import COLUMNS, CORRECT_BITS, MEASUREMENTS, PUBLISHED
from robust201.tasks.constraints import CONSTRAINTS, Constraint
from robust201.tasks.parameters import SEVERITIES

if TYPE_CHECKING:
    from robust201.spaces import CellSpace
    from robust201.statistics.outcomes import Packed

EXPORT_FORMAT = 1
"""Version of sweep.json and of the layout of an export."""

META_FILE = "meta.json"
SWEEP_FILE = "sweep.json"
MISSING_FILE = "missing.json"

_NUMBERS_PER_STACK = 100_000
"""Approximate number of numbers in a stack of values (see `ResultFiles.iter_stacks`)."""


RESULTS_FOLDER_FILE = "format.json"
"""File that distinguishes a sweep's results folder from an exported dataset."""

PARQUET_FOLDER = "parquet"
IMAGES_FOLDER = "images"
"""Folder of the tables that describe the images of per-image outcomes."""

UNKNOWN_SPACE = ""
"""Name of the space if there are only Parquet files without cells, and no sweep.json."""

PUBLISHED_DATASETS = ("cifar10", "cifar100", "ImageNet16-120")


def task_of(key: str) -> Task | None:
    """Return the task in `TASKS` that has a key, in either spelling; None for an unknown key."""
    return next((task for task in TASKS.values() if key in (task.key, task.published_key)), None)


def spellings(key: str) -> tuple[str, ...]:
    """Return all spellings of a key, such as ``pgd`` and ``pgd@Linf``, beginning with the given spelling."""
    task = task_of(key)
    return (key,) if task is None else tuple(dict.fromkeys((key, task.key, task.published_key)))


def paper_key(key: str) -> str:
    """Return a key in the paper's style, such as ``pgd``; unknown keys are returned unchanged."""
    task = task_of(key)
    return key if task is None else task.key


def evaluation_names(evaluations: Sequence[tuple[str, float]]) -> list[str]:
    """Return names of evaluations, which are (key, strength) pairs, in the paper's style, such as ``pgd:1``.

    Keys whose only strength is 0, such as ``clean``, have no suffix.
    """
    n_strengths = Counter(key for key, _ in evaluations)
    return [
        paper_key(key) + ("" if strength == CLEAN_STRENGTH and n_strengths[key] == 1 else f":{strength:g}")
        for key, strength in evaluations
    ]


def kind_of(key: str) -> str:
    """Return the kind of a key: ``clean``, ``attack``, ``corruption``, ``measure``, or ``other`` for an unknown key."""
    task = task_of(key)
    return "other" if task is None else task.kind


def check_spellings(content_by_key: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """Return a file's content by key, after checking that no key occurs in both spellings.

    Raises:
        ResultsError: a key occurs in both spellings.
    """
    for key in content_by_key:
        if len(key_spellings := [spelling for spelling in spellings(key) if spelling in content_by_key]) > 1:
            spellings_text = " and ".join(key_spellings)
            raise ResultsError(
                f"Reading failed for {file}: expected each key in one spelling, got {spellings_text}. {ADVICE}"
            )
    return content_by_key


def _is_file(path: Path) -> bool:
    """Return whether a path is a file; False if its name is too long."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def _find_single_file(candidates: Iterable[Path]) -> Path | None:
    """Return the candidate that exists, or None; candidates differ in the spelling of their key.

    Raises:
        ResultsError: there are files for both spellings.
    """
    existing_files = [*filter(_is_file, candidates)]
    if len(existing_files) > 1:
        raise ResultsError(
            f"Reading failed for {existing_files[0]}: there is also {existing_files[1]}, with the other spelling of "
            "the key. Remove the file that does not belong to this dataset."
        )
    return existing_files[0] if existing_files else None


def sort_by_task_order(keys: Iterable[str]) -> list[str]:
    """Sort keys in the order of `TASKS`, unknown keys last."""
    task_keys = list(TASKS)
    return sorted(keys, key=lambda key: (task_keys.index(task.key) if (task := task_of(key)) else len(task_keys), key))


def list_values_per_strength(architecture_value: Any, strengths: Sequence[float], label: str) -> list[Any]:
    """Return an architecture's values as a list with one value per strength.

    The value may be such a list, a single value, or an object with a list for each field. The last form is accepted
    because the nesting of the published confidences is not documented.

    Raises:
        ResultsError: there are more or fewer values than strengths.
    """
    if isinstance(architecture_value, dict):
        n_values = min((len(field_values) for field_values in architecture_value.values()), default=0)
        architecture_value = [
            {name: field_values[position] for name, field_values in architecture_value.items()}
            for position in range(n_values)
        ]
    elif not isinstance(architecture_value, list):
        architecture_value = [architecture_value]
    if len(architecture_value) != len(strengths):
        raise ResultsError(
            f"Reading failed for {label}: expected {len(strengths)} values, one per strength, got "
            f"{len(architecture_value)}. {ADVICE}"
        )
    return list(architecture_value)


def _find_custom_parameters(sweep_record: Any) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of custom tasks in sweep.json, by key; they include the kind, norm and columns."""
    protocols = sweep_record.get("protocols") if isinstance(sweep_record, dict) else None
    parameters_by_key: dict[str, Mapping[str, Any]] = {}
    for payload in protocols if isinstance(protocols, list) else ():
        parameters = payload.get("parameters") if isinstance(payload, dict) else None
        if isinstance(parameters, dict) and "kind" in parameters and task_of(str(payload.get("key"))) is None:
            parameters_by_key[str(payload.get("key"))] = parameters
    return parameters_by_key


def parquet_name(dataset: str, key: str) -> str:
    """Return the name of a key's Parquet file, relative to the dataset's folder."""
    return f"{PARQUET_FOLDER}/dataset={dataset}/key={key}/part-0.parquet"


def images_name(dataset: str) -> str:
    """Return the name of the table of a dataset's images, relative to the dataset's folder."""
    return f"{IMAGES_FOLDER}/dataset={dataset}/part-0.parquet"


def is_dataset(folder: Path) -> bool:
    """Return whether a folder is an exported or published dataset; a sweep's results folder is not."""
    if (folder / RESULTS_FOLDER_FILE).is_file():
        return False
    return (folder / META_FILE).is_file() or (folder / PARQUET_FOLDER).is_dir() or any(folder.glob("dataset=*"))


class ResultFiles:
    """The files of one dataset folder.

    Attributes:
        path: the folder.
        parquet: the folder of the Parquet files, which need not exist.
        meta: content of meta.json.
        sweep: content of sweep.json, or None without this file.
        missing: content of missing.json, or an empty dict without this file.
        space_name: name of the search space.
        space: the search space if its architectures are cells, otherwise None.
        weights: name of the weights whose results are read, if architectures have several, otherwise None.
    """

    weights: str | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parquet = path if any(path.glob("dataset=*")) else path / PARQUET_FOLDER
        self._cache = RowCache()
        has_meta = (path / META_FILE).is_file()
        if not has_meta and not self.parquet.is_dir():
            problem = "it has no meta.json"
            fix = "Use an export, the parquet folder of an export, or the published dataset"
            if (path / RESULTS_FOLDER_FILE).is_file():
                problem = "it contains the results of a sweep, not a dataset"
                fix = f"Run `robust201 export {path} --out DATASET`, with --partial if the sweep is unfinished"
            elif not path.is_dir():
                problem = "there is no such folder"
                fix = "Correct the path"
            raise ResultsError(f"Opening a dataset failed for {path}: {problem}. {fix}.")
        self.sweep = self._read_sweep()
        self.missing: dict[str, dict[str, dict[str, list[float]]]] = read_object(path / MISSING_FILE) or {}
        sweep_record = {} if self.sweep is None else self.sweep.get("sweep")
        recorded_space = sweep_record.get("space") if isinstance(sweep_record, dict) else None
        self.space_name: str = recorded_space if isinstance(recorded_space, str) else DEFAULT_SPACE
        if not has_meta and self.sweep is None and not self._has_cell_column():
            self.space_name = UNKNOWN_SPACE
        self.space = cell_space(self.space_name)
        self._custom_parameters = _find_custom_parameters(sweep_record)
        self.meta: dict[str, Any] = read_json(path / META_FILE) if has_meta else self._make_meta_from_parquet()
        if not is_valid_meta(self.meta, self.space):
            id_fields = "ids" if self.space is None else "ids with nb201-string and isomorph"
            raise _wrong_content_error(path / META_FILE, f"{id_fields}, and lists of epsilons")
        check_spellings(self.meta["epsilons"], path / META_FILE)
        self._keys_by_dataset: Mapping[str, Iterable[str]] | None = None
        if self.sweep is not None:
            self._keys_by_dataset = self.sweep["strengths"]
        elif not has_meta:
            self._keys_by_dataset = self.keys_of_parquet()
        missing_files = self._find_missing_files()
        if missing_files:
            warnings.warn(describe_missing_files(path, missing_files), MissingFilesWarning, stacklevel=3)

    def _read_sweep(self) -> dict[str, Any] | None:
        file = self.path / SWEEP_FILE
        sweep = read_object(file)
        if sweep is None:
            return None
        if sweep.get("format") != EXPORT_FORMAT:
            raise FormatVersionError(
                f"Opening a dataset failed for {file}: expected format {EXPORT_FORMAT}, got {sweep.get('format')}. "
                "Use the version of robust201 that wrote it, or export the results again."
            )
        if not is_valid_sweep(sweep):
            expected_content = "strengths by dataset and key, a list of measurements, and images and protocols"
            raise _wrong_content_error(file, expected_content)
        for strengths_by_key in sweep["strengths"].values():
            check_spellings(strengths_by_key, file)
        return sweep

    def _has_cell_column(self) -> bool:
        """Return whether the first Parquet file has a column of cells; True if there are no Parquet files."""
        from robust201.reader.parquet_results import column_names

        return all("cell" in column_names(file) for file in self._parquet_files()[:1])

    def _find_missing_files(self) -> list[str]:
        """Return the names of listed files that are missing and whose values are in no other file."""
        missing_names = []
        for name in read_checksums(self.path):
            dataset_key = key_of_parquet(name)
            is_result = dataset_key is not None or ("/" in name and ".json" in name)
            if not is_result or _is_file(self.path / name):
                continue
            if not (
                self._has_json_of_key(*dataset_key) if dataset_key is not None else self._has_parquet_of_json(name)
            ):
                missing_names.append(name)
        return missing_names

    def _has_json_of_key(self, dataset: str, key: str) -> bool:
        measurements = {*PUBLISHED, *self.measurements_of(dataset, key)}
        return any(self.find_json(dataset, key, measurement) is not None for measurement in measurements)

    def _has_parquet_of_json(self, json_name: str) -> bool:
        """Return whether there is a Parquet file for the key of a JSON file.

        The key is a prefix of the JSON file's name, and may end before any underscore.
        """
        dataset, _, file_name = json_name.partition("/")
        stem = file_name.partition(".json")[0]
        keys = (stem[:position] for position, character in enumerate(stem) if character == "_")
        return any(_is_file(self._parquet_path(dataset, spelling)) for key in keys for spelling in spellings(key))

    @property
    def datasets(self) -> list[str]:
        """Datasets that sweep.json or the Parquet files name; if there are neither, the paper's datasets."""
        return list(self._keys_by_dataset or PUBLISHED_DATASETS)

    @property
    def keys(self) -> list[str]:
        """Keys in the order of `TASKS`.

        They are the keys that sweep.json or the Parquet files name. If there are neither, as in the published dataset,
        they are clean images, the attacks that meta.json names, and the paper's corruptions.
        """
        if self._keys_by_dataset:
            return sort_by_task_order({key for keys in self._keys_by_dataset.values() for key in keys})
        return ["clean", *sort_by_task_order({*self.meta["epsilons"], *CORRUPTIONS})]

    def keys_by_kind(self) -> dict[str, list[str]]:
        keys_of_kind: dict[str, list[str]] = {
            kind: [] for kind in ("clean", "attack", "corruption", "measure", "other")
        }
        for key in self.keys:
            keys_of_kind.setdefault(self.kind_of(key), []).append(key)
        return keys_of_kind

    @property
    def measurements(self) -> list[str]:
        """Measurements that the folder's files name, except per-image measurements."""
        stored_measurements = PUBLISHED if self.sweep is None else self.sweep["measurements"]
        per_image_measurements = {column.measurement for column in COLUMNS.values() if column.is_per_image}
        return [name for name in MEASUREMENTS if name in stored_measurements and name not in per_image_measurements]

    @property
    def weight_names(self) -> list[str]:
        """Names of the folder's weights, in order; empty if the weights have no names."""
        if self.sweep is not None:
            return list(self.sweep.get("weights", {}))
        if not self.parquet.is_dir():
            return []
        from robust201.reader.parquet_results import read_weights_names

        return list(dict.fromkeys(name for file in self._parquet_files() for name in read_weights_names(file)))

    def restrict_to_weights(self, weights: str | None) -> Self:
        """Return a copy that reads only the results of the weights with this name; `self` if the name is None."""
        if weights is None or weights == self.weights:
            return self
        names = self.weight_names
        if weights not in names:
            problem = f"expected {', '.join(names)}" if names else "the folder's weights have no names"
            advice = did_you_mean(weights, names) if names else " Omit the name."
            raise ConfigError(f"Reading {self.path} failed for weights {weights!r}: {problem}.{advice}")
        restricted_files = copy.copy(self)
        restricted_files.weights = weights
        return restricted_files

    def spec(self, identifier: str) -> str:
        """Return the cell string of an id, or the id itself in a space without cells."""
        return str(self.meta["ids"][identifier].get("nb201-string", identifier))

    def isomorph(self, identifier: str) -> str:
        """Return the id of the evaluated architecture in an id's isomorphism class, or the id itself without cells."""
        return str(self.meta["ids"][identifier].get("isomorph", identifier))

    def kind_of(self, key: str) -> str:
        """Return the kind of a key (see the function `kind_of`); the kind of a custom task is read from sweep.json."""
        kind = kind_of(key)
        return str(self._custom_parameters[key]["kind"]) if kind == "other" and key in self._custom_parameters else kind

    def norm_ball_of(self, key: str) -> Constraint | None:
        """Return an attack's norm ball; None for keys that are not attacks."""
        task = task_of(key)
        if task is not None:
            return task.constraint
        parameters = self._custom_parameters.get(key, {})
        return CONSTRAINTS.get(str(parameters.get("norm")))

    def has_single_value(self, dataset: str, key: str) -> bool:
        """Return whether an architecture has one value under a key: clean images, or a measure with one strength."""
        kind = self.kind_of(key)
        return kind == "clean" or (kind == "measure" and len(self.strengths(dataset, key)) == 1)

    def measurements_of(self, dataset: str, key: str) -> list[str]:
        """Return the names of a key's measurements (see `RobustnessDataset.measurements`)."""
        task = task_of(key)
        if task is not None:
            return self._columns_of(task, dataset) or self.measurements
        if key in self._custom_parameters:
            return list(self._custom_parameters[key].get("columns") or self.measurements)
        return self._stored_measurements(dataset, key)

    def _columns_of(self, task: Task, dataset: str) -> list[str]:
        """Return a measure's columns from its protocols or, if these have none, from its task."""
        recorded_columns = [
            name
            for protocol in (self.protocols_of(dataset, task.key) if task.columns else ())
            if isinstance(parameters := protocol.get("parameters"), dict)
            for name in parameters.get("columns", ())
        ]
        return list(dict.fromkeys(map(str, recorded_columns))) or list(task.columns)

    def _stored_measurements(self, dataset: str, key: str) -> list[str]:
        names: dict[str, None] = {}
        folder = self.path / dataset
        prefixes_of_longer_keys = [
            f"{other_key}_" for other_key in self.keys if other_key != key and other_key.startswith(key)
        ]
        for file in sorted(folder.glob("*.json*")) if folder.is_dir() else ():
            name = file.name.partition(".json")[0]
            if name.startswith(f"{key}_") and not name.startswith(tuple(prefixes_of_longer_keys)):
                names[name.removeprefix(f"{key}_")] = None
        if _is_file(parquet := self._parquet_path(dataset, key)):
            from robust201.reader.parquet_results import measurements_in

            names |= dict.fromkeys(measurements_in(parquet))
        return sorted(names, key=lambda name: [*MEASUREMENTS, name].index(name))

    def find_planned_strengths(self, dataset: str) -> Mapping[str, Sequence[float]] | None:
        """Return the sweep's strengths by key on a dataset; None for a folder without sweep.json."""
        if self.sweep is None:
            return None
        strengths_by_key: Mapping[str, Sequence[float]] = self.sweep["strengths"].get(dataset, {})
        return strengths_by_key

    def protocols_of(self, dataset: str, key: str) -> list[Mapping[str, Any]]:
        """Return the payloads in sweep.json of a key's protocols on a dataset; empty if there are none."""
        sweep_record = (self.sweep or {}).get("sweep")
        recorded_protocols = sweep_record.get("protocols", []) if isinstance(sweep_record, dict) else []
        return [
            payload for payload in recorded_protocols if payload.get("dataset") == dataset and payload.get("key") == key
        ]

    def check_protocols(self, dataset: str, key: str) -> None:
        """Check that overlaid folders computed a measure under the same protocol; a single folder needs no check."""

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Return the strengths of a key's values, in order (see `RobustnessDataset.strengths`)."""
        epsilons: Mapping[str, Sequence[float]] = self.meta["epsilons"]
        for strengths_by_key in (self.find_planned_strengths(dataset) or {}, epsilons):
            for spelling in spellings(key):
                if spelling in strengths_by_key:
                    return tuple(float(strength) for strength in strengths_by_key[spelling])
        file = self._find_parquet(dataset, key) if self.sweep is None else None
        if file is not None:
            from robust201.reader.parquet_results import read_strengths

            return read_strengths(file)
        sole_strength = (CLEAN_STRENGTH,)
        default_strengths = {"clean": sole_strength, "measure": sole_strength, "corruption": SEVERITIES}.get(
            self.kind_of(key)
        )
        if default_strengths is None:
            raise ResultsError(
                f"Looking up strengths failed for {self.path}: expected one of its keys, got {key!r}."
                f"{did_you_mean(key, [*epsilons, *TASKS])}"
            )
        return default_strengths

    def uses_clean_at_zero(self, dataset: str, key: str) -> bool:
        """Return whether a key is an attack whose strength 0 means clean images, because it was not evaluated at 0.

        Attacks without a norm ball, such as grids of rotations, are only evaluated at strength 0.
        """
        return self.kind_of(key) == "attack" and CLEAN_STRENGTH not in self.strengths(dataset, key)

    def find(self, dataset: str, key: str, measurement: str) -> Path | None:
        """Return the file from which a measurement is read, in either spelling of the key; None if there is none.

        The Parquet file is preferred to the JSON file, unless it was converted from an older JSON file.
        """
        json_file, parquet = self.find_json(dataset, key, measurement), self._find_parquet(dataset, key, measurement)
        if json_file is None or parquet is None:
            return parquet or json_file
        from robust201.reader.parquet_results import is_outdated

        return json_file if is_outdated(parquet, json_file) else parquet

    def find_json(self, dataset: str, key: str, measurement: str) -> Path | None:
        """Return the JSON file of a measurement, even if a Parquet file is preferred (see `find`)."""
        return _find_single_file(self.path / dataset / f"{spelling}_{measurement}.json" for spelling in spellings(key))

    def has_key(self, dataset: str, key: str) -> bool:
        task = task_of(key)
        names = MEASUREMENTS if task and not task.columns else self.measurements_of(dataset, key)
        return any(self.find(dataset, key, measurement) is not None for measurement in names)

    def mentions_key(self, key: str) -> bool:
        """Return whether the folder's files name a key, in either spelling."""
        return not {*spellings(key)}.isdisjoint(self.keys)

    def count_classes(self, dataset: str) -> int | None:
        """Return the number of classes of a dataset, from the first array with an axis of classes; None if unknown."""
        candidates = [column for column in COLUMNS.values() if "classes" in column.dimensions]
        for column, key in itertools.product(sorted(candidates, key=lambda column: not column.is_exact), self.keys):
            measurement = column.measurement
            file = None if self.kind_of(key) == "measure" else self.find(dataset, key, measurement)
            if file is None:
                continue
            if file.suffix == ".parquet":
                from robust201.reader.parquet_results import read_n_classes

                return read_n_classes(file)
            for _, architecture_value in self.iter_json_file(file, dataset, key, measurement):
                first_value = (
                    architecture_value[0]
                    if isinstance(architecture_value, list) and key != "clean"
                    else architecture_value
                )
                matrix = first_value[column.field] if isinstance(first_value, dict) else first_value
                # If fields are lists with one value per strength, the array has an additional first axis.
                return int(np.shape(matrix)[column.dimensions.index("classes") - len(column.dimensions)])
        return None

    @property
    def cost_space(self) -> "CellSpace | None":
        """The search space that computes the costs of the networks, if they are cells of this space; otherwise None."""
        return self.space

    def find_sole_file(self, dataset: str, key: str, measurement: str) -> Path | None:
        """Return the file that contains all values of a measurement; None if values come from several files."""
        return self.find(dataset, key, measurement)

    def describe_source(self, datasets: Iterable[str], keys: Sequence[str], measurement: str = "accuracy") -> str:
        """Return a description of the files from which a measurement is read (see `find`).

        Returns:
            ``"JSON"``, ``"Parquet"`` or, if some keys have no up-to-date Parquet file, ``"Parquet, except JSON for
            digits fog"``; empty if there are no files.
        """
        keys_by_format: dict[str, list[str]] = {}
        for dataset, key in itertools.product(datasets, keys):
            if file := self.find(dataset, key, measurement):
                file_format = "Parquet" if file.suffix == ".parquet" else "JSON"
                keys_by_format.setdefault(file_format, []).append(f"{dataset} {key}")
        if len(keys_by_format) > 1:
            return f"Parquet, except JSON for {', '.join(keys_by_format['JSON'])}"
        return "".join(keys_by_format)

    def _parquet_path(self, dataset: str, key: str) -> Path:
        return self.parquet / PurePosixPath(parquet_name(dataset, key)).relative_to(PARQUET_FOLDER)

    def _find_parquet(self, dataset: str, key: str, measurement: str | None = None) -> Path | None:
        if not self.parquet.is_dir():
            return None
        file = _find_single_file(self._parquet_path(dataset, spelling) for spelling in spellings(key))
        if file is None:
            return None
        from robust201.reader.parquet_results import has_columns_of

        return file if measurement is None or has_columns_of(file, measurement) else None

    def find_outcomes(self, dataset: str, key: str) -> Path | None:
        file = self._find_parquet(dataset, key)
        if file is None:
            return None
        from robust201.reader.parquet_results import column_names

        return file if CORRECT_BITS in column_names(file) else None

    def read_outcomes(self, file: Path, strength: float) -> "tuple[list[str], Packed]":
        """Read the packed outcomes of a file at a strength (see `parquet_results.read_packed_outcomes`)."""
        from robust201.reader.parquet_results import has_text_ids, read_packed_outcomes

        ids_are_text = self.space is None and has_text_ids(file)
        return read_packed_outcomes(file, strength, weights=self.weights, ids_are_text=ids_are_text)

    def find_images(self, dataset: str) -> Path | None:
        """Return the table of the images to which per-image outcomes refer; it is next to the folder ``parquet``."""
        root = self.path if self.parquet != self.path else self.path.resolve().parent
        return _find_single_file([root / images_name(dataset)])

    def _parquet_files(self) -> list[Path]:
        return sorted(filter(_is_file, self.parquet.glob("dataset=*/key=*/*.parquet")))

    def keys_of_parquet(self) -> dict[str, list[str]]:
        keys_by_dataset: dict[str, list[str]] = {}
        file_names = (file.relative_to(self.parquet).as_posix() for file in self._parquet_files())
        dataset_keys = {dataset_key for file_name in file_names if (dataset_key := key_of_parquet(file_name))}
        for dataset, key in sorted(dataset_keys):
            keys_by_dataset.setdefault(dataset, []).append(key)
        return keys_by_dataset

    def _make_meta_from_parquet(self) -> dict[str, Any]:
        """Return the content that meta.json would have, with the ids of the space and the epsilons of the files."""
        from robust201.reader.parquet_results import read_ids, read_strengths

        epsilons: dict[str, Sequence[float]] = {}
        for dataset, keys in self.keys_of_parquet().items():
            for key in keys:
                file = self._find_parquet(dataset, key)
                if self.kind_of(key) == "attack" and file is not None:
                    epsilons.setdefault(key, list(read_strengths(file)))
        if self.space is not None:
            return self.space.meta(epsilons)
        ids = dict.fromkeys(identifier for file in self._parquet_files() for identifier in read_ids(file))
        return {"ids": {identifier: {} for identifier in ids}, "epsilons": epsilons}

    def value(self, dataset: str, key: str, measurement: str, identifier: str) -> Any:
        """Read an architecture's value: all of a JSON file is read, but only the required part of a Parquet file."""
        file = self._require_file(dataset, key, measurement)
        if file.suffix == ".parquet":
            value = self._read_parquet(file, dataset, key, measurement, identifier)[identifier]
        elif measurement == "accuracy":
            return self.read_accuracies(dataset, key)[identifier]
        else:
            value = self._cache.get(
                file, measurement, lambda: self._read_json_results(file, dataset, key, measurement)
            )[identifier]
        self._check_values(file, key, measurement, {identifier: value})
        return value

    def read_accuracies(self, dataset: str, key: str) -> Mapping[str, Any]:
        """Read accuracies like `read`, and cache them (see `reader.file_cache`)."""
        file = self._require_file(dataset, key, "accuracy")
        return self._cache.get(file, "accuracy", lambda: self.read(dataset, key, "accuracy"), self.weights)

    def read(self, dataset: str, key: str, measurement: str) -> dict[str, Any]:
        """Read and check a measurement's values by id."""
        file = self._require_file(dataset, key, measurement)
        if file.suffix == ".parquet":
            values_by_id = self._read_parquet(file, dataset, key, measurement)
            check_ids(file, key, measurement, values_by_id, self.meta["ids"])
        else:
            values_by_id = self._read_json_results(file, dataset, key, measurement)
        self._check_values(file, key, measurement, values_by_id)
        return values_by_id

    def iter_values(self, dataset: str, key: str, measurement: str) -> Iterator[tuple[str, Any]]:
        """Yield the ids and values of `read`, with a few in memory at a time; a Parquet file is read completely."""
        for values_by_id, _ in self.iter_stacks(dataset, key, measurement):
            yield from values_by_id.items()

    def iter_json_file(self, file: Path, dataset: str, key: str, measurement: str) -> Iterator[tuple[str, Any]]:
        """Yield the ids and values of a JSON file like `iter_values`, even if a Parquet file is preferred."""
        for values_by_id, _ in self._iter_json_stacks(file, dataset, key, measurement):
            yield from values_by_id.items()

    def iter_stacks(
        self, dataset: str, key: str, measurement: str
    ) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]] | None]]:
        """Yield a measurement's values in stacks of a few architectures (see `iter_values`).

        Yields:
            Checked values by id, and their stacked arrays by field, or None if they cannot be stacked (see
            `stack_values`).
        """
        file = self._require_file(dataset, key, measurement)
        if file.suffix == ".parquet":
            yield self.read(dataset, key, measurement), None
        else:
            yield from self._iter_json_stacks(file, dataset, key, measurement)

    def _iter_json_stacks(
        self, file: Path, dataset: str, key: str, measurement: str
    ) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]] | None]]:
        if self.space is None:  # `iter_json_values` only supports ids that are numbers
            values_by_id = self._read_json_results(file, dataset, key, measurement)
            self._check_values(file, key, measurement, values_by_id)
            yield values_by_id, None
            return
        id_values = iter_json_values(file, dataset, spellings(key), measurement)
        n_per_stack = 1
        while values_by_id := dict(itertools.islice(id_values, n_per_stack)):
            check_ids(file, key, measurement, values_by_id, self.meta["ids"])
            arrays = stack_values(measurement, values_by_id.values(), is_single=self.has_single_value(dataset, key))
            if arrays is None:
                self._check_values(file, key, measurement, values_by_id)
            else:
                size = sum(array[0].size for array in arrays.values())
                n_per_stack = max(1, _NUMBERS_PER_STACK // size)
            yield values_by_id, arrays

    def _read_parquet(
        self, file: Path, dataset: str, key: str, measurement: str, identifier: str | None = None
    ) -> dict[str, Any]:
        from robust201.reader.parquet_results import has_text_ids, read_parquet_values

        return read_parquet_values(
            file,
            measurement,
            self.strengths(dataset, key),
            identifier,
            is_single=self.has_single_value(dataset, key),
            weights=self.weights,
            ids_are_text=self.space is None and has_text_ids(file),
        )

    def _read_json_results(self, file: Path, dataset: str, key: str, measurement: str) -> dict[str, Any]:
        """Read a JSON file of results completely, and check its ids but not its values."""
        payload = read_json(file)
        content_by_key = payload.get(dataset) if isinstance(payload, dict) else None
        content_by_spelling = check_spellings(content_by_key, file) if isinstance(content_by_key, dict) else {}
        for spelling in spellings(key):
            content_by_measurement = content_by_spelling.get(spelling)
            if not isinstance(content_by_measurement, dict):
                continue
            values_by_id = content_by_measurement.get(measurement)
            # Files with further content, which would be ignored, are rejected.
            if (
                isinstance(values_by_id, dict)
                and len(payload) == len(content_by_spelling) == len(content_by_measurement) == 1
            ):
                check_ids(file, key, measurement, values_by_id, self.meta["ids"])
                return values_by_id
        raise ResultsError(
            f"Reading failed for {file}: expected {{{dataset}: {{{key}: {{{measurement}: {{id: value}}}}}}}}, "
            f"got other content. {ADVICE}"
        )

    def _check_values(self, file: Path, key: str, measurement: str, values_by_id: Mapping[str, Any]) -> None:
        check_json_values(file, key, measurement, values_by_id, is_of_measure=self.kind_of(key) == "measure")

    def _require_file(self, dataset: str, key: str, measurement: str) -> Path:
        file = self.find(dataset, key, measurement)
        if file is None:
            raise self.missing_file_error(dataset, key, measurement)
        return file

    def count_architectures(self, datasets: Iterable[str], keys: Sequence[str]) -> int:
        """Return the number of architectures in the first valid file of accuracies; 0 if there is none."""
        for dataset, key in itertools.product(datasets, keys):
            if self.find(dataset, key, "accuracy") is not None:
                try:
                    return len(self.read_accuracies(dataset, key))
                except (OSError, ResultsError):
                    continue
        return 0

    def missing_file_error(self, dataset: str, key: str, measurement: str) -> ResultsError:
        """Return an error for a missing file; if a name is unknown, the message suggests the closest known name."""
        folders = {path.name for path in self.path.iterdir() if path.is_dir()} - {PARQUET_FOLDER, IMAGES_FOLDER}
        datasets = {name for name in folders if not name.startswith((".", "dataset="))} | self.keys_of_parquet().keys()
        task = task_of(key)
        measurements = list(MEASUREMENTS) if task is None or not task.columns else self.measurements_of(dataset, key)
        if dataset not in datasets:
            problem = f"expected a dataset of {self.path}, got {dataset!r}.{did_you_mean(dataset, sorted(datasets))}"
        elif task is None and not self.mentions_key(key):
            known_keys = [*TASKS, *(task.published_key for task in TASKS.values())]
            problem = f"expected a known key, got {key!r}.{did_you_mean(key, known_keys)}"
        elif measurement not in measurements:
            stored_measurements = [name for name in measurements if self.find(dataset, key, name) is not None]
            suggestion = did_you_mean(measurement, stored_measurements or measurements)
            problem = f"expected a measurement of {self.path / dataset}, got {measurement!r}.{suggestion}"
        else:
            is_partial_export = any(spelling in self.missing.get(dataset, {}) for spelling in spellings(key))
            reason = (
                "this is a partial export, see missing.json"
                if is_partial_export
                else "these results were not computed, or their file was not downloaded"
            )
            problem = (
                f"there is no file in {self.path / dataset}: {reason}. Export or download the file, or leave these "
                "results out."
            )
        return ResultsError(f"Reading failed for {dataset} {key} {measurement}: {problem}")


def _wrong_content_error(file: Path, expected: str) -> ResultsError:
    return ResultsError(
        f"Opening a dataset failed for {file}: expected {expected}, but its content differs. Export or download the "
        "dataset again."
    )
