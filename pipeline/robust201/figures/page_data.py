"""The data of the report's page, except that of figures. The page's script only shows numbers; it computes none."""

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.analysis.dataset_results import DatasetResults
from robust201.analysis.labels import key_label, strength_label
from robust201.analysis.ranking import Ranking
from robust201.analysis.tables import format_percent
from robust201.core.records import ArchitectureId
from robust201.networks.spaces import CellSpace
from robust201.statistics.intervals import accuracy_intervals

MISSING = 65_535
"""Code of an unknown number."""


def pack_space(space: CellSpace) -> dict[str, Any]:
    """Return the representative of each cell's isomorphism class, base64 of little-endian uint16, as `isomorphs`."""
    return {"isomorphs": _encode(np.array(space.isomorphs(), dtype="<u2"))}


def pack_results(results: DatasetResults, ranking: Ranking) -> dict[str, Any]:
    """Return the numbers of a dataset.

    Returns:
        A dict with these fields:

        - `name`: name of the dataset.
        - `networks`: for each network, in the order of the table (networks without an accuracy to sort by come last),
          its `id`, its `label`, a sentence on its rank (`rank_text`), its cell string `spec` (empty if it is not a
          cell), and `operations`, one per edge.
        - `columns` of the table: for each evaluation, its `label` and three lists by network: `accuracies` in percent,
          by which the table is sorted (null if missing), `texts` with the accuracies and intervals, and `tied`
          (whether the network is tied with the best).
        - `evaluations`: for each key and strength, the key's label `key` and the strength's label `strength`.
        - `accuracies`, `low`, `high`: accuracies under each evaluation of all networks, and the ends of their intervals
          (see `pack_numbers`).
    """
    networks = [*dict.fromkeys([*ranking.networks, *results.architectures])]
    space, rank_sentences = results.space, _describe_ranks(ranking)
    specs = ["" if space is None else results.spec(network) for network in networks]
    accuracies = results.accuracies.loc[networks]
    low, high = accuracy_intervals(accuracies, results.image_counts.loc[networks].to_numpy(np.float64))
    return {
        "name": results.name,
        "networks": [
            {
                "id": network,
                "label": results.network_label(network),
                "rank_text": rank_sentences.get(network, ""),
                "spec": spec,
                "operations": [] if space is None else space.parse(spec),
            }
            for network, spec in zip(networks, specs, strict=True)
        ],
        "columns": _pack_columns(ranking, networks),
        "evaluations": [
            {"key": key_label(key), "strength": strength_label(strength, results.reader.unit_of(key))}
            for key, strength in results.columns
        ],
        "accuracies": pack_numbers(accuracies.to_numpy(np.float64)),
        "low": pack_numbers(low),
        "high": pack_numbers(high),
    }


def _pack_columns(ranking: Ranking, networks: list[ArchitectureId]) -> list[dict[str, Any]]:
    columns = []
    for name, label in ranking.labels.items():
        rows = ranking.table[ranking.table["evaluation"] == name].set_index("network").reindex(networks)
        numbers = rows[["accuracy", "low", "high"]].astype(float)
        accuracies = [None if np.isnan(value) else round(100 * value, 2) for value in numbers["accuracy"]]
        texts = [format_percent(*values) for values in numbers.itertuples(index=False)]
        tied = [value is True for value in rows["tied"].tolist()]
        columns.append({"label": label, "accuracies": accuracies, "texts": texts, "tied": tied})
    return columns


def _describe_ranks(ranking: Ranking) -> Mapping[ArchitectureId, str]:
    """Return a sentence with the rank of each network, under the evaluation that sorts the table."""
    rows = ranking.table[ranking.table["evaluation"] == ranking.order]
    ends = np.where(rows["tied"], ", best or tied with the best", "") if len(rows) > 1 else [""] * len(rows)
    texts = [
        f"Rank {rank:,} of {len(rows):,} by accuracy under {ranking.labels[ranking.order]}{end}."
        for rank, end in zip(rows["rank"], ends, strict=True)
    ]
    return dict(zip(rows["network"], texts, strict=True))


def pack_numbers(fractions: "NDArray[np.float64]") -> str:
    """Encode fractions (N, K) as base64 of (K, N) little-endian uint16.

    A code has the digits that `format_percent` writes, so that the page rounds like the tables: 953 stands for 95.3.
    The code of NaN is `MISSING`.
    """
    values, positions = np.unique(np.asarray(fractions, np.float64).T, return_inverse=True)
    codes = [MISSING if np.isnan(value) else int(format_percent(value).replace(".", "")) for value in values]
    return _encode(np.array(codes, "<u2")[positions])


def _encode(array: "NDArray[Any]") -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
