"""The data of the report's page: everything that its script shows is computed here."""

import base64
from typing import Any

import numpy as np
import pandas as pd

from robust201.analysis.dataset_results import SCORES, DatasetResults
from robust201.analysis.labels import key_label, strength_label
from robust201.analysis.ranking import Ranking, order_networks
from robust201.core.records import ArchitectureId
from robust201.networks.spaces import CellSpace
from robust201.statistics.intervals import accuracy_intervals

RESOLUTION = 10_000
"""Accuracies are stored in units of 1/10,000. This is exact for 10,000 images. For fewer images, accuracies are
rounded, but different accuracies still have different codes."""

MISSING = 65_535
"""Code of an accuracy that was not evaluated."""


def pack_space(space: CellSpace) -> dict[str, Any]:
    """Return the representative of each cell's isomorphism class, base64 of little-endian uint16, as `isomorphs`."""
    return {"isomorphs": _encode_base64(np.array(space.isomorphs(), dtype="<u2"))}


def pack_results(results: DatasetResults, ranking: Ranking) -> dict[str, Any]:
    """Return the numbers of a dataset.

    Returns:
        A dict with these fields (arrays are base64 of little-endian bytes):

        - `name`: name of the dataset.
        - `networks`: for each network, in the order of the table (those without an accuracy to sort by come last), its
          `id`, its `label`, its cell string `spec` (empty if it is not a cell), and `operations`, one per edge.
        - `columns` of the table: for each evaluation, its `label`, and by network its `accuracies` in percent with
          their intervals `low` and `high` (null if missing), and `tied`, whether the network is tied with the best.
        - `scores`: for each score, its `label`, and by network `texts` with the accuracy and the rank.
        - `evaluations`: for each key and strength, the key's label `key` and the strength's label `strength`.
        - `accuracies`: (K, N) uint16 in units of 1/`RESOLUTION`, or `MISSING`.
        - `intervals`: (`RESOLUTION` + 1, 2) uint16, the ends of each accuracy's interval in the same units; null if the
          number of images is unknown.
        - `shown`: position of the network that the page shows first, the best by the table's order.
    """
    networks = [*dict.fromkeys([*ranking.networks, *results.architectures])]
    space = results.space
    specs = ["" if space is None else results.spec(network) for network in networks]
    return {
        "name": results.name,
        "networks": [
            {
                "id": network,
                "label": results.network_label(network),
                "spec": spec,
                "operations": [] if space is None else space.parse(spec),
            }
            for network, spec in zip(networks, specs, strict=True)
        ],
        "columns": _pack_columns(ranking, networks),
        "scores": [
            {"label": f"{label} accuracy", "texts": _score_texts(results, score, networks)}
            for score, label in SCORES.items()
            if score in results.scores
        ],
        "evaluations": [
            {"key": key_label(key), "strength": strength_label(key, strength, results.strengths(key))}
            for key, strength in results.columns
        ],
        "accuracies": _encode_base64(pack_accuracies(results.accuracies.loc[networks])),
        "intervals": None if results.n_images is None else _encode_base64(pack_intervals(results.n_images)),
        "shown": 0,
    }


def _pack_columns(ranking: Ranking, networks: list[ArchitectureId]) -> list[dict[str, Any]]:
    columns = []
    for name, label in ranking.labels.items():
        rows = ranking.table[ranking.table["evaluation"] == name].set_index("network").reindex(networks)
        numbers = {
            field: [None if np.isnan(value) else round(100 * value, 2) for value in rows[column].astype(float)]
            for field, column in (("accuracies", "accuracy"), ("low", "low"), ("high", "high"))
        }
        tied = [value is True for value in rows["tied"].tolist()]
        columns.append({"label": label, **numbers, "tied": tied})
    return columns


def _score_texts(results: DatasetResults, score: str, networks: list[ArchitectureId]) -> list[str]:
    ordered = order_networks(results, results.scores[score])
    texts = {
        row.network: f"{row.accuracy:.2%}, rank {'=' if row.n_equal > 1 else ''}{row.rank:,} of {len(ordered):,}"
        for row in ordered
    }
    return [texts.get(network, "–") for network in networks]


def pack_accuracies(accuracies: pd.DataFrame) -> "np.ndarray[Any, np.dtype[np.uint16]]":
    """Round accuracies to units of 1/`RESOLUTION`.

    Returns:
        (K, N) little-endian uint16.
    """
    scaled_accuracies = np.round(accuracies.to_numpy(np.float64).T * RESOLUTION)
    return np.where(np.isnan(scaled_accuracies), MISSING, scaled_accuracies).astype("<u2")


def pack_intervals(n_images: int) -> "np.ndarray[Any, np.dtype[np.uint16]]":
    """Return the 95% interval of each code, for accuracies over `n_images` images; see `pack_results`."""
    counts = np.round(np.arange(RESOLUTION + 1) * n_images / RESOLUTION)
    ends = np.column_stack(accuracy_intervals(counts / n_images, n_images))
    return np.round(ends * RESOLUTION).astype("<u2")


def _encode_base64(array: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
