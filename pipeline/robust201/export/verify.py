"""Everything that can be checked of finished results: shards, rows, coverage, and an export made of them."""

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
from robust201.reader.listings import AGAIN, key_of_parquet
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
    """What verification found wrong with shards, units (those with gaps lack some strengths) and files of an export.

    `requeued` shards were moved, so that the next run computes what is wrong again. `n_planned` is None where the
    folder has no plan, `n_missing` are evaluations of the plan that are not there whole, `n_exported` is the number of
    files of the export that were checked, None without one. `weights` compares clean accuracies with those recorded
    with the weights (None where rows are damaged), and `flags` are signs of weak attacks (None where they were not
    looked for); neither makes results unsound.
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
        """Whether nothing is damaged; what is missing is unfinished, not damaged."""
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
    """Check a results folder, and an export made of it file by file.

    With `attack_flags` accuracies are searched for signs of weak attacks.
    To requeue is to move what is wrong out of the way, so that the next run computes it again and nothing else.
    `on_progress` receives after each shard how many of how many are checked.

    Raises:
        InputError: there is no such folder, or an export is to be compared and no plan is there.
        ResultsError: there is no whole export in the folder named.
        LeaseHeldError: a driver is at work, and `requeue` was asked for.
        StorageError: the file of a protocol is damaged or missing.
    """
    store = ShardStore.open(results)
    n_exported = None if export is None else len(read_listing(export).digests)
    moved: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    with Lease.acquire(results) if requeue else nullcontext():
        inventory = store.inventory(verify="all", on_damage="report")
        plan = load_plan(results) if (results / PLAN_FILE).exists() else None
        if plan is not None:
            _check_protocol_files(plan, store, inventory)
        findings = store.verify(inventory, on_progress=on_progress)
        give_back_freed_memory()
        if export is not None and plan is None:
            raise InputError(
                f"Verifying failed for {export}: expected a {PLAN_FILE} in {results} that says what was exported, "
                "got none. Write it with: robust201 run SWEEP.yaml"
            )
        if requeue:
            moved = requeue_shards(store.folder, inventory, findings)
        if export is not None and plan is not None:
            # What was moved can no longer be read, and what is damaged proves nothing about an export.
            left = store.inventory(on_damage="report") if moved else inventory
            wrong = tuple(check_export(plan, store, left, export))
    readable = plan if not findings else None
    n_missing, gaps = (0, ()) if plan is None else find_gaps(plan, inventory)
    return Verdict(
        findings=tuple(findings),
        gaps=gaps,
        export=wrong,
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
    """Find signs of weak attacks on each dataset whose images and classes are known, for each choice of weights.

    `n_images` and `n_classes` are by dataset; payloads of the protocols name the sources of transferred attacks.
    """
    transfers = transfers_of(protocols)
    flags: list[AttackFlag] = []
    for by_place in results.by_weights.values():
        by_dataset: defaultdict[str, dict[Evaluated, dict[ArchitectureId, float]]] = defaultdict(dict)
        for (dataset, key, strength), accuracies in by_place.items():
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
    """Refuse a folder that lacks the file of a protocol that is in the plan and that rows name."""
    named = inventory.protocol_digests()
    for payload in plan.describe()["protocols"]:
        protocol = EvaluationProtocol.of(payload)
        if protocol.digest in named and not inventory.protocol(protocol.digest):
            path = store.folder.protocols / f"{protocol.digest}.json"
            raise StorageError(
                f"Reading a protocol failed for {path}: expected the protocol of results under "
                f"{protocol.payload['key']}, got no such file. Run the sweep again: that rewrites it."
            )


def find_gaps(plan: Plan, inventory: Inventory) -> tuple[int, tuple[str, ...]]:
    """Count the evaluations of a plan that are not there whole, and list the units that lack some of their strengths.

    An evaluation is whole with all its images and measurements; of units that lack all strengths none is listed.
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
    """Estimate once more what an export estimated, and compare the bytes."""
    path = out / ESTIMATES_FILE
    try:
        sampled = estimate_accuracies(plan, store, inventory, evaluated_images)
        is_same = read_file(path, MAX_LISTED_BYTES) == estimates_bytes(sampled, plan.space_name)
    except (OSError, InputError) as error:
        yield f"Verifying failed for {path}: {error}"
        return
    if not is_same:
        yield (
            f"Verifying failed for {path}: expected the estimates that follow from the results, got others. Export "
            "again."
        )


