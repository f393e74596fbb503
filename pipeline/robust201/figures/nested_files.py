"""What the figures need of confidences and confusion matrices: a few numbers an architecture, or a sum over all.

The files are the largest of a dataset: under one key, CIFAR-100's confidences of all architectures are 14 GB of JSON.
Each is read once, a row or row group at a time, by as many processes as asked for, and each process takes one file.
Where an export has the Parquet file beside the JSON file, the former is read, and of it only the columns needed. What
no figure shows, confidences by predicted class, is not looked at.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.figures.confidence_text import TextConfidences, find_confidences
from robust201.reader.reading_pool import map_jobs
from robust201.reader.result_files import ResultFiles, kind_of, values_by_strength
from robust201.reader.value_checks import are_counts, are_fractions, check_row, make_array

MIN_POOLED_BYTES = 1 << 28
"""Files that are smaller together are read faster by this process than others start."""

Array = NDArray[np.float64]
Block = tuple[str, float, Array, int]
"""Whose, for errors, a strength, a part of what a `FileSummary` holds of it, and the number of classes."""


@dataclass(frozen=True)
class FileJob:
    """One file to read.

    Attributes:
        files: the folder.
        dataset: name of the dataset.
        key: in the folder's spelling.
        measure: ``"confidence"`` or ``"cm"``.
    """

    files: ResultFiles
    dataset: str
    key: str
    measure: str

    def find(self) -> Path:
        """Find the file; of JSON and Parquet the latter.

        Raises:
            ResultsError: there is none.
        """
        file = self.files.find(self.dataset, self.key, self.measure, parquet_first=True)
        if file is None:
            raise self.files.absence(self.dataset, self.key, self.measure)
        return file

    def run(self) -> "FileSummary":
        """Read the file (see `summarise_files`)."""
        file = self.find()
        blocks = self._parquet_blocks(file) if file.suffix == ".parquet" else self._json_blocks(file)
        found: dict[float, list[Array]] = {}
        n_classes: int | None = None
        for whose, strength, values, n_here in blocks:
            n_classes = n_here if n_classes is None else n_classes
            if n_here != n_classes:
                raise other_classes(whose, file, n_classes, n_here)
            held = found.setdefault(strength, [])
            if self.measure == "cm" and held:
                held[0] += values
            else:
                held.append(values)
        joined = {s: held[0] if self.measure == "cm" else np.concatenate(held) for s, held in found.items()}
        return FileSummary(file, self.key, n_classes, dict(sorted(joined.items())))

    def _json_blocks(self, file: Path) -> Iterator[Block]:
        strengths: Sequence[float] = self.files.strengths(self.dataset, self.key)
        clean = kind_of(self.key) == "clean"
        reduce = _matrix_of if self.measure == "cm" else _confidences_of
        take = None if self.measure == "cm" else partial(find_confidences, listed=not clean)
        for index, row in self.files.iter_rows(self.dataset, self.key, self.measure, checked=False, take=take):
            whose = f"#{index} {self.dataset} {self.key} {self.measure}"
            if isinstance(row, TextConfidences):
                parts = list(_reduce_confidences(*row)[:, None])
                for strength, part in zip(strengths, values_by_strength(parts, strengths, whose), strict=True):
                    yield whose, float(strength), part, row.true.shape[1]
                continue
            values = [row] if clean else row
            fits = isinstance(values, list) and len(values) == len(strengths)
            found = [pair for value in values if (pair := reduce(value)) is not None] if fits else []
            if len(found) < len(strengths):
                # The checks say what is wrong, unless it is but the other way to nest strengths.
                check_row(file, self.key, self.measure, index, row)
                values = values_by_strength(row, strengths, whose)
                found = [pair for value in values if (pair := reduce(value)) is not None]
            for strength, (part, n_classes) in zip(strengths, found, strict=True):
                yield whose, float(strength), part, n_classes

    def _parquet_blocks(self, file: Path) -> Iterator[Block]:
        from robust201.reader.parquet_results import iter_matrices

        column = "cm" if self.measure == "cm" else "confidence_label"
        others = [] if self.measure == "cm" else ["confidence_correct", "confidence_incorrect"]
        whose = f"{self.dataset} {self.key} {self.measure}"
        names = ["architecture", "strength", *others]
        seen: set[tuple[float, float]] = set()
        for (architectures, strengths, *numbers), matrices in iter_matrices(
            file, column, names, missing_ok=self.measure != "cm"
        ):
            rows = set(zip(architectures.tolist(), strengths.tolist(), strict=True))
            if len(rows) < len(matrices) or not rows.isdisjoint(seen):
                raise _unfit(whose, file, "an architecture at a strength once", "one twice")
            seen |= rows
            self._check_parquet(whose, file, strengths, np.array(numbers), matrices)
            n_classes = matrices.shape[-1]
            for strength in np.unique(strengths):
                own = strengths == strength
                chosen = matrices[own]
                if self.measure == "cm":
                    yield whose, float(strength), chosen.sum(axis=0), n_classes
                else:
                    true = np.diagonal(chosen, axis1=1, axis2=2)
                    yield whose, float(strength), _reduce_confidences(true, np.array(numbers).T[own]), n_classes

    def _check_parquet(self, whose: str, file: Path, strengths: Array, numbers: Array, matrices: NDArray[Any]) -> None:
        """Hold a row group to what `check_row` holds JSON to."""
        planned = self.files.planned(self.dataset)
        known = None if planned is None else {*self.files.strengths(self.dataset, self.key)}
        if not np.isfinite(strengths).all() or (known is not None and not known.issuperset(strengths.tolist())):
            raise _unfit(whose, file, "the strengths of the dataset", "others")
        if self.measure == "cm" and not are_counts(matrices):
            raise _unfit(whose, file, "counts", "other numbers")
        if self.measure != "cm" and not (are_fractions(matrices) and are_fractions(numbers)):
            raise _unfit(whose, file, "confidences in [0, 1]", "others")


@dataclass(frozen=True)
class FileSummary:
    """What was read of one file.

    Attributes:
        file: the file.
        key: in the folder's spelling.
        n_classes: number of classes C; None of an empty file.
        by_strength: at each strength, ascending, of ``cm`` (C, C) float64, the matrices added up, and of ``confidence``
            (N, 3) float64 in [0, 1]: by architecture the mean confidence in the predicted class where it is right and
            where it is wrong, and in the true class (its mean over classes); NaN for means over no image.
    """

    file: Path
    key: str
    n_classes: int | None
    by_strength: dict[float, Array]


def summarise_files(
    files: ResultFiles, dataset: str, keys: Sequence[str], measure: str, *, processes: int = 1
) -> list[FileSummary]:
    """Read what figures show of a large measurement.

    Args:
        files: the folder.
        dataset: name of the dataset.
        keys: in the folder's spelling; those without a file are left out.
        measure: ``"confidence"`` or ``"cm"``.
        processes: files read at once, each by a process of its own where they are large (see `map_jobs`).

    Returns:
        One summary a file, in the order of the keys.

    Raises:
        ResultsError: a file is damaged, lacks a strength, or has values of other numbers of classes.
    """
    jobs = [
        FileJob(files, dataset, key, measure)
        for key in keys
        if files.find(dataset, key, measure, parquet_first=True) is not None
    ]
    n_bytes = sum(job.find().stat().st_size for job in jobs)
    files.forget()
    summaries: list[FileSummary] = map_jobs(run_job, jobs, processes if n_bytes >= MIN_POOLED_BYTES else 1)
    n_classes: int | None = None
    for summary in summaries:
        if n_classes is not None and summary.n_classes not in (None, n_classes):
            raise other_classes(f"{dataset} {summary.key} {measure}", summary.file, n_classes, summary.n_classes)
        n_classes = n_classes or summary.n_classes
    return summaries


def run_job(job: FileJob) -> FileSummary:
    """Read one file (see `FileJob.run`)."""
    return job.run()


def other_classes(what: str, file: Path, expected: int, got: int | None) -> ResultsError:
    """Make the error of values of another number of classes than those before."""
    return ResultsError(
        f"Reading {what} failed for {file}: expected {expected} classes, as those before, got {got}. "
        "Export or download it again."
    )


def _unfit(whose: str, file: Path, expected: str, got: str) -> ResultsError:
    return ResultsError(
        f"Reading {whose} failed for {file}: expected {expected}, got {got}. Export or download it again."
    )


def _matrix_of(value: Any) -> tuple[Array, int] | None:
    """Make a matrix and its number of classes of a value of ``"cm"``; None where it is something else."""
    matrix = make_array(value, missing_ok=False)
    if matrix is None or matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not are_counts(matrix):
        return None
    return matrix.astype(np.float64), len(matrix)


def _confidences_of(value: Any) -> tuple[Array, int] | None:
    """Reduce a value of ``"confidence"`` to (1, 3), with its number of classes; None where it is something else."""
    if not isinstance(value, dict):
        return None
    label, prediction = (make_array(value.get(name), missing_ok=True) for name in ("label", "prediction"))
    if label is None or label.ndim != 2 or label.shape[0] != label.shape[1]:
        return None
    if prediction is None or prediction.shape != (2,) or not (are_fractions(label) and are_fractions(prediction)):
        return None
    return _reduce_confidences(np.diag(label)[None], prediction[None].astype(np.float64)), len(label)


def _reduce_confidences(true: NDArray[Any], predictions: Array) -> Array:
    """Reduce confidences in the true class (B, C) and predictions (B, 2) to (B, 3); see `FileSummary`."""
    held = ~np.isnan(true)
    counts = held.sum(axis=1)
    sums = np.where(held, true, 0.0).sum(axis=1)
    means = np.divide(sums, counts, out=np.full(len(true), np.nan), where=counts > 0)
    return np.column_stack([predictions, means])
