"""What an export holds: the units of each dataset and key, what they lack, and by which protocols they came about."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from robust201.core.errors import ConfigError, closest
from robust201.core.records import EvaluationProtocol, Unit, Weights
from robust201.export.written_file import parse_choice
from robust201.shards import Inventory
from robust201.tasks import TASKS, Task

KeyStyle = Literal["paper", "published"]


class SweepPlan(Protocol):
    """What export needs of `planning.plan.Plan`."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """Units sorted by dataset, key and architecture."""

    @property
    def measurements(self) -> tuple[str, ...]:
        """Names of the measurements of answers to images."""

    @property
    def tasks(self) -> Mapping[str, Task]:
        """What is done, by key, in the order in which keys are listed."""

    @property
    def weights(self) -> Mapping[str, Weights]:
        """Weights by the names that units have; empty where each architecture has one state."""

    @property
    def space_name(self) -> str:
        """Name of the space of the architectures."""

    def measurements_of(self, key: str) -> tuple[str, ...]:
        """Names of the measurements of a key: `measurements`, or the columns of a measure."""

    def n_classes(self, dataset: str) -> int | None:
        """Number of classes of a dataset; None where nobody knows."""

    def recorded_accuracies(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, float, int]]:
        """Units whose weights came with their accuracy, with that and the images of the whole test split."""

    def describe(self) -> dict[str, Any]:
        """JSON value of how the numbers came about."""

    def portable_fields(self) -> dict[str, Any]:
        """Fields of a sweep YAML that computes the same numbers."""


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

    def spell(self, key_style: KeyStyle) -> str:
        return spell(self.task, key_style)


@dataclass(frozen=True)
class ProtocolShare:
    """A protocol, and how many evaluations of an export came about by it; 0 where none was computed by it."""

    digest: str
    payload: Mapping[str, Any]
    n_evaluations: int


def parse_key_style(text: str) -> KeyStyle:
    """Check a key style; ConfigError if it is neither ``paper`` nor ``published``."""
    style: KeyStyle = parse_choice("key style", text, get_args(KeyStyle))
    return style


def spell(task: Task, key_style: KeyStyle) -> str:
    """Spell a key as the paper or as the published files do; a user's own task has one name."""
    return task.published_key if key_style == "published" and task.key in TASKS else task.key


def choose_weights(plan: SweepPlan, name: str | None) -> tuple[Unit, ...]:
    """Choose a plan's units by the name of their weights, None for all; ConfigError if there are no such weights."""
    if name is None:
        return plan.units
    chosen = tuple(unit for unit in plan.units if unit.weights == name)
    if not name or not chosen:
        names = names_of_weights(plan.units)
        raise ConfigError(
            f"Choosing weights failed: expected one of {', '.join(names) or 'none'}, got {name!r}."
            f"{closest(name, names)}"
            if names
            else f"Choosing weights failed for {name!r}: expected no name, since each network of these results has one "
            "state, got one. Leave it out."
        )
    return chosen


def names_of_weights(units: Iterable[Unit]) -> tuple[str, ...]:
    """List the names of weights that units have, in order."""
    return tuple(dict.fromkeys(unit.weights for unit in units if unit.weights))


def group_units(plan: SweepPlan, inventory: Inventory, weights: str | None = None) -> list[Group]:
    """Group a plan's units by dataset and key, and find out what each group lacks (raises as `choose_weights` does)."""
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


def share_out(plan: SweepPlan, groups: Iterable[Group]) -> list[ProtocolShare]:
    """Count what an export has of each of a plan's protocols."""
    counts: Counter[str] = Counter()
    for group in groups:
        for unit in group.complete_units:
            counts[unit.protocol] += len(group.strengths)
    planned = [EvaluationProtocol.of(payload) for payload in plan.describe()["protocols"]]
    return [ProtocolShare(one.digest, one.payload, counts[one.digest]) for one in planned]


def describe_missing(out: Path, groups: Sequence[Group]) -> str:
    """Say what an export lacks, and what to do about it."""
    planned = sum(len(unit.strengths) for group in groups for unit in group.units)
    absent = {group: sum(map(len, group.lacking.values())) for group in groups if group.lacking}
    counts = ", ".join(f"{group.dataset} {group.key} {count:,}" for group, count in absent.items())
    first = next(iter(absent))
    unit = first.incomplete_units[0]
    return (
        f"Exporting failed for {out}: expected {planned:,} evaluations, got {planned - sum(absent.values()):,}; "
        f"missing {counts}; for example {unit.label} at strength "
        f"{first.lacking[unit.id][0]:g}. "
        "Run the whole sweep again, not narrowed, to compute only these, or export what there is with --partial."
    )