def check_export(plan: Plan, store: ShardStore, inventory: Inventory, out: Path) -> Iterator[str]:
    """Compare an export's files with its listing, those of results with the shards, and strengths with the plan.

    Yields what is wrong: which file, from which unit on, and what to do. Damage never raises; ResultsError says that
    the folder is no export of robust201.
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
        _refuse_other_sweep(out, record, plan)
        form = _read_form(out, record, names)
        named = record.get("weights")
        chosen = [*named] if isinstance(named, dict) else []
        groups = group_units(plan, inventory, chosen[0] if len(chosen) == 1 else None)
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
        form = replace(form, labels={dataset: shown.labels for dataset, shown in images.items()})
        expected |= {*map(images_name, images)}
        for dataset, shown in images.items():
            yield from _check_images(out / images_name(dataset), shown)
    for group in groups:
        files = list_files([group], formats, form.left_out) if group.complete_units or not partial else []
        expected |= {form.file_name(*file) for file in files}
        if group.lacking and not partial:
            first = show_architecture(group.incomplete_units[0].architecture)
            yield (
                f"Verifying failed for {group.dataset} {group.key} of {out}: expected results of all its "
                f"networks to compare it with, got none of {len(group.lacking)}, such as {first}. Complete the "
                "results, and verify again."
            )
            continue
        present = [file for file in files if (out / form.file_name(*file)).is_file()]
        try:
            for file in make_files(present, form, out, plan, store, inventory):
                yield from _check_file(out, file)
        except (StorageError, IncompleteError) as error:
            yield f"Verifying failed for {group.dataset} {group.key} of {out}: {error}"
    for name in sorted(expected.symmetric_difference(listed)):
        got = "none" if name in expected else "one that the results do not have"
        yield f"Verifying failed for {out / name}: expected it as in the results, got {got}. {AGAIN}"


def _refuse_other_sweep(out: Path, record: Mapping[str, Any], plan: Plan) -> None:
    """Refuse the export of a sweep that has no protocol in common with a plan: every file of it would differ."""
    sweep = record.get("sweep")
    origin = sweep if isinstance(sweep, dict) else {}
    ours, theirs = plan.describe(), origin.get("protocols")
    if isinstance(theirs, list) and theirs and not any(one in ours["protocols"] for one in theirs):
        raise ResultsError(
            f"Verifying failed for {out}: expected the export of {ours['name']}, got one of "
            f"{reprlib.repr(origin.get('name'))}, with other protocols under every key. Name the folder that these "
            "results were exported to."
        )


def _read_form(out: Path, record: Mapping[str, Any], names: Iterable[str]) -> FileForm:
    def recorded(name: str, known: Any, default: Any = None) -> Any:
        return next((word for word in get_args(known) if record.get(name, default) == word), None)

    compression = next((word for name in names for word in get_args(Compression) if name.endswith(f".{word}")), None)
    round_to = record.get("round_to", "none")
    style, outcomes = recorded("key_style", KeyStyle), recorded("outcomes", OutcomeForm)
    empty = recorded("empty", Empty, "null")
    if style is None or empty is None or not (round_to is None or isinstance(round_to, int)):
        raise ResultsError(
            f"Verifying failed for {out / SWEEP_FILE}: expected a file with key_style, round_to and perhaps empty, "
            f"got none, or {style}, {round_to} and {record.get('empty', 'none')!s:.100}. {AGAIN}"
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
    """Compare the strengths that readers take values to be at with the plan's: files of results do not name them."""
    try:
        meta = read_json(out / META_FILE, missing={})
    except ResultsError as error:
        yield str(error)
        meta = {"epsilons": epsilons}
    for name, content, field, wanted in (
        (SWEEP_FILE, sweep, "strengths", strengths),
        (META_FILE, meta, "epsilons", epsilons),
    ):
        if not isinstance(content, dict) or content.get(field) != wanted:
            yield f"Verifying failed for {out / name}: expected {field} as the plan has them, got others. {AGAIN}"


def _is_converted(path: Path) -> bool:
    """Whether a file was made of the JSON files beside it, which are compared with the shards."""
    try:
        return path.suffix == ".parquet" and path.is_file() and is_converted(path)
    except ResultsError:
        return False  # a damaged file, which the comparison reports


def _check_images(path: Path, images: ImageSet) -> Iterator[str]:
    """Compare a table of images with those that were evaluated; one that is not there is a finding of the listing."""
    if not path.is_file():
        return
    try:
        check_file(path, MAX_LISTED_BYTES)
        with pq.ParquetFile(path) as stored:
            same = stored.read().equals(image_table(images))
    except (OSError, pa.ArrowException) as error:
        yield f"Verifying failed for {path}: expected a table of images, got {error}. {AGAIN}"
        return
    if not same:
        yield f"Verifying failed for {path}: expected the images of the results, got others. {AGAIN}"


def _check_file(out: Path, file: JsonFile | ParquetFile) -> Iterator[str]:
    try:
        difference = _text_differs(file) if isinstance(file, JsonFile) else _table_differs(file)
    except (OSError, EOFError, zlib.error, pa.ArrowException, ResultsError, UnicodeDecodeError) as error:
        difference = f"(reading it failed: {error.__cause__ or error})"
    if difference is not None:
        message = f"expected the values of the results, got others {difference}"
        yield f"Verifying failed for {out / file.name}: {message}. {AGAIN}"


def _text_differs(file: JsonFile) -> str | None:
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


def _table_differs(file: ParquetFile) -> str | None:
    path = file.folder / file.name
    check_file(path, MAX_LISTED_BYTES)
    with pq.ParquetFile(path) as stored:
        groups: Iterator[Any] = (stored.read_row_group(number) for number in range(stored.num_row_groups))
        for got, expected in itertools.zip_longest(groups, file.tables()):
            if got is None or expected is None:
                return "after its last network"
            if not got.equals(expected):
                return _first_row(got, expected)
    return None


def _first_row(got: pa.Table, expected: pa.Table) -> str:
    if got.schema != expected.schema:
        return "in its columns"
    for row in range(min(len(got), len(expected))):
        if not got.slice(row, 1).equals(expected.slice(row, 1)):
            architecture = expected["architecture"][row].as_py()
            return f"from {show_architecture(architecture)} at strength {expected['strength'][row]} on"
    return f"in a row group of {len(got)} rows, not {len(expected)}"
