"""What an export holds, and in which form: the units of each dataset and key, what they lack, and their protocols."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, closest
from robust201.core.records import EvaluationProtocol, Unit
from robust201.export.number_text import Empty
from robust201.export.outcome_files import OutcomeForm
from robust201.export.written_file import Compression
from robust201.planning.plan import Plan
from robust201.reader.result_files import PARQUET_FOLDER, parquet_name
from robust201.shards import Inventory
from robust201.tasks import TASKS, Task
from robust201.tasks.columns import PREDICTIONS

KeyStyle = Literal["paper", "published"]


def spell(task: Task, key_style: KeyStyle) -> str:
    """Spell a key as the paper or as the published files do; a user's own task has one name."""
    return task.published_key if key_style == "published" and task.key in TASKS else task.key


@dataclass(frozen=True, eq=False)
class Group:
    """The units of one (dataset, key), sorted by architecture and weights.

    `lacking` has the strengths that a unit lacks, by its id; units that lack none are not there.
    """

    dataset: str
    task: Task
    measurements: tuple[str, ...]
    units: tuple[Unit, ...]
    lacking: Mapping[str, tuple[float, ...]]

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
        return tuple(unit for unit in self.units if unit.id not in self.lacking)

    @property
    def incomplete_units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.id in self.lacking)

    @property
    def n_evaluations(self) -> int:
        return len(self.complete_units) * len(self.strengths)

    @property
    def n_left_out(self) -> int:
        """Evaluations that are not exported: all those of units that lack one."""
        return len(self.lacking) * len(self.strengths)


@dataclass(frozen=True, kw_only=True)
class FileForm:
    """How files of results are written (see `export.writing.export_dataset`); row groups kept decoded are bounded.

    `labels` are those of the images by dataset, where outcomes are written.
    """

    key_style: KeyStyle
    round_to: int | None
    empty: Empty
    compression: Compression | None
    cache_bytes: int
    outcomes: OutcomeForm | None = None
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Measurements that no file has, since outcomes take their place."""
        return (PREDICTIONS,) if self.outcomes == "bits" else ()

    def spell(self, group: Group) -> str:
        return spell(group.task, self.key_style)

    def file_name(self, group: Group, measurement: str) -> str:
        if measurement == PARQUET_FOLDER:
            return parquet_name(group.dataset, self.spell(group))
        suffix = "" if self.compression is None else f".{self.compression}"
        return f"{group.dataset}/{self.spell(group)}_{measurement}.json{suffix}"


@dataclass(frozen=True)
class ProtocolShare:
    """A protocol, and how many evaluations of an export came about by it; 0 where none was computed by it."""

    digest: str
    payload: Mapping[str, Any]
    n_evaluations: int


def choose_weights(plan: Plan, name: str | None) -> tuple[Unit, ...]:
    """Choose a plan's units by the name of their weights, None for all; ConfigError if there are no such weights."""
    if name is None:
        return plan.units
    chosen = tuple(unit for unit in plan.units if unit.weights == name)
    if not name or not chosen:
        names = names_of_weights(plan.units)
        raise ConfigError(
            f"Choosing weights failed: expected one of {', '.join(names)}, got {name!r}.{closest(name, names)}"
            if names
            else f"Choosing weights failed for {name!r}: expected no name, since each network of these results has one "
            "state, got one. Leave it out."
        )
    return chosen


def names_of_weights(units: Iterable[Unit]) -> tuple[str, ...]:
    """List the names of weights that units have, in order."""
    return tuple(dict.fromkeys(unit.weights for unit in units if unit.weights))


def group_units(plan: Plan, inventory: Inventory, weights: str | None = None) -> list[Group]:
    """Group a plan's units by dataset and key, with what each group lacks (raises as `choose_weights` does)."""
    groups = []
    chosen = choose_weights(plan, weights)
    for (dataset, key), units in itertools.groupby(chosen, key=lambda unit: (unit.dataset, unit.key)):
        measurements = plan.measurements_of(key)
        members = tuple(sorted(units, key=lambda unit: unit.architecture))
        lacking = {
            unit.id: absent
            for unit in members
            if inventory.count_complete(unit, measurements) < len(unit.strengths)
            and (absent := tuple(s for s in unit.strengths if not inventory.is_complete(unit, s, measurements)))
        }
        groups.append(Group(dataset, plan.tasks[key], measurements, members, lacking))
    return groups


def share_out(plan: Plan, groups: Iterable[Group]) -> list[ProtocolShare]:
    """Count what an export has of each of a plan's protocols."""
    counts: Counter[str] = Counter()
    for group in groups:
        for unit in group.complete_units:
            counts[unit.protocol] += len(group.strengths)
    planned = [EvaluationProtocol.of(payload) for payload in plan.describe()["protocols"]]
    return [ProtocolShare(protocol.digest, protocol.payload, counts[protocol.digest]) for protocol in planned]


def describe_missing(out: Path, groups: Sequence[Group]) -> str:
    """Describe what an export lacks, and what to do about it."""
    planned = sum(len(unit.strengths) for group in groups for unit in group.units)
    absent = {group: sum(map(len, group.lacking.values())) for group in groups if group.lacking}
    counts = ", ".join(f"{group.dataset} {group.key} {count:,}" for group, count in absent.items())
    first = next(iter(absent))
    unit = first.incomplete_units[0]
    return (
        f"Exporting failed for {out}: expected {planned:,} evaluations, got {planned - sum(absent.values()):,}; "
        f"missing {counts}; for example {unit.label} at strength {first.lacking[unit.id][0]:g}. "
        "Run the whole sweep again, not narrowed, to compute only these, or export what there is with --partial."
    )
