"""Export of a sweep's results to a folder of JSON files, Parquet files or both.

A JSON file ``<dataset>/<key>_<measurement>.json`` contains ``{dataset: {key: {measurement: {id: value}}}}``, as in the
appendix of Jung, Lukasik, Keuper (ICLR 2023) and in the published files. For ``clean`` and measures (properties of the
network itself), a value is a single value; for other keys, it is a list with one value per strength, ascending.
`dataset.parquet_writer` describes the Parquet files.

The folder also contains ``meta.json`` (ids and epsilons, as published), ``sweep.json`` (protocols, image selection,
strengths), ``weights.json`` (hashes of the weights), ``versions.json``, ``sweep.yaml``, the files of `dataset.card` and
`dataset.listing`, and, in a partial export, ``missing.json``.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from robust201.core.errors import ConfigError, IncompleteError, RobustWarning
from robust201.core.records import ImageSet, Weights
from robust201.dataset.card import CARD_FILE, CardFacts, card_text
from robust201.dataset.export_folder import open_folder, reject_results_folder
from robust201.dataset.export_pool import write_files
from robust201.dataset.export_source import read_facts, read_groups
from robust201.dataset.groups import (
    FileFormat,
    Group,
    KeyStyle,
    OutcomeEncoding,
    ProtocolCount,
    SweepFacts,
    missing_evaluations_message,
    weights_names,
)
from robust201.dataset.image_table import ImageLoader, evaluated_images, image_table_bytes
from robust201.dataset.key_files import KeyFiles, KeyReport
from robust201.dataset.layout import PARQUET_FOLDER, images_name
from robust201.dataset.listing import CHECKSUM_FILE
from robust201.dataset.parquet_writer import ParquetFormat
from robust201.dataset.published_layout import ParquetColumn, describe_strength, layout_of, parquet_columns
from robust201.dataset.side_files import VERSIONS_FILE, WeightHashes, side_file_texts, versions_text, weight_hashes
from robust201.dataset.written_file import WrittenFile, parse_choice
from robust201.images import DATASETS
from robust201.store.folder import ResultsFolder
from robust201.sweep.plan import Plan
from robust201.tasks.columns import PREDICTIONS, count_numbers, fields_of

Format = Literal["json", "parquet"]


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    Attributes:
        out: the folder.
        files: names of the written files, relative to the folder.
        removed: names of removed files of an earlier export.
        n_units: number of exported units (all evaluations of one network on one dataset under one key).
        n_evaluations: number of exported evaluations.
        missing: number of the plan's evaluations that are not exported, by (dataset, key). A unit that
            lacks one strength is not exported, so all its evaluations count as missing.
        n_bytes: total size of the files, in bytes.
    """

    out: Path
    files: tuple[str, ...]
    removed: tuple[str, ...]
    n_units: int
    n_evaluations: int
    missing: Mapping[tuple[str, str], int]
    n_bytes: int

    @property
    def is_complete(self) -> bool:
        return not self.missing


def export_dataset(
    plan: Plan,
    folder: ResultsFolder,
    out: Path,
    *,
    weights: str | None = None,
    images_of: ImageLoader | None = None,
    **options: Any,
) -> ExportReport:
    """Write the results of a plan as a dataset in the published layout.

    Args:
        plan: the plan; other results in the folder are not exported.
        folder: the results.
        out: the folder to write.
        weights: name of the weights whose results are exported, if architectures have several; None exports all, which
            only Parquet files can contain.
        images_of: function that loads the evaluated images of a dataset for outcomes; None loads them from the results
            folder or their source.
        options: see `write_dataset`.

    Raises:
        ConfigError: there are no such weights, or see `write_dataset`.
        InputError: `out` is, or lies inside, a results folder.
        ShardDamagedError: a file of the results is damaged; it was moved aside.
        DatasetError: outcomes were requested, but the evaluated images are not available.

    Warns:
        RobustWarning: keys whose images a file chooses are left out.
    """
    reject_results_folder(out)
    left_out = [key.key for key in plan.keys if key not in plan.comparable.keys]
    if left_out:
        message = (
            f"{', '.join(dict.fromkeys(left_out))}: not exported, since a file chooses the images (docs/sampling.md)."
        )
        warnings.warn(message, RobustWarning, stacklevel=2)
    plan = plan.comparable
    measurements = plan.config.measurements
    if options.get("outcomes") is not None and PREDICTIONS not in measurements:  # runs always store predictions
        config = plan.config.model_copy(update={"measurements": (*measurements, PREDICTIONS)})
        plan = replace(plan, config=config)
    groups = read_groups(plan, folder, weights)
    return write_dataset(
        read_facts(plan), groups, out, images_of or (lambda dataset: evaluated_images(plan, dataset)), **options
    )


