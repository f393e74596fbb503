"""Export of a sweep's results to a folder of JSON files, Parquet files or both.

A JSON file ``<dataset>/<key>_<measurement>.json`` contains ``{dataset: {key: {measurement: {id: value}}}}``, as in the
appendix of Jung, Lukasik, Keuper (ICLR 2023) and in the published files. For ``clean`` and measures (properties of the
network itself), a value is a single value; for other keys, it is a list with one value per strength, ascending.
`dataset.parquet_writer` describes the Parquet files.

The folder also contains ``meta.json`` (ids and epsilons, as published), ``sweep.json`` (protocols, image selection,
strengths), ``weights.json`` (hashes of the weights), ``versions.json``, ``sweep.yaml``, the files of `dataset.card` and
`dataset.listing`, tables of the images in ``images/`` if outcomes are exported, and ``missing.json`` if evaluations
are missing.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from robust201.core.errors import ConfigError, DatasetError, IncompleteError, RobustWarning, did_you_mean
from robust201.core.records import ImageSet
from robust201.dataset.card import CARD_FILE, card_text
from robust201.dataset.export_folder import open_folder, reject_results_folder
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
from robust201.dataset.key_files import KeyFiles, write_files
from robust201.dataset.layout import images_name
from robust201.dataset.parquet_writer import KeyFormat, image_table_bytes
from robust201.dataset.published_layout import describe_strength
from robust201.dataset.shard_rows import KeyRows
from robust201.dataset.side_files import VERSIONS_FILE, side_file_texts, versions_text
from robust201.dataset.unstable_networks import list_stable_results
from robust201.store.folder import ResultsFolder
from robust201.store.names import Listing
from robust201.sweep.inputs import Inputs
from robust201.sweep.parts import KeyState, compare
from robust201.sweep.plan import Plan
from robust201.sweep.sweep_record import describe_sweep, portable_fields
from robust201.tasks.columns import PREDICTIONS, fields_of


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
        RobustWarning: keys are left out, because a file selects their images; or results of an unstable network are.
    """
    reject_results_folder(out)
    excluded_keys = [key.key for key in plan.keys if key not in plan.comparable.keys]
    if excluded_keys:
        names = ", ".join(dict.fromkeys(excluded_keys))
        message = f"{names}: not exported, since a file chooses the images (docs/sampling.md)."
        warnings.warn(message, RobustWarning, stacklevel=2)
    return export_results(plan, folder, out, weights=weights, **options)


def export_results(
    plan: Plan, folder: ResultsFolder, out: Path, *, weights: str | None = None, **options: Any
) -> ExportReport:
    """Write a dataset like `export_dataset`, but without its warning; `out` may lie inside the results folder."""
    plan = plan.comparable
    if options.get("outcomes") is not None and PREDICTIONS not in plan.config.measurements:  # runs always store them
        measurements = (*plan.config.measurements, PREDICTIONS)
        plan = replace(plan, config=plan.config.model_copy(update={"measurements": measurements}))
    groups = _read_groups(plan, folder, weights)
    return write_dataset(_read_facts(plan), groups, out, lambda name: load_evaluated_images(plan, name), **options)


def _read_facts(plan: Plan) -> SweepFacts:
    """Return the facts about a plan's sweep that an export contains."""
    config = plan.config
    specs = {dataset: config.dataset_spec(dataset) for dataset in config.datasets}
    networks = [network for facts in plan.facts.datasets.values() for network in facts.networks]
    weights = [network.weights for network in networks if network.weights.sha256]
    return SweepFacts(
        record=describe_sweep(plan),
        fields=portable_fields(config),
        space=config.space_name,
        tasks={key: task for key, task in config.tasks.items() if config.parameters[key].images_file is None},
        measurements=config.measurements,
        n_classes={dataset: spec.n_classes for dataset, spec in specs.items()},
        weights={entry.name: entry for entry in weights} if config.has_several_weights else {},
    )


def _read_groups(plan: Plan, folder: ResultsFolder, weights: str | None) -> list[Group]:
    """Return a group per dataset and key: the units of all weights or of one name, and the strengths that units lack.

    Raises:
        ConfigError: no weights have this name.

    Warns:
        RobustWarning: an unstable network has results; they count as missing.
    """
    names = list(dict.fromkeys(network.name for key in plan.keys for network in key.networks if network.name))
    if weights is not None and weights not in names:
        raise ConfigError(
            f"Choosing weights failed: expected one of {', '.join(names)}, got {weights!r}."
            f"{did_you_mean(weights, names)}"
            if names
            else f"Choosing weights failed for {weights!r}: the weights of these results have no names. Omit the name."
        )
    listing = list_stable_results(plan, folder)
    states = compare(plan, listing, folder.read_tuple).keys
    groups = [_make_group(plan, folder, listing, state, weights) for state in states]
    return [group for group in groups if group.units]


def _make_group(plan: Plan, folder: ResultsFolder, listing: Listing, state: KeyState, weights: str | None) -> Group:
    key = state.key
    missing = {
        index: tuple(np.array(key.strengths)[~state.complete[index]].tolist())
        for index in np.flatnonzero(~state.complete.all(axis=1)).tolist()
    }
    unknown = {*key.networks_without_weights()}  # their weights may have the name `weights`
    names = [network.name for network in key.networks]
    networks = [index for index, name in enumerate(names) if weights in (None, name) or index in unknown]
    networks.sort(key=lambda index: key.networks[index].architecture)
    measurements = key.task.columns or plan.config.measurements
    return Group(
        dataset=key.dataset,
        task=key.task,
        measurements=measurements,
        units=tuple(key.unit(index) for index in networks),
        missing_strengths={key.unit(index).id: missing[index] for index in networks if index in missing},
        rows=KeyRows(
            folder,
            key,
            listing,
            [index for index in networks if index not in missing],
            [column for name in measurements for column in fields_of(name).values()],
        ),
    )


