"""One folder of an exported or published dataset: what it contains, and the rows of its files."""

import errno
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robust201.core.errors import FormatVersionError, InputError, ResultsError, RobustWarning, did_you_mean
from robust201.core.files import resolve_bundled
from robust201.core.records import CLEAN_STRENGTH, ArchitectureId
from robust201.dataset.json_rows import iter_json_rows, read_first_value, read_json, read_object
from robust201.dataset.layout import (
    CLEAN,
    EXPORT_FORMAT,
    META_FILE,
    MISSING_FILE,
    PARQUET_FOLDER,
    PUBLISHED_DATASETS,
    RESULTS_FOLDER_FILE,
    SWEEP_FILE,
    images_name,
    kind_of,
    paper_key,
    parquet_name,
    sort_by_task_order,
    spellings,
    task_of,
)
from robust201.dataset.row_block import RowBlock
from robust201.dataset.values import ADVICE, CellMetaFile, MetaFile, SweepFile, check_content
from robust201.images import DATASETS
from robust201.networks.spaces import DEFAULT_SPACE, CellSpace, cell_space
from robust201.tasks import CORRUPTIONS, TASKS
from robust201.tasks.columns import COLUMNS, CORRECT_BITS, ELEMENT_COLUMNS, MEASUREMENTS, PUBLISHED_MEASUREMENTS
from robust201.tasks.constraints import CONSTRAINTS, Constraint
from robust201.tasks.parameters import SEVERITIES

if TYPE_CHECKING:
    from robust201.statistics.outcomes import Packed


class MissingFilesWarning(RobustWarning):
    """Files of keys that sweep.json lists are missing, so results are incomplete."""


def describe_absent_keys(folder: Path, keys: Sequence[str]) -> str:
    """Return the text of a warning about keys without files."""
    return f"{folder / SWEEP_FILE} lists {', '.join(keys)}, but these keys lack files, so results are missing"


