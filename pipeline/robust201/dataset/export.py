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
from pathlib import Path
from typing import Any

from robust201.core.errors import ConfigError, IncompleteError, RobustWarning
from robust201.core.records import ImageSet
from robust201.dataset.card import CARD_FILE, card_text
from robust201.dataset.export_folder import open_folder, reject_results_folder
from robust201.dataset.export_pool import write_files
from robust201.dataset.export_source import read_facts, read_groups
from robust201.dataset.groups import (
    Export,
    Format,
    Group,
    KeyStyle,
    OutcomeEncoding,
    SweepFacts,
    missing_evaluations_message,
    weights_names,
)
from robust201.dataset.image_table import ImageLoader, evaluated_images, image_table_bytes
from robust201.dataset.key_files import KeyFiles
from robust201.dataset.layout import images_name, parquet_name
from robust201.dataset.parquet_writer import KeyFormat
from robust201.dataset.published_layout import describe_strength
from robust201.dataset.side_files import VERSIONS_FILE, side_file_texts, versions_text
from robust201.store.folder import ResultsFolder
from robust201.sweep.plan import Plan
from robust201.tasks.columns import PREDICTIONS


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    Attributes:
        out: the folder.
        files: names of the written files, relative to the folder.
        n_units: number of exported units (all evaluations of one network on one dataset under one key).
        n_evaluations: number of exported evaluations.
        missing: number of the plan's evaluations that are not exported, by (dataset, key). A unit that
            lacks one strength is not exported, so all its evaluations count as missing.
        n_bytes: total size of the files, in bytes.
    """

    out: Path
    files: tuple[str, ...]
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
    **options: Any,
) -> ExportReport:
    """Write the results of a plan as a dataset in the published layout.

    Args:
        plan: the plan; other results in the folder are not exported.
        folder: the results.
        out: the folder to write.
        weights: name of the weights whose results are exported, if architectures have several; None exports all, which
            only Parquet files can contain.
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
    plan = exported_plan(plan, options.get("outcomes"))
    groups = read_groups(plan, folder, weights)
    return write_dataset(read_facts(plan), groups, out, lambda dataset: evaluated_images(plan, dataset), **options)


def exported_plan(plan: Plan, outcomes: str | None) -> Plan:
    """Return the part of a plan that an export contains; with outcomes, predicted classes are among its measurements.

    Runs always store predicted classes.
    """
    plan = plan.comparable
    if outcomes is None or PREDICTIONS in plan.config.measurements:
        return plan
    measurements = (*plan.config.measurements, PREDICTIONS)
    return replace(plan, config=plan.config.model_copy(update={"measurements": measurements}))


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
            outcomes were requested without Parquet files.
        InputError: the folder contains files that no export listed, or an export of another sweep.
        StorageError: a result is damaged, the disk is full, or another export is writing to the folder.
    """
    if outcomes is not None and "parquet" not in formats:
        raise ConfigError(
            f"Exporting outcomes failed for {out}: expected --parquet, got JSON only. Add --parquet, since per-image "
            "outcomes are written as Parquet."
        )
    _check_single_weights(out, groups, formats)
    if any(group.missing_strengths for group in groups) and not partial:
        raise IncompleteError(missing_evaluations_message(out, groups))
    images = _load_images_of_outcomes(groups, images_of) if outcomes is not None else {}
    labels = {dataset: image_set.labels for dataset, image_set in images.items()}
    export = Export(facts, groups, formats, key_style, round_to, outcomes, labels)
    side_files = side_file_texts(export)
    n_units = sum(len(group.complete_units) for group in export.exported)
    with open_folder(out, facts.record) as folder:
        keys = _list_keys(export, out, folder.staging)
        reports = []
        for report in write_files(keys, processes):
            reports.append(report)
            folder.record(*report.files)
            progress(sum(report.n_units for report in reports), n_units)
        for dataset, image_set in images.items():
            folder.write(images_name(dataset), image_table_bytes(image_set))
        for name, text in side_files.items():
            folder.write(name, text)
        folder.write(VERSIONS_FILE, versions_text(fields for report in reports for fields in report.provenances))
        folder.write(CARD_FILE, card_text(export, reports, [folder.written[name] for name in sorted(folder.written)]))
    return ExportReport(
        out=out,
        files=tuple(sorted(folder.written)),
        n_units=n_units,
        n_evaluations=sum(group.n_evaluations for group in export.exported),
        missing={(group.dataset, group.key): group.n_unexported for group in groups if group.missing_strengths},
        n_bytes=sum(file.n_bytes for file in folder.written.values()),
    )


def _list_keys(export: Export, out: Path, folder: Path) -> list[KeyFiles]:
    """Return what is written to a folder, the largest first, so that no large key is left for the end.

    Raises:
        ConfigError: two files would have the same name. For example, measurement ``b_c`` of key ``a`` and measurement
            ``c`` of key ``a_b`` have the same file name.
    """
    n_classes = export.facts.n_classes
    groups = sorted(export.exported, key=lambda group: -group.n_evaluations * n_classes.get(group.dataset, 1))
    keys = [_make_key_files(export, group, folder) for group in groups]
    names = [name for key in keys for name in key.names]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Exporting failed for {out}: the files of two keys would both be named {name}. "
                "Rename one of the tasks or its columns."
            )
    return keys


def _make_key_files(export: Export, group: Group, folder: Path) -> KeyFiles:
    key = export.spell_key(group)
    form = KeyFormat(
        dataset=group.dataset,
        key=key,
        measurements=group.measurements if group.is_measure else export.measurements,
        space=export.facts.space,
        strength_description=describe_strength(group.task),
        is_measure=group.is_measure,
        n_classes=export.facts.n_classes.get(group.dataset),
        weights=export.weights,
        labels=None if group.is_measure else export.labels.get(group.dataset),
    )
    json_names = {name: f"{group.dataset}/{key}_{name}.json" for name in form.measurements}
    return KeyFiles(
        folder,
        form,
        group.rows,
        json_names if "json" in export.formats else {},
        parquet_name(group.dataset, key) if "parquet" in export.formats else None,
        export.round_to,
    )


def _load_images_of_outcomes(groups: Iterable[Group], images_of: ImageLoader) -> dict[str, ImageSet]:
    """Load the evaluated images of each dataset that has per-image outcomes."""
    datasets = dict.fromkeys(group.dataset for group in groups if group.complete_units and not group.is_measure)
    return {dataset: images_of(dataset) for dataset in datasets}


def _check_single_weights(out: Path, groups: Sequence[Group], formats: Sequence[Format]) -> None:
    names = weights_names(unit for group in groups for unit in group.units)
    if len(names) > 1 and "json" in formats:
        raise ConfigError(
            f"Exporting failed for {out}: JSON files can contain the results of only one set of weights, but "
            f"there are {len(names)}: {', '.join(names)}. Choose one with --weights-name, or export all with "
            "--no-json --parquet."
        )
