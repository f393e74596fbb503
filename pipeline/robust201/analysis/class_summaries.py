"""Confidences and confusion matrices for figures: a few numbers per architecture, or a sum over all architectures.

The files of confidences and confusion matrices are the largest of a dataset: the confidences of all architectures on
CIFAR-100 under one key are 14 GB of JSON. Therefore Parquet files are read by row group and only in the necessary
columns, and JSON files are parsed as a stream.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.reader.result_files import ResultFiles, list_values_per_strength
from robust201.reader.value_checks import are_counts, are_fractions
from robust201.tasks.columns import MEASUREMENTS

Array = NDArray[np.float64]


class _Block(NamedTuple):
    """The values of some architectures under one key at one strength; `source` describes them in error messages."""

    source: str
    strength: float
    values: Array
    n_classes: int


CONFIDENCES = ("predicted class, where right", "predicted class, where wrong", "true class")
"""Mean confidences of an architecture over the images of all classes: the first columns of `iter_class_summaries`."""

CLASS_CONFIDENCES = ("images of the class", "images predicted as the class")
"""Mean confidences of an architecture in one class: the other columns of `iter_class_summaries`.

The published files contain them as ``label`` and ``argmax``.
"""


def summarise_classes(
    files: ResultFiles, dataset: str, keys: Sequence[str], measure: str
) -> dict[tuple[str, float], Array]:
    """Return the summaries of `iter_class_summaries` by key and strength."""
    return {(key, strength): values for key, strength, values in iter_class_summaries(files, dataset, keys, measure)}


def iter_class_summaries(
    files: ResultFiles, dataset: str, keys: Sequence[str], measure: str
) -> Iterator[tuple[str, float, Array]]:
    """Iterate over the summaries that figures show.

    Only the values of one key are in memory at a time.

    Yields:
        Key, strength and summary, in the order of `keys` and of ascending strengths. For ``cm``, the summary is the sum
        of the matrices, (C, C) float64. For ``confidence``, it is (N, 3 + 2C) float64 in [0, 1] with one row per
        architecture. The first columns are `CONFIDENCES`: the mean confidence in the predicted class over correctly
        classified images, the same over misclassified images, and the mean over classes of the confidence in the true
        class. The other columns are `CLASS_CONFIDENCES`, each for all classes: the mean confidence in class c over the
        images of class c, and over the images that are predicted as c. Means are NaN if there are no such images. Keys
        without a file are left out.

    Raises:
        ResultsError: a file is damaged, lacks a strength, or has values with different numbers of classes.
    """
    n_classes: int | None = None
    for key in keys:
        if files.find(dataset, key, measure) is None:
            continue
        file = files.find_sole_file(dataset, key, measure)
        if file is not None and file.suffix == ".parquet":
            blocks = _iter_parquet_blocks(files, file, dataset, key, measure)
        else:
            blocks = _iter_json_blocks(files, dataset, key, measure)
        summaries: dict[float, list[Array]] = {}
        for block in blocks:
            n_classes = block.n_classes if n_classes is None else n_classes
            if block.n_classes != n_classes:
                expected = f"{n_classes} classes as in other values, got {block.n_classes}"
                raise _invalid_values_error(block.source, files.find(dataset, key, measure), expected)
            blocks_at_strength = summaries.setdefault(block.strength, [])
            if measure == "cm" and blocks_at_strength:
                blocks_at_strength[0] += block.values
            else:
                blocks_at_strength.append(block.values)
        for strength in sorted(summaries):
            yield key, strength, np.concatenate(summaries[strength]) if measure != "cm" else summaries[strength][0]


def confidence_quartiles(files: ResultFiles, dataset: str, keys: Sequence[str]) -> pd.DataFrame:
    """Summarise confidences over the architectures.

    Returns:
        One row per key, strength, confidence and class: `key`, `strength`, `confidence` (one of
        `CONFIDENCES` or `CLASS_CONFIDENCES`), `class` (-1 for `CONFIDENCES`), `q1`, `median`, `q3`, `n` (number of
        architectures that have images of this kind).
        Rows with `n` 0 are left out.
    """
    frames = []
    for key, strength, values in iter_class_summaries(files, dataset, keys, "confidence"):
        n_classes = (values.shape[1] - len(CONFIDENCES)) // len(CLASS_CONFIDENCES)
        confidence_names = [*CONFIDENCES, *np.repeat(CLASS_CONFIDENCES, n_classes)]
        classes = [-1] * len(CONFIDENCES) + [*range(n_classes)] * len(CLASS_CONFIDENCES)
        frame = pd.DataFrame({"key": key, "strength": strength, "confidence": confidence_names, "class": classes})
        n_architectures = (~np.isnan(values)).sum(axis=0)
        has_values = n_architectures > 0
        if not has_values.any():
            continue
        quartiles = np.nanquantile(values[:, has_values], (0.25, 0.5, 0.75), axis=0)
        frame = frame[has_values].assign(**dict(zip(("q1", "median", "q3"), quartiles, strict=True)))
        frames.append(frame.assign(n=n_architectures[has_values]))
    columns = ["key", "strength", "confidence", "class", "q1", "median", "q3", "n"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def _iter_json_blocks(files: ResultFiles, dataset: str, key: str, measure: str) -> Iterator[_Block]:
    strengths = files.strengths(dataset, key)
    for rows, arrays in files.iter_stacks(dataset, key, measure):
        if arrays is None or len(next(iter(arrays.values()))[0]) != len(strengths):
            for identifier, architecture_value in rows.items():
                yield from _split_value(
                    f"#{identifier} {dataset} {key} {measure}", architecture_value, key, strengths, measure
                )
            continue
        source = f"#{next(iter(rows))} {dataset} {key} {measure}"
        for strength_index, strength in enumerate(strengths):
            arrays_at_strength = {name: array[:, strength_index] for name, array in arrays.items()}
            if measure == "cm":
                matrices = arrays_at_strength[""]
                yield _Block(source, strength, matrices.sum(axis=0), matrices.shape[-1])
            else:
                label, argmax = arrays_at_strength["label"], arrays_at_strength["argmax"]
                yield _Block(
                    source,
                    strength,
                    _summarise_confidences(label, argmax, arrays_at_strength["prediction"]),
                    label.shape[1],
                )


def _split_value(
    source: str, architecture_value: Any, key: str, strengths: Sequence[float], measure: str
) -> Iterator[_Block]:
    values_of_strengths = (
        [architecture_value] if key == "clean" else list_values_per_strength(architecture_value, strengths, source)
    )
    for strength, value in zip(strengths, values_of_strengths, strict=True):
        if value is None:  # none of the combined folders has this value
            continue
        if measure == "cm":
            matrix = np.array(value, dtype=np.float64)
            yield _Block(source, strength, matrix, len(matrix))
        else:
            label, argmax, prediction = (
                np.array(value[name], dtype=np.float64)[None] for name in ("label", "argmax", "prediction")
            )
            yield _Block(source, strength, _summarise_confidences(label, argmax, prediction), label.shape[1])


def _iter_parquet_blocks(files: ResultFiles, file: Path, dataset: str, key: str, measure: str) -> Iterator[_Block]:
    from robust201.reader.parquet_results import iter_matrices

    source = f"{dataset} {key} {measure}"
    has_plan = files.find_planned_strengths(dataset) is not None
    planned_strengths = {*files.strengths(dataset, key)} if has_plan else None
    columns = MEASUREMENTS[measure]
    matrix_columns = [columns[name].name for name in ([""] if measure == "cm" else ["label", "argmax"])]
    prediction_columns = [] if measure == "cm" else [*columns["prediction"].parquet]
    column_names = ["architecture", "strength", *prediction_columns]
    row_ids: list[pd.DataFrame] = []
    for (architectures, strengths, *prediction_values), matrices in iter_matrices(
        file, matrix_columns, column_names, missing_ok=measure != "cm", weights=files.weights
    ):
        row_ids.append(pd.DataFrame({"architecture": architectures, "strength": strengths}))
        unique_strengths = np.unique(strengths)
        if not np.isfinite(unique_strengths).all() or (
            planned_strengths is not None and not planned_strengths.issuperset(unique_strengths.tolist())
        ):
            raise _invalid_values_error(source, file, "strengths of the dataset, got other strengths")
        predictions = np.array(prediction_values).T
        if measure == "cm" and not are_counts(matrices[0]):
            raise _invalid_values_error(source, file, "counts, got other numbers")
        if measure != "cm" and not all(are_fractions(values) for values in (*matrices, predictions)):
            raise _invalid_values_error(source, file, "confidences in [0, 1], got other values")
        summaries = matrices[0] if measure == "cm" else _summarise_confidences(matrices[0], matrices[1], predictions)
        for strength in unique_strengths:
            values_at_strength = summaries[strengths == strength]
            values_at_strength = (
                values_at_strength.sum(axis=0, dtype=np.float64) if measure == "cm" else values_at_strength
            )
            yield _Block(source, float(strength), values_at_strength, matrices[0].shape[-1])
    if row_ids and pd.concat(row_ids).duplicated().any():
        raise _invalid_values_error(source, file, "one row per architecture and strength, got a duplicate")


def _summarise_confidences(label: NDArray[Any], argmax: NDArray[Any], predictions: Array) -> Array:
    """Summarise matrices (B, C, C) and predictions (B, 2) as (B, 3 + 2C); see `iter_class_summaries`."""
    true_confidences, predicted_confidences = (
        np.ascontiguousarray(np.diagonal(matrix, axis1=1, axis2=2)) for matrix in (label, argmax)
    )
    is_known = ~np.isnan(true_confidences)
    n_known_classes = is_known.sum(axis=1)
    sums = np.where(is_known, true_confidences, 0.0).sum(axis=1)
    means = np.divide(sums, n_known_classes, out=np.full(len(true_confidences), np.nan), where=n_known_classes > 0)
    return np.column_stack([predictions, means, true_confidences, predicted_confidences])


def _invalid_values_error(source: str, file: Path | None, expected: str) -> ResultsError:
    return ResultsError(f"Reading {source} failed for {file}: expected {expected}. Export or download the file again.")
