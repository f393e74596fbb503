"""From a plan and a store to a folder of JSON files, ``<dataset>/<key>_<measurement>.json``.

Every file is ``{dataset: {key: {measurement: {id: value}}}}`` (appendix of Jung, Lukasik, Keuper, ICLR 2023, and the
published files): one value for ``clean``, else a list with one value per strength, ascending. Beside them lie
``meta.json`` (ids and epsilons, nothing else, as published), ``sweep.json`` (protocols, image selection, strengths),
``weights.json`` (the networks' files), ``versions.json``, ``sweep.yaml``, the cards of `dataset.card`,
``missing.json`` where a partial export lacks something, and the listing of `dataset.folder`.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from typing import Protocol as Interface

from robust201.core.errors import IncompleteError
from robust201.core.records import Protocol, Unit
from robust201.dataset.card import (
    CARD_FILE,
    CROISSANT_FILE,
    CardColumn,
    CardFacts,
    are_imported,
    card_text,
    choose_licence,
    croissant_text,
)
from robust201.dataset.compression import Compression
from robust201.dataset.folder import ExportFolder, WrittenFile, open_folder
from robust201.dataset.json_files import FileTask, RowSelection
from robust201.dataset.listing import CHECKSUM_FILE
from robust201.dataset.pool import POOL_CACHE_BYTES, write_files
from robust201.dataset.side_files import (
    SWEEP_YAML_FILE,
    VERSIONS_FILE,
    WEIGHTS_FILE,
    Group,
    KeyStyle,
    ProtocolShare,
    SweepPlan,
    meta_text_of_groups,
    missing_text,
    sweep_text,
    sweep_yaml_text,
    versions_text,
    weights_of,
    weights_text,
)
from robust201.images import DATASETS
from robust201.reader.result_files import META_FILE, MISSING_FILE, PARQUET_FOLDER, SWEEP_FILE, parquet_name
from robust201.tasks.columns import COLUMNS

if TYPE_CHECKING:
    from robust201.dataset.parquet_files import ParquetTask

Format = Literal["json", "parquet"]


class ResultInventory(Interface):
    """What export needs of `shards.Inventory`."""

    def is_complete(self, unit: Unit, strength: float, measurements: Collection[str]) -> bool:
        """Whether an evaluation is there with all its images and measurements."""


class ResultStore(Interface):
    """What export needs of `shards.ShardStore`."""

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
    licence: str | None = None,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write the evaluations of a plan as a dataset in the published layout.

    Rows stream through one at a time, each file appears whole or not at all, and equal results give equal bytes. An
    earlier export of the same sweep is replaced; whole files that an interrupted one of the same results left are kept.

    Args:
        plan: what to export; evaluations in the store that it does not name are left out.
        store: the finished evaluations.
        inventory: what the store holds.
        out: the folder to write; new, empty or holding an earlier export of the sweep.
        key_style: ``"paper"`` writes ``pgd``, ``"published"`` ``pgd@Linf``, in file names, JSON and meta alike.
        round_to: decimals to keep, 3 in the published files; None keeps every double exactly.
        compression: ``"gz"`` or ``"zst"`` for ``.json.gz`` and ``.json.zst`` files of results.
        partial: write what there is where evaluations are missing; a unit without all its strengths is left out.
        formats: ``"json"`` for the published layout, ``"parquet"`` for analysis-ready files in full precision.
        licence: of the dataset: an SPDX identifier; None for MIT, or for what the card of imported results named.
        processes: files written at once; with more than 1, each by a process of its own, and a script that calls this
            must guard its main part by ``if __name__ == "__main__"``.
        progress: called with (rows of files written or kept, rows to write).

    Returns:
        What was written and what is missing.

    Raises:
        IncompleteError: evaluations are missing and `partial` is false; nothing was written.
        ConfigError: results were imported, and neither `licence` nor their source names a licence.
        InputError: the folder holds files that no export listed, or an export of another sweep.
        StorageError: the store does not give what the inventory says, the device is full, or another export writes into
            the folder.
    """
    groups = group_units(plan, inventory)
    if any(group.lacking for group in groups) and not partial:
        raise IncompleteError(_describe_missing(out, groups))
    shares = share_out(plan, groups)
    named = choose_licence(licence, shares, out)
    form = FileForm(key_style, round_to, compression, POOL_CACHE_BYTES // processes)
    export = _Export(plan, store, inventory, form, formats, groups, shares)
    with open_folder(out, export.names, plan.meta_payload(), export.weights) as folder:
        kept = export.write_results(folder, processes, progress)
        export.write_cards(folder, named)
        return export.close(folder, kept)


class _Export:
    """An export to be written: its side files are made first, results are written next, cards last."""

    def __init__(
        self,
        plan: SweepPlan,
        store: ResultStore,
        inventory: ResultInventory,
        form: "FileForm",
        formats: Sequence[Format],
        groups: Sequence[Group],
        shares: Sequence[ProtocolShare],
    ) -> None:
        self.plan, self.store, self.inventory, self.form, self.formats = plan, store, inventory, form, formats
        self.groups, self.shares = groups, shares
        self.written = [group for group in groups if group.complete_units]
        self.missing = {(group.dataset, group.key): group.n_left_out for group in groups if group.lacking}
        self.files = files_of(self.written, plan.measurements, formats)
        self.weights = weights_of(plan.units)
        self.side_files = self._side_files()
        results = {form.file_name(*file) for file in self.files}
        self.names = {*self.side_files, CARD_FILE, CROISSANT_FILE, *results}

    def _side_files(self) -> dict[str, str]:
        plan, style = self.plan, self.form.key_style
        texts = {
            META_FILE: meta_text_of_groups(self.groups, style),
            SWEEP_FILE: sweep_text(plan, self.groups, style, self.form.round_to, self.shares),
            VERSIONS_FILE: versions_text(self.store.provenances(self.inventory), self.shares),
        }
        if self.weights:
            texts[WEIGHTS_FILE] = weights_text(self.weights)
        if self.missing:
            texts[MISSING_FILE] = missing_text(self.groups, style)
        if not are_imported(self.shares):
            texts[SWEEP_YAML_FILE] = sweep_yaml_text(plan)
        return texts

    def write_results(
        self, folder: ExportFolder, processes: int, progress: Callable[[int, int], None] | None
    ) -> list[str]:
        """Write the files of results; give the names of those that were kept."""
        n_rows = sum(len(group.complete_units) for group, _ in self.files)
        tell = (lambda done: progress(done, n_rows)) if progress is not None else (lambda _done: None)
        made_of = (self.plan, self.store, self.inventory)
        tasks = make_tasks(self.files, self.form, folder.path, *made_of, folder.finished)
        kept = []
        for file, was_kept in write_files(tasks, processes, tell):
            folder.record(file)
            kept += [file.name] if was_kept else []
        return kept

    def write_cards(self, folder: ExportFolder, licence: str) -> None:
        """Write the side files, then the cards, which list every file that is there by then."""
        columns: Sequence[CardColumn] = ()
        if "parquet" in self.formats:
            from robust201.dataset.parquet_files import card_columns

            columns = card_columns(self.plan.measurements)
        for name, text in self.side_files.items():
            folder.write(name, text)
        told = self.plan.meta_payload()
        for name, text_of in ((CARD_FILE, card_text), (CROISSANT_FILE, croissant_text)):
            files = tuple(folder.written[name] for name in sorted(folder.written))
            about = (told["name"], licence, self.written, self.plan.measurements, self.shares)
            folder.write(name, text_of(CardFacts(*about, files, columns)))

    def close(self, folder: ExportFolder, kept: Sequence[str]) -> ExportReport:
        """List the files, and say what was written."""
        removed, names = folder.close(), tuple(sorted({*folder.written, CHECKSUM_FILE}))
        n_units = sum(len(group.complete_units) for group in self.written)
        n_evaluations = sum(len(group.complete_units) * len(group.strengths) for group in self.written)
        counts = (n_units, n_evaluations, self.missing, folder.n_bytes)
        return ExportReport(folder.path, names, tuple(sorted(kept)), removed, *counts)


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
            from robust201.dataset.parquet_files import ParquetTask

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


def share_out(plan: SweepPlan, groups: Iterable[Group]) -> list[ProtocolShare]:
    """Count what an export has of each of a plan's protocols."""
    counts: Counter[str] = Counter()
    for group in groups:
        for unit in group.complete_units:
            counts[unit.protocol] += len(group.strengths)
    planned = [Protocol.of(payload) for payload in plan.meta_payload()["protocols"]]
    return [ProtocolShare(protocol.digest, protocol.payload, counts[protocol.digest]) for protocol in planned]


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
