"""From a plan and a store to a folder of JSON files, ``<dataset>/<key>_<measurement>.json``.

Every file is ``{dataset: {key: {measurement: {id: value}}}}`` (appendix of Jung, Lukasik, Keuper, ICLR 2023, and the
published files): one value for ``clean``, else a list with one value per strength, ascending. Beside them lie
``meta.json`` (ids and epsilons, nothing else, as published), ``sweep.json`` (protocols, image selection, strengths),
``missing.json`` where a partial export lacks something, and the listing of `pipeline.export.folder`.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pipeline.analysis.result_files import META_FILE, MISSING_FILE, PARQUET_FOLDER, SWEEP_FILE, parquet_name
from pipeline.datasets import DATASETS
from pipeline.errors import IncompleteError
from pipeline.export.card import (
    CARD_FILE,
    CROISSANT_FILE,
    DEFAULT_LICENCE,
    CardColumn,
    CardFacts,
    card_text,
    croissant_text,
)
from pipeline.export.compression import Compression
from pipeline.export.files import FileTask, RowSelection
from pipeline.export.folder import CHECKSUM_FILE, ExportFolder, WrittenFile
from pipeline.export.pool import POOL_CACHE_BYTES, write_files
from pipeline.export.side_files import (
    SWEEP_YAML_FILE,
    VERSIONS_FILE,
    Group,
    KeyStyle,
    SweepPlan,
    meta_text_of_groups,
    missing_text,
    sweep_text,
    sweep_yaml_text,
    versions_text,
)
from pipeline.measurements import COLUMNS
from pipeline.records import Unit

if TYPE_CHECKING:
    from pipeline.export.parquet_files import ParquetTask

Format = Literal["json", "parquet"]


class ResultInventory(Protocol):
    """What export needs of `pipeline.shards.Inventory`."""

    def is_complete(self, unit: Unit, strength: float, measurements: Collection[str]) -> bool:
        """Whether an evaluation is there with all its images and measurements."""


class ResultStore(Protocol):
    """What export needs of `pipeline.shards.ShardStore`."""

    def provenances(self, inventory: Any) -> list[Mapping[str, str]]:
        """Every different provenance of the rows."""

    def select(
        self, units: Sequence[Unit], inventory: Any, measurements: Collection[str], *, cache_bytes: int
    ) -> RowSelection:
        """Choose the rows of units, in the order given."""


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        out: the folder.
        files: names of the files in it, relative to the folder, sorted.
        kept: names of those that an interrupted export had left whole.
        removed: names of files of an earlier export that this one has no more.
        n_units: units written.
        n_evaluations: evaluations written.
        missing: evaluations that the plan has and the export lacks, by (dataset, key); empty for a whole export. A unit
            that lacks one strength is left out, and all its evaluations count here.
        n_bytes: size of all files together.
    """

    out: Path
    files: tuple[str, ...]
    kept: tuple[str, ...]
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
        nested: dict[str, dict[str, int]] = {}
        for (dataset, key), count in self.missing.items():
            nested.setdefault(dataset, {})[key] = count
        return {
            "out": str(self.out),
            "complete": self.complete,
            "files": list(self.files),
            "kept": list(self.kept),
            "removed": list(self.removed),
            "units": self.n_units,
            "evaluations": self.n_evaluations,
            "missing": nested,
            "bytes": self.n_bytes,
        }


