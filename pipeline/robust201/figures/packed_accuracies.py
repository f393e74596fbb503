"""What the page's explorer and scatter plots read: accuracies of every architecture, packed into few bytes."""

import base64
from typing import Any

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import ADVERSARIAL, SCORES, DatasetResults
from robust201.analysis.labels import key_label, strength_label
from robust201.figures.figure_data import pareto_front
from robust201.figures.palette import strength_word
from robust201.reader.value_checks import CLEAN
from robust201.spaces.cell_space import CellSpace
from robust201.statistics.intervals import FEW_IMAGES, accuracy_intervals

RESOLUTION = 10_000
"""Accuracies are packed in units of 1/10,000: exact for 10,000 images; different counts of fewer stay different."""

MISSING = 65_535
"""What stands for an accuracy that was not evaluated."""


def pack_space(space: CellSpace) -> dict[str, Any]:
    """Describe a space of N cells with O operations on E edges.

    Returns:
        `operations` and their `labels`, `edges` as pairs of nodes and their `edgeLabels`, `ids` (base64 of N uint16,
        little-endian): the architecture at position Σ operation_e · O^(E−1−e) over the edges e, and `isomorphs`
        likewise: the evaluated architecture of each architecture's class.
    """
    codes = {name: code for code, name in enumerate(space.operations)}
    n_operations, n_edges = len(codes), len(space.edges)
    weights = n_operations ** np.arange(n_edges - 1, -1, -1)
    operations = np.array([[codes[name] for name in space.parse(spec)] for spec in space.specs()])
    ids = np.empty(len(operations), dtype="<u2")
    ids[operations @ weights] = np.arange(len(operations))
    return {
        "operations": list(space.operations),
        "labels": [space.operation_labels[name] for name in space.operations],
        "edges": [list(edge) for edge in space.edges],
        "edgeLabels": list(space.edge_labels),
        "ids": _text(ids),
        "isomorphs": _text(np.array(space.isomorphs(), dtype="<u2")),
    }


def pack_results(results: DatasetResults) -> dict[str, Any]:
    """Pack the accuracies of a dataset.

    Returns:
        `name`; `architectures` (N) uint16 and their `kernelParameters` (N) uint8, or, where they are no cells, the list
        of their ids and null; `columns`, each with `key`, its `name` for people, `strength`, the name of its `axis` and
        `label`; `accuracies` (K, N) uint16 in units of 1/`RESOLUTION`, `MISSING` where there is none; `scores`, each
        with `label` and `values` (N) float32, NaN where there is none; `front` (N) uint8, 1 on the Pareto front of
        clean and mean adversarial accuracy, or null without both; `images`, of how many an accuracy is a share, or null
        where that is not known; `fewCorrect`, the ends of the interval of 0, 1, … correct images as long as these are
        few (see `accuracy_intervals`), those of as few wrong images being their mirror; `best`, the architecture that
        the explorer opens at. Arrays are base64 of little-endian bytes.
    """
    space, architectures = results.space, results.architectures
    cells: dict[str, Any] = {"architectures": list(architectures), "kernelParameters": None}
    if space is not None:
        sizes = [space.kernel_parameters(results.spec(index)) for index in architectures]
        cells = {
            "architectures": _text(np.array(architectures, dtype="<u2")),
            "kernelParameters": _text(np.array(sizes, dtype="u1")),
        }
    scores = results.scores
    both = {CLEAN, ADVERSARIAL} <= set(scores)
    return {
        "name": results.name,
        **cells,
        "columns": [
            {
                "key": key,
                "name": key_label(key),
                "strength": strength,
                "axis": strength_word(key),
                "label": strength_label(key, strength, results.strengths(key)),
            }
            for key, strength in results.columns
        ],
        "accuracies": _text(pack_accuracies(results.accuracies)),
        "scores": [
            {"name": score, "label": label, "values": _text(scores[score].to_numpy("<f4"))}
            for score, label in SCORES.items()
            if score in scores
        ],
        "front": _text(pareto_front(scores[CLEAN], scores[ADVERSARIAL]).astype("u1")) if both else None,
        "images": results.n_images,
        "fewCorrect": [] if results.n_images is None else _few_correct(results.n_images),
        "best": results.best_architecture,
    }


def _few_correct(n_images: int) -> list[list[float]]:
    n_correct = np.arange(min(FEW_IMAGES, n_images + 1))
    ends: list[list[float]] = np.column_stack(accuracy_intervals(n_correct / n_images, n_images)).tolist()
    return ends


def pack_accuracies(accuracies: pd.DataFrame) -> "np.ndarray[Any, np.dtype[np.uint16]]":
    """Round accuracies to units of 1/`RESOLUTION`.

    Returns:
        (K, N) little-endian uint16.
    """
    numbers = np.round(accuracies.to_numpy(np.float64).T * RESOLUTION)
    return np.where(np.isnan(numbers), MISSING, numbers).astype("<u2")


def _text(array: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