def write_dataset(
    facts: SweepFacts,
    groups: Sequence[Group],
    out: Path,
    images_of: ImageLoader,
    *,
    key_style: KeyStyle = "paper",
    round_to: int | None = None,
    partial: bool = False,
    formats: Sequence[Format] = ("json",),
    outcomes: OutcomeEncoding | None = None,
    processes: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> ExportReport:
    """Write results as a dataset in the published layout.

    Rows are streamed in constant memory, and equal results give equal bytes. An earlier export of the same sweep is
    replaced when the new export is complete.

    Args:
        facts: facts about the sweep.
        groups: the results.
        out: the folder to write: a new or empty folder, or an earlier export of the same sweep.
        images_of: function that loads the evaluated images of a dataset; their labels are needed for outcomes.
        key_style: ``"paper"`` writes ``pgd``; ``"published"`` appends the norm, in file names, JSON and meta.json.
        round_to: number of decimals (3 in the published files); None writes every double exactly.
        partial: whether to write an incomplete export if evaluations are missing. Units that lack a strength are not
            exported.
        formats: ``"json"`` for the published layout, ``"parquet"`` for analysis-ready files in full precision.
        outcomes: ``"bits"`` writes packed per-image outcomes to the Parquet files instead of predicted classes, and a
            table of the images; ``"classes"`` writes both outcomes and predicted classes; None writes no outcomes.
        processes: number of processes. If it is more than 1, a script that calls this function must guard its main
            part with ``if __name__ == "__main__"``.
        progress: called with the number of written units and the number of all units.

    Raises:
        IncompleteError: evaluations are missing, and `partial` is false. No file is written.
        ConfigError: JSON files would contain results of several weights; two files would have the same name; or
            outcomes were requested without predictions or Parquet files.
        InputError: the folder contains files that no export listed, files of an export that were changed, or an export
            of another sweep.
        StorageError: a result is damaged, the disk is full, or another export is writing to the folder.
    """
    parse_choice("key style", key_style, get_args(KeyStyle))
    if outcomes is not None:
        parse_choice("encoding of outcomes", outcomes, get_args(OutcomeEncoding))
        _check_outcomes_can_be_written(out, facts, formats)
    _check_single_weights(out, groups, formats)
    if any(group.missing_strengths for group in groups) and not partial:
        raise IncompleteError(missing_evaluations_message(out, groups))
    images = _load_images_of_outcomes(groups, images_of) if outcomes is not None else {}
    labels = {dataset: image_set.labels for dataset, image_set in images.items()}
    export = _Export(facts, groups, formats, FileFormat(key_style, round_to, outcomes, labels))
    side_files = export.side_files()
    with open_folder(out, facts.record) as folder:
        keys = export.list_keys(out, folder.staging)
        n_units = sum(len(group.complete_units) for group in export.exported)
        reports = []
        for report in write_files(keys, processes, lambda n_done: progress(n_done, n_units)):
            reports.append(report)
            for file in report.files:
                folder.record(file)
        for dataset, image_set in images.items():
            folder.write(images_name(dataset), image_table_bytes(image_set))
        for name, text in side_files.items():
            folder.write(name, text)
        folder.write(VERSIONS_FILE, versions_text(fields for report in reports for fields in report.provenances))
        folder.write(CARD_FILE, card_text(export.describe(reports, folder.written)))
        removed_names = folder.close()
    return ExportReport(
        out=out,
        files=tuple(sorted({*folder.written, CHECKSUM_FILE})),
        removed=removed_names,
        n_units=n_units,
        n_evaluations=sum(group.n_evaluations for group in export.exported),
        missing={(group.dataset, group.key): group.n_unexported for group in groups if group.missing_strengths},
        n_bytes=sum(file.n_bytes for file in folder.written.values()) + (out / CHECKSUM_FILE).stat().st_size,
    )


@dataclass(frozen=True)
class _Export:
    """An export to write: what it contains, and in which formats."""

    facts: SweepFacts
    groups: Sequence[Group]
    formats: Sequence[Format]
    file_format: FileFormat

    @cached_property
    def exported(self) -> list[Group]:
        """The groups of which something is exported."""
        return [group for group in self.groups if group.complete_units]

    @cached_property
    def weight_hashes(self) -> WeightHashes:
        return weight_hashes(unit for group in self.groups for unit in group.units)

    @cached_property
    def _weights(self) -> dict[str, Weights]:
        """Weights by name if architectures have rows for several weights."""
        names = weights_names(unit for group in self.exported for unit in group.units)
        return {name: self.facts.weights[name] for name in names} if len(names) > 1 else {}

    @cached_property
    def _protocols(self) -> list[ProtocolCount]:
        return self.facts.count_evaluations(self.groups)

    @property
    def _measurements(self) -> tuple[str, ...]:
        return tuple(name for name in self.facts.measurements if name not in self.file_format.omitted_measurements)

    def side_files(self) -> dict[str, str]:
        """Return the contents of all files but results, versions and card (see `side_file_texts`)."""
        return side_file_texts(self.facts, self.groups, self._protocols, self.file_format, weights=self.weight_hashes)

    def list_keys(self, out: Path, folder: Path) -> list[KeyFiles]:
        """Return what is written to a folder, the largest first, so that no large key is left for the end.

        Raises:
            ConfigError: two files would have the same name.
        """
        groups = sorted(self.exported, key=_count_values, reverse=True)
        keys = [self._make_key_files(group, folder) for group in groups]
        _check_distinct_names(out, [name for key in keys for name in key.names])
        return keys

    def _make_key_files(self, group: Group, folder: Path) -> KeyFiles:
        # Names of a measure's columns may be those of measurements.
        omitted = () if group.is_measure else self.file_format.omitted_measurements
        measurements = tuple(name for name in group.measurements if name not in omitted)
        key, file_name = self.file_format.spell_key(group), self.file_format.file_name
        parquet = ParquetFormat(
            dataset=group.dataset,
            key=key,
            measurements=measurements,
            labels=None if group.is_measure else self.file_format.labels.get(group.dataset),
            space=self.facts.space,
            strength_description=describe_strength(group.task),
            is_measure=group.is_measure,
            n_classes=self.facts.n_classes.get(group.dataset),
            weights=self._weights,
        )
        return KeyFiles(
            folder=folder,
            dataset=group.dataset,
            key=key,
            rows=group.rows,
            json_names={name: file_name(group, name) for name in measurements} if "json" in self.formats else {},
            round_to=self.file_format.round_to,
            parquet=(file_name(group, PARQUET_FOLDER), parquet) if "parquet" in self.formats else None,
        )

    def describe(self, reports: Sequence[KeyReport], written: Mapping[str, WrittenFile]) -> CardFacts:
        """Return the facts for the card, after all other files were written."""
        measures = {report.key: report.columns for report in reports if report.is_measure}
        return CardFacts(
            name=self.facts.record["name"],
            layout=layout_of(self.facts.space),
            groups=self.exported,
            measurements=self._measurements,
            protocols=self._protocols,
            files=tuple(written[name] for name in sorted(written)),
            columns=self._columns_of_image_keys() if "parquet" in self.formats else {},
            measures=dict(sorted(measures.items())),
            unevaluated_keys=_find_unevaluated_keys(self.facts, self.groups),
        )

    def _columns_of_image_keys(self) -> dict[str, ParquetColumn]:
        """Return the columns of the Parquet files of all keys except measures; empty if there are only measures."""
        strengths = dict.fromkeys(describe_strength(group.task) for group in self.groups if not group.is_measure)
        if not strengths:
            return {}
        return parquet_columns(
            self._measurements,
            layout_of(self.facts.space).columns,
            " ".join(strengths),
            weights=self._weights.values(),
            has_outcomes=self.file_format.outcomes is not None,
            n_classes=max(self.facts.n_classes.get(group.dataset, 0) for group in self.groups),
        )


def _load_images_of_outcomes(groups: Iterable[Group], images_of: ImageLoader) -> dict[str, ImageSet]:
    """Load the evaluated images of each dataset that has per-image outcomes."""
    datasets = dict.fromkeys(group.dataset for group in groups if group.complete_units and not group.is_measure)
    return {dataset: images_of(dataset) for dataset in datasets}


def _check_outcomes_can_be_written(out: Path, facts: SweepFacts, formats: Sequence[Format]) -> None:
    """Raise ConfigError unless the sweep measures predictions and Parquet files are written; outcomes need both."""
    if PREDICTIONS not in facts.measurements or "parquet" not in formats:
        missing_option = (
            "--parquet" if PREDICTIONS in facts.measurements else "the measurement `predictions` in the sweep"
        )
        raise ConfigError(
            f"Exporting outcomes failed for {out}: {missing_option} is missing. Per-image outcomes are computed from "
            "predicted classes and written as Parquet."
        )


def _check_single_weights(out: Path, groups: Sequence[Group], formats: Sequence[Format]) -> None:
    names = weights_names(unit for group in groups for unit in group.units)
    if len(names) > 1 and "json" in formats:
        raise ConfigError(
            f"Exporting failed for {out}: JSON files can contain the results of only one set of weights, but "
            f"there are {len(names)}: {', '.join(names)}. Choose one with --weights-name, or export all with "
            "--no-json --parquet."
        )


def _check_distinct_names(out: Path, names: Sequence[str]) -> None:
    """Raise ConfigError if two files have the same name.

    For example, measurement ``b_c`` of key ``a`` and measurement ``c`` of key ``a_b`` have the same file name.
    """
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Exporting failed for {out}: the files of two keys would both be named {name}. "
                "Rename one of the tasks or its columns."
            )


def _count_values(group: Group) -> int:
    """Return the approximate number of values of a group."""
    if group.is_measure:
        return group.n_evaluations
    dataset_spec = DATASETS.get(group.dataset)
    n_classes = 10 if dataset_spec is None else dataset_spec.n_classes
    columns = [column for name in group.measurements for column in fields_of(name).values()]
    return sum(count_numbers(columns, n_classes, group.units[0].n_images)) * group.n_evaluations


def _find_unevaluated_keys(facts: SweepFacts, groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the sweep's keys that were not evaluated, by dataset; fully evaluated datasets are omitted."""
    evaluated_keys = {(group.dataset, group.key) for group in groups}
    datasets = dict.fromkeys(group.dataset for group in groups)
    missing_keys = {name: [key for key in facts.tasks if (name, key) not in evaluated_keys] for name in datasets}
    return {name: keys for name, keys in missing_keys.items() if keys}
