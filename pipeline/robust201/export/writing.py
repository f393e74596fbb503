"""From a plan and a store to a folder of JSON files, ``<dataset>/<key>_<measurement>.json``.

Every file is ``{dataset: {key: {measurement: {id: value}}}}`` (appendix of Jung, Lukasik, Keuper, ICLR 2023, and the
published files): one value for ``clean`` and measures, else a list with one value per strength, ascending. Beside them
lie ``meta.json`` (ids and epsilons, nothing else, as published), ``sweep.json`` (protocols, image selection,
strengths), ``weights.json`` (the networks' files), ``versions.json``, ``sweep.yaml``, the cards of `export.card`,
``missing.json`` where a partial export lacks something, and the listing of `export.folder`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from robust201.core.errors import ConfigError, IncompleteError
from robust201.core.records import ImageSet
from robust201.export.card import (
    CARD_FILE,
    CROISSANT_FILE,
    DEFAULT_LICENCE,
    CardFacts,
    card_text,
    check_licence,
    croissant_text,
)
from robust201.export.estimates import SampledResults, estimate_accuracies, estimates_bytes, estimates_json
from robust201.export.folder import open_folder
from robust201.export.groups import (
    FileForm,
    Group,
    KeyStyle,
    describe_missing,
    group_units,
    names_of_weights,
    share_out,
)
from robust201.export.json_files import JsonFile
from robust201.export.number_text import Empty
from robust201.export.outcome_files import ImagesOf, OutcomeForm, evaluated_images, image_table_bytes
from robust201.export.parquet_files import ParquetFile
from robust201.export.pool import POOL_CACHE_BYTES, write_files
from robust201.export.published_layout import ParquetColumn, describe_strength, layout_of, parquet_columns
from robust201.export.side_files import side_file_texts, weight_hashes
from robust201.export.written_file import Compression, parse_choice
from robust201.images import DATASETS
from robust201.planning.identity import is_drawn
from robust201.planning.plan import Plan, counted_plan
from robust201.reader.listings import CHECKSUM_FILE, PARQUET_FILES, ListedFile, parquet_files_text
from robust201.reader.result_files import ESTIMATED_FOLDER, ESTIMATES_FILE, PARQUET_FOLDER, images_name
from robust201.shards import Inventory, RowSelection, ShardStore
from robust201.tasks.columns import COLUMNS, PREDICTIONS, fields_of, numbers_of

Format = Literal["json", "parquet"]


@dataclass(frozen=True)
class ExportReport:
    """What an export wrote, by names relative to the folder.

    `removed` files were of an earlier export. `missing` counts the evaluations of the plan that it lacks, by (dataset,
    key). A unit that lacks one strength is left out, and all its evaluations count here.
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
        return not self.missing