class DatasetFolder:
    """One folder of an exported or published dataset.

    Attributes:
        path: the folder.
        meta: content of meta.json.
        sweep: content of sweep.json, or None without this file.
        missing: content of missing.json, or an empty dict without this file.
        space_name: name of the search space.
        space: the search space if its architectures are cells, otherwise None.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not _is_file(path / META_FILE):
            raise _not_a_dataset_error(path)
        self.sweep = self._read_sweep()
        self.missing: dict[str, dict[str, dict[str, list[float]]]] = read_object(path / MISSING_FILE) or {}
        self.space_name: str = self.sweep_record.get("space", DEFAULT_SPACE)
        self.space: CellSpace | None = cell_space(self.space_name)
        self._custom_parameters = self._find_custom_parameters()
        self.meta: dict[str, Any] = read_json(path / META_FILE)
        check_content(path / META_FILE, self.meta, MetaFile if self.space is None else CellMetaFile)
        self._keys_by_dataset: Mapping[str, Iterable[str]] = {} if self.sweep is None else self.sweep["strengths"]
        if self.absent_keys:
            warnings.warn(describe_absent_keys(path, self.absent_keys), MissingFilesWarning, stacklevel=4)

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
        check_content(file, sweep, SweepFile)
        return sweep

    @property
    def sweep_record(self) -> dict[str, Any]:
        """The sweep that sweep.json records: its space, images, network and protocols; empty if there is none."""
        return (self.sweep or {}).get("sweep") or {}

    @cached_property
    def absent_keys(self) -> list[str]:
        """Datasets and keys in sweep.json that lack files, although missing.json does not list them."""
        return [
            f"{dataset} {key}"
            for dataset, keys in self._keys_by_dataset.items()
            for key in keys
            if not self._has_all_files(dataset, key) and key not in self.missing.get(dataset, {})
        ]

    def _has_all_files(self, dataset: str, key: str) -> bool:
        """Return whether files have all measurements of a key; for a measure, one is enough."""
        exist = [self.find(dataset, key, name) is not None for name in self.measurements_of(dataset, key)]
        return any(exist) if self.kind_of(key) == "measure" else all(exist)

    def _find_custom_parameters(self) -> dict[str, Mapping[str, Any]]:
        """Return the parameters of custom tasks in sweep.json, by key; they include the kind, norm and columns."""
        return {
            payload["key"]: payload["parameters"]
            for payload in self.sweep_record.get("protocols", ())
            if "kind" in payload.get("parameters", {}) and task_of(payload["key"]) is None
        }

    # Contents

    @property
    def datasets(self) -> list[str]:
        """Datasets that sweep.json names; without it, the paper's datasets."""
        return list(self._keys_by_dataset or PUBLISHED_DATASETS)

    @property
    def keys(self) -> list[str]:
        """Keys in the order of `TASKS`.

        They are the keys that sweep.json names. Without it, as in the published dataset, they are clean images, the
        attacks that meta.json names, and the paper's corruptions.
        """
        if self._keys_by_dataset:
            return sort_by_task_order({key for keys in self._keys_by_dataset.values() for key in keys})
        return [CLEAN, *sort_by_task_order({*self.meta["epsilons"], *CORRUPTIONS})]

    @property
    def measurements(self) -> list[str]:
        """Measurements in sweep.json (without it, the published ones), except per-image measurements."""
        stored_measurements = PUBLISHED_MEASUREMENTS if self.sweep is None else self.sweep["measurements"]
        per_image_measurements = {column.measurement for column in COLUMNS.values() if column.is_per_image}
        return [name for name in MEASUREMENTS if name in stored_measurements and name not in per_image_measurements]

    @property
    def weights(self) -> list[str]:
        """Names of the folder's weights, in order; empty if the weights have no names."""
        return list((self.sweep or {}).get("weights", {}))

    def kind_of(self, key: str) -> str:
        """Return the kind of a key (see `layout.kind_of`); the kind of a custom task is read from sweep.json."""
        kind = kind_of(key)
        return str(self._custom_parameters[key]["kind"]) if kind == "other" and key in self._custom_parameters else kind

    def norm_ball_of(self, key: str) -> Constraint | None:
        """Return an attack's norm ball; None for attacks without a ball, and for other keys."""
        task = task_of(key)
        if task is not None:
            return task.constraint
        return CONSTRAINTS.get(str(self._custom_parameters.get(key, {}).get("norm")))

    def protocols_of(self, dataset: str, key: str) -> list[Mapping[str, Any]]:
        """Return the payloads of a key's protocols on a dataset, from sweep.json; empty if there are none."""
        protocols = self.sweep_record.get("protocols", [])
        return [payload for payload in protocols if payload.get("dataset") == dataset and payload.get("key") == key]

    def planned_strengths(self, dataset: str) -> Mapping[str, Sequence[float]] | None:
        """Return the sweep's strengths by key on a dataset; None for a folder without sweep.json."""
        return None if self.sweep is None else self.sweep["strengths"].get(dataset, {})

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Return the strengths of a key's values, in order (see `Dataset.strengths`)."""
        epsilons: Mapping[str, Sequence[float]] = self.meta["epsilons"]
        for strengths_by_key in (self.planned_strengths(dataset) or {}, epsilons):
            for spelling in spellings(key):
                if spelling in strengths_by_key:
                    return tuple(float(strength) for strength in strengths_by_key[spelling])
        sole_strength = (CLEAN_STRENGTH,)
        default_strengths = {CLEAN: sole_strength, "measure": sole_strength, "corruption": SEVERITIES}
        if (kind := self.kind_of(key)) not in default_strengths:
            raise ResultsError(
                f"Looking up strengths failed for {self.path}: expected one of its keys, got {key!r}."
                f"{did_you_mean(key, [*epsilons, *TASKS])}"
            )
        return default_strengths[kind]

    def measurements_of(self, dataset: str, key: str) -> list[str]:
        """Return the names of a key's measurements (see `Dataset.measurements`)."""
        task = task_of(key)
        if task is not None:
            protocols = self.protocols_of(dataset, task.key) if task.columns else ()
            recorded = [name for payload in protocols for name in payload.get("parameters", {}).get("columns", ())]
            return list(dict.fromkeys(recorded)) or list(task.columns) or self.measurements
        return list(self._custom_parameters.get(key, {}).get("columns") or self.measurements)

    # Files

    def find(self, dataset: str, key: str, measurement: str) -> Path | None:
        """Return the file from which a measurement is read, in either spelling of the key; None if there is none.

        The Parquet file is preferred to the JSON file.
        """
        json_file = self.find_json(dataset, key, measurement)
        return self._find_parquet(dataset, key, measurement) or json_file

    def find_json(self, dataset: str, key: str, measurement: str) -> Path | None:
        """Return the JSON file of a measurement, even if a Parquet file is preferred (see `find`)."""
        measurement, _ = ELEMENT_COLUMNS.get(measurement, (measurement, None))
        return _find_file(self.path / dataset / f"{spelling}_{measurement}.json" for spelling in spellings(key))

    def possible_measurements(self, dataset: str, key: str) -> list[str]:
        """Return the measurements that may exist: `measurements_of`, or all for a built-in key other than a measure."""
        task = task_of(key)
        return list(MEASUREMENTS) if task and not task.columns else self.measurements_of(dataset, key)

    def has_key(self, dataset: str, key: str) -> bool:
        """Return whether the folder has a file with results of a key."""
        names = self.possible_measurements(dataset, key)
        json_files = (self.find_json(dataset, key, measurement) for measurement in names)
        return any(json_files) or self._find_parquet(dataset, key) is not None

    def mentions_key(self, key: str) -> bool:
        """Return whether `keys` contains a key, in either spelling."""
        return not {*spellings(key)}.isdisjoint(self.keys)

    def _find_parquet(self, dataset: str, key: str, measurement: str | None = None) -> Path | None:
        if not (self.path / PARQUET_FOLDER).is_dir():
            return None
        file = _find_file(self.path / parquet_name(dataset, spelling) for spelling in spellings(key))
        if file is None:
            return None
        from robust201.dataset.parquet_rows import has_columns_of

        return file if measurement is None or has_columns_of(file, measurement) else None

    def weights_of(self, dataset: str, key: str) -> list[str]:
        """Return the names of the weights in a key's Parquet file; empty if there is no such file or column."""
        file = self._find_parquet(dataset, key)
        if file is None:
            return []
        from robust201.dataset.parquet_rows import read_distinct_values

        return read_distinct_values(file, "weights")

    def find_outcomes(self, dataset: str, key: str) -> Path | None:
        """Return the Parquet file with a key's packed outcomes; None if there is none."""
        file = self._find_parquet(dataset, key)
        if file is None:
            return None
        from robust201.dataset.parquet_rows import column_names

        return file if CORRECT_BITS in column_names(file) else None

    def read_outcomes(self, file: Path, strength: float) -> "tuple[list[Any], list[str], Packed]":
        """Read the packed outcomes of a key's file at a strength (see `parquet_rows.read_packed_outcomes`)."""
        from robust201.dataset.parquet_rows import read_packed_outcomes

        ids, weights, packed = read_packed_outcomes(file, strength)
        self._check_ids(file, ids)
        return ids, weights, packed

    def find_images(self, dataset: str) -> Path | None:
        """Return the file with the table of images to which per-image outcomes refer; None if there is none."""
        return _find_file([self.path / images_name(dataset)])

    # Rows

    def iter_rows(
        self,
        dataset: str,
        key: str,
        measurement: str,
        architecture: ArchitectureId | None = None,
        *,
        file: Path | None = None,
    ) -> Iterator[RowBlock]:
        """Read a measurement of all architectures or of one architecture, with a few rows in memory at a time.

        Args:
            dataset: name of the dataset.
            key: the key, in either spelling.
            measurement: name of the measurement.
            architecture: an architecture; None for all.
            file: file of the measurement; by default the file that `find` returns.

        Raises:
            ResultsError: the file is missing or damaged, a value is invalid, or a Parquet file lacks a row.
        """
        file = file or self.find(dataset, key, measurement)
        if file is None:
            raise self.missing_file_error(dataset, key, measurement)
        strengths = self.strengths(dataset, key)
        is_parquet = file.suffix == ".parquet"
        identities = []
        for rows in self._iter_file(file, dataset, key, measurement, architecture):
            self._check_ids(file, dict.fromkeys(rows.architectures.tolist()))
            if is_parquet:
                identities.append(replace(rows, columns={}))
            yield rows if architecture is None else rows.take(rows.architectures == architecture)
        if identities:
            _check_complete(file, identities, strengths)

    def _iter_file(
        self, file: Path, dataset: str, key: str, measurement: str, architecture: ArchitectureId | None
    ) -> Iterator[RowBlock]:
        if file.suffix == ".parquet":
            from robust201.dataset.parquet_rows import iter_parquet_rows

            return iter_parquet_rows(file, measurement, architecture)
        file_measurement, column_source = ELEMENT_COLUMNS.get(measurement, (measurement, None))
        names, is_single = (dataset, spellings(key), file_measurement), self.has_single_value(dataset, key)
        blocks = iter_json_rows(file, names, self.strengths(dataset, key), is_single=is_single)
        if column_source is None:
            return blocks
        column, element = column_source.source, column_source.element
        return (replace(rows, columns={measurement: rows.columns[column][:, element]}) for rows in blocks)

    def has_single_value(self, dataset: str, key: str) -> bool:
        """Return whether an architecture has one value under a key: clean images, or a measure with one strength."""
        kind = self.kind_of(key)
        return kind == CLEAN or (kind == "measure" and len(self.strengths(dataset, key)) == 1)

    def _check_ids(self, file: Path, ids: Iterable[Any]) -> None:
        known_ids: Mapping[str, Any] = self.meta["ids"]
        unknown = next((str(identifier) for identifier in ids if str(identifier) not in known_ids), None)
        if unknown is None:
            return
        names = [*known_ids]
        examples = f"{names[0]} to {names[-1]}" if names and names[0].isdecimal() else ", ".join(names)
        raise ResultsError(
            f"Reading failed for {file}: expected ids of architectures, {examples}, got {unknown!r}. {ADVICE}"
        )

    def count_images(self, dataset: str, key: str) -> float:
        """Return the number of images of a key's JSON files; NaN if it is unknown.

        It is the number in sweep.json or in a confusion matrix. A folder without sweep.json, such as the published
        dataset, is assumed to contain accuracies on the whole test split.
        """
        n_test = DATASETS[dataset].n_test if dataset in DATASETS else None
        selection = self.sweep_record.get("images")
        if selection is not None and (n_selected := selection.get("count") or n_test):
            return float(n_selected)
        if (file := self.find_json(dataset, key, "cm")) is not None:
            value = read_first_value(file, (dataset, spellings(key), "cm"))
            matrix = np.array([] if not value else value if self.has_single_value(dataset, key) else value[0])
            if matrix.dtype.kind == "i":  # counts, not fractions
                return float(matrix.sum())
        return float(n_test) if n_test and self.sweep is None else np.nan

    def count_classes(self, dataset: str) -> int | None:
        """Return the number of classes of a dataset, from the first file of `cm` or `confidence`; None if unknown."""
        for measurement in ("cm", "confidence"):
            for key in self.keys:
                file = None if self.kind_of(key) == "measure" else self.find(dataset, key, measurement)
                if file is None:
                    continue
                if file.suffix == ".parquet":
                    from robust201.dataset.parquet_rows import read_distinct_values

                    return next((int(count) for count in read_distinct_values(file, "n_classes")), None)
                return int(next(iter(next(iter(self.iter_rows(dataset, key, measurement))).columns.values())).shape[-1])
        return None

    def missing_file_error(self, dataset: str, key: str, measurement: str) -> ResultsError:
        """Return an error for a missing file; if a name is unknown, the message suggests the closest known name."""
        datasets = {path.name for path in self.path.iterdir() if path.is_dir()} | {*self._keys_by_dataset}
        measurement, _ = ELEMENT_COLUMNS.get(measurement, (measurement, None))
        keys = list(dict.fromkeys(map(paper_key, (*self.keys, *TASKS))))
        problem = f"there is no file in {self.path / dataset}. Export or download it, or omit these results."
        if any(spelling in self.missing.get(dataset, {}) for spelling in spellings(key)):
            problem = f"this is a partial export, see {MISSING_FILE}. Export the complete results, or omit these."
        for noun, name, known in (
            ("dataset", dataset, sorted(datasets)),
            ("key", paper_key(key), keys),
            ("measurement", measurement, self.possible_measurements(dataset, key)),
        ):
            if name not in known:
                problem = f"expected a {noun} of {self.path}, got {name!r}.{did_you_mean(name, known)}"
                break
        return ResultsError(f"Reading failed for {dataset} {key} {measurement}: {problem}")