def load_evaluated_images(plan: Plan, dataset: str) -> ImageSet:
    """Load the images that a sweep evaluated, from the copy in its results folder or from their source.

    Raises:
        DatasetError: the images are not available, or differ from the evaluated images.
    """
    inputs, sha256 = Inputs(plan.config), plan.facts.datasets[dataset].images_of().sha256
    try:
        return inputs.read_copied_images(dataset, sha256)
    except DatasetError as error:  # a merged results folder has no copy
        source_images = Inputs(plan.config).images(dataset)
        if source_images.sha256 != sha256:
            raise DatasetError(
                f"Exporting outcomes failed for {dataset}: expected the evaluated images, whose SHA-256 begins "
                f"with {sha256[:16]}, got images with {source_images.sha256[:16]}. Run "
                "`robust201 plan SWEEP.yaml --save` on a machine that has the evaluated images."
            ) from error
        return source_images


def write_dataset(
    facts: SweepFacts,
    groups: Sequence[Group],
    out: Path,
    images_of: Callable[[str], ImageSet],
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
        key_style: ``"paper"`` writes ``pgd``; ``"published"`` appends the norm, in file names and in files.
        round_to: number of decimals (3 in the published files); None writes every double exactly.
        partial: whether to write an incomplete export if evaluations are missing. Units that lack a strength are not
            exported.
        formats: ``"json"`` for the published layout, ``"parquet"`` for analysis-ready files in full precision.
        outcomes: ``"bits"`` writes packed per-image outcomes to the Parquet files instead of predicted classes,
            ``"classes"`` both; with either, a table of the images is written. None writes no outcomes.
        processes: number of processes. If it is more than 1, a script that calls this function must guard its main
            part with ``if __name__ == "__main__"``.
        progress: called with the number of written units and the number of all units.

    Raises:
        IncompleteError: evaluations are missing, and `partial` is false. No file is written.
        ConfigError: JSON files would contain results of several weights; two files would have the same name; an
            attack has different epsilons on two datasets; or outcomes were requested without Parquet files.
        InputError: the folder cannot be replaced (see `open_folder`).
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
    image_groups = [group for group in groups if group.complete_units and not group.is_measure]
    datasets = dict.fromkeys(group.dataset for group in image_groups) if outcomes is not None else {}
    images = {dataset: images_of(dataset) for dataset in datasets}
    labels = {dataset: image_set.labels for dataset, image_set in images.items()}
    export = Export(facts, groups, formats, key_style, round_to, outcomes, labels)
    side_files = side_file_texts(export)
    n_units = sum(len(group.complete_units) for group in export.exported_groups)
    with open_folder(out, facts.record) as folder:
        key_files = _list_key_files(export, out, folder.staging)
        reports = []
        for report in write_files(key_files, processes):
            reports.append(report)
            folder.written |= report.files
            progress(sum(report.n_units for report in reports), n_units)
        for dataset, image_set in images.items():
            folder.write(images_name(dataset), image_table_bytes(image_set))
        for name, text in side_files.items():
            folder.write(name, text)
        folder.write(VERSIONS_FILE, versions_text(chain.from_iterable(report.provenances for report in reports)))
        folder.write(CARD_FILE, card_text(export))
    return ExportReport(
        out=out,
        files=tuple(sorted(folder.written)),
        n_units=n_units,
        n_evaluations=sum(group.n_evaluations for group in export.exported_groups),
        missing={(group.dataset, group.key): group.n_unexported for group in groups if group.missing_strengths},
        n_bytes=sum((out / name).stat().st_size for name in folder.written),
    )


def _list_key_files(export: Export, out: Path, folder: Path) -> list[KeyFiles]:
    """Return the files of each group, the largest group first, so that no large file is written last.

    Raises:
        ConfigError: two files would have the same name. For example, measurement ``b_c`` of key ``a`` and measurement
            ``c`` of key ``a_b`` have the same file name.
    """
    n_classes = export.facts.n_classes
    groups = sorted(export.exported_groups, key=lambda group: -group.n_evaluations * n_classes.get(group.dataset, 1))
    key_files = [
        KeyFiles(folder, _make_format(export, group), group.rows, export.formats, export.round_to) for group in groups
    ]
    names = [name for files in key_files for name in files.names]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Exporting failed for {out}: the files of two keys would both be named {name}. "
                "Rename one of the tasks or its columns."
            )
    return key_files


def _make_format(export: Export, group: Group) -> KeyFormat:
    return KeyFormat(
        dataset=group.dataset,
        key=export.spell_key(group),
        measurements=group.measurements if group.is_measure else export.measurements,
        space=export.facts.space,
        strength_description=describe_strength(group.task),
        is_measure=group.is_measure,
        n_classes=export.facts.n_classes.get(group.dataset),
        weights=export.weights,
        labels=None if group.is_measure else export.labels.get(group.dataset),
    )


def _check_single_weights(out: Path, groups: Sequence[Group], formats: Sequence[Format]) -> None:
    names = weights_names(unit for group in groups for unit in group.units)
    if len(names) > 1 and "json" in formats:
        raise ConfigError(
            f"Exporting failed for {out}: JSON files can contain the results of only one set of weights, but "
            f"there are {len(names)}: {', '.join(names)}. Choose one with --weights-name, or export all with "
            "--no-json --parquet."
        )
