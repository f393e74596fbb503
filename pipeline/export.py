"""Export: finished evaluations to the layout of the published dataset, ``<dataset>/<key>_<measurement>.json``.

Every file is ``{dataset: {key: {measurement: {id: value}}}}`` (appendix of Jung, Lukasik, Keuper, ICLR 2023, and the
published files): one value for ``clean``, else a list with one value per strength, ascending. Beside them lie
``meta.json`` (ids and epsilons, nothing else, as published), ``sweep.json`` (protocols, image selection, strengths),
``missing.json`` where a partial export lacks something, and the listing of `pipeline.export_folder`.
"""

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from pipeline import __version__
from pipeline.analysis.result_files import EXPORT_FORMAT, META_FILE, MISSING_FILE, SWEEP_FILE
from pipeline.errors import ConfigError, IncompleteError, StorageError, closest
from pipeline.export_folder import CHECKSUM_FILE, ExportFolder
from pipeline.measurements import Values, to_json
from pipeline.perturbations import PERTURBATIONS, Parameters
from pipeline.records import Unit
from pipeline.spaces import nasbench201

KeyStyle = Literal["paper", "published"]
ValuesByStrength = Mapping[float, Values]


class SweepPlan(Protocol):
    """What export needs of `pipeline.plan.Plan`."""

    @property
    def units(self) -> tuple[Unit, ...]:
        """Units sorted by dataset, key and architecture."""

    @property
    def measurements(self) -> tuple[str, ...]:
        """Names of the measurements."""

    def meta_payload(self) -> dict[str, Any]:
        """JSON value of how the numbers came about."""


class ResultInventory(Protocol):
    """What export needs of `pipeline.shards.Inventory`."""

    def is_complete(self, unit: Unit, strength: float, measurements: Collection[str]) -> bool:
        """Whether an evaluation is there with all its images and measurements."""


class ResultStore(Protocol):
    """What export needs of `pipeline.shards.ShardStore`."""

    def iter_values(
        self, units: Iterable[Unit], inventory: Any, measurements: Collection[str]
    ) -> Iterable[tuple[Unit, ValuesByStrength]]:
        """Columns by strength of each unit, in the order of the units given."""


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        out: the folder.
        files: names of the files written, relative to the folder, sorted.
        removed: names of files of an earlier export that this one has no more.
        n_units: units written.
        n_evaluations: evaluations written.
        missing: evaluations that the plan has and the export lacks, by (dataset, key); empty for a whole export. A unit
            that lacks one strength is left out, and all its evaluations count here.
        n_bytes: size of all files together.
    """

    out: Path
    files: tuple[str, ...]
    removed: tuple[str, ...]
    n_units: int
    n_evaluations: int
    missing: Mapping[tuple[str, str], int]
    n_bytes: int

    @property
    def complete(self) -> bool:
        """Whether every evaluation of the plan was written."""
        return not self.missing

    def to_payload(self) -> dict[str, Any]:
        """JSON value of the report."""
        return {
            "out": str(self.out),
            "complete": self.complete,
            "files": list(self.files),
            "removed": list(self.removed),
            "units": self.n_units,
            "evaluations": self.n_evaluations,
            "missing": _nested(self.missing),
            "bytes": self.n_bytes,
        }


@dataclass(frozen=True, eq=False)
class _Group:
    """The units of one (dataset, key), and what they lack: strengths by architecture."""

    dataset: str
    key: str
    units: tuple[Unit, ...]
    lacking: Mapping[int, tuple[float, ...]]

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.units[0].strengths

    @property
    def complete_units(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit.architecture not in self.lacking)

    @property
    def n_left_out(self) -> int:
        return len(self.lacking) * len(self.strengths)

    def spell(self, key_style: KeyStyle) -> str:
        return _spell(self.key, key_style)

    def file_name(self, measurement: str, key_style: KeyStyle) -> str:
        return f"{self.dataset}/{self.spell(key_style)}_{measurement}.json"


def export_dataset(
    plan: SweepPlan,
    store: ResultStore,
    inventory: ResultInventory,
    out: Path,
    *,
    key_style: KeyStyle = "paper",
    round_to: int | None = None,
    partial: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write the evaluations of a plan as a dataset in the published layout.

    Units stream through one at a time, each file appears whole or not at all, and equal results give equal bytes.
    An earlier export in the same folder is replaced: files of it that the new one lacks are removed.

    Args:
        plan: what to export; evaluations in the store that it does not name are left out.
        store: the finished evaluations.
        inventory: what the store holds.
        out: the folder to write; new, empty or holding an earlier export.
        key_style: ``"paper"`` writes ``pgd``, ``"published"`` ``pgd@Linf``, in file names, JSON and meta alike.
        round_to: decimals to keep, 3 in the published files; None keeps every double exactly.
        partial: write what there is where evaluations are missing; a unit without all its strengths is left out.
        progress: called with (units written, units to write) after each unit.

    Returns:
        What was written and what is missing.

    Raises:
        IncompleteError: evaluations are missing and `partial` is false; nothing was written.
        InputError: the folder holds files that no export listed.
        StorageError: the store does not give what the inventory says, or the device is full.
    """
    groups = _group(plan, inventory)
    missing = {(group.dataset, group.key): group.n_left_out for group in groups if group.lacking}
    if missing and not partial:
        raise IncompleteError(_describe_missing(out, groups))
    written = [group for group in groups if group.complete_units]
    side_files = {META_FILE: _meta_text(groups, key_style), SWEEP_FILE: _sweep_text(plan, groups, key_style, round_to)}
    if missing:
        side_files[MISSING_FILE] = _missing_text(groups, key_style)
    names = [group.file_name(name, key_style) for group in written for name in plan.measurements]
    folder = ExportFolder(out, {*side_files, *names})
    writer = _Writer(folder, plan.measurements, key_style, round_to)
    n_units = sum(len(group.complete_units) for group in written)
    done = itertools.count(1)
    for group in written:
        rows = store.iter_values(group.complete_units, inventory, plan.measurements)
        writer.write_group(group, rows, lambda: progress(next(done), n_units) if progress is not None else None)
    for name, text in side_files.items():
        folder.write(name, text)
    removed, files = folder.close(), tuple(sorted({*folder.hashes, CHECKSUM_FILE}))
    n_evaluations = sum(len(group.complete_units) * len(group.strengths) for group in written)
    return ExportReport(out, files, removed, n_units, n_evaluations, missing, folder.n_bytes)


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


