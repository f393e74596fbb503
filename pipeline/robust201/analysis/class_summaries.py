"""Confidences and confusion matrices for figures: a few numbers per architecture, or a sum over all architectures.

The files of confidences and confusion matrices are the largest of a dataset: the confidences of all architectures on
CIFAR-100 under one key are 14 GB of JSON. Therefore Parquet files are read by row group and only in the necessary
columns, and JSON files are parsed as a stream.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from robust201.core.errors import ResultsError
from robust201.dataset.reader import Dataset

Array = NDArray[np.float64]

CONFIDENCES = ("predicted class, where right", "predicted class, where wrong", "true class")
"""Mean confidences of an architecture over the images of all classes: the first columns of `iter_class_summaries`."""

CLASS_CONFIDENCES = ("images of the class", "images predicted as the class")
"""Mean confidences of an architecture in one class: the other columns of `iter_class_summaries`.

The published files contain them as ``label`` and ``argmax``.
"""


def summarise_classes(
    reader: Dataset, dataset: str, keys: Sequence[str], measure: str
) -> dict[tuple[str, float], Array]:
    """Return the summaries of `iter_class_summaries` by key and strength."""
    return {(key, strength): values for key, strength, values in iter_class_summaries(reader, dataset, keys, measure)}


def iter_class_summaries(
    reader: Dataset, dataset: str, keys: Sequence[str], measure: str
) -> Iterator[tuple[str, float, Array]]:
    """Iterate over the summaries that figures show, with the values of only one key in memory at a time.

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
    for key in (key for key in keys if reader.has(dataset, key, measure)):
        summaries: dict[float, list[Array]] = {}
        for rows in reader.iter_rows(dataset, key, measure):
            matrices = next(iter(rows.columns.values()))
            n_classes = n_classes or matrices.shape[-1]
            if matrices.shape[-1] != n_classes:
                raise ResultsError(
                    f"Reading {dataset} {key} {measure} failed for {reader.path}: expected {n_classes} classes, as in "
                    f"other values, got {matrices.shape[-1]}. Export or download the file again."
                )
            values = matrices if measure == "cm" else _summarise_confidences(*rows.columns.values())
            for strength in np.unique(rows.strengths).tolist():
                block = values[rows.strengths == strength]
                block = block.sum(axis=0, dtype=np.float64, keepdims=True) if measure == "cm" else block
                summaries.setdefault(strength, []).append(block)
        for strength in sorted(summaries):
            blocks = np.concatenate(summaries[strength])
            yield key, strength, blocks.sum(axis=0) if measure == "cm" else blocks


def confidence_quartiles(reader: Dataset, dataset: str, keys: Sequence[str]) -> pd.DataFrame:
    """Summarise confidences over the architectures.

    Returns:
        One row per key, strength, confidence and class: `key`, `strength`, `confidence` (one of `CONFIDENCES` or
        `CLASS_CONFIDENCES`), `class` (-1 for `CONFIDENCES`), `q1`, `median`, `q3`, `n` (number of architectures that
        have images to average over). Rows with an `n` of 0 are left out.
    """
    frames = []
    for key, strength, values in iter_class_summaries(reader, dataset, keys, "confidence"):
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


def _summarise_confidences(label: NDArray[Any], argmax: NDArray[Any], prediction_means: Array) -> Array:
    """Summarise confidences in two matrices (B, C, C), and their means in predicted classes (B, 2), as (B, 3 + 2C)."""
    true_confidences, predicted_confidences = (
        np.ascontiguousarray(np.diagonal(matrix, axis1=1, axis2=2)) for matrix in (label, argmax)
    )
    has_images = ~np.isnan(true_confidences)
    n_terms = has_images.sum(axis=1)
    sums = np.where(has_images, true_confidences, 0.0).sum(axis=1)
    means = np.divide(sums, n_terms, out=np.full(len(true_confidences), np.nan), where=n_terms > 0)
    return np.column_stack([prediction_means, means, true_confidences, predicted_confidences])
