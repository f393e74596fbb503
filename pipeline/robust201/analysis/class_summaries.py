"""What figures show of confidences and confusion matrices: a few numbers per architecture, or a sum over all.

These are the largest files of a dataset: under one key, CIFAR-100's confidences of all architectures are 14 GB of JSON.
Of Parquet only the columns needed are read, a row group at a time; JSON is gone through with some values in memory.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.reader.result_files import ResultFiles, values_by_strength
from robust201.reader.value_checks import are_counts, are_fractions
from robust201.tasks.columns import MEASUREMENTS

Array = NDArray[np.float64]


class _Block(NamedTuple):
    """A part of what is read of a key at a strength, and whose it is, for errors."""

    whose: str
    strength: float
    values: Array
    n_classes: int


CONFIDENCES = ("predicted class, where right", "predicted class, where wrong", "true class")
"""Confidences of all images of an architecture, in the order of the first columns of `iter_class_summaries`."""

CLASS_CONFIDENCES = ("images of the class", "images predicted as the class")
"""Confidences of one class: the published ``label`` and ``argmax``, in the order of the other columns."""


def summarise_classes(
    files: ResultFiles, dataset: str, keys: Sequence[str], measure: str
) -> dict[tuple[str, float], Array]:
    """Read all summaries of `iter_class_summaries`, by key and strength."""
    return {(key, strength): values for key, strength, values in iter_class_summaries(files, dataset, keys, measure)}


def iter_class_summaries(
    files: ResultFiles, dataset: str, keys: Sequence[str], measure: str
) -> Iterator[tuple[str, float, Array]]:
    """Read what figures show of confidences or confusion matrices, with the summaries of one key in memory.

    Yields:
        Key, in their order, strength, ascending, and the summary. Of ``cm`` this is (C, C) float64, the matrices added
        up. Of ``confidence`` it is (N, 3 + 2C) float64 in [0, 1], one row per architecture: `CONFIDENCES` (mean
        confidence in the predicted class where it is right and where it is wrong, and in the true class, its mean over
        classes), and then each of `CLASS_CONFIDENCES` for all classes (mean confidence in class c of images whose true
        class is c, and of images predicted as c); NaN for means over no image. Keys without a file are left out.

    Raises:
        ResultsError: a file is damaged, lacks a strength, or has values of other numbers of classes.
    """
    n_classes: int | None = None
    for key in keys:
        if files.find(dataset, key, measure) is None:
            continue
        file = files.sole_file(dataset, key, measure)
        if file is not None and file.suffix == ".parquet":
            blocks = _parquet_blocks(files, file, dataset, key, measure)
        else:
            blocks = _value_blocks(files, dataset, key, measure)
        found: dict[float, list[Array]] = {}
        for block in blocks:
            n_classes = block.n_classes if n_classes is None else n_classes
            if block.n_classes != n_classes:
                got = f"{n_classes} classes, as those before, got {block.n_classes}"
                raise _unfit(block.whose, files.find(dataset, key, measure), got)
            held = found.setdefault(block.strength, [])
            if measure == "cm" and held:
                held[0] += block.values
            else:
                held.append(block.values)
        for strength in sorted(found):
            yield key, strength, np.concatenate(found[strength]) if measure != "cm" else found[strength][0]


def confidence_quartiles(files: ResultFiles, dataset: str, keys: Sequence[str]) -> pd.DataFrame:
    """Summarise confidences over the architectures.

    Returns:
        One row per key, strength, confidence and class: `key`, `strength`, `confidence` (a name of `CONFIDENCES` with
        `class` -1, or of `CLASS_CONFIDENCES`), `class`, `q1`, `median`, `q3`, `n` (architectures with such images).
        Rows without such an architecture are left out.
    """
    parts = []
    for key, strength, values in iter_class_summaries(files, dataset, keys, "confidence"):
        n_classes = (values.shape[1] - len(CONFIDENCES)) // len(CLASS_CONFIDENCES)
        names = [*CONFIDENCES, *np.repeat(CLASS_CONFIDENCES, n_classes)]
        classes = [-1] * len(CONFIDENCES) + [*range(n_classes)] * len(CLASS_CONFIDENCES)
        part = pd.DataFrame({"key": key, "strength": strength, "confidence": names, "class": classes})
        counts = (~np.isnan(values)).sum(axis=0)
        has_any = counts > 0
        if not has_any.any():
            continue
        quartiles = np.nanquantile(values[:, has_any], (0.25, 0.5, 0.75), axis=0)
        part = part[has_any].assign(**dict(zip(("q1", "median", "q3"), quartiles, strict=True)))
        parts.append(part.assign(n=counts[has_any]))
    columns = ["key", "strength", "confidence", "class", "q1", "median", "q3", "n"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _value_blocks(files: ResultFiles, dataset: str, key: str, measure: str) -> Iterator[_Block]:
    strengths = files.strengths(dataset, key)
    for rows, arrays in files.iter_stacks(dataset, key, measure):
        if arrays is None or len(next(iter(arrays.values()))[0]) != len(strengths):
            for identifier, row in rows.items():
                yield from _blocks_of_value(f"#{identifier} {dataset} {key} {measure}", row, key, strengths, measure)
            continue
        whose = f"#{next(iter(rows))} {dataset} {key} {measure}"
        for number, strength in enumerate(strengths):
            at_strength = {name: array[:, number] for name, array in arrays.items()}
            if measure == "cm":
                matrices = at_strength[""]
                yield _Block(whose, strength, matrices.sum(axis=0), matrices.shape[-1])
            else:
                label, argmax = at_strength["label"], at_strength["argmax"]
                yield _Block(whose, strength, _reduce(label, argmax, at_strength["prediction"]), label.shape[1])


def _blocks_of_value(whose: str, row: Any, key: str, strengths: Sequence[float], measure: str) -> Iterator[_Block]:
    values = [row] if key == "clean" else values_by_strength(row, strengths, whose)
    for strength, value in zip(strengths, values, strict=True):
        if value is None:  # of folders seen as one, none has it
            continue
        if measure == "cm":
            matrix = np.array(value, dtype=np.float64)
            yield _Block(whose, strength, matrix, len(matrix))
        else:
            label, argmax, prediction = (
                np.array(value[name], dtype=np.float64)[None] for name in ("label", "argmax", "prediction")
            )
            yield _Block(whose, strength, _reduce(label, argmax, prediction), label.shape[1])


def _parquet_blocks(files: ResultFiles, file: Path, dataset: str, key: str, measure: str) -> Iterator[_Block]:
    from robust201.reader.parquet_results import iter_matrices

    whose = f"{dataset} {key} {measure}"
    planned = files.planned(dataset)
    known = None if planned is None else {*files.strengths(dataset, key)}
    columns = MEASUREMENTS[measure]
    matrix_columns = [columns[name].name for name in ([""] if measure == "cm" else ["label", "argmax"])]
    others = [] if measure == "cm" else [*columns["prediction"].parquet]
    names = ["architecture", "strength", *others]
    parts: list[pd.DataFrame] = []
    for (architectures, strengths, *numbers), matrices in iter_matrices(
        file, matrix_columns, names, missing_ok=measure != "cm", weights=files.weights
    ):
        parts.append(pd.DataFrame({"architecture": architectures, "strength": strengths}))
        different = np.unique(strengths)
        if not np.isfinite(different).all() or (known is not None and not known.issuperset(different.tolist())):
            raise _unfit(whose, file, "the strengths of the dataset, got others")
        predictions = np.array(numbers).T
        if measure == "cm" and not are_counts(matrices[0]):
            raise _unfit(whose, file, "counts, got other numbers")
        if measure != "cm" and not all(are_fractions(values) for values in (*matrices, predictions)):
            raise _unfit(whose, file, "confidences in [0, 1], got others")
        summaries = matrices[0] if measure == "cm" else _reduce(matrices[0], matrices[1], predictions)
        for strength in different:
            values = summaries[strengths == strength]
            values = values.sum(axis=0, dtype=np.float64) if measure == "cm" else values
            yield _Block(whose, float(strength), values, matrices[0].shape[-1])
    if parts and pd.concat(parts).duplicated().any():
        raise _unfit(whose, file, "an architecture at a strength once, got one twice")


def _reduce(label: NDArray[Any], argmax: NDArray[Any], predictions: Array) -> Array:
    """Reduce matrices (B, C, C) and predictions (B, 2) to (B, 3 + 2C); see `iter_class_summaries`."""
    true, predicted = (np.ascontiguousarray(np.diagonal(matrix, axis1=1, axis2=2)) for matrix in (label, argmax))
    held = ~np.isnan(true)
    counts = held.sum(axis=1)
    sums = np.where(held, true, 0.0).sum(axis=1)
    means = np.divide(sums, counts, out=np.full(len(true), np.nan), where=counts > 0)
    return np.column_stack([predictions, means, true, predicted])


def _unfit(whose: str, file: Path | None, expected: str) -> ResultsError:
    return ResultsError(f"Reading {whose} failed for {file}: expected {expected}. Export or download it again.")
