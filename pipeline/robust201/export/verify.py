"""Verification of a results folder: shards, rows, coverage, and an export of the results."""

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
from robust201.core.files import MAX_LISTED_BYTES, check_file, read_file
from robust201.core.memory import give_back_freed_memory
from robust201.core.records import ArchitectureId, EvaluationProtocol, ImageSet, show_architecture
from robust201.export.diff import ResultSet, read_result_set
from robust201.export.estimates import estimate_accuracies, estimates_bytes
from robust201.export.groups import FileForm, KeyStyle, group_units
from robust201.export.json_files import JsonFile
from robust201.export.listing import check_listing, read_listing
from robust201.export.number_text import Empty
from robust201.export.outcome_files import OutcomeForm, evaluated_images, image_table
from robust201.export.parquet_files import ParquetFile
from robust201.export.side_files import spell_epsilons, strengths_of_keys, swept_strengths
from robust201.export.writing import Format, images_of_outcomes, list_files, make_files
from robust201.export.written_file import Compression
from robust201.planning.plan import Plan, counted_plan
from robust201.planning.plan_file import PLAN_FILE, load_plan
from robust201.reader.json_files import open_decompressed, read_json
from robust201.reader.listings import REEXPORT, key_of_parquet
from robust201.reader.parquet_results import is_converted
from robust201.reader.result_files import (
    ESTIMATED_FOLDER,
    ESTIMATES_FILE,
    META_FILE,
    MISSING_FILE,
    SWEEP_FILE,
    images_name,
)
from robust201.reader.weights_check import check_clean_accuracy
from robust201.runtime.lease import Lease
from robust201.runtime.preview import count_coverage, count_done
from robust201.shards import Inventory, ShardFinding, ShardStore, requeue_shards
from robust201.statistics.attack_flags import AttackFlag, Evaluated, find_flags, transfers_of
from robust201.statistics.weights_check import WeightsCheck

_CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class Verdict:
    """Result of verifying a results folder.

    Attributes:
        findings: problems of shards and rows.
        gaps: units that have results at some but not all strengths.
        export: problems of the export's files.
        requeued: shards that were moved away, so that the next run recomputes their evaluations.
        n_shards: shards checked.
        n_evaluations: evaluations checked.
        n_planned: evaluations of the plan; None if the folder has no plan.
        n_missing: evaluations of the plan that are missing or incomplete.
        n_exported: files listed by the export; None if no export was checked.
        weights: comparison of clean accuracies with those recorded with the weights; None if rows are damaged. Does not
            affect `sound`.
        flags: signs of weak attacks; None if `attack_flags` was off. Does not affect `sound`.
    """

    findings: tuple[ShardFinding, ...]
    gaps: tuple[str, ...]
    export: tuple[str, ...]
    requeued: tuple[str, ...]
    n_shards: int
    n_evaluations: int
    n_planned: int | None
    n_missing: int
    n_exported: int | None
    weights: WeightsCheck | None
    flags: tuple[AttackFlag, ...] | None

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged; missing evaluations are not damage."""
        return not (self.findings or self.export)

    def to_payload(self) -> dict[str, Any]:
        return {
            "sound": self.sound,
            "findings": [
                {name: getattr(finding, name) for name in ("shard", "unit", "kind", "message")}
                for finding in self.findings
            ],
            "gaps": list(self.gaps),
            "export": list(self.export),
            "requeued": list(self.requeued),
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
        requeue: whether to move damaged shards away, so that the next run recomputes only their evaluations.
        attack_flags: whether to search the accuracies for signs of weak attacks.
        on_progress: called after each shard with (shards checked, shards in total).

    Raises:
        InputError: there is no such folder, or it has no plan to compare the export with.
        ResultsError: `export` does not contain a complete export.
        LeaseHeldError: `requeue` is true while a driver is using the folder.
        StorageError: a protocol's file is damaged or missing.
    """
    store = ShardStore.open(results)
    n_exported = None if export is None else len(read_listing(export).digests)
    moved: tuple[str, ...] = ()
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
            moved = requeue_shards(store.folder, inventory, findings)
        if export is not None and plan is not None:
            # Moved shards can no longer be read, and damaged ones cannot be compared with an export.
            remaining = store.inventory(on_damage="report") if moved else inventory
            export_problems = tuple(check_export(plan, store, remaining, export))
    readable = plan if not findings else None
    n_missing, gaps = (0, ()) if plan is None else find_gaps(plan, inventory)
    return Verdict(
        findings=tuple(findings),
        gaps=gaps,
        export=export_problems,
        requeued=moved,
        n_shards=len(inventory.shards),
        n_evaluations=inventory.n_evaluations,
        n_planned=None if plan is None else plan.n_evaluations,
        n_missing=n_missing,
        n_exported=n_exported,
        weights=None if readable is None else check_clean_accuracy(readable, store, inventory),
        flags=None if readable is None or not attack_flags else _find_flags(results, readable),
    )