def export_dataset(
    plan: Plan,
    store: ShardStore,
    inventory: Inventory,
    out: Path,
    *,
    key_style: KeyStyle = "paper",
    round_to: int | None = None,
    empty: Empty = "null",
    compression: Compression | None = None,
    partial: bool = False,
    formats: Sequence[Format] = ("json",),
    licence: str = DEFAULT_LICENCE,
    weights: str | None = None,
    outcomes: OutcomeForm | None = None,
    images_of: ImagesOf = evaluated_images,
    estimates: bool = False,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Write the evaluations of a plan as a dataset in the published layout, and say what is missing.

    Rows stream through one at a time, and equal results give equal bytes. An earlier export of the same sweep stays
    until the new one is whole, and is then replaced.

    Args:
        plan: what to export; evaluations in the store that it does not name are left out.
        store: the finished evaluations.
        inventory: what the store holds.
        out: the folder to write; new, empty or holding an earlier export of the sweep.
        key_style: ``"paper"`` writes ``pgd``, ``"published"`` appends the norm, in file names, JSON and meta alike.
        round_to: decimals to keep, 3 in the published files; None keeps every double exactly.
        empty: what JSON says of a mean over no image: ``"null"``, ``"nan"`` (the literal NaN, which is no JSON, but is
            what Python reads into arrays of floats) or ``"zero"``.
        compression: ``"gz"`` or ``"zst"`` for ``.json.gz`` and ``.json.zst`` files of results.
        partial: write what there is where evaluations are missing; a unit without all its strengths is left out.
        formats: ``"json"`` for the published layout, ``"parquet"`` for analysis-ready files in full precision.
        licence: of the dataset: an SPDX identifier.
        weights: name of the weights whose results are exported, where architectures have several. JSON holds one
            choice at a time; Parquet files alone hold all of them where None.
        outcomes: ``"bits"`` writes outcomes by image into the Parquet files, packed, in place of predicted classes, and
            a table of the images; ``"classes"`` writes both; None writes what was measured.
        images_of: (plan, dataset) → the images evaluated, whose labels outcomes follow from.
        estimates: also write the accuracies of sampled keys as JSON, counts and estimates together, in a folder of
            their own.
        processes: files written at once; with more than 1, each by a process of its own, and a script that calls this
            must guard its main part by ``if __name__ == "__main__"``.
        progress: called with (rows of files written, rows to write).

    Raises:
        IncompleteError: evaluations are missing and `partial` is false; nothing was written.
        ConfigError: the licence is none; or JSON is asked for of several weights, or no weights have the name given; or
            two files would have one name; or outcomes are asked for without predictions or without Parquet.
        DatasetError: outcomes are asked for, and the images evaluated are gone.
        InputError: the folder holds files that no export listed, or an export of another sweep.
        StorageError: a row of the store is wrong (see `ShardStore.check_rows`) or gone, the device is full, or another
            export writes there.
    """
    parse_choice("key style", key_style, get_args(KeyStyle))
    if outcomes is not None:
        _check_predictions(out, plan, formats)
    sampled = _estimate(plan, store, inventory, images_of)
    counted = counted_plan(plan)
    groups = group_units(counted, inventory, weights)
    if sampled is not None and sampled.missing and not partial:
        raise IncompleteError(_describe_missing_samples(out, plan, sampled, groups))
    plan = counted
    _refuse_several_weights(out, groups, formats)
    if any(group.lacking for group in groups) and not partial:
        raise IncompleteError(describe_missing(out, groups))
    shares = share_out(plan, groups)
    check_licence(licence, out)
    form = FileForm(
        key_style=key_style,
        round_to=round_to,
        empty=empty,
        compression=compression,
        cache_bytes=POOL_CACHE_BYTES // processes,
        outcomes=outcomes,
    )
    exported = [group for group in groups if group.complete_units]
    listed = list_files(exported, formats, form.left_out)
    images = images_of_outcomes(exported, plan, images_of) if outcomes is not None else {}
    form = replace(form, labels={dataset: shown.labels for dataset, shown in images.items()})
    names = [form.file_name(*file) for file in listed]
    _refuse_equal_names(out, names)
    hashes = weight_hashes(unit for group in groups for unit in group.units)
    provenances = store.check_rows(inventory)
    record = None if sampled is None else {**sampled.record, **({"json": ESTIMATED_FOLDER} if estimates else {})}
    side_files = side_file_texts(plan, groups, shares, form, provenances=provenances, weights=hashes, sampling=record)
    parquet = [form.file_name(group, content) for group, content in listed if content == PARQUET_FOLDER]
    listings = [PARQUET_FILES] if parquet else []
    estimated: dict[str, bytes] = {}
    if sampled is not None:
        estimated[ESTIMATES_FILE] = estimates_bytes(sampled, plan.space_name)
        estimated |= estimates_json(sampled, exported, form, store, inventory) if estimates else {}
    planned = {*side_files, *listings, *estimated, CARD_FILE, CROISSANT_FILE, *names, *map(images_name, images)}
    described = plan.describe()
    with open_folder(out, planned, described, hashes) as folder:
        n_rows = sum(len(group.complete_units) for group, _ in listed)
        tell = (lambda done: progress(done, n_rows)) if progress is not None else (lambda _done: None)
        measures: dict[str, dict[str, ParquetColumn]] = {}
        files = _noting_measures(make_files(listed, form, folder.staging, plan, store, inventory), measures)
        for file in write_files(files, processes, tell):
            folder.record(file)
        for dataset, shown in images.items():
            folder.write(images_name(dataset), image_table_bytes(shown))
        for name, text in side_files.items():
            folder.write(name, text)
        for name, content in estimated.items():
            folder.write(name, content)
        for name, text_of in ((CARD_FILE, card_text), (CROISSANT_FILE, croissant_text)):
            facts = CardFacts(
                name=described["name"],
                licence=licence,
                layout=layout_of(plan.space_name),
                groups=exported,
                measurements=tuple(name for name in plan.measurements if name not in form.left_out),
                shares=shares,
                files=tuple(folder.written[name] for name in sorted(folder.written)),  # every file there by then
                columns=_columns_of_answers(plan, groups, form) if "parquet" in formats else {},
                measures=dict(sorted(measures.items())),
                left_out=_keys_left_out(plan, groups),
                sampled=() if sampled is None else sampled.keys,
            )
            folder.write(name, text_of(facts))
        if parquet:
            rows_of = {
                name.removeprefix(f"{PARQUET_FOLDER}/"): ListedFile.of(folder.staging / name) for name in parquet
            }
            folder.write(PARQUET_FILES, parquet_files_text(rows_of))
        removed = folder.close()
    return ExportReport(
        out=out,
        files=tuple(sorted({*folder.written, CHECKSUM_FILE})),
        removed=removed,
        n_units=sum(len(group.complete_units) for group in exported),
        n_evaluations=sum(group.n_evaluations for group in exported),
        missing=_count_missing(groups, {} if sampled is None else sampled.missing),
        n_bytes=sum(file.n_bytes for file in folder.written.values()),
    )


def _count_missing(groups: Iterable[Group], estimates: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Count what an export lacks by dataset and key: evaluations on all images, and estimates."""
    counts = Counter({(group.dataset, group.key): group.n_left_out for group in groups if group.lacking})
    counts.update(estimates)
    return dict(counts)


def _estimate(plan: Plan, store: ShardStore, inventory: Inventory, images_of: ImagesOf) -> SampledResults | None:
    """Estimate what is sampled; None where nothing is, or all images were seen."""
    if counted_plan(plan).config.sampling is None:
        return None
    return estimate_accuracies(plan, store, inventory, images_of)


def _describe_missing_samples(out: Path, plan: Plan, sampled: SampledResults, groups: Sequence[Group]) -> str:
    """Describe what the export of a sampled sweep lacks: counts, if some are missing, before estimates."""
    counts = {(group.dataset, group.key): sum(map(len, group.lacking.values())) for group in groups if group.lacking}
    lacking = [
        f"{sum(missing.values()):,} {what} "
        f"({', '.join(f'{dataset} {key} {count:,}' for (dataset, key), count in missing.items())})"
        for missing, what in ((counts, "evaluations on all images"), (sampled.missing, "estimates"))
        if missing
    ]
    undrawn = sorted({p.key for p in plan.planned_keys if not is_drawn(plan.protocols[p.protocol])})
    why = f"; no sample is drawn yet for {', '.join(undrawn)}" if undrawn else ""
    return (
        f"Exporting failed for {out}: expected results of the whole sweep, got none of {' and '.join(lacking)}{why}. "
        "Run the whole sweep again, not narrowed, to compute only these (robust201 run SWEEP.yaml), or export what "
        "there is with --partial."
    )


def images_of_outcomes(groups: Iterable[Group], plan: Plan, images_of: ImagesOf) -> dict[str, ImageSet]:
    """Load the images that outcomes by image are of, by dataset."""
    return {
        dataset: images_of(plan, dataset) for dataset in dict.fromkeys(g.dataset for g in groups if not g.is_measure)
    }


def _check_predictions(out: Path, plan: Plan, formats: Sequence[Format]) -> None:
    """Check that outcomes can be written: predictions were measured, and Parquet is asked for."""
    if PREDICTIONS not in plan.measurements or "parquet" not in formats:
        lacking = "--parquet" if PREDICTIONS in plan.measurements else "the measurement `predictions` in the sweep"
        raise ConfigError(
            f"Exporting outcomes failed for {out}: expected {lacking}, got none. Outcomes by image follow from "
            "predicted classes and are written as Parquet."
        )


def _refuse_several_weights(out: Path, groups: Sequence[Group], formats: Sequence[Format]) -> None:
    names = names_of_weights(unit for group in groups for unit in group.units)
    if len(names) > 1 and "json" in formats:
        raise ConfigError(
            f"Exporting failed for {out}: expected one choice of weights, since JSON holds one at a time, got "
            f"{len(names)}. Choose one by --weights-name: {', '.join(names)}; or export all by --no-json --parquet."
        )


def _refuse_equal_names(out: Path, names: Sequence[str]) -> None:
    """Check that no two files have one name: a key ``a`` may measure ``b_c``, and a key ``a_b`` measure ``c``."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"Exporting failed for {out}: expected a distinct name for each file, got {name} for two keys. "
                "Name one of the tasks or its columns otherwise."
            )


def _columns_of_answers(plan: Plan, groups: Sequence[Group], form: FileForm) -> dict[str, ParquetColumn]:
    """Columns that the Parquet files of all keys but measures have; empty where there are no such keys."""
    strengths = dict.fromkeys(describe_strength(group.task) for group in groups if not group.is_measure)
    names = names_of_weights(unit for group in groups for unit in group.units)
    if not strengths:
        return {}
    return parquet_columns(
        [name for name in plan.measurements if name not in form.left_out],
        layout_of(plan.space_name).columns,
        " ".join(strengths),
        weights=[plan.weights[name] for name in names] if len(names) > 1 else (),
        outcomes=form.outcomes is not None,
        n_classes=max(plan.n_classes(group.dataset) or 0 for group in groups),
    )


def _noting_measures(
    files: Iterable[JsonFile | ParquetFile], measures: dict[str, dict[str, ParquetColumn]]
) -> Iterator[JsonFile | ParquetFile]:
    for file in files:
        if isinstance(file, ParquetFile) and file.is_measure:
            measures[file.key] = file.columns
        yield file


def list_files(
    groups: Iterable[Group], formats: Collection[Format], left_out: Collection[str] = ()
) -> list[tuple[Group, str]]:
    """List the files of an export: each a group and a measurement, or `PARQUET_FOLDER` for its Parquet file."""
    as_parquet = [PARQUET_FOLDER] if "parquet" in formats else []
    listed = [
        (group, content)
        for group in groups
        for content in (*(group.measurements if "json" in formats else ()), *as_parquet)
        if content not in left_out
    ]
    return sorted(listed, key=_size, reverse=True)


def _size(file: tuple[Group, str]) -> int:
    """Numbers in a file, about: the largest come first, so that no process is left with one at the end."""
    group, measurement = file
    if group.is_measure:
        return group.n_evaluations
    specification = DATASETS.get(group.dataset)
    n_classes = 10 if specification is None else specification.n_classes
    columns = COLUMNS if measurement == PARQUET_FOLDER else fields_of(measurement).values()
    return sum(numbers_of(columns, n_classes, group.units[0].n_images)) * group.n_evaluations


def make_files(
    listed: Iterable[tuple[Group, str]],
    form: FileForm,
    folder: Path,
    plan: Plan,
    store: ShardStore,
    inventory: Inventory,
) -> Iterator[JsonFile | ParquetFile]:
    """Make the files of `list_files`, ready to be written."""
    selections: dict[tuple[str, str], RowSelection] = {}
    listed = list(listed)
    names = names_of_weights(unit for group, _ in listed for unit in group.units)
    weights = {name: plan.weights[name] for name in names} if len(names) > 1 else {}
    for group, measurement in listed:
        place = group.dataset, group.key
        if place not in selections:
            selections[place] = store.select(
                group.complete_units, inventory, group.measurements, cache_bytes=form.cache_bytes
            )
        shared: dict[str, Any] = {
            "folder": folder,
            "name": form.file_name(group, measurement),
            "dataset": group.dataset,
            "key": form.spell(group),
            "units": group.complete_units,
            "rows": selections[place],
        }
        if measurement == PARQUET_FOLDER:
            yield ParquetFile(
                **shared,
                measurements=tuple(one for one in group.measurements if group.is_measure or one not in form.left_out),
                labels=None if group.is_measure else form.labels.get(group.dataset),
                space=plan.space_name,
                strength=describe_strength(group.task),
                is_measure=group.is_measure,
                n_classes=plan.n_classes(group.dataset),
                weights=weights,
            )
        else:
            yield JsonFile(
                **shared,
                compression=form.compression,
                measurement=measurement,
                round_to=form.round_to,
                empty=form.empty,
            )


def _keys_left_out(plan: Plan, groups: Sequence[Group]) -> dict[str, list[str]]:
    """List by dataset what the sweep does on other datasets, or on none, for lack of corrupted images."""
    swept = {(group.dataset, group.key) for group in groups}
    datasets = dict.fromkeys(group.dataset for group in groups)
    left_out = {name: [key for key in plan.tasks if (name, key) not in swept] for name in datasets}
    return {name: keys for name, keys in left_out.items() if keys}
