"""What an export holds: the units of each dataset and key, what they lack, and by which protocols they came about."""

import itertools
import typing
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from robust201.core.errors import ConfigError, closest
from robust201.core.records import ArchitectureId, Protocol, Unit, is_imported, show_architecture
from robust201.shards import Inventory
from robust201.tasks import PERTURBATIONS

KeyStyle = Literal["paper", "published"]


class SweepPlan(typing.Protocol):
    """What export needs of `planning.plan.Plan`."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """Units sorted by dataset, key and architecture."""

    @property
    def measurements(self) -> tuple[str, ...]:
        """Names of the measurements."""

    def describe(self) -> dict[str, Any]:
        """JSON value of how the numbers came about."""

    def portable_fields(self) -> dict[str, Any]:
        """Fields of a sweep YAML that computes the same numbers."""


@dataclass(frozen=True, eq=False)
class Group:
    """The units of one (dataset, key), and the strengths that they lack, by architecture."""

    dataset: str
    key: str
    units: tuple[Unit, ...]
    lacking: Mapping[ArchitectureId, tuple[float, ...]]

    @property
    def strengths(self) -> tuple[float, ...]:
        """Strengths of the key, ascending."""
        return self.units[0].strengths

    @property
    def complete_units(self) -> tuple[Unit, ...]:
        """Units that lack nothing."""
        return tuple(unit for unit in self.units if unit.architecture not in self.lacking)

    @property
    def n_left_out(self) -> int:
        """Evaluations that are not exported: all those of units that lack one."""
        return len(self.lacking) * len(self.strengths)

    def spell(self, key_style: KeyStyle) -> str:
        """Spell the key."""
        return spell(self.key, key_style)


@dataclass(frozen=True)
class ProtocolShare:
    """A protocol, and how many evaluations of an export came about by it.

    Attributes:
        digest: of the protocol.
        payload: of the protocol.
        n_evaluations: how many; 0 for one of the sweep by which none of them was computed.
    """

    digest: str
    payload: Mapping[str, Any]
    n_evaluations: int

    @property
    def imported(self) -> bool:
        """Whether results by it were read from the files of a dataset, not computed."""
        return is_imported(self.digest)


def are_imported(shares: Sequence[ProtocolShare]) -> bool:
    """Whether no sweep stands behind results: every protocol is of results that were read from a dataset's files."""
    return bool(shares) and all(share.imported for share in shares)


def parse_key_style(text: str) -> KeyStyle:
    """Check a key style that a user wrote.

    Raises:
        ConfigError: it is neither ``paper`` nor ``published``.
    """
    for style in get_args(KeyStyle):
        if text == style:
            return style  # type: ignore[no-any-return]
    raise ConfigError(
        f"Reading a key style failed for {text!r}: expected paper or published, got another."
        f"{closest(text, get_args(KeyStyle))}"
    )


def spell(key: str, key_style: KeyStyle) -> str:
    """Spell a key as the paper or as the published files do."""
    return PERTURBATIONS[key].published_key if key_style == "published" else key


def group_units(plan: SweepPlan, inventory: Inventory) -> list[Group]:
    """Group a plan's units by dataset and key, and find out what each group lacks."""
    groups = []
    for (dataset, key), units in itertools.groupby(plan.units, key=lambda unit: (unit.dataset, unit.key)):
        members = tuple(sorted(units, key=lambda unit: unit.architecture))
        lacking = {
            unit.architecture: absent
            for unit in members
            if (absent := tuple(s for s in unit.strengths if not inventory.is_complete(unit, s, plan.measurements)))
        }
        groups.append(Group(dataset, key, members, lacking))
    return groups


def share_out(plan: SweepPlan, groups: Iterable[Group]) -> list[ProtocolShare]:
    """Count what an export has of each of a plan's protocols."""
    counts: Counter[str] = Counter()
    for group in groups:
        for unit in group.complete_units:
            counts[unit.protocol] += len(group.strengths)
    planned = [Protocol.of(payload) for payload in plan.describe()["protocols"]]
    return [ProtocolShare(one.digest, one.payload, counts[one.digest]) for one in planned]


def describe_missing(out: Path, groups: Sequence[Group]) -> str:
    """Say what an export lacks, and what to do about it."""
    planned = sum(len(unit.strengths) for group in groups for unit in group.units)
    absent = {group: sum(map(len, group.lacking.values())) for group in groups if group.lacking}
    counts = ", ".join(f"{group.dataset} {group.key} {count:,}" for group, count in absent.items())
    first = next(iter(absent))
    architecture, strengths = next(iter(first.lacking.items()))
    return (
        f"Exporting failed for {out}: expected {planned:,} evaluations, got {planned - sum(absent.values()):,}; "
        f"missing {counts}; for example {show_architecture(architecture)} {first.dataset} {first.key} at strength "
        f"{strengths[0]:g}. "
        "Run the whole sweep again, not narrowed, to compute only these, or export what there is with --partial."
    )