def flags_of(
    results: ResultSet, *, n_images: Mapping[str, int], n_classes: Mapping[str, int], protocols: Iterable[Any]
) -> tuple[AttackFlag, ...]:
    """Return signs of weak attacks on each dataset whose numbers of images and classes are known.

    Args:
        results: accuracies; those of each name of weights are examined separately.
        n_images: number of images by dataset.
        n_classes: number of classes by dataset.
        protocols: payloads of the protocols, which identify the sources of transfer attacks.
    """
    transfers = transfers_of(protocols)
    flags: list[AttackFlag] = []
    for numbers in results.by_weights.values():
        by_dataset: defaultdict[str, dict[Evaluated, dict[ArchitectureId, float]]] = defaultdict(dict)
        for (dataset, key, strength), accuracies in numbers.items():
            by_dataset[dataset][key, strength] = dict(accuracies)
        for dataset in (name for name in by_dataset if name in n_images and name in n_classes):
            flags += find_flags(
                dataset,
                by_dataset[dataset],
                n_images=n_images[dataset],
                n_classes=n_classes[dataset],
                transfers=transfers,
            )
    return tuple(flags)


def _find_flags(results: Path, plan: Plan) -> tuple[AttackFlag, ...]:
    n_images = {unit.dataset: unit.n_images for unit in counted_plan(plan).units if not unit.columns}
    return flags_of(
        read_result_set(results),
        n_images=n_images,
        n_classes={name: count for name in n_images if (count := plan.n_classes(name)) is not None},
        protocols=plan.describe()["protocols"],
    )


def _check_protocol_files(plan: Plan, store: ShardStore, inventory: Inventory) -> None:
    """Raise StorageError if the file of a protocol that results were computed under is missing."""
    digests_with_results = inventory.protocol_digests()
    for payload in plan.describe()["protocols"]:
        protocol = EvaluationProtocol.of(payload)
        if protocol.digest in digests_with_results and not inventory.protocol(protocol.digest):
            path = store.folder.protocols / f"{protocol.digest}.json"
            raise StorageError(
                f"Reading a protocol failed for {path}: the file is missing, although there are results under "
                f"{protocol.payload['key']}. Run the sweep again, which rewrites it."
            )


def find_gaps(plan: Plan, inventory: Inventory) -> tuple[int, tuple[str, ...]]:
    """Return the number of a plan's incomplete evaluations, and the units that lack some but not all strengths.

    An evaluation is complete if it has all images and measurements.
    """
    gaps = []
    for covered in count_coverage(plan, inventory):
        for position in covered.unfinished:
            if covered.complete[position]:
                unit = covered.planned.unit(position)
                lacking = [s for s in unit.strengths if not inventory.is_complete(unit, s, plan.measurements)]
                gaps.append(f"{unit.label} at {', '.join(f'{strength:g}' for strength in lacking)}")
    return plan.n_evaluations - count_done(plan, inventory).total(), tuple(gaps)


def _check_estimates(plan: Plan, store: ShardStore, inventory: Inventory, out: Path) -> Iterator[str]:
    """Recompute the estimates of an export and compare the bytes."""
    path = out / ESTIMATES_FILE
    try:
        sampled = estimate_accuracies(plan, store, inventory, evaluated_images)
        is_same = read_file(path, MAX_LISTED_BYTES) == estimates_bytes(sampled, plan.space_name)
    except (OSError, InputError) as error:
        yield f"Verifying failed for {path}: {error}"
        return
    if not is_same:
        yield (f"Verifying failed for {path}: the estimates differ from those computed from the results. Export again.")


