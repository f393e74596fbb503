"""What was imported into a results folder: the plan of results that no sweep computed here."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import FormatVersionError, InputError, describe_content
from robust201.core.files import load_json, write_text
from robust201.core.records import (
    IMPORTED,
    IMPORTED_FILE,
    ArchitectureId,
    EvaluationProtocol,
    Unit,
    Weights,
    content_digest,
    unit_id,
)
from robust201.images import DATASETS
from robust201.planning.plan import Plan, PlannedKey, PlannedNetwork
from robust201.planning.plan_file import PLAN_FILE, load_plan
from robust201.spaces import DEFAULT_SPACE
from robust201.tasks import TASKS, Task

_FORMAT = 1

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class ImportedGroup:
    """What was imported of one key, in the paper's style, on one dataset.

    Architectures are in the order of the files, strengths ascending; `payload` is of the protocol, and says where the
    results come from, and with how many decimals.
    """

    dataset: str
    key: str
    strengths: tuple[float, ...]
    n_images: int
    architectures: tuple[ArchitectureId, ...]
    measurements: tuple[str, ...]
    payload: Mapping[str, Any]

    @cached_property
    def protocol(self) -> EvaluationProtocol:
        """The protocol; its digest shows that the results were imported."""
        return EvaluationProtocol.of(self.payload)

    @property
    def space(self) -> str:
        """Name of the space of the architectures."""
        return str(self.payload.get("space", DEFAULT_SPACE))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a measure; empty for answers to images."""
        return self.measurements if TASKS[self.key].kind == "measure" else ()

    @property
    def is_single(self) -> bool:
        """Whether an architecture has one value, not one per strength."""
        return self.key == "clean" or (bool(self.columns) and len(self.strengths) == 1)

    def unit(self, architecture: ArchitectureId) -> Unit:
        """The unit of one architecture."""
        digest = self.protocol.digest
        return Unit(
            id=unit_id(self.space, architecture, IMPORTED, digest),
            architecture=architecture,
            dataset=self.dataset,
            key=self.key,
            strengths=self.strengths,
            n_images=self.n_images,
            protocol=digest,
            checkpoint_sha256=IMPORTED,
            columns=self.columns,
        )

    @cached_property
    def planned(self) -> PlannedKey:
        """Its units, by architecture."""
        return PlannedKey(
            space=self.space,
            dataset=self.dataset,
            key=self.key,
            strengths=self.strengths,
            n_images=self.n_images,
            protocol=self.protocol.digest,
            columns=self.columns,
            networks=tuple(PlannedNetwork(architecture, IMPORTED, "") for architecture in sorted(self.architectures)),
        )


