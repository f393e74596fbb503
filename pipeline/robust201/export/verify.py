"""Verification of a results folder: its shards and rows, its missing evaluations, and an export of its results."""

import itertools
import reprlib
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from robust201.core.errors import ConfigError, IncompleteError, InputError, ResultsError, StorageError
from robust201.core.files import MAX_EXPORTED_FILE_BYTES, check_file
from robust201.core.memory import give_back_freed_memory
from robust201.core.records import ArchitectureId, EvaluationProtocol, ImageSet, format_architecture
from robust201.export.diff import ResultSet, read_result_set
from robust201.export.groups import FileFormat, KeyStyle, group_units
from robust201.export.json_files import JsonResultFile
from robust201.export.listing import check_listing, read_listing
from robust201.export.number_text import Empty
from robust201.export.outcome_files import OutcomeEncoding, evaluated_images, image_table
from robust201.export.parquet_files import ParquetResultFile
from robust201.export.side_files import spell_epsilons, strengths_of_keys, swept_strengths
from robust201.export.writing import Format, list_files, load_images_of_outcomes, make_files
from robust201.export.written_file import Compression
from robust201.planning.plan import Plan
from robust201.planning.plan_file import PLAN_FILE, load_plan
from robust201.reader.json_files import open_decompressed, read_json
from robust201.reader.listings import REEXPORT, key_of_parquet
from robust201.reader.parquet_results import is_converted
from robust201.reader.result_files import (
    META_FILE,
    MISSING_FILE,
    SWEEP_FILE,
    images_name,
)
from robust201.reader.weights_check import check_clean_accuracy
from robust201.runtime.lease import Lease
from robust201.runtime.preview import count_coverage, count_done
from robust201.shards import Inventory, ShardFinding, ShardStore, requeue_shards
from robust201.statistics.attack_flags import AttackFlag, KeyAndStrength, find_flags
from robust201.statistics.weights_check import WeightsCheck

_CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class Verdict:
    """Result of verifying a results folder.

    Attributes:
        findings: faults of shards and rows.
        gaps: descriptions of the network-key pairs that have results at some but not all strengths, with the missing
            strengths.
        export_problems: messages about faults in the files of the export.
        requeued_shards: names of shards that were set aside, so that the next run recomputes their evaluations.
        n_shards: number of checked shards.
        n_evaluations: number of checked evaluations.
        n_planned: number of evaluations in the plan; None if the folder has no plan.
        n_missing: number of planned evaluations that are missing or incomplete; 0 if the folder has no plan.
        n_exported: number of files that the export lists; None if no export was checked.
        weights: comparison of clean accuracies with those recorded with the weights; None if there are findings or the
            folder has no plan. Does not affect `is_sound`.
        flags: signs of weak attacks; None if these were not requested, there are findings, or the folder has no plan.
            Does not affect `is_sound`.
    """

    findings: tuple[ShardFinding, ...]
    gaps: tuple[str, ...]
    export_problems: tuple[str, ...]
    requeued_shards: tuple[str, ...]
    n_shards: int
    n_evaluations: int
    n_planned: int | None
    n_missing: int
    n_exported: int | None
    weights: WeightsCheck | None
    flags: tuple[AttackFlag, ...] | None

    @property
    def is_sound(self) -> bool:
        """Whether the results and the export have no faults; missing evaluations are not a fault."""
        return not (self.findings or self.export_problems)

    def to_payload(self) -> dict[str, Any]:
        return {
            "sound": self.is_sound,
            "findings": [
                {name: getattr(finding, name) for name in ("shard", "unit", "kind", "message")}
                for finding in self.findings
            ],
            "gaps": list(self.gaps),
            "export": list(self.export_problems),
            "requeued": list(self.requeued_shards),
            "shards": self.n_shards,
            "evaluations": self.n_evaluations,
            "planned": self.n_planned,
            "missing": self.n_missing,
            "exported_files": self.n_exported,
            "weights": None if self.weights is None else self.weights.to_payload(),
            "flags": None if self.flags is None else [flag.to_payload() for flag in self.flags],
        }