def meta_text(parameters: Mapping[str, Parameters], key_style: KeyStyle) -> str:
    """Text of meta.json: all 15,625 architectures with their isomorphs, and the epsilons of each attack.

    Args:
        parameters: by key in the paper's style; keys that are no attacks are passed over.
        key_style: how to spell the keys.

    Returns:
        With the paper's epsilons and published keys, the bytes of the published file.
    """
    return _meta_text_of({key: given.strengths for key, given in parameters.items()}, key_style)


def _group(plan: SweepPlan, inventory: ResultInventory) -> list[_Group]:
    groups = []
    for (dataset, key), units in itertools.groupby(plan.units, key=lambda unit: (unit.dataset, unit.key)):
        members = tuple(sorted(units, key=lambda unit: unit.architecture))
        lacking = {
            unit.architecture: absent
            for unit in members
            if (absent := tuple(s for s in unit.strengths if not inventory.is_complete(unit, s, plan.measurements)))
        }
        groups.append(_Group(dataset, key, members, lacking))
    return groups


def _describe_missing(out: Path, groups: Sequence[_Group]) -> str:
    planned = sum(len(unit.strengths) for group in groups for unit in group.units)
    absent = {group: sum(map(len, group.lacking.values())) for group in groups if group.lacking}
    counts = ", ".join(f"{group.dataset} {group.key} {count:,}" for group, count in absent.items())
    first = next(iter(absent))
    architecture, strengths = next(iter(first.lacking.items()))
    return (
        f"Exporting failed for {out}: expected {planned:,} evaluations, got {planned - sum(absent.values()):,}; "
        f"missing {counts}; for example #{architecture} {first.dataset} {first.key} at strength {strengths[0]:g}. "
        "Run the whole sweep again, not narrowed, to compute only these, or export what there is with --partial."
    )


