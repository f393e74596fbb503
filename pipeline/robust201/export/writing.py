"""Export of a plan's evaluations from a store to a folder of JSON files, Parquet files or both.

A JSON file ``<dataset>/<key>_<measurement>.json`` contains ``{dataset: {key: {measurement: {id: value}}}}``, as in the
appendix of Jung, Lukasik, Keuper (ICLR 2023) and in the published files. For ``clean`` and measures (properties of the
network itself), a value is a single value; for other keys, it is a list with one value per strength, ascending.
`export.parquet_files` describes the Parquet files.

The folder also contains ``meta.json`` (ids and epsilons, as published), ``sweep.json`` (protocols, image selection,
strengths), ``weights.json`` (hashes of the weights), ``versions.json``, ``sweep.yaml``, the files of `export.card` and
`export.listing`, and, in a partial export, ``missing.json``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from robust201.core.errors import ConfigError, IncompleteError
from robust201.core.records import ImageSet
from robust201.export.card import CARD_FILE, CardFacts, card_text
from robust201.export.folder import open_folder
from robust201.export.groups import (
    FileFormat,
    Group,
    KeyStyle,
    count_protocol_evaluations,
    group_units,
    missing_evaluations_message,
    weights_names,
)
from robust201.export.json_files import JsonResultFile
from robust201.export.outcome_files import ImageLoader, OutcomeEncoding, evaluated_images, image_table_bytes
from robust201.export.parquet_files import ParquetResultFile
from robust201.export.pool import POOL_CACHE_BYTES, write_files
from robust201.export.published_layout import ParquetColumn, describe_strength, layout_of, parquet_columns
from robust201.export.side_files import side_file_texts, weight_hashes
from robust201.export.written_file import parse_choice
from robust201.images import DATASETS
from robust201.planning.plan import Plan
from robust201.reader.listings import CHECKSUM_FILE
from robust201.reader.result_files import PARQUET_FOLDER, images_name
from robust201.shards import Inventory, RowSelection, ShardStore
from robust201.tasks.columns import COLUMNS, PREDICTIONS, count_numbers, fields_of

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
    store: ShardStore,
    inventory: Inventory,
    out: Path,
    *,
    key_style: KeyStyle = "paper",
    round_to: int | None = None,
    partial: bool = False,
    formats: Sequence[Format] = ("json",),
    weights: str | None = None,
    outcomes: OutcomeEncoding | None = None,
    images_of: ImageLoader = evaluated_images,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write the evaluations of a plan as a dataset in the published layout.

    Rows are streamed in constant memory, and equal results give equal bytes. An earlier export of the same sweep is
    replaced when the new export is complete.

    Args:
        plan: the plan; other evaluations in the store are not exported.
        store: the finished evaluations.
        inventory: the store's inventory.
        out: the folder to write: a new or empty folder, or an earlier export of the same sweep.
        key_style: ``"paper"`` writes ``pgd``; ``"published"`` appends the norm, in file names, JSON and meta.json.
        round_to: number of decimals (3 in the published files); None writes every double exactly.
        partial: whether to write an incomplete export if evaluations are missing. Units that lack a strength are not
            exported.
        formats: ``"json"`` for the published layout, ``"parquet"`` for analysis-ready files in full precision.
        weights: name of the weights whose results are exported, if architectures have several. JSON files can contain
            results for one name only. If only Parquet files are written, None exports the results for all names.
        outcomes: ``"bits"`` writes packed per-image outcomes to the Parquet files instead of predicted classes, and a
            table of the images; ``"classes"`` writes both outcomes and predicted classes; None writes no outcomes.
        images_of: function that loads the evaluated images of a dataset, given the plan and the dataset's name. Their
            labels are needed to compute outcomes.
        processes: number of processes. If it is more than 1, a script that calls this function must guard its main
            part with ``if __name__ == "__main__"``.
        progress: called with the number of written units and the number of all units; a unit counts once for each of
            its files.

    Raises:
        IncompleteError: evaluations are missing, and `partial` is false. No file is written.
        ConfigError: JSON files would contain results of several weights; there are no
            weights with the name given by `weights`; two files would have the same name; or outcomes were requested
            without predictions or Parquet files.
        DatasetError: outcomes were requested, but the evaluated images are not available.
        InputError: the folder contains files that no export listed, or an export of another sweep.
        StorageError: a row of the store is invalid (see `ShardStore.check_rows`) or missing, the disk is full, or
            another export is writing to the folder.
    """
    parse_choice("key style", key_style, get_args(KeyStyle))
    if outcomes is not None:
        _check_outcomes_can_be_written(out, plan, formats)
    groups = group_units(plan, inventory, weights)
    _check_single_weights(out, groups, formats)
    if any(group.missing_strengths for group in groups) and not partial:
        raise IncompleteError(missing_evaluations_message(out, groups))
    protocol_counts = count_protocol_evaluations(plan, groups)
    file_format = FileFormat(
        key_style=key_style,
        round_to=round_to,
        cache_bytes=POOL_CACHE_BYTES // processes,
        outcomes=outcomes,
    )
    exported_groups = [group for group in groups if group.complete_units]
    result_files = list_files(exported_groups, formats, file_format.omitted_measurements)
    images = load_images_of_outcomes(exported_groups, plan, images_of) if outcomes is not None else {}
    file_format = replace(file_format, labels={dataset: image_set.labels for dataset, image_set in images.items()})
    result_names = [file_format.file_name(*file) for file in result_files]
    _check_distinct_names(out, result_names)
    hashes = weight_hashes(unit for group in groups for unit in group.units)
    provenances = store.check_rows(inventory)
    side_files = side_file_texts(plan, groups, protocol_counts, file_format, provenances=provenances, weights=hashes)
    planned_names = {
        *side_files,
        CARD_FILE,
        *result_names,
        *map(images_name, images),
    }
    plan_description = plan.describe()
    with open_folder(out, planned_names, plan_description) as folder:
        n_file_units = sum(len(group.complete_units) for group, _ in result_files)
        on_units = (lambda done: progress(done, n_file_units)) if progress is not None else (lambda _done: None)
        measure_columns: dict[str, dict[str, ParquetColumn]] = {}
        files = _record_measure_columns(
            make_files(result_files, file_format, folder.staging, plan, store, inventory), measure_columns
        )
        for file in write_files(files, processes, on_units):
            folder.record(file)
        for dataset, image_set in images.items():
            folder.write(images_name(dataset), image_table_bytes(image_set))
        for name, text in side_files.items():
            folder.write(name, text)
        facts = CardFacts(
            name=plan_description["name"],
            layout=layout_of(plan.space_name),
            groups=exported_groups,
            measurements=tuple(name for name in plan.measurements if name not in file_format.omitted_measurements),
            protocols=protocol_counts,
            files=tuple(folder.written[name] for name in sorted(folder.written)),
            columns=_columns_of_image_keys(plan, groups, file_format) if "parquet" in formats else {},
            measures=dict(sorted(measure_columns.items())),
            unevaluated_keys=_find_unevaluated_keys(plan, groups),
        )
        folder.write(CARD_FILE, card_text(facts))
        removed_names = folder.close()
    return ExportReport(
        out=out,
        files=tuple(sorted({*folder.written, CHECKSUM_FILE})),
        removed=removed_names,
        n_units=sum(len(group.complete_units) for group in exported_groups),
        n_evaluations=sum(group.n_evaluations for group in exported_groups),
        missing=_count_missing(groups),
        n_bytes=sum(file.n_bytes for file in folder.written.values()),
    )