def export_dataset(
    plan: SweepPlan,
    store: ResultStore,
    inventory: ResultInventory,
    out: Path,
    *,
    key_style: KeyStyle = "paper",
    round_to: int | None = None,
    compression: Compression | None = None,
    partial: bool = False,
    formats: Sequence[Format] = ("json",),
    licence: str = DEFAULT_LICENCE,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write the evaluations of a plan as a dataset in the published layout.

    Rows stream through one at a time, each file appears whole or not at all, and equal results give equal bytes.
    An earlier export in the same folder is replaced: files of it that the new one lacks are removed. Files that an
    interrupted export of the same results left whole are kept.

    Args:
        plan: what to export; evaluations in the store that it does not name are left out.
        store: the finished evaluations.
        inventory: what the store holds.
        out: the folder to write; new, empty or holding an earlier export.
        key_style: ``"paper"`` writes ``pgd``, ``"published"`` ``pgd@Linf``, in file names, JSON and meta alike.
        round_to: decimals to keep, 3 in the published files; None keeps every double exactly.
        compression: ``"gz"`` or ``"zst"`` for ``.json.gz`` and ``.json.zst`` files of results.
        partial: write what there is where evaluations are missing; a unit without all its strengths is left out.
        formats: ``"json"`` for the published layout, ``"parquet"`` for one analysis-ready file a dataset and key, in
            full precision, below ``parquet/``; or both.
        licence: of the dataset, for its card: an SPDX identifier.
        processes: how many files are written at once, each by a process of its own; 1 uses this process. With more, a
            script that calls this must guard its main part by ``if __name__ == "__main__"``.
        progress: called with (rows of files written, rows to write).

    Returns:
        What was written and what is missing.

    Raises:
        IncompleteError: evaluations are missing and `partial` is false; nothing was written.
        InputError: the folder holds files that no export listed.
        StorageError: the store does not give what the inventory says, or the device is full.
    """
    groups = group_units(plan, inventory)
    missing = {(group.dataset, group.key): group.n_left_out for group in groups if group.lacking}
    if missing and not partial:
        raise IncompleteError(_describe_missing(out, groups))
    written = [group for group in groups if group.complete_units]
    side_files = {
        META_FILE: meta_text_of_groups(groups, key_style),
        SWEEP_FILE: sweep_text(plan, groups, key_style, round_to),
    }
    if missing:
        side_files[MISSING_FILE] = missing_text(groups, key_style)
    side_files |= {
        SWEEP_YAML_FILE: sweep_yaml_text(plan),
        VERSIONS_FILE: versions_text(store.provenances(inventory)),
    }
    form = FileForm(key_style, round_to, compression, POOL_CACHE_BYTES // processes)
    files = files_of(written, plan.measurements, formats)
    cards = {CARD_FILE, CROISSANT_FILE}
    folder = ExportFolder(out, {*side_files, *cards, *(form.file_name(*file) for file in files)})
    n_rows = sum(len(group.complete_units) for group, _ in files)
    tell = (lambda done: progress(done, n_rows)) if progress is not None else (lambda _done: None)
    tasks = make_tasks(files, form, out, plan, store, inventory, folder.finished)
    kept = []
    for file, was_kept in write_files(tasks, processes, tell):
        folder.record(file)
        kept += [file.name] if was_kept else []
    columns: Sequence[CardColumn] = ()
    if "parquet" in formats:
        from pipeline.export.parquet_files import card_columns

        columns = card_columns(plan.measurements)
    facts = CardFacts(
        plan.meta_payload()["name"],
        licence,
        written,
        plan.measurements,
        plan.meta_payload()["protocols"],
        tuple(folder.written[name] for name in sorted(folder.written)),
        columns,
    )
    side_files |= {CARD_FILE: card_text(facts), CROISSANT_FILE: croissant_text(facts)}
    for name, text in side_files.items():
        folder.write(name, text)
    removed, names = folder.close(), tuple(sorted({*folder.written, CHECKSUM_FILE}))
    n_units = sum(len(group.complete_units) for group in written)
    n_evaluations = sum(len(group.complete_units) * len(group.strengths) for group in written)
    return ExportReport(out, names, tuple(sorted(kept)), removed, n_units, n_evaluations, missing, folder.n_bytes)


@dataclass(frozen=True)
class FileForm:
    """How files of results are written (see `export_dataset`)."""

    key_style: KeyStyle
    round_to: int | None
    compression: Compression | None
    cache_bytes: int

    def file_name(self, group: Group, measurement: str) -> str:
        """Name of a file of `files_of`, relative to the export's folder."""
        if measurement == PARQUET_FOLDER:
            return parquet_name(group.dataset, group.spell(self.key_style))
        suffix = "" if self.compression is None else f".{self.compression}"
        return group.file_name(measurement, self.key_style) + suffix


def files_of(
    groups: Iterable[Group], measurements: Sequence[str], formats: Collection[Format]
) -> list[tuple[Group, str]]:
    """List the files of an export: each a group and a measurement, or `PARQUET_FOLDER` for its Parquet file."""
    whats = [*(measurements if "json" in formats else ()), *((PARQUET_FOLDER,) if "parquet" in formats else ())]
    return sorted(itertools.product(groups, whats), key=_size, reverse=True)


def _size(file: tuple[Group, str]) -> int:
    """Numbers in a file, about: the largest come first, so that no process is left with one at the end."""
    group, measurement = file
    specification = DATASETS.get(group.dataset)
    n_classes = 10 if specification is None else specification.n_classes
    held = [c for c in COLUMNS.values() if measurement in (c.measurement, PARQUET_FOLDER)]
    shapes = [column.shape(n_classes, group.units[0].n_images) for column in held]
    numbers = sum(shape[0] * shape[-1] if shape else 1 for shape in shapes)
    return numbers * len(group.complete_units) * len(group.strengths)


def make_tasks(
    files: Sequence[tuple[Group, str]],
    form: FileForm,
    folder: Path,
    plan: SweepPlan,
    store: ResultStore,
    inventory: ResultInventory,
    finished: Callable[[str, str], WrittenFile | None] = lambda _name, _recipe: None,
) -> "Iterator[FileTask | ParquetTask]":
    """Make the task of each file of `files_of`; `finished` tells what an interrupted export noted of one."""
    selections: dict[tuple[str, str], RowSelection] = {}
    for group, measurement in files:
        place = group.dataset, group.key
        if place not in selections:
            selections[place] = store.select(
                group.complete_units, inventory, plan.measurements, cache_bytes=form.cache_bytes
            )
        name, key, units = form.file_name(group, measurement), group.spell(form.key_style), group.complete_units
        if measurement == PARQUET_FOLDER:
            from pipeline.export.parquet_files import ParquetTask

            whole = (folder, group.dataset, key, tuple(plan.measurements), units, selections[place])
            yield ParquetTask(*whole, finished(name, ParquetTask(*whole).recipe))
            continue
        fields = (
            folder,
            name,
            group.dataset,
            key,
            measurement,
            units,
            selections[place],
            form.round_to,
            form.compression,
        )
        yield FileTask(*fields, finished(name, FileTask(*fields).recipe))


def group_units(plan: SweepPlan, inventory: ResultInventory) -> list[Group]:
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


def _describe_missing(out: Path, groups: Sequence[Group]) -> str:
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