def _check_complete(path: Path, blocks: Sequence[RowBlock], strengths: Sequence[float]) -> None:
    """Check that each network of a Parquet file has one row at every strength.

    Raises:
        ResultsError: a row is missing, occurs twice, or has an unexpected strength.
    """
    import pandas as pd

    names = ("architecture", "weights", "strength")
    columns = [(rows.architectures, "" if rows.weights is None else rows.weights, rows.strengths) for rows in blocks]
    identities = pd.concat([pd.DataFrame(dict(zip(names, arrays, strict=True))) for arrays in columns])
    networks = identities.groupby(["architecture", "weights"], sort=False)["strength"]
    n_expected = len(strengths)
    is_complete = (networks.size() == n_expected) & (networks.nunique() == n_expected)
    if is_complete.all() and identities["strength"].isin(strengths).all():
        return
    wrong = identities[~identities["strength"].isin(strengths) | identities.duplicated()]
    first = (wrong if len(wrong) else is_complete[~is_complete].reset_index()).iloc[0]
    actual_strengths = identities[identities["architecture"] == first["architecture"]]["strength"]
    expected, actual = (", ".join(f"{value:g}" for value in sorted(values)) for values in (strengths, actual_strengths))
    raise ResultsError(
        f"Reading #{first['architecture']} failed for {path}: expected {n_expected} values, at the strengths "
        f"{expected}, got {len(actual_strengths)}, at {actual}. {ADVICE}"
    )