@dataclass(frozen=True)
class ImportedPlan:
    """What was imported into a results folder, as export, verify and compare ask it of a plan (see `SweepPlan`).

    Groups are sorted by dataset and by the table of tasks.
    """

    name: str
    groups: tuple[ImportedGroup, ...]

    @property
    def units(self) -> tuple[Unit, ...]:
        """Units sorted by dataset, key and architecture."""
        return tuple(group.unit(index) for group in self.groups for index in sorted(group.architectures))

    @property
    def planned_keys(self) -> tuple[PlannedKey, ...]:
        """Units by dataset and key, their networks by architecture."""
        return tuple(group.planned for group in self.groups)

    @property
    def unit_ids(self) -> NDArray[np.bytes_]:
        """Ids of the units, in their order."""
        return np.array([name.encode() for planned in self.planned_keys for name in planned.ids()], dtype="S32")

    @property
    def n_evaluations(self) -> int:
        """Number of evaluations: strengths summed over the units."""
        return sum(planned.n_evaluations for planned in self.planned_keys)

    @property
    def measurements(self) -> tuple[str, ...]:
        """Measurements that every key has, measures left out."""
        return _in_all(group.measurements for group in self.groups if not group.columns)

    def measurements_of(self, key: str) -> tuple[str, ...]:
        """Measurements of a key: those of all keys, or the columns of a measure that it has on every dataset."""
        of_key = [group for group in self.groups if group.key == key]
        return _in_all(group.measurements for group in of_key) if of_key[0].columns else self.measurements

    @cached_property
    def tasks(self) -> Mapping[str, Task]:
        """What was done, by key."""
        return {key: TASKS[key] for key in dict.fromkeys(group.key for group in self.groups)}

    @property
    def weights(self) -> Mapping[str, Weights]:
        """Files have no names of weights."""
        return {}

    @property
    def space_name(self) -> str:
        """Name of the space of the architectures."""
        return self.groups[0].space

    def n_classes(self, dataset: str) -> int | None:
        """Number of classes of a dataset; None where nobody knows."""
        return DATASETS[dataset].n_classes if dataset in DATASETS else None

    def describe(self) -> dict[str, Any]:
        """How the numbers came about."""
        return {"name": self.name, "protocols": [dict(group.payload) for group in self.groups]}

    def portable_fields(self) -> dict[str, Any]:
        """No sweep computed these results here: where they come from."""
        return {"name": self.name, IMPORTED: [dict(group.payload) for group in self.groups]}

    def updated(self, group: ImportedGroup) -> "ImportedPlan":
        """Add a group, in place of that of the same dataset and key."""
        held = {(group.dataset, group.key): group for group in (*self.groups, group)}
        datasets, keys = list(dict.fromkeys(dataset for dataset, _ in held)), list(TASKS)
        places = sorted(held, key=lambda place: (datasets.index(place[0]), keys.index(place[1])))
        return ImportedPlan(self.name, tuple(held[place] for place in places))

    def save(self, results: Path) -> None:
        """Keep the plan with the results."""
        content = asdict(self)
        header = {"format": _FORMAT, "digest": content_digest(content)}
        write_text(results / IMPORTED_FILE, json.dumps(header | content))


def _in_all(named: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Names that are in all of some lists, in the order of the first."""
    first, *others = [*named] or [()]
    return tuple(name for name in first if all(name in other for other in others))


def load_imported_plan(results: Path) -> ImportedPlan:
    """Read what was imported into a results folder.

    Raises InputError where nothing was, or the file is damaged or was changed by hand, and FormatVersionError.
    """
    path = results / IMPORTED_FILE
    try:
        payload = load_json(path)
        if payload["format"] != _FORMAT:
            raise FormatVersionError(
                f"Reading the imported plan failed for {path}: expected format {_FORMAT}, got {payload['format']!r}. "
                "Use the version of robust201 that wrote it."
            )
        return _read_plan(payload)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"Reading the imported plan failed for {path}: expected a plan as an import wrote it, got other content "
            f"({describe_content(error)}). "
            "Delete it, and import every dataset of the folder again."
        ) from error


def _read_plan(payload: Mapping[str, Any]) -> ImportedPlan:
    if payload["digest"] != content_digest({name: payload[name] for name in ("name", "groups")}):
        raise ValueError("another digest")
    groups: list[dict[str, Any]] = payload["groups"]
    for fields in groups:
        if not _NAME.fullmatch(fields["dataset"]) or fields["key"] not in TASKS:  # they become names of files
            raise ValueError(f"unknown {fields['dataset']!r} or {fields['key']!r}")
        for name in ("strengths", "architectures", "measurements"):
            fields[name] = tuple(fields[name])
    return ImportedPlan(payload["name"], tuple(ImportedGroup(**fields) for fields in groups))


def load_any_plan(results: Path) -> Plan | ImportedPlan:
    """Read the plan of a results folder's sweep, or of what was imported into it; InputError if it has neither."""
    if (results / IMPORTED_FILE).is_file() and not (results / PLAN_FILE).is_file():
        return load_imported_plan(results)
    return load_plan(results)
