"""What the page's explorer and scatter plots read: accuracies of every architecture, packed into few bytes."""

import base64
from typing import Any

import numpy as np
import pandas as pd

from robust201.figures.dataset_results import SCORES, DatasetResults, strength_label
from robust201.figures.ranking import best_architecture
from robust201.reader.result_files import kind_of
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.spaces.nasbench201.drawing import OPERATION_LABELS
from robust201.spaces.nasbench201.neighbourhood import EDGE_LABELS, kernel_parameters

RESOLUTION = 10_000
"""Accuracies are packed in units of 1/10,000: exact for 10,000 images; different counts of fewer stay different."""

MISSING = 65_535
"""What stands for an accuracy that was not evaluated."""


def pack_space() -> dict[str, Any]:
    """Describe the search space.

    Returns:
        `operations` and their `labels`, `edges` as pairs of nodes and their `edgeLabels`, `ids` (base64 of 15,625
        uint16, little-endian): the architecture at position Σ operation_e · 5^(5−e) over the edges e, and `isomorphs`
        likewise: the evaluated architecture of each architecture's class.
    """
    codes = {name: code for code, name in enumerate(nasbench201.OPERATIONS)}
    n_operations, n_edges = len(codes), len(nasbench201.EDGES)
    weights = n_operations ** np.arange(n_edges - 1, -1, -1)
    operations = np.array([[codes[name] for name in nasbench201.parse(spec)] for spec in nasbench201.specs()])
    ids = np.empty(nasbench201.N_ARCHITECTURES, dtype="<u2")
    ids[operations @ weights] = np.arange(nasbench201.N_ARCHITECTURES)
    return {
        "operations": list(nasbench201.OPERATIONS),
        "labels": [OPERATION_LABELS[name] for name in nasbench201.OPERATIONS],
        "edges": [list(edge) for edge in nasbench201.EDGES],
        "edgeLabels": list(EDGE_LABELS),
        "ids": _text(ids),
        "isomorphs": _text(np.array(nasbench201.isomorphs(), dtype="<u2")),
    }


def pack_results(results: DatasetResults) -> dict[str, Any]:
    """Pack the accuracies of a dataset.

    Returns:
        `name`; `architectures` (N) uint16 and their `kernelParameters` (N) uint8; `columns`, each with `key`,
        `strength`, `kind` and `label`; `accuracies` (K, N) uint16 in units of 1/`RESOLUTION`, `MISSING` where there is
        none; `scores`, each with `label` and `values` (N) float32, NaN where there is none; `best`, the architecture
        that the explorer opens at. Arrays are base64 of little-endian bytes.
    """
    sizes = [kernel_parameters(results.spec(index)) for index in results.architectures]
    return {
        "name": results.name,
        "architectures": _text(np.array(results.architectures, dtype="<u2")),
        "kernelParameters": _text(np.array(sizes, dtype="u1")),
        "columns": [
            {"key": key, "strength": strength, "kind": kind_of(key), "label": strength_label(key, strength)}
            for key, strength in results.columns
        ],
        "accuracies": _text(pack_accuracies(results.accuracies)),
        "scores": [
            {"name": score, "label": label, "values": _text(results.scores[score].to_numpy("<f4"))}
            for score, label in SCORES.items()
            if score in results.scores
        ],
        "best": best_architecture(results),
    }


def pack_accuracies(accuracies: pd.DataFrame) -> "np.ndarray[Any, np.dtype[np.uint16]]":
    """Round accuracies to units of 1/`RESOLUTION`.

    Args:
        accuracies: (N, K) fractions; NaN where there is none.

    Returns:
        (K, N) little-endian uint16.
    """
    numbers = np.round(accuracies.to_numpy(np.float64).T * RESOLUTION)
    return np.where(np.isnan(numbers), MISSING, numbers).astype("<u2")


def _text(array: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
