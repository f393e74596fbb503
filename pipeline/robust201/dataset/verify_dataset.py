"""Verification of a dataset from its files only: an export, the published dataset, or a copy of either."""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.dataset.diff import read_numbers
from robust201.dataset.folder import DatasetFolder, identify_rows
from robust201.dataset.layout import SWEEP_FILE, format_id
from robust201.dataset.listing import CHECKSUM_FILE, check_listing, read_listing
from robust201.dataset.reader import Dataset
from robust201.dataset.recorded_accuracies import check_recorded
from robust201.dataset.values import are_distributions, max_rounding_error
from robust201.dataset.verify_results import find_attack_flags
from robust201.evaluation.attack_flags import AttackFlag
from robust201.images import DATASETS
from robust201.statistics.weights_check import WeightsCheck
from robust201.tasks.columns import COLUMNS, COUNTS

_IDENTITY = ["architecture", "weights", "strength"]
_MATRIX = COLUMNS[COUNTS].measurement


@dataclass(frozen=True)
class DatasetVerdict:
    """Result of verifying a dataset's folder.

    Attributes:
        problems: messages about files that do not match `SHA256SUMS`, and about invalid or contradictory values.
        remarks: messages about missing files or a missing listing.
        n_evaluations: number of evaluations whose values were checked.
        n_listed: number of files that `SHA256SUMS` lists; None if there is no such file.
        weights: comparison of clean accuracies with those recorded with the weights; None if there are problems.
        flags: signs of weak attacks; None if they were not requested or there are problems. Neither `weights` nor
            `flags` affects `is_sound`.
    """

    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    n_evaluations: int
    n_listed: int | None
    weights: WeightsCheck | None
    flags: tuple[AttackFlag, ...] | None

    @property
    def is_sound(self) -> bool:
        return not self.problems

    def to_payload(self) -> dict[str, Any]:
        return {
            "sound": self.is_sound,
            "problems": list(self.problems),
            "remarks": list(self.remarks),
            "evaluations": self.n_evaluations,
            "listed_files": self.n_listed,
            "weights": None if self.weights is None else self.weights.to_payload(),
            "flags": None if self.flags is None else [flag.to_payload() for flag in self.flags],
        }