def _is_file(path: Path) -> bool:
    """Return whether a path is a file; False if its name is too long."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def _find_file(candidates: Iterable[Path]) -> Path | None:
    """Return the candidate that exists, or None; candidates differ in the spelling of their key.

    Raises:
        ResultsError: there are files for both spellings.
    """
    existing = [*filter(_is_file, candidates)]
    if len(existing) > 1:
        raise ResultsError(
            f"Reading failed for {existing[0]}: there is also {existing[1]}, with the other spelling of the key. "
            "Remove the file that does not belong to this dataset."
        )
    return existing[0] if existing else None


def _not_a_dataset_error(path: Path) -> ResultsError:
    problem = "it has no meta.json"
    fix = "Use an export or the published dataset."
    if (path / RESULTS_FOLDER_FILE).is_file():
        problem = "it contains the results of a sweep, not a dataset"
        fix = f"Run `robust201 export {path} --out DATASET`, with --partial if the sweep is unfinished."
    elif not path.is_dir():
        problem = "there is no such folder"
        fix = "Correct the path."
        with suppress(InputError):
            resolve_bundled(bundled_name := f"bundled:benchmark_data/{path.name}")
            fix = f"Did you mean {bundled_name!r}?"
    return ResultsError(f"Opening a dataset failed for {path}: {problem}. {fix}")
