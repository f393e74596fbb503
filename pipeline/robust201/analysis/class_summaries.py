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


def summarise_classes(
    files: ResultFiles, dataset: str, keys: Sequence[str], measure: str
) -> dict[tuple[str, float], Array]:
    """Read what figures show of confidences or confusion matrices.

    Returns:
        By key, in their order, and strength, ascending, of ``cm`` (C, C) float64, the matrices added up, and of
        ``confidence`` (N, 3) float64 in [0, 1]: by architecture the mean confidence in the predicted class where it is
        right and where it is wrong, and in the true class (its mean over classes); NaN for means over no image. Keys
        without a file are left out.

    Raises:
        ResultsError: a file is damaged, lacks a strength, or has values of other numbers of classes.
    """
    summaries: dict[tuple[str, float], Array] = {}
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
            summaries[key, strength] = np.concatenate(found[strength]) if measure != "cm" else found[strength][0]
    return summaries


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
                true = np.ascontiguousarray(np.diagonal(at_strength["label"], axis1=1, axis2=2))
                yield _Block(whose, strength, _reduce(true, at_strength["prediction"]), true.shape[1])


def _blocks_of_value(whose: str, row: Any, key: str, strengths: Sequence[float], measure: str) -> Iterator[_Block]:
    values = [row] if key == "clean" else values_by_strength(row, strengths, whose)
    for strength, value in zip(strengths, values, strict=True):
        if value is None:  # of folders seen as one, none has it
            continue
        if measure == "cm":
            matrix = np.array(value, dtype=np.float64)
            yield _Block(whose, strength, matrix, len(matrix))
        else:
            label, prediction = (np.array(value[name], dtype=np.float64) for name in ("label", "prediction"))
            yield _Block(whose, strength, _reduce(np.diag(label)[None], prediction[None]), len(label))


def _parquet_blocks(files: ResultFiles, file: Path, dataset: str, key: str, measure: str) -> Iterator[_Block]:
    from robust201.reader.parquet_results import iter_matrices

    whose = f"{dataset} {key} {measure}"
    planned = files.planned(dataset)
    known = None if planned is None else {*files.strengths(dataset, key)}
    columns = MEASUREMENTS[measure]
    column = columns["" if measure == "cm" else "label"].name
    others = [] if measure == "cm" else [*columns["prediction"].parquet]
    names = ["architecture", "strength", *others]
    parts: list[pd.DataFrame] = []
    for (architectures, strengths, *numbers), matrices in iter_matrices(
        file, column, names, missing_ok=measure != "cm", weights=files.weights
    ):
        parts.append(pd.DataFrame({"architecture": architectures, "strength": strengths}))
        different = np.unique(strengths)
        if not np.isfinite(different).all() or (known is not None and not known.issuperset(different.tolist())):
            raise _unfit(whose, file, "the strengths of the dataset, got others")
        predictions = np.array(numbers).T
        if measure == "cm" and not are_counts(matrices):
            raise _unfit(whose, file, "counts, got other numbers")
        if measure != "cm" and not (are_fractions(matrices) and are_fractions(predictions)):
            raise _unfit(whose, file, "confidences in [0, 1], got others")
        summaries = matrices if measure == "cm" else _reduce(np.diagonal(matrices, axis1=1, axis2=2), predictions)
        for strength in different:
            values = summaries[strengths == strength]
            values = values.sum(axis=0, dtype=np.float64) if measure == "cm" else values
            yield _Block(whose, float(strength), values, matrices.shape[-1])
    if parts and pd.concat(parts).duplicated().any():
        raise _unfit(whose, file, "an architecture at a strength once, got one twice")


def _reduce(true: NDArray[Any], predictions: Array) -> Array:
    """Reduce confidences in the true class (B, C) and predictions (B, 2) to (B, 3); see `summarise_classes`."""
    held = ~np.isnan(true)
    counts = held.sum(axis=1)
    sums = np.where(held, true, 0.0).sum(axis=1)
    means = np.divide(sums, counts, out=np.full(len(true), np.nan), where=counts > 0)
    return np.column_stack([predictions, means])


def _unfit(whose: str, file: Path | None, expected: str) -> ResultsError:
    return ResultsError(f"Reading {whose} failed for {file}: expected {expected}. Export or download it again.")