@dataclass(frozen=True)
class _Writer:
    """Writes the files of one (dataset, key) side by side, so that every shard is read once."""

    folder: ExportFolder
    measurements: Sequence[str]
    key_style: KeyStyle
    round_to: int | None

    def write_group(
        self, group: _Group, rows: Iterable[tuple[Unit, ValuesByStrength]], advance: Callable[[], None]
    ) -> None:
        key = group.spell(self.key_style)
        expected = iter(group.complete_units)
        with ExitStack() as stack:
            appends = {
                name: stack.enter_context(self.folder.open(group.file_name(name, self.key_style)))
                for name in self.measurements
            }
            for name, append in appends.items():
                append("{" + "".join(f"{json.dumps(part)}: {{" for part in (group.dataset, key, name)))
            separator = ""
            for unit, values in rows:
                _check_row(unit, values, next(expected, None))
                for name, append in appends.items():
                    append(f'{separator}"{unit.architecture}": {self._row_text(name, unit, values)}')
                separator = ", "
                advance()
            if (left := next(expected, None)) is not None:
                raise StorageError(
                    f"Exporting failed for {left.label}: expected its values from the store, got none. "
                    "Run `robust201 verify` on the results folder."
                )
            for append in appends.values():
                append("}}}}")

    def _row_text(self, measurement: str, unit: Unit, values: ValuesByStrength) -> str:
        row = [to_json(measurement, values[strength]) for strength in unit.strengths]
        if self.round_to is not None:
            row = _rounded(row, self.round_to)
        return json.dumps(row[0] if unit.key == "clean" else row, allow_nan=False)


def _rounded(value: Any, decimals: int) -> Any:
    if isinstance(value, float):
        return round(value, decimals)
    if isinstance(value, list):
        return [_rounded(item, decimals) for item in value]
    if isinstance(value, dict):
        return {name: _rounded(item, decimals) for name, item in value.items()}
    return value


def _check_row(unit: Unit, values: ValuesByStrength, expected: Unit | None) -> None:
    if expected is None or unit.id != expected.id or any(strength not in values for strength in unit.strengths):
        wanted = "no further unit" if expected is None else f"{expected.label} at strengths {list(expected.strengths)}"
        raise StorageError(
            f"Exporting failed for {unit.label}: expected {wanted}, got {unit.label} at strengths {sorted(values)}. "
            "Run `robust201 verify` on the results folder."
        )


def _meta_text(groups: Iterable[_Group], key_style: KeyStyle) -> str:
    by_key: dict[str, _Group] = {}
    for group in groups:
        first = by_key.setdefault(group.key, group)
        if first.strengths != group.strengths and PERTURBATIONS[group.key].kind == "attack":
            raise ConfigError(
                f"Exporting failed for {group.dataset} {group.key}: expected the epsilons of {first.dataset}, "
                f"{list(first.strengths)}, got {list(group.strengths)}. {META_FILE} has one list a key: export the "
                "datasets apart with --datasets."
            )
    return _meta_text_of({key: group.strengths for key, group in by_key.items()}, key_style)


def _meta_text_of(strengths: Mapping[str, Sequence[float]], key_style: KeyStyle) -> str:
    epsilons = {
        _spell(key, key_style): [float(epsilon) for epsilon in strengths[key]]
        for key, row in PERTURBATIONS.items()
        if key in strengths and row.kind == "attack"
    }
    return nasbench201.meta_text(epsilons)


def _spell(key: str, key_style: KeyStyle) -> str:
    return PERTURBATIONS[key].published_key if key_style == "published" else key


def _sweep_text(plan: SweepPlan, groups: Iterable[_Group], key_style: KeyStyle, round_to: int | None) -> str:
    strengths: dict[str, dict[str, list[float]]] = {}
    for group in groups:
        strengths.setdefault(group.dataset, {})[group.spell(key_style)] = list(group.strengths)
    payload = {
        "format": EXPORT_FORMAT,
        "robust201": __version__,
        "key_style": key_style,
        "round_to": round_to,
        "measurements": list(plan.measurements),
        "strengths": strengths,
        "sweep": plan.meta_payload(),
    }
    return json.dumps(payload, indent=2, allow_nan=False) + "\n"


def _missing_text(groups: Iterable[_Group], key_style: KeyStyle) -> str:
    absent: dict[str, dict[str, dict[str, list[float]]]] = {}
    for group in groups:
        if group.lacking:
            of_key = {str(architecture): list(strengths) for architecture, strengths in group.lacking.items()}
            absent.setdefault(group.dataset, {})[group.spell(key_style)] = of_key
    return json.dumps(absent, indent=1) + "\n"


def _nested(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (dataset, key), count in counts.items():
        nested.setdefault(dataset, {})[key] = count
    return nested