def verify_results(
    results: Path,
    *,
    export: Path | None = None,
    requeue: bool = False,
    attack_flags: bool = False,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Verdict:
    """Check a results folder and optionally an export of its results.

    Args:
        results: the results folder.
        export: folder of the export to compare with the results, file by file.
        requeue: whether to set damaged shards aside, so that the next run recomputes only their evaluations.
        attack_flags: whether to search the accuracies for signs of weak attacks.
        on_progress: called after each shard with (shards checked, shards in total).

    Raises:
        InputError: the folder does not exist, or it has no plan to compare the export with.
        ResultsError: `export` does not contain a complete export.
        LeaseHeldError: `requeue` is true while a driver is using the folder.
        StorageError: a protocol's file is damaged or missing.
    """
    store = ShardStore.open(results)
    n_exported = None if export is None else len(read_listing(export).digests)
    requeued: tuple[str, ...] = ()
    export_problems: tuple[str, ...] = ()
    with Lease.acquire(results) if requeue else nullcontext():
        inventory = store.inventory(verify="all", on_damage="report")
        plan = load_plan(results) if (results / PLAN_FILE).exists() else None
        if plan is not None:
            _check_protocol_files(plan, store, inventory)
        findings = store.verify(inventory, on_progress=on_progress)
        give_back_freed_memory()
        if export is not None and plan is None:
            raise InputError(
                f"Verifying failed for {export}: {results} has no {PLAN_FILE}, which is needed to verify an export. "
                "Write it with: robust201 run SWEEP.yaml"
            )
        if requeue:
            requeued = requeue_shards(store.folder, findings)
        if export is not None and plan is not None:
            # The inventory is read again if shards were set aside, because it lists shards that no longer exist.
            current_inventory = store.inventory(on_damage="report") if requeued else inventory
            export_problems = tuple(check_export(plan, store, current_inventory, export))
    plan_if_undamaged = plan if not findings else None
    n_missing, gaps = (0, ()) if plan is None else find_gaps(plan, inventory)
    return Verdict(
        findings=tuple(findings),
        gaps=gaps,
        export_problems=export_problems,
        requeued_shards=requeued,
        n_shards=len(inventory.shards),
        n_evaluations=inventory.n_evaluations,
        n_planned=None if plan is None else plan.n_evaluations,
        n_missing=n_missing,
        n_exported=n_exported,
        weights=None if plan_if_undamaged is None else check_clean_accuracy(plan_if_undamaged, store, inventory),
        flags=None
        if plan_if_undamaged is None or not attack_flags
        else _find_attack_flags_of_plan(results, plan_if_undamaged),
    )


def find_attack_flags(
    results: ResultSet, *, n_images: Mapping[str, int], n_classes: Mapping[str, int]
) -> tuple[AttackFlag, ...]:
    """Find signs of weak attacks on each dataset whose numbers of images and classes are known.

    Args:
        results: accuracies; different weights of the same architectures are examined separately.
        n_images: number of images by dataset.
        n_classes: number of classes by dataset.
    """
    flags: list[AttackFlag] = []
    for accuracies_by_evaluation in results.by_weights.values():
        accuracies_by_dataset: defaultdict[str, dict[KeyAndStrength, dict[ArchitectureId, float]]] = defaultdict(dict)
        for (dataset, key, strength), accuracies in accuracies_by_evaluation.items():
            accuracies_by_dataset[dataset][key, strength] = dict(accuracies)
        for dataset in (
            known_dataset
            for known_dataset in accuracies_by_dataset
            if known_dataset in n_images and known_dataset in n_classes
        ):
            flags += find_flags(
                dataset,
                accuracies_by_dataset[dataset],
                n_images=n_images[dataset],
                n_classes=n_classes[dataset],
            )
    return tuple(flags)


def _find_attack_flags_of_plan(results: Path, plan: Plan) -> tuple[AttackFlag, ...]:
    # Units of measures have columns instead of accuracies.
    n_images = {unit.dataset: unit.n_images for unit in plan.units if not unit.columns}
    return find_attack_flags(
        read_result_set(results),
        n_images=n_images,
        n_classes={name: count for name in n_images if (count := plan.n_classes(name)) is not None},
    )


def _check_protocol_files(plan: Plan, store: ShardStore, inventory: Inventory) -> None:
    """Raise StorageError if results were computed under a protocol whose file is missing."""
    digests_with_results = inventory.protocol_digests()
    for payload in plan.describe()["protocols"]:
        protocol = EvaluationProtocol.of(payload)
        if protocol.digest in digests_with_results and not inventory.protocol(protocol.digest):
            path = store.folder.protocols / f"{protocol.digest}.json"
            raise StorageError(
                f"Reading a protocol failed for {path}: the file is missing, but there are results for "
                f"{protocol.payload['key']}. Run the sweep again, which writes the file again."
            )


def find_gaps(plan: Plan, inventory: Inventory) -> tuple[int, tuple[str, ...]]:
    """Return the number of a plan's incomplete evaluations, and descriptions of the units that lack some strengths.

    An evaluation is complete if it has all images and measurements. A unit is all evaluations of one network on one
    dataset under one key; units that lack all strengths are not described.
    """
    gaps = []
    for coverage in count_coverage(plan, inventory):
        for position in coverage.unfinished:
            if coverage.complete_counts[position]:
                unit = coverage.planned_key.unit(position)
                missing_strengths = [
                    strength
                    for strength in unit.strengths
                    if not inventory.is_complete(unit, strength, plan.measurements)
                ]
                gaps.append(f"{unit.label} at {', '.join(f'{strength:g}' for strength in missing_strengths)}")
    return plan.n_evaluations - count_done(plan, inventory).total(), tuple(gaps)


def check_export(plan: Plan, store: ShardStore, inventory: Inventory, out: Path) -> Iterator[str]:
    """Compare an export's files with its listing, its results with the shards, and its strengths with the plan.

    Yields a message for each fault, with the file, the first unit that differs, and a remedy. Damaged files are also
    reported in messages, not as exceptions.

    Raises:
        ResultsError: the folder is not an export.
    """
    listing = read_listing(out)
    if listing.has_no_valid_line:
        yield from listing.invalid_line_messages
        return
    yield from check_listing(out, listing)
    listed_digests = listing.digests
    try:
        sweep = read_json(out / SWEEP_FILE, missing={})
        sweep_record = sweep if isinstance(sweep, dict) else {}
        _reject_different_sweep(out, sweep_record, plan)
        file_format = _read_file_format(out, sweep_record, listed_digests)
        recorded_weights = sweep_record.get("weights")
        exported_weights = [*recorded_weights] if isinstance(recorded_weights, dict) else []
        groups = group_units(plan, inventory, exported_weights[0] if len(exported_weights) == 1 else None)
        epsilons = spell_epsilons(strengths_of_keys(groups), plan.tasks, file_format.key_style)
    except (ResultsError, ConfigError) as error:
        yield str(error)
        return
    yield from _check_strengths(out, sweep_record, swept_strengths(groups, file_format), epsilons)
    listed_names = {name for name in listed_digests if "/" in name and not _is_converted(out / name)}
    formats: list[Format] = ["json"] if any(".json" in name for name in listed_names) else []
    formats += ["parquet"] if any(key_of_parquet(name) for name in listed_names) else []
    is_partial = MISSING_FILE in listed_digests
    expected_names: set[str] = set()
    if file_format.outcomes is not None:
        try:
            images = load_images_of_outcomes(
                (group for group in groups if group.complete_units), plan, evaluated_images
            )
        except InputError as error:
            yield f"Verifying failed for {out}: {error}"
            return
        file_format = replace(file_format, labels={dataset: image_set.labels for dataset, image_set in images.items()})
        expected_names |= {*map(images_name, images)}
        for dataset, image_set in images.items():
            yield from _check_images(out / images_name(dataset), image_set)
    for group in groups:
        files = (
            list_files([group], formats, file_format.omitted_measurements)
            if group.complete_units or not is_partial
            else []
        )
        expected_names |= {file_format.file_name(*file) for file in files}
        if group.missing_strengths and not is_partial:
            example = format_architecture(group.incomplete_units[0].architecture)
            yield (
                f"Verifying failed for {group.dataset} {group.key} of {out}: the results folder lacks results of "
                f"{len(group.missing_strengths)} exported networks, such as {example}. Complete the results and verify "
                "again."
            )
            continue
        present_files = [file for file in files if (out / file_format.file_name(*file)).is_file()]
        try:
            for file in make_files(present_files, file_format, out, plan, store, inventory):
                yield from _check_file(out, file)
        except (StorageError, IncompleteError) as error:
            yield f"Verifying failed for {group.dataset} {group.key} of {out}: {error}"
    for name in sorted(expected_names.symmetric_difference(listed_names)):
        problem = "the file is missing" if name in expected_names else "an export of these results has no such file"
        yield f"Verifying failed for {out / name}: {problem}. {REEXPORT}"


def _reject_different_sweep(out: Path, sweep_record: Mapping[str, Any], plan: Plan) -> None:
    """Raise ResultsError if the exported sweep has no protocol in common with the plan."""
    sweep = sweep_record.get("sweep")
    exported_sweep = sweep if isinstance(sweep, dict) else {}
    plan_description, exported_protocols = plan.describe(), exported_sweep.get("protocols")
    if (
        isinstance(exported_protocols, list)
        and exported_protocols
        and not any(payload in plan_description["protocols"] for payload in exported_protocols)
    ):
        raise ResultsError(
            f"Verifying failed for {out}: expected an export of {plan_description['name']}, got an "
            f"export of {reprlib.repr(exported_sweep.get('name'))} with different protocols for every key. Use the "
            "folder to which these results were exported."
        )


def _read_file_format(out: Path, sweep_record: Mapping[str, Any], names: Iterable[str]) -> FileFormat:
    def read_choice(field: str, choices: Any, default: Any = None) -> Any:
        return next((choice for choice in get_args(choices) if sweep_record.get(field, default) == choice), None)

    compression = next(
        (suffix for name in names for suffix in get_args(Compression) if name.endswith(f".{suffix}")), None
    )
    round_to = sweep_record.get("round_to", "missing")  # null is valid; text is rejected below
    style, outcomes = read_choice("key_style", KeyStyle), read_choice("outcomes", OutcomeEncoding)
    empty = read_choice("empty", Empty, "null")
    if style is None or empty is None or not (round_to is None or isinstance(round_to, int)):
        raise ResultsError(
            f"Verifying failed for {out / SWEEP_FILE}: the field `key_style`, `round_to` or `empty` is "
            f"missing or invalid. {REEXPORT}"
        )
    return FileFormat(
        key_style=style,
        round_to=round_to,
        empty=empty,
        compression=compression,
        cache_bytes=_CACHE_BYTES,
        outcomes=outcomes,
    )


def _check_strengths(
    out: Path, sweep: Mapping[str, Any], strengths: Mapping[str, Any], epsilons: Mapping[str, Any]
) -> Iterator[str]:
    """Compare the strengths in sweep.json and meta.json with the plan's strengths.

    JSON result files do not contain strengths, so no other check finds wrong ones.
    """
    try:
        meta = read_json(out / META_FILE, missing={})
    except ResultsError as error:
        yield str(error)
        meta = {"epsilons": epsilons}
    for name, file_content, field, expected_strengths in (
        (SWEEP_FILE, sweep, "strengths", strengths),
        (META_FILE, meta, "epsilons", epsilons),
    ):
        if not isinstance(file_content, dict) or file_content.get(field) != expected_strengths:
            yield f"Verifying failed for {out / name}: the {field} differ from the plan's. {REEXPORT}"


def _is_converted(path: Path) -> bool:
    """Return whether a Parquet file was converted from JSON files. Only its JSON files are compared with the shards."""
    try:
        return path.suffix == ".parquet" and path.is_file() and is_converted(path)
    except ResultsError:
        return False  # a damaged file is reported when it is compared with the shards


def _check_images(path: Path, images: ImageSet) -> Iterator[str]:
    """Compare a table of images with the evaluated images; `check_listing` reports a missing table."""
    if not path.is_file():
        return
    try:
        check_file(path, MAX_EXPORTED_FILE_BYTES)
        with pq.ParquetFile(path) as parquet_file:
            is_same = parquet_file.read().equals(image_table(images))
    except (OSError, pa.ArrowException) as error:
        yield f"Verifying failed for {path}: reading the table of images failed ({error}). {REEXPORT}"
        return
    if not is_same:
        yield f"Verifying failed for {path}: the images differ from the evaluated images. {REEXPORT}"


def _check_file(out: Path, file: JsonResultFile | ParquetResultFile) -> Iterator[str]:
    try:
        difference = _find_text_difference(file) if isinstance(file, JsonResultFile) else _find_table_difference(file)
    except (OSError, EOFError, zlib.error, pa.ArrowException, ResultsError, UnicodeDecodeError) as error:
        yield f"Verifying failed for {out / file.name}: reading it failed ({error.__cause__ or error}). {REEXPORT}"
        return
    if difference is not None:
        yield f"Verifying failed for {out / file.name}: the values differ from the results, {difference}. {REEXPORT}"


def _find_text_difference(file: JsonResultFile) -> str | None:
    """Return a description of the first difference between a JSON file and the results; None if they are equal."""
    with open_decompressed(file.folder / file.name) as stream:
        for units, expected_texts in file.iter_texts():
            stored_text = bytes(stream.read(sum(map(len, expected_texts))))
            if stored_text == b"".join(expected_texts):
                continue
            if not units:
                return "before the first or after the last network"
            for unit, expected_text in zip(units, expected_texts, strict=True):
                if not stored_text.startswith(expected_text):
                    return f"starting at {unit.label}"
                stored_text = stored_text[len(expected_text) :]
        return "after the last network" if stream.read(1) else None


def _find_table_difference(file: ParquetResultFile) -> str | None:
    """Return a description of the first difference between a Parquet file and the results; None if they are equal."""
    path = file.folder / file.name
    check_file(path, MAX_EXPORTED_FILE_BYTES)
    with pq.ParquetFile(path) as parquet_file:
        stored_tables: Iterator[Any] = (
            parquet_file.read_row_group(row_group) for row_group in range(parquet_file.num_row_groups)
        )
        for stored_table, expected_table in itertools.zip_longest(stored_tables, file.tables()):
            if stored_table is None or expected_table is None:
                return "after the last network"
            if not stored_table.equals(expected_table):
                return _describe_first_difference(stored_table, expected_table)
    return None


def _describe_first_difference(stored_table: pa.Table, expected_table: pa.Table) -> str:
    if stored_table.schema != expected_table.schema:
        return "in the columns"
    for row in range(min(len(stored_table), len(expected_table))):
        if not stored_table.slice(row, 1).equals(expected_table.slice(row, 1)):
            architecture = expected_table["architecture"][row].as_py()
            return f"starting at {format_architecture(architecture)} at strength {expected_table['strength'][row]}"
    return f"in the number of rows of a row group (got {len(stored_table)}, expected {len(expected_table)})"
