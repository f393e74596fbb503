"""Verification of a dataset from its files only: an export, the published dataset, or a copy of either."""

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robust201.core.errors import ResultsError
from robust201.core.records import format_architecture
from robust201.dataset.diff import read_numbers
from robust201.dataset.folder import DatasetFolder, MissingFilesWarning, describe_absent_keys
from robust201.dataset.layout import SWEEP_FILE
from robust201.dataset.listing import CHECKSUM_FILE, check_listing, read_listing
from robust201.dataset.reader import Dataset
from robust201.dataset.row_block import RowBlock
from robust201.dataset.values import ADVICE
from robust201.dataset.verify_results import find_attack_flags
from robust201.evaluation.attack_flags import AttackFlag
from robust201.images import DATASETS
from robust201.tasks.columns import COUNTS

_PUBLISHED_DECIMALS = 3
_DOUBLE_ERROR = 1e-9


@dataclass(frozen=True)
class DatasetVerdict:
    """Result of verifying a dataset's folder.

    Attributes:
        problems: messages about files that do not match `SHA256SUMS`, and about invalid or contradictory values.
        remarks: messages about missing files or a missing listing.
        n_evaluations: number of evaluations whose values were checked.
        n_listed: number of files that `SHA256SUMS` lists; None if there is no such file.
        flags: signs of weak attacks, which do not affect `is_valid`; None if they were not requested, or there are
            problems.
    """

    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    n_evaluations: int
    n_listed: int | None
    flags: tuple[AttackFlag, ...] | None

    @property
    def is_valid(self) -> bool:
        return not self.problems

    def to_payload(self) -> dict[str, Any]:
        return {
            "valid": self.is_valid,
            "problems": list(self.problems),
            "remarks": list(self.remarks),
            "evaluations": self.n_evaluations,
            "listed_files": self.n_listed,
            "flags": None if self.flags is None else [flag.to_payload() for flag in self.flags],
        }


def verify_dataset(
    folder: Path,
    *,
    attack_flags: bool = False,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> DatasetVerdict:
    """Check the files of an exported or published dataset; the results folder is not needed.

    If the folder has a listing, each listed file is compared with its SHA-256. If none differs, the reader checks every
    value, and accuracies are compared with confusion matrices.

    Args:
        folder: the dataset's folder.
        attack_flags: whether to search the accuracies for signs of weak attacks.
        on_progress: called after each key with the number of checked keys and the total number of keys.

    Raises:
        ResultsError: the folder has no results, or its listing is invalid or cannot be read.
        FormatVersionError: sweep.json has a format that this version does not know.
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
        return DatasetVerdict(tuple(problems), tuple(remarks), 0, n_listed, None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingFilesWarning)
            dataset = Dataset(folder)
        if absent_keys := dataset.folders[0].absent_keys:
            remarks.append(describe_absent_keys(folder, absent_keys))
        keys = [pair for pair in itertools.product(dataset.data, dataset.keys_all) if dataset.folders[0].has_key(*pair)]
    except ResultsError as error:
        return DatasetVerdict((*problems, str(error)), tuple(remarks), 0, n_listed, None)
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
        remarks=tuple(remarks),
        n_evaluations=n_evaluations,
        n_listed=n_listed,
        flags=None if problems or not attack_flags else _find_attack_flags_of_dataset(dataset),
    )


def _check_key(folder: DatasetFolder, dataset: str, key: str) -> int:
    """Read all files of a key, and return the number of evaluations.

    Raises:
        ResultsError: a file is damaged or has an invalid value, or its accuracies differ from those of another file.
    """
    names = folder.possible_measurements(dataset, key)
    files = {(name, find(dataset, key, name)) for name in names for find in (folder.find_json, folder.find)}
    decimals = _PUBLISHED_DECIMALS if folder.sweep is None else folder.sweep.get("round_to")
    tolerance = _DOUBLE_ERROR if decimals is None else 0.5 * 10.0**-decimals + _DOUBLE_ERROR
    accuracies: dict[tuple[Any, str, float], tuple[float, Path]] = {}
    n_evaluations = 0
    for name, file in sorted((name, file) for name, file in files if file is not None):
        n_rows = 0
        for rows in folder.iter_rows(dataset, key, name, file=file):
            n_rows += len(rows)
            for identity, accuracy in _iter_accuracies(rows, name):
                expected, first_file = accuracies.setdefault(identity, (accuracy, file))
                if not abs(accuracy - expected) <= tolerance:
                    raise ResultsError(
                        f"Verifying failed for {first_file}: expected an accuracy of {accuracy:g} for "
                        f"{format_architecture(identity[0])} at strength {identity[2]:g}, as in {name} of {file}, got "
                        f"{expected:g}. {ADVICE}"
                    )
        n_evaluations = max(n_evaluations, n_rows)
    if (outcomes := folder.find_outcomes(dataset, key)) is not None:
        for strength in folder.strengths(dataset, key):
            folder.read_outcomes(outcomes, strength)
    return n_evaluations


def _iter_accuracies(rows: RowBlock, measurement: str) -> Iterator[tuple[tuple[Any, str, float], float]]:
    """Yield architecture, weights and strength, and the accuracy that a measurement contains or implies."""
    counts = rows.columns.get(COUNTS)
    if counts is not None and counts.dtype.kind == "i":
        # Published matrices may be normalised; their rows sum to 0 or 1.
        has_counts = (counts.sum(axis=2) > 1).any(axis=1)
        rows, counts = rows.take(has_counts), counts[has_counts]
        accuracies = np.trace(counts, axis1=1, axis2=2) / counts.sum(axis=(1, 2))
    elif measurement == "accuracy":
        accuracies = rows.columns["accuracy"]
    else:
        return
    weights = [""] * len(rows) if rows.weights is None else rows.weights.tolist()
    yield from zip(
        zip(rows.architectures.tolist(), weights, rows.strengths.tolist(), strict=True),
        accuracies.tolist(),
        strict=True,
    )


def _find_attack_flags_of_dataset(dataset: Dataset) -> tuple[AttackFlag, ...]:
    n_images = dataset.select().table.groupby("dataset", observed=True)["n_images"].min().dropna()
    return find_attack_flags(
        read_numbers(dataset.path),
        n_images={str(name): int(count) for name, count in n_images.items()},
        n_classes={name: DATASETS[name].n_classes for name in dataset.data if name in DATASETS},
    )
