"""Content and format of an export: facts about the sweep, results of its units, missing strengths, and options.

A unit is all evaluations of one network on one dataset under one key.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import Unit, Weights
from robust201.dataset.shard_rows import UnitResults
from robust201.tasks import TASKS, Task
from robust201.tasks.columns import PREDICTIONS

KeyStyle = Literal["paper", "published"]
"""Spelling of keys: as in the paper (``pgd``) or as in the published files, which append the norm."""


def spell_key(task: Task, key_style: KeyStyle) -> str:
    """Return a task's key in a key style. The key of a custom task is the same in both styles."""
    return task.published_key if key_style == "published" and task.key in TASKS else task.key


Format = Literal["json", "parquet"]

OutcomeEncoding = Literal["bits", "classes"]
"""``bits`` writes one bit per image (1 if it was classified correctly) instead of predicted classes.

``classes`` writes these bits and the predicted classes.
"""


@dataclass(frozen=True, kw_only=True)
class SweepFacts:
    """Facts about the sweep that an export contains.

    Attributes:
        record: name, images, seed and protocols for sweep.json (see `sweep.sweep_record.describe_sweep`).
        fields: fields of sweep.yaml (see `sweep.sweep_record.portable_fields`).
        space: name of the search space.
        tasks: tasks by key, in the order of meta.json, without keys whose images a file selects.
        measurements: measurements of all keys except measures.
        n_classes: number of classes by dataset; datasets with an unknown number are missing.
        weights: weights by the short names that units contain; empty if each architecture has only one set.
    """

    record: Mapping[str, Any]
    fields: Mapping[str, Any]
    space: str
    tasks: Mapping[str, Task]
    measurements: tuple[str, ...]
    n_classes: Mapping[str, int]
    weights: Mapping[str, Weights] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Group:
    """The units of all networks under one key on one dataset.

    Attributes:
        dataset: name of the dataset.
        task: the key's task.
        measurements: names of the measurements, or a measure's columns.
        units: the units, sorted by architecture and weights.
        missing_strengths: missing strengths by unit id; complete units are not in this mapping.
        rows: the results of the complete units, in their order.
    """

    dataset: str
    task: Task
    measurements: tuple[str, ...]
    units: tuple[Unit, ...]
    missing_strengths: Mapping[str, tuple[float, ...]]
    rows: UnitResults

    @property
    def key(self) -> str:
        return self.task.key

    @property
    def is_measure(self) -> bool:
        return self.task.kind == "measure"

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.units[0].strengths

    @cached_property
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


@dataclass(frozen=True, eq=False)
class Export:
    """An export to write: its content and options (see `dataset.export.write_dataset`).

    Attributes:
        facts: facts about the sweep.
        groups: the results.
        formats: ``"json"``, ``"parquet"`` or both.
        key_style: spelling of keys.
        round_to: number of decimals in JSON; None for exact values.
        outcomes: how per-image outcomes are written; None if they are not written.
        labels: labels of the images by dataset, if outcomes are written.
    """

    facts: SweepFacts
    groups: Sequence[Group]
    formats: Sequence[Format]
    key_style: KeyStyle
    round_to: int | None
    outcomes: OutcomeEncoding | None
    labels: Mapping[str, NDArray[np.int64]]

    @cached_property
    def exported_groups(self) -> list[Group]:
        """The groups with complete units."""
        return [group for group in self.groups if group.complete_units]

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """Weights by name; empty unless architectures have rows for several sets of weights."""
        names = weights_names(unit for group in self.exported_groups for unit in group.units)
        return {name: self.facts.weights[name] for name in names} if len(names) > 1 else {}

    @property
    def measurements(self) -> tuple[str, ...]:
        """Written measurements of all keys except measures; packed outcomes replace predicted classes."""
        return tuple(name for name in self.facts.measurements if (name, self.outcomes) != (PREDICTIONS, "bits"))

    def spell_key(self, group: Group) -> str:
        return spell_key(group.task, self.key_style)


def weights_names(units: Iterable[Unit]) -> tuple[str, ...]:
    """Return the distinct names of the units' weights, in order of first appearance."""
    return tuple(dict.fromkeys(unit.weights for unit in units if unit.weights))


def missing_evaluations_message(out: Path, groups: Sequence[Group]) -> str:
    """Return an error message for an export with missing evaluations."""
    n_planned = sum(len(unit.strengths) for group in groups for unit in group.units)
    n_missing = sum(len(strengths) for group in groups for strengths in group.missing_strengths.values())
    group = next(group for group in groups if group.missing_strengths)
    example = group.incomplete_units[0]
    return (
        f"Exporting failed for {out}: expected {n_planned:,} evaluations, got {n_planned - n_missing:,}; for example, "
        f"{example.label} at strength {group.missing_strengths[example.id][0]:g} is missing. `robust201 status` counts "
        "them by key. Run the whole sweep again, without a selection, to compute only the missing evaluations, or "
        "export the finished part with --partial."
    )
