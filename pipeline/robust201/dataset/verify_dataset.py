"""Verification of a dataset from its files only: an export, the published dataset, or a copy of either."""

import itertools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from robust201.core.errors import EvaluationError, ResultsError
from robust201.core.records import Unit
from robust201.dataset.diff import read_numbers
from robust201.dataset.layout import SWEEP_FILE
from robust201.dataset.listing import CHECKSUM_FILE, check_listing, read_listing
from robust201.dataset.reader import Dataset
from robust201.dataset.recorded_accuracies import check_recorded
from robust201.dataset.verified_rows import FileRows, count_recorded_images
from robust201.dataset.verify_results import find_attack_flags
from robust201.evaluation.attack_flags import AttackFlag
from robust201.evaluation.measurements import check_values
from robust201.images import DATASETS
from robust201.statistics.weights_check import WeightsCheck
from robust201.tasks.columns import Values


@dataclass(frozen=True)
class DatasetVerdict:
    """Result of verifying a dataset's folder.

    Attributes:
        problems: messages about files that do not match `SHA256SUMS`, and about invalid or contradictory values.
        remarks: messages about variants of the format that exports do not write, missing files or a missing listing.
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

    If the folder has a listing, each file is compared with its SHA-256. Every value must have the right type and shape,
    fractions must be in [0, 1], distributions must sum to 1, and accuracies must agree with confusion matrices when
    rounded to the files' decimals.

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
        n_listed = len(listing.digests)
        problems += check_listing(folder, listing)
    elif (folder / SWEEP_FILE).is_file():
        remarks.append(f"{folder} has no {CHECKSUM_FILE}, which exports contain, so the export may be incomplete")
    if problems:  # a damaged file is not opened, because decoding it could end the process
        return DatasetVerdict(tuple(problems), tuple(remarks), 0, n_listed, None, None)
    try:
        dataset = Dataset(folder)
        all_key_rows = list(_iter_key_rows(dataset, has_listing=n_listed is not None))
    except ResultsError as error:
        return DatasetVerdict((*problems, str(error)), tuple(remarks), 0, n_listed, None, None)
    if not all_key_rows:
        raise ResultsError(
            f"Verifying failed for {folder}: the folder contains no results. Use a results folder, or the folder of a "
            "dataset."
        )
    remarks += _describe_absent_keys(dataset, {(rows.dataset, rows.key) for rows in all_key_rows})
    counted_keys: set[tuple[str, str, str]] = set()
    n_evaluations = 0
    for n_done, original_rows in enumerate(all_key_rows, start=1):
        key_rows = replace(original_rows)  # copied, so that cached values are freed after this iteration
        dataset_key_weights = original_rows.dataset, original_rows.key, str(original_rows.weights)
        is_new_key = dataset_key_weights not in counted_keys
        counted_keys.add(dataset_key_weights)
        try:
            _read_parquet_pages(key_rows)
            for unit, columns_by_strength in key_rows.iter_rows():
                n_evaluations += len(columns_by_strength) if is_new_key else 0
                problems += _check_unit(key_rows, unit, columns_by_strength)
            remarks += key_rows.remarks
        except ResultsError as error:
            problems.append(str(error))
        on_progress(n_done, len(all_key_rows))
    return DatasetVerdict(
        problems=tuple(problems),
        remarks=tuple(dict.fromkeys(remarks)),
        n_evaluations=n_evaluations,
        n_listed=n_listed,
        weights=None if problems else check_recorded(dataset),
        flags=None if problems or not attack_flags else _find_attack_flags_of_dataset(dataset),
    )


def _iter_key_rows(dataset: Dataset, *, has_listing: bool) -> Iterator[FileRows]:
    """Yield each key's JSON files, and also its Parquet files if it has no JSON files or the folder has no listing."""
    (folder,) = dataset.folders
    weights_names = dataset.weights if len(dataset.weights) > 1 else [None]
    for weights, name, key in itertools.product(weights_names, dataset.data, dataset.keys_all):
        json_rows, parquet_rows = (
            FileRows.find(folder, name, key, suffix, weights) for suffix in (".json", ".parquet")
        )
        if json_rows is not None:
            yield json_rows
        if parquet_rows is not None and not (json_rows is not None and has_listing):
            yield parquet_rows


def _read_parquet_pages(rows: FileRows) -> None:
    """Read all pages of a key's Parquet files, to verify the pages' checksums.

    Raises:
        ResultsError: a page is damaged.
    """
    for path in {path for path in rows.sources.values() if path.suffix == ".parquet"}:
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as parquet_file:
                for row_group in range(parquet_file.num_row_groups):
                    parquet_file.read_row_group(row_group)
        except (OSError, pa.ArrowException) as error:
            raise ResultsError(
                f"Verifying failed for {path}: the file is damaged ({error}). Export or download it again."
            ) from error


def _check_unit(rows: FileRows, unit: Unit, columns_by_strength: Mapping[float, Values]) -> Iterator[str]:
    n_images = unit.n_images or count_recorded_images(rows.folder.sweep, rows.dataset)
    for strength, stored_values in columns_by_strength.items():
        values = rows.replace_zeros_of_empty_means(stored_values)
        name = f"{unit.label} of {rows.folder.path} at {strength:g}"
        try:
            check_values(values, n_images, decimals=rows.decimals, name=name)
        except EvaluationError as error:
            yield str(error)


def _describe_absent_keys(dataset: Dataset, present_keys: Collection[tuple[str, str]]) -> Iterator[str]:
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
    return find_attack_flags(
        read_numbers(dataset.path),
        n_images={name: count_recorded_images(dataset.sweep, name) for name in dataset.data},
        n_classes={name: DATASETS[name].n_classes for name in dataset.data if name in DATASETS},
    )