def _count_missing(groups: Iterable[Group]) -> dict[tuple[str, str], int]:
    """Return the number of missing evaluations by dataset and key."""
    return {(group.dataset, group.key): group.n_unexported for group in groups if group.missing_strengths}


def load_images_of_outcomes(groups: Iterable[Group], plan: Plan, images_of: ImageLoader) -> dict[str, ImageSet]:
    """Load the evaluated images of each dataset that has per-image outcomes."""
    return {
        dataset: images_of(plan, dataset)
        for dataset in dict.fromkeys(group.dataset for group in groups if not group.is_measure)
    }


def _check_outcomes_can_be_written(out: Path, plan: Plan, formats: Sequence[Format]) -> None:
    """Raise ConfigError unless the sweep measures predictions and Parquet files are written; outcomes need both."""
    if PREDICTIONS not in plan.measurements or "parquet" not in formats:
        missing_option = (
            "--parquet" if PREDICTIONS in plan.measurements else "the measurement `predictions` in the sweep"
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


def _columns_of_image_keys(plan: Plan, groups: Sequence[Group], file_format: FileFormat) -> dict[str, ParquetColumn]:
    """Return the columns of the Parquet files of all keys except measures; empty if there are only measures."""
    strengths = dict.fromkeys(describe_strength(group.task) for group in groups if not group.is_measure)
    names = weights_names(unit for group in groups for unit in group.units)
    if not strengths:
        return {}
    return parquet_columns(
        [name for name in plan.measurements if name not in file_format.omitted_measurements],
        layout_of(plan.space_name).columns,
        " ".join(strengths),
        weights=[plan.weights[name] for name in names] if len(names) > 1 else (),
        has_outcomes=file_format.outcomes is not None,
        n_classes=max(plan.n_classes(group.dataset) or 0 for group in groups),
    )


def _record_measure_columns(
    files: Iterable[JsonResultFile | ParquetResultFile], measure_columns: dict[str, dict[str, ParquetColumn]]
) -> Iterator[JsonResultFile | ParquetResultFile]:
    """Yield the given files, and store the columns of each measure's Parquet file in `measure_columns`."""
    for file in files:
        if isinstance(file, ParquetResultFile) and file.is_measure:
            measure_columns[file.key] = file.columns
        yield file


def list_files(
    groups: Iterable[Group], formats: Collection[Format], omitted_measurements: Collection[str] = ()
) -> list[tuple[Group, str]]:
    """List the result files: (group, measurement) for a JSON file, (group, `PARQUET_FOLDER`) for a Parquet file.

    The largest files come first, so that no process has to write a large file alone at the end.
    """
    parquet_folders = [PARQUET_FOLDER] if "parquet" in formats else []
    files = [
        (group, content)
        for group in groups
        for content in (*(group.measurements if "json" in formats else ()), *parquet_folders)
        if content not in omitted_measurements
    ]
    return sorted(files, key=_count_numbers, reverse=True)


def _count_numbers(file: tuple[Group, str]) -> int:
    """Return the approximate number of values in a file."""
    group, content = file
    if group.is_measure:
        return group.n_evaluations
    dataset_spec = DATASETS.get(group.dataset)
    n_classes = 10 if dataset_spec is None else dataset_spec.n_classes
    columns = COLUMNS if content == PARQUET_FOLDER else fields_of(content).values()
    return sum(count_numbers(columns, n_classes, group.units[0].n_images)) * group.n_evaluations


def make_files(
    result_files: Iterable[tuple[Group, str]],
    file_format: FileFormat,
    folder: Path,
    plan: Plan,
    store: ShardStore,
    inventory: Inventory,
) -> Iterator[JsonResultFile | ParquetResultFile]:
    """Yield a `JsonResultFile` or `ParquetResultFile` for each pair that `list_files` returns."""
    selections: dict[tuple[str, str], RowSelection] = {}
    result_files = list(result_files)
    weights_of_files = weights_names(unit for group, _ in result_files for unit in group.units)
    weights = {name: plan.weights[name] for name in weights_of_files} if len(weights_of_files) > 1 else {}
    for group, content in result_files:
        dataset_key = group.dataset, group.key
        if dataset_key not in selections:
            selections[dataset_key] = store.select(
                group.complete_units, inventory, group.measurements, cache_bytes=file_format.cache_bytes
            )
        common_fields: dict[str, Any] = {
            "folder": folder,
            "name": file_format.file_name(group, content),
            "dataset": group.dataset,
            "key": file_format.spell_key(group),
            "units": group.complete_units,
            "row_source": selections[dataset_key],
        }
        if content == PARQUET_FOLDER:
            yield ParquetResultFile(
                **common_fields,
                measurements=tuple(
                    name
                    for name in group.measurements
                    if group.is_measure or name not in file_format.omitted_measurements
                ),
                labels=None if group.is_measure else file_format.labels.get(group.dataset),
                space=plan.space_name,
                strength_description=describe_strength(group.task),
                is_measure=group.is_measure,
                n_classes=plan.n_classes(group.dataset),
                weights=weights,
            )
        else:
            yield JsonResultFile(
                **common_fields,
                measurement=content,
                round_to=file_format.round_to,
            )


def _find_unevaluated_keys(plan: Plan, groups: Sequence[Group]) -> dict[str, list[str]]:
    """Return the sweep's keys that were not evaluated, by dataset; fully evaluated datasets are omitted."""
    evaluated_keys = {(group.dataset, group.key) for group in groups}
    datasets = dict.fromkeys(group.dataset for group in groups)
    missing_keys = {name: [key for key in plan.tasks if (name, key) not in evaluated_keys] for name in datasets}
    return {name: keys for name, keys in missing_keys.items() if keys}