def check_export(plan: Plan, store: ShardStore, inventory: Inventory, out: Path) -> Iterator[str]:
    """Compare an export's files with its listing, its results with the shards, and its strengths with the plan.

    Yields a message for each problem: the file, the first differing unit and the remedy. Damage does not raise.

    Raises:
        ResultsError: the folder is not an export.
    """
    listing = read_listing(out)
    if listing.is_other_content:
        yield from listing.wrong
        return
    yield from check_listing(out, listing)
    names = listing.digests
    if ESTIMATES_FILE in names:
        yield from _check_estimates(plan, store, inventory, out)
    plan = counted_plan(plan)
    try:
        sweep = read_json(out / SWEEP_FILE, missing={})
        record = sweep if isinstance(sweep, dict) else {}
        _reject_other_sweep(out, record, plan)
        form = _read_form(out, record, names)
        recorded_weights = record.get("weights")
        names_of_export = [*recorded_weights] if isinstance(recorded_weights, dict) else []
        groups = group_units(plan, inventory, names_of_export[0] if len(names_of_export) == 1 else None)
        epsilons = spell_epsilons(strengths_of_keys(groups), plan.tasks, form.key_style)
    except (ResultsError, ConfigError) as error:
        yield str(error)
        return
    yield from _check_strengths(out, record, swept_strengths(groups, form), epsilons)
    listed = {name for name in names if "/" in name and not _is_converted(out / name)}
    listed = {name for name in listed if not name.startswith(f"{ESTIMATED_FOLDER}/")}
    formats: list[Format] = ["json"] if any(".json" in name for name in listed) else []
    formats += ["parquet"] if any(key_of_parquet(name) for name in listed) else []
    partial = MISSING_FILE in names
    expected: set[str] = set()
    if form.outcomes is not None:
        try:
            images = images_of_outcomes((group for group in groups if group.complete_units), plan, evaluated_images)
        except InputError as error:
            yield f"Verifying failed for {out}: {error}"
            return
        form = replace(form, labels={dataset: image_set.labels for dataset, image_set in images.items()})
        expected |= {*map(images_name, images)}
        for dataset, image_set in images.items():
            yield from _check_images(out / images_name(dataset), image_set)
    for group in groups:
        files = list_files([group], formats, form.left_out) if group.complete_units or not partial else []
        expected |= {form.file_name(*file) for file in files}
        if group.lacking and not partial:
            first = show_architecture(group.incomplete_units[0].architecture)
            yield (
                f"Verifying failed for {group.dataset} {group.key} of {out}: {len(group.lacking)} of its networks "
                f"lack results to compare with, such as {first}. Complete the results and verify again."
            )
            continue
        present = [file for file in files if (out / form.file_name(*file)).is_file()]
        try:
            for file in make_files(present, form, out, plan, store, inventory):
                yield from _check_file(out, file)
        except (StorageError, IncompleteError) as error:
            yield f"Verifying failed for {group.dataset} {group.key} of {out}: {error}"
    for name in sorted(expected.symmetric_difference(listed)):
        problem = "the file is missing" if name in expected else "the results have no such file"
        yield f"Verifying failed for {out / name}: {problem}. {REEXPORT}"


def _reject_other_sweep(out: Path, record: Mapping[str, Any], plan: Plan) -> None:
    """Raise ResultsError if the exported sweep has no protocol in common with the plan: every file would differ."""
    sweep = record.get("sweep")
    origin = sweep if isinstance(sweep, dict) else {}
    planned, exported = plan.describe(), origin.get("protocols")
    if isinstance(exported, list) and exported and not any(payload in planned["protocols"] for payload in exported):
        raise ResultsError(
            f"Verifying failed for {out}: expected the export of {planned['name']}, got one of "
            f"{reprlib.repr(origin.get('name'))}, with other protocols under every key. Name the folder that these "
            "results were exported to."
        )


