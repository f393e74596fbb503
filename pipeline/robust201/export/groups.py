"""Contents and format of an export: its units, their missing evaluations, and its protocols.

A unit is all evaluations of one network on one dataset under one key.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, did_you_mean
from robust201.core.records import EvaluationProtocol, Unit
from robust201.export.outcome_files import OutcomeEncoding
from robust201.planning.plan import Plan
from robust201.reader.result_files import PARQUET_FOLDER, parquet_name
from robust201.shards import Inventory
from robust201.tasks import TASKS, Task
from robust201.tasks.columns import PREDICTIONS

KeyStyle = Literal["paper", "published"]
"""Spelling of keys: as in the paper (``pgd``) or as in the published files, which append the norm."""


def spell_key(task: Task, key_style: KeyStyle) -> str:
    """Return a task's key in a key style. The key of a custom task is the same in both styles."""
    return task.published_key if key_style == "published" and task.key in TASKS else task.key


@dataclass(frozen=True, eq=False)
class Group:
    """The units of all networks under one key on one dataset.

    Attributes:
        dataset: name of the dataset.
        task: the key's task.
        measurements: names of the measurements, or a measure's columns.
        units: the units, sorted by architecture and weights.
        missing_strengths: missing strengths by unit id; complete units are not in this mapping.
    """

    dataset: str
    task: Task
    measurements: tuple[str, ...]
    units: tuple[Unit, ...]
    missing_strengths: Mapping[str, tuple[float, ...]]

    @property
    def key(self) -> str:
        return self.task.key

    @property
    def is_measure(self) -> bool:
        return self.task.kind == "measure"

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.units[0].strengths

    @property
    def complete_units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.id not in self.missing_strengths)

    @property
    def incomplete_units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.id in self.missing_strengths)

    @property
    def n_evaluations(self) -> int:
        return len(self.complete_units) * len(self.strengths)

    @property
    def n_unexported(self) -> int:
        """Number of evaluations that are not exported: all evaluations of incomplete units."""
        return len(self.missing_strengths) * len(self.strengths)


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """Format of result files (see `export.writing.export_dataset`).

    Attributes:
        key_style: spelling of keys.
        round_to: number of decimals; None for exact values.
        cache_bytes: maximum size of the decoded row groups that are cached.
        outcomes: how per-image outcomes are written; None if they are not written.
        labels: labels of the images by dataset, if outcomes are written.
    """

    key_style: KeyStyle
    round_to: int | None
    cache_bytes: int
    outcomes: OutcomeEncoding | None = None
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def omitted_measurements(self) -> tuple[str, ...]:
        """Measurements that are not written, because packed outcomes replace them."""
        return (PREDICTIONS,) if self.outcomes == "bits" else ()

    def spell_key(self, group: Group) -> str:
        return spell_key(group.task, self.key_style)

    def file_name(self, group: Group, content: str) -> str:
        """Return the name of a result file, whose content is a measurement or `PARQUET_FOLDER`."""
        if content == PARQUET_FOLDER:
            return parquet_name(group.dataset, self.spell_key(group))
        return f"{group.dataset}/{self.spell_key(group)}_{content}.json"


@dataclass(frozen=True)
class ProtocolCount:
    """A protocol, and the number of exported evaluations that were computed with it."""

    digest: str
    payload: Mapping[str, Any]
    n_evaluations: int


def select_weights(plan: Plan, name: str | None) -> tuple[Unit, ...]:
    """Return the plan's units whose weights have the given name, or all units if `name` is None.

    Raises:
        ConfigError: no weights have this name.
    """
    if name is None:
        return plan.units
    selected_units = tuple(unit for unit in plan.units if unit.weights == name)
    if not name or not selected_units:
        names = weights_names(plan.units)
        raise ConfigError(
            f"Choosing weights failed: expected one of {', '.join(names)}, got {name!r}.{did_you_mean(name, names)}"
            if names
            else f"Choosing weights failed for {name!r}: the weights of these results have no names. Omit the name."
        )
    return selected_units


def weights_names(units: Iterable[Unit]) -> tuple[str, ...]:
    """Return the distinct names of the units' weights, in order of first appearance."""
    return tuple(dict.fromkeys(unit.weights for unit in units if unit.weights))


def group_units(plan: Plan, inventory: Inventory, weights: str | None = None) -> list[Group]:
    """Group a plan's units by dataset and key, and find the strengths that each unit lacks.

    Raises:
        ConfigError: no weights have the name `weights`.
    """
    groups = []
    selected_units = select_weights(plan, weights)
    for (dataset, key), units in itertools.groupby(selected_units, key=lambda unit: (unit.dataset, unit.key)):
        measurements = plan.measurements_of(key)
        units_of_group = tuple(sorted(units, key=lambda unit: unit.architecture))
        missing_strengths = {
            unit.id: missing_strengths
            for unit in units_of_group
            if inventory.count_complete(unit, measurements) < len(unit.strengths)
            and (
                missing_strengths := tuple(
                    strength for strength in unit.strengths if not inventory.is_complete(unit, strength, measurements)
                )
            )
        }
        groups.append(Group(dataset, plan.tasks[key], measurements, units_of_group, missing_strengths))
    return groups


def count_protocol_evaluations(plan: Plan, groups: Iterable[Group]) -> list[ProtocolCount]:
    """Count the exported evaluations computed with each of a plan's protocols."""
    n_evaluations: Counter[str] = Counter()
    for group in groups:
        for unit in group.complete_units:
            n_evaluations[unit.protocol] += len(group.strengths)
    protocols = [EvaluationProtocol.of(payload) for payload in plan.describe()["protocols"]]
    return [ProtocolCount(protocol.digest, protocol.payload, n_evaluations[protocol.digest]) for protocol in protocols]


def missing_evaluations_message(out: Path, groups: Sequence[Group]) -> str:
    """Return an error message for an export with missing evaluations."""
    n_planned = sum(len(unit.strengths) for group in groups for unit in group.units)
    n_missing = {group: sum(map(len, group.missing_strengths.values())) for group in groups if group.missing_strengths}
    missing_text = ", ".join(f"{group.dataset} {group.key} {n:,}" for group, n in n_missing.items())
    example_group = next(iter(n_missing))
    example = example_group.incomplete_units[0]
    example_strength = example_group.missing_strengths[example.id][0]
    return (
        f"Exporting failed for {out}: expected {n_planned:,} evaluations, got {n_planned - sum(n_missing.values()):,} "
        f"(missing: {missing_text}; for example, {example.label} at strength {example_strength:g}). "
        "Run the whole sweep again, without a selection, to compute only the missing evaluations, or export the "
        "finished part with --partial."
    )
