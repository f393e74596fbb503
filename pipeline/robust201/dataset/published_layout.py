"""How an export tells of architectures: those of NAS-Bench-201 as the published dataset does, others by their names."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa

from robust201.core.records import ArchitectureId
from robust201.dataset.parquet_columns import NAMES, ParquetColumn
from robust201.spaces.nasbench201 import cells as nasbench201

Epsilons = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class SpaceLayout:
    """How an export tells of the architectures of a space.

    Attributes:
        title: of datasets of this space, for people, before the name of the sweep; `slug` is the same for machines.
        columns: Parquet columns that tell an architecture, `architecture` first.
        values: architectures to the values of these columns.
        meta_text: (epsilons by key as it is spelled, architectures of the export) → text of meta.json.
    """

    title: str
    slug: str
    tags: tuple[str, ...]
    architectures: str
    meta_told: str
    columns: Mapping[str, ParquetColumn]
    values: Callable[[Sequence[ArchitectureId]], dict[str, list[Any]]]
    meta_text: Callable[[Epsilons, Iterable[ArchitectureId]], str]


def layout_of(space: str) -> SpaceLayout:
    """Find how an export tells of the architectures of a space, by the space's name."""
    return _PUBLISHED if space == nasbench201.SPACE else _BY_NAME


def _published_values(architectures: Sequence[ArchitectureId]) -> dict[str, list[Any]]:
    found = [nasbench201.architecture(int(architecture)) for architecture in architectures]
    members = _isomorphs()
    return {
        "architecture": list(architectures),
        "cell": [architecture.spec for architecture in found],
        "isomorphs": [members[architecture.isomorph] for architecture in found],
    }


@cache
def _isomorphs() -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for index, isomorph in enumerate(nasbench201.isomorphs()):
        members.setdefault(isomorph, []).append(index)
    return members


_PUBLISHED = SpaceLayout(
    title="NAS-Bench-201 robustness",
    slug="nas-bench-201-robustness",
    tags=("neural-architecture-search", "robustness", "nas-bench-201"),
    architectures="NAS-Bench-201 architectures",
    meta_told="`meta.json` names the 15,625 architectures, their isomorphs and the epsilons.",
    columns={
        "architecture": ParquetColumn(pa.int32(), "Index of the architecture in NAS-Bench-201, 0 to 15,624."),
        "cell": ParquetColumn(NAMES, "Cell string of the architecture, as NAS-Bench-201 writes it."),
        "isomorphs": ParquetColumn(
            pa.list_(pa.field("element", pa.int32())),
            "Indices of all architectures that this row stands for, itself too.",
        ),
    },
    values=_published_values,
    meta_text=lambda epsilons, _architectures: nasbench201.meta_text(epsilons),
)


def _meta_by_name(epsilons: Epsilons, architectures: Iterable[ArchitectureId]) -> str:
    names = dict.fromkeys(map(str, architectures))
    ids = {name: {"string": name, "isomorph": name} for name in names}
    return json.dumps({"ids": ids, "epsilons": {key: list(map(float, values)) for key, values in epsilons.items()}})


_BY_NAME = SpaceLayout(
    title="Network robustness",
    slug="network-robustness",
    tags=("robustness",),
    architectures="networks",
    meta_told="`meta.json` names the networks and the epsilons.",
    columns={"architecture": ParquetColumn(pa.string(), "Name of the network.")},
    values=lambda architectures: {"architecture": list(map(str, architectures))},
    meta_text=_meta_by_name,
)
