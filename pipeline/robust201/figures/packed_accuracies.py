"""Compact encoding of the accuracies of all architectures, for the report's explorer and scatter plots."""

import base64
from typing import Any

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import ADVERSARIAL, SCORES, DatasetResults
from robust201.analysis.labels import key_label, strength_label
from robust201.figures.figure_data import pareto_front
from robust201.figures.palette import strength_axis_title
from robust201.reader.value_checks import CLEAN
from robust201.spaces.cell_space import CellSpace
from robust201.statistics.intervals import FEW_IMAGES, accuracy_intervals

RESOLUTION = 10_000
"""Accuracies are stored in units of 1/10,000. This is exact for 10,000 images. For fewer images, accuracies are
rounded, but different accuracies still have different codes."""

MISSING = 65_535
"""Code of an accuracy that was not evaluated."""


def pack_space(space: CellSpace) -> dict[str, Any]:
    """Encode a space of N cells with O operations on E edges.

    Returns:
        A dict with these fields:

        - `operations` and their `labels`.
        - `edges` as pairs of nodes, and their `edgeLabels`.
        - `ids`: base64 of N little-endian uint16. The architecture with operation o_e on every edge e is at position
          Σ o_e · O^(E−1−e).
        - `isomorphs`: the representative of each architecture's isomorphism class, in the same encoding.
    """
    codes = {name: code for code, name in enumerate(space.operations)}
    n_operations, n_edges = len(codes), len(space.edges)
    place_values = n_operations ** np.arange(n_edges - 1, -1, -1)
    operations = np.array([[codes[name] for name in space.parse(spec)] for spec in space.specs()])
    ids = np.empty(len(operations), dtype="<u2")
    ids[operations @ place_values] = np.arange(len(operations))
    return {
        "operations": list(space.operations),
        "labels": [space.operation_labels[name] for name in space.operations],
        "edges": [list(edge) for edge in space.edges],
        "edgeLabels": list(space.edge_labels),
        "ids": _encode_base64(ids),
        "isomorphs": _encode_base64(np.array(space.isomorphs(), dtype="<u2")),
    }


def pack_results(results: DatasetResults) -> dict[str, Any]:
    """Encode the accuracies of a dataset.

    Returns:
        A dict with these fields (arrays are base64 of little-endian bytes):

        - `name`: name of the dataset.
        - `architectures`, `kernelParameters`: (N) uint16 and (N) uint8; if architectures are not cells, a list of ids
          and null.
        - `columns`: for each evaluation, its `key`, the key's label `name`, `strength`, the title of its `axis` and
          its `label`.
        - `accuracies`: (K, N) uint16 in units of 1/`RESOLUTION`, or `MISSING`.
        - `scores`: for each score, its `name`, `label` and `values` (N) float32, NaN if missing.
        - `front`: (N) uint8, 1 on the Pareto front of clean and mean adversarial accuracy; null if either is missing.
        - `images`: number of images per accuracy, or null if unknown.
        - `fewCorrect`: intervals for 0, 1, … correct images, for all numbers that `accuracy_intervals` treats as few.
          The intervals for few wrong images are their mirror images.
        - `best`: the architecture that the explorer shows first.
    """
    space, architectures = results.space, results.architectures
    architecture_fields: dict[str, Any] = {"architectures": list(architectures), "kernelParameters": None}
    if space is not None:
        sizes = [space.kernel_parameters(results.spec(index)) for index in architectures]
        architecture_fields = {
            "architectures": _encode_base64(np.array(architectures, dtype="<u2")),
            "kernelParameters": _encode_base64(np.array(sizes, dtype="u1")),
        }
    scores = results.scores
    has_front_scores = {CLEAN, ADVERSARIAL} <= set(scores)
    return {
        "name": results.name,
        **architecture_fields,
        "columns": [
            {
                "key": key,
                "name": key_label(key),
                "strength": strength,
                "axis": strength_axis_title(key),
                "label": strength_label(key, strength, results.strengths(key)),
            }
            for key, strength in results.columns
        ],
        "accuracies": _encode_base64(pack_accuracies(results.accuracies)),
        "scores": [
            {"name": score, "label": label, "values": _encode_base64(scores[score].to_numpy("<f4"))}
            for score, label in SCORES.items()
            if score in scores
        ],
        "front": _encode_base64(pareto_front(scores[CLEAN], scores[ADVERSARIAL]).astype("u1"))
        if has_front_scores
        else None,
        "images": results.n_images,
        "fewCorrect": [] if results.n_images is None else _intervals_of_few_correct(results.n_images),
        "best": results.best_architecture,
    }


def _intervals_of_few_correct(n_images: int) -> list[list[float]]:
    n_correct = np.arange(min(FEW_IMAGES, n_images + 1))
    intervals: list[list[float]] = np.column_stack(accuracy_intervals(n_correct / n_images, n_images)).tolist()
    return intervals


def pack_accuracies(accuracies: pd.DataFrame) -> "np.ndarray[Any, np.dtype[np.uint16]]":
    """Round accuracies to units of 1/`RESOLUTION`.

    Returns:
        (K, N) little-endian uint16.
    """
    scaled_accuracies = np.round(accuracies.to_numpy(np.float64).T * RESOLUTION)
    return np.where(np.isnan(scaled_accuracies), MISSING, scaled_accuracies).astype("<u2")


def _encode_base64(array: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