def verify_dataset(
    folder: Path,
    *,
    attack_flags: bool = False,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> DatasetVerdict:
    """Check the files of an exported or published dataset; the results folder is not needed.

    If the folder has a listing, each file is compared with its SHA-256. The reader then checks every value; all files
    of a key must have the same evaluations, and accuracies must agree with confusion matrices.

    Args:
        folder: the dataset's folder.
        attack_flags: whether to search the accuracies for signs of weak attacks.
        on_progress: called after each key with the number of checked keys and the total number of keys.

    Raises:
        ResultsError: the folder has no results, or its listing is not a regular file.
    """
    problems: list[str] = []
    remarks: list[str] = []
    n_listed = None
    if os.path.lexists(folder / CHECKSUM_FILE):
        listing = read_listing(folder)
        n_listed = len(listing)
        problems += check_listing(folder, listing)
    elif (folder / SWEEP_FILE).is_file():
        remarks.append(f"{folder} has no {CHECKSUM_FILE}, which exports contain, so the export may be incomplete")
    if problems:  # a damaged file is not opened, because decoding it could end the process
        return DatasetVerdict(tuple(problems), tuple(remarks), 0, n_listed, None, None)
    try:
        dataset = Dataset(folder)
        keys = [pair for pair in itertools.product(dataset.data, dataset.keys_all) if dataset.folders[0].has_key(*pair)]
    except ResultsError as error:
        return DatasetVerdict((*problems, str(error)), tuple(remarks), 0, n_listed, None, None)
    if not keys:
        raise ResultsError(
            f"Verifying failed for {folder}: the folder contains no results. Use a results folder, or the folder of a "
            "dataset."
        )
    n_evaluations = 0
    for n_done, (name, key) in enumerate(keys, start=1):
        try:
            n_evaluations += _check_key(dataset.folders[0], name, key)
        except ResultsError as error:
            problems.append(str(error))
        on_progress(n_done, len(keys))
    return DatasetVerdict(
        problems=tuple(problems),
        remarks=(*remarks, *_describe_absent_keys(dataset, keys)),
        n_evaluations=n_evaluations,
        n_listed=n_listed,
        weights=None if problems else check_recorded(dataset),
        flags=None if problems or not attack_flags else _find_attack_flags_of_dataset(dataset),
    )


def _check_key(folder: DatasetFolder, dataset: str, key: str) -> int:
    """Check all files of a key, and return the number of evaluations.

    Raises:
        ResultsError: a file is damaged or has an invalid value, or files contradict each other.
    """
    names = folder.possible_measurements(dataset, key)
    paths = [(name, find(dataset, key, name)) for name in names for find in (folder.find_json, folder.find)]
    files = {(name, path): _read_numbers(folder, dataset, key, name, path) for name, path in paths if path is not None}
    (first_name, first_path), first = next(iter(files.items()))
    for (name, path), rows in files.items():
        merged = first[_IDENTITY].merge(rows, "outer", on=_IDENTITY, indicator=True)
        # A measurement may be missing for some rows of a Parquet file only.
        if path.suffix == ".json" and (odd := merged[merged["_merge"] != "both"]).size:
            raise _contradiction(path, odd.iloc[0]["architecture"], f"the evaluations of {first_path.name}, got others")
        if name == _MATRIX and first_name == "accuracy":
            _compare_accuracies(path, first.merge(rows, on=_IDENTITY, suffixes=("", "_of_matrix")))
    return max(map(len, files.values()))


def _read_numbers(folder: DatasetFolder, dataset: str, key: str, measurement: str, path: Path) -> pd.DataFrame:
    """Read and check all rows of a file; return what identifies them, and their `accuracy` if the file contains it."""
    frames = [pd.DataFrame(columns=[*_IDENTITY, "accuracy", "error"])]
    for rows in folder.iter_rows(dataset, key, measurement, file=path):
        frame = identify_rows(rows)
        for name, array in rows.columns.items():
            if name in COLUMNS and COLUMNS[name].is_distribution and not are_distributions(array):
                raise _contradiction(path, rows.architectures[0], f"fractions in {name} that sum to 1, got others")
        if measurement == "accuracy":
            frame["accuracy"], frame["error"] = rows.columns["accuracy"], max_rounding_error(rows.columns["accuracy"])
        elif measurement == _MATRIX:
            frame["accuracy"], frame["error"] = _accuracies_of(rows.columns[COUNTS])
        frames.append(frame)
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _accuracies_of(matrices: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
    """Return the accuracies in confusion matrices (N, C, C) of counts, or of fractions of each class, and their error.

    All classes are assumed to have the same number of images if the matrices contain fractions.
    """
    return np.trace(matrices, axis1=1, axis2=2) / matrices.sum(axis=(1, 2)), max_rounding_error(matrices)


def _compare_accuracies(path: Path, rows: pd.DataFrame) -> None:
    tolerance = rows["error"] + rows["error_of_matrix"]
    wrong = rows[(rows["accuracy"] - rows["accuracy_of_matrix"]).abs() > tolerance]
    if len(wrong):
        first = wrong.iloc[0]
        expected = f"the accuracy {first['accuracy']:g} at strength {first['strength']:g}"
        raise _contradiction(path, first["architecture"], f"{expected}, got {first['accuracy_of_matrix']:g}")


def _contradiction(path: Path, architecture: Any, fault: str) -> ResultsError:
    return ResultsError(
        f"Verifying {format_id(str(architecture))} failed for {path}: expected {fault}. Export or download the dataset "
        "again."
    )


def _describe_absent_keys(dataset: Dataset, present_keys: list[tuple[str, str]]) -> Iterator[str]:
    planned_strengths = {} if dataset.sweep is None else dataset.sweep["strengths"]
    absent_keys = [
        f"{name} {key}"
        for name, strengths_by_key in planned_strengths.items()
        for key in strengths_by_key
        if (name, key) not in present_keys and key not in dataset.missing.get(name, {})
    ]
    if absent_keys:
        yield f"{dataset.path / SWEEP_FILE} lists {', '.join(absent_keys)}, but these keys have no files"


def _find_attack_flags_of_dataset(dataset: Dataset) -> tuple[AttackFlag, ...]:
    n_images = dataset.select().table.groupby("dataset", observed=True)["n_images"].min().dropna()
    return find_attack_flags(
        read_numbers(dataset.path),
        n_images={str(name): int(count) for name, count in n_images.items()},
        n_classes={name: DATASETS[name].n_classes for name in dataset.data if name in DATASETS},
    )