def _read_form(out: Path, record: Mapping[str, Any], names: Iterable[str]) -> FileForm:
    def recorded(name: str, literal: Any, default: Any = None) -> Any:
        return next((value for value in get_args(literal) if record.get(name, default) == value), None)

    compression = next(
        (suffix for name in names for suffix in get_args(Compression) if name.endswith(f".{suffix}")), None
    )
    round_to = record.get("round_to", "none")
    style, outcomes = recorded("key_style", KeyStyle), recorded("outcomes", OutcomeForm)
    empty = recorded("empty", Empty, "null")
    if style is None or empty is None or not (round_to is None or isinstance(round_to, int)):
        raise ResultsError(
            f"Verifying failed for {out / SWEEP_FILE}: expected a file with key_style, round_to and perhaps empty, "
            f"got none, or {style}, {round_to} and {record.get('empty', 'none')!s:.100}. {REEXPORT}"
        )
    return FileForm(
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
    """Compare the strengths in sweep.json and meta.json with the plan's; files of results do not contain them."""
    try:
        meta = read_json(out / META_FILE, missing={})
    except ResultsError as error:
        yield str(error)
        meta = {"epsilons": epsilons}
    for name, content, field, expected_values in (
        (SWEEP_FILE, sweep, "strengths", strengths),
        (META_FILE, meta, "epsilons", epsilons),
    ):
        if not isinstance(content, dict) or content.get(field) != expected_values:
            yield f"Verifying failed for {out / name}: the {field} differ from the plan's. {REEXPORT}"


def _is_converted(path: Path) -> bool:
    """Return whether a file was converted from JSON files, which are themselves compared with the shards."""
    try:
        return path.suffix == ".parquet" and path.is_file() and is_converted(path)
    except ResultsError:
        return False  # the comparison reports a damaged file


def _check_images(path: Path, images: ImageSet) -> Iterator[str]:
    """Compare a table of images with the evaluated images; a missing table is reported by the check of the listing."""
    if not path.is_file():
        return
    try:
        check_file(path, MAX_LISTED_BYTES)
        with pq.ParquetFile(path) as stored:
            same = stored.read().equals(image_table(images))
    except (OSError, pa.ArrowException) as error:
        yield f"Verifying failed for {path}: expected a table of images, got {error}. {REEXPORT}"
        return
    if not same:
        yield f"Verifying failed for {path}: the images differ from those of the results. {REEXPORT}"


def _check_file(out: Path, file: JsonFile | ParquetFile) -> Iterator[str]:
    try:
        difference = _find_text_difference(file) if isinstance(file, JsonFile) else _find_table_difference(file)
    except (OSError, EOFError, zlib.error, pa.ArrowException, ResultsError, UnicodeDecodeError) as error:
        difference = f"(reading it failed: {error.__cause__ or error})"
    if difference is not None:
        yield f"Verifying failed for {out / file.name}: the values differ from the results {difference}. {REEXPORT}"


def _find_text_difference(file: JsonFile) -> str | None:
    """Return where a JSON file starts to differ from the results, or None."""
    with open_decompressed(file.folder / file.name) as stream:
        for units, pieces in file.texts():
            stored = bytes(stream.read(sum(map(len, pieces))))
            if stored == b"".join(pieces):
                continue
            if not units:
                return "before its first or after its last network"
            for unit, piece in zip(units, pieces, strict=True):
                if not stored.startswith(piece):
                    return f"from {unit.label} on"
                stored = stored[len(piece) :]
        return "after its last network" if stream.read(1) else None


def _find_table_difference(file: ParquetFile) -> str | None:
    """Return where a Parquet file starts to differ from the results, or None."""
    path = file.folder / file.name
    check_file(path, MAX_LISTED_BYTES)
    with pq.ParquetFile(path) as stored:
        groups: Iterator[Any] = (stored.read_row_group(number) for number in range(stored.num_row_groups))
        for got, expected in itertools.zip_longest(groups, file.tables()):
            if got is None or expected is None:
                return "after its last network"
            if not got.equals(expected):
                return _describe_first_difference(got, expected)
    return None


def _describe_first_difference(got: pa.Table, expected: pa.Table) -> str:
    if got.schema != expected.schema:
        return "in its columns"
    for row in range(min(len(got), len(expected))):
        if not got.slice(row, 1).equals(expected.slice(row, 1)):
            architecture = expected["architecture"][row].as_py()
            return f"from {show_architecture(architecture)} at strength {expected['strength'][row]} on"
    return f"in a row group of {len(got)} rows, not {len(expected)}"
