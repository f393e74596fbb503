"""Verification of a dataset by its files alone: an export, the published dataset, or a copy of either."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from robust201.core.errors import EvaluationError, ResultsError
from robust201.core.records import Unit
from robust201.export.diff import read_result_set
from robust201.export.key_rows import KeyRows, json_files_of, possible_measurements, read_origin
from robust201.export.listing import check_listing, read_listing
from robust201.export.verify import flags_of
from robust201.images import DATASETS
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.listings import CHECKSUM_FILE
from robust201.reader.result_files import SWEEP_FILE, ResultFiles
from robust201.reader.weights_check import check_recorded
from robust201.statistics.attack_flags import AttackFlag
from robust201.statistics.weights_check import WeightsCheck
from robust201.tasks.columns import Values
from robust201.tasks.measurements import check_values


@dataclass(frozen=True)
class DatasetVerdict:
    """Result of verifying a dataset's folder.

    Attributes:
        problems: files that do not match `SHA256SUMS`, and values that are damaged or contradict each other.
        remarks: values in a variant of the format that exports do not write, missing files, a missing listing.
        n_evaluations: evaluations whose values were checked.
        n_listed: files that `SHA256SUMS` lists; None if there is no such file.
        weights: clean accuracies compared with those recorded with the weights; None if values are damaged.
        flags: signs of weak attacks; None if `attack_flags` was off. Neither `weights` nor `flags` affects `sound`.
    """

    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    n_evaluations: int
    n_listed: int | None
    weights: WeightsCheck | None
    flags: tuple[AttackFlag, ...] | None

    @property
    def sound(self) -> bool:
        return not self.problems

    def to_payload(self) -> dict[str, Any]:
        return {
            "sound": self.sound,
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
    """Check the files of an exported or published dataset without the results folder that it was exported from.

    Each file is compared with its SHA-256 if the folder has a listing. Every value is checked: its type and shape, that
    fractions lie in [0, 1] and distributions sum to 1, and that accuracies and confusion matrices agree within the
    files' decimals.

    Args:
        folder: the dataset's folder.
        attack_flags: whether to search the accuracies for signs of weak attacks.
        on_progress: called after each key with (keys checked, keys in total).

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
        remarks.append(f"{folder} has no {CHECKSUM_FILE}, which an export contains: it may not be complete")
    try:
        dataset = RobustnessDataset(folder)
        keys = list(_find_keys(dataset, is_listed=n_listed is not None))
    except ResultsError as error:
        return DatasetVerdict((*problems, str(error)), tuple(remarks), 0, n_listed, None, None)
    if not keys:
        raise ResultsError(
            f"Verifying failed for {folder}: expected files of results, got none. Name a results folder, or the folder "
            "of a dataset."
        )
    remarks += _describe_absent_keys(dataset, {(rows.dataset, rows.key) for rows in keys})
    counted: set[tuple[str, str, str]] = set()
    n_evaluations = 0
    for done, key in enumerate(keys, start=1):
        rows = replace(key)  # a copy, so that its cached values are freed after this iteration
        name = key.dataset, key.key, str(key.files.weights)
        is_first = name not in counted
        counted.add(name)
        try:
            _read_whole_parquet(rows)
            for unit, by_strength in rows.iter_rows():
                n_evaluations += len(by_strength) if is_first else 0
                problems += _check_unit(rows, unit, by_strength)
            remarks += rows.remarks
        except ResultsError as error:
            problems.append(str(error))
        on_progress(done, len(keys))
    return DatasetVerdict(
        problems=tuple(problems),
        remarks=tuple(dict.fromkeys(remarks)),
        n_evaluations=n_evaluations,
        n_listed=n_listed,
        weights=None if problems else check_recorded(dataset),
        flags=None if problems or not attack_flags else _find_flags(dataset),
    )


def _find_keys(dataset: RobustnessDataset, *, is_listed: bool) -> Iterator[KeyRows]:
    """Yield each key's JSON files, and also its Parquet file if there are no JSON files or hashes are not listed."""
    for weights in dataset.weights if len(dataset.weights) > 1 else [None]:
        files = dataset.files.choosing(weights)
        for name in dataset.data:
            for key in dataset.keys_all:
                as_json = json_files_of(files, name, key)
                if as_json:
                    yield KeyRows(files, name, key, as_json)
                if not (as_json and is_listed) and (as_parquet := _parquet_files_of(files, name, key)):
                    yield KeyRows(files, name, key, as_parquet)


def _parquet_files_of(files: ResultFiles, dataset: str, key: str) -> dict[str, Path]:
    paths = {measure: files.find(dataset, key, measure) for measure in possible_measurements(files, dataset, key)}
    return {measure: file for measure, file in paths.items() if file is not None and file.suffix == ".parquet"}


def _read_whole_parquet(rows: KeyRows) -> None:
    """Read all columns of a key's Parquet files, to verify the checksums of all pages.

    Raises:
        ResultsError: a page is damaged.
    """
    for file in {file for file in rows.sources.values() if file.suffix == ".parquet"}:
        try:
            with pq.ParquetFile(file, page_checksum_verification=True) as stored:
                for group in range(stored.num_row_groups):
                    stored.read_row_group(group)
        except (OSError, pa.ArrowException) as error:
            raise ResultsError(
                f"Verifying failed for {file}: the file is damaged ({error}). Export or download it again."
            ) from error


def _check_unit(rows: KeyRows, unit: Unit, by_strength: Mapping[float, Values]) -> Iterator[str]:
    n_images = unit.n_images or rows.origin.n_images
    for strength, read in by_strength.items():
        values = rows.complete(read)
        name = f"{unit.label} of {rows.files.path} at {strength:g}"
        try:
            check_values(values, n_images, decimals=rows.decimals, name=name)
        except EvaluationError as error:
            yield str(error)


def _describe_absent_keys(dataset: RobustnessDataset, present: Collection[tuple[str, str]]) -> Iterator[str]:
    planned = {} if dataset.sweep is None else dataset.sweep["strengths"]
    absent = [
        f"{name} {key}"
        for name, by_key in planned.items()
        for key in by_key
        if (name, key) not in present and key not in dataset.missing.get(name, {})
    ]
    if absent:
        yield f"{dataset.path / SWEEP_FILE} lists {', '.join(absent)}, but there are no files of these keys"


def _find_flags(dataset: RobustnessDataset) -> tuple[AttackFlag, ...]:
    protocols = [] if dataset.sweep is None else dataset.sweep.get("sweep", {}).get("protocols", [])
    return flags_of(
        read_result_set(dataset.path),
        n_images={name: read_origin(dataset.sweep, name, "clean").n_images for name in dataset.data},
        n_classes={name: DATASETS[name].n_classes for name in dataset.data if name in DATASETS},
        protocols=protocols,
    )
