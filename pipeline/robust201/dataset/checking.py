"""An export compared with its listing and with the shards that it was made of."""

import itertools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from robust201.core.errors import IncompleteError, ResultsError, StorageError
from robust201.dataset.compression import compression_of
from robust201.dataset.export import FileForm, Format, ResultInventory, ResultStore, files_of, group_units, make_tasks
from robust201.dataset.json_files import FileTask
from robust201.dataset.listing import AGAIN, CHECKSUM_FILE, check_listing, read_listing
from robust201.dataset.parquet_files import ParquetTask
from robust201.dataset.side_files import Group, KeyStyle, SweepPlan
from robust201.reader.json_files import open_decompressed, read_json
from robust201.reader.result_files import META_FILE, MISSING_FILE, SWEEP_FILE
from robust201.tasks import PERTURBATIONS

_CACHE_BYTES = 256 << 20


def check_export(plan: SweepPlan, store: ResultStore, inventory: ResultInventory, out: Path) -> Iterator[str]:
    """Compare an export's files with its listing, those of results with the shards, and strengths with the plan.

    Args:
        plan: what was exported.
        store: the finished evaluations.
        inventory: what the store holds.
        out: the folder of the export.

    Yields:
        What is wrong: which file, from which unit on, and what to do. Damage never raises.

    Raises:
        ResultsError: the folder is no export of robust201.
    """
    try:
        listing = read_listing(out)
    except UnicodeDecodeError as error:
        yield f"Verifying failed for {out / CHECKSUM_FILE}: expected a listing, got other content ({error}). {AGAIN}"
        return
    yield from check_listing(out, listing)
    names = listing.digests
    try:
        form = _read_form(out, names)
    except ResultsError as error:
        yield str(error)
        return
    groups = group_units(plan, inventory)
    yield from _check_strengths(out, form, groups)
    yield from _check_groups(out, names, form, groups, (plan, store, inventory))


def _read_form(out: Path, names: Iterable[str]) -> FileForm:
    """Read how the files of results were written."""
    sweep = read_json(out / SWEEP_FILE, missing={})
    compression = next((found for name in names if (found := compression_of(Path(name)))), None)
    told = sweep if isinstance(sweep, dict) else {}
    style, round_to = told.get("key_style"), told.get("round_to", "none")
    if style not in get_args(KeyStyle) or not (round_to is None or isinstance(round_to, int)):
        raise ResultsError(
            f"Verifying failed for {out / SWEEP_FILE}: expected a file with key_style and round_to, got none, or "
            f"{style} and {round_to}. {AGAIN}"
        )
    return FileForm(style, round_to, compression, _CACHE_BYTES)  # type: ignore[arg-type]


def _check_strengths(out: Path, form: FileForm, groups: Iterable[Group]) -> Iterator[str]:
    """Compare the strengths that readers take values to be at with the plan's: files of results do not name them."""
    strengths: dict[str, dict[str, list[float]]] = {}
    epsilons: dict[str, list[float]] = {}
    for group in groups:
        key, held = group.spell(form.key_style), list(group.strengths)
        strengths.setdefault(group.dataset, {})[key] = held
        if PERTURBATIONS[group.key].kind == "attack":
            epsilons[key] = held
    for name, field, wanted in ((SWEEP_FILE, "strengths", strengths), (META_FILE, "epsilons", epsilons)):
        try:
            told = read_json(out / name, missing={})
        except ResultsError as error:
            yield str(error)
            continue
        if not isinstance(told, dict) or told.get(field) != wanted:
            yield f"Verifying failed for {out / name}: expected {field} as the plan has them, got others. {AGAIN}"


def _check_groups(
    out: Path,
    names: Iterable[str],
    form: FileForm,
    groups: Iterable[Group],
    made_of: tuple[SweepPlan, ResultStore, ResultInventory],
) -> Iterator[str]:
    """Compare the files of results with the shards, key by key."""
    plan, store, inventory = made_of
    listed = {name for name in names if "/" in name}
    formats: list[Format] = ["json"] if any(".json" in name for name in listed) else []
    formats += ["parquet"] if any(name.endswith(".parquet") for name in listed) else []
    partial = MISSING_FILE in names
    expected: set[str] = set()
    for group in groups:
        files = files_of([group], plan.measurements, formats) if group.complete_units or not partial else []
        expected |= {form.file_name(*file) for file in files}
        if group.lacking and not partial:
            told = (
                f"expected shards of all its units to compare it with, got none of {len(group.lacking)} units, such as"
            )
            yield (
                f"Verifying failed for {group.dataset} {group.key} of {out}: {told} #{next(iter(group.lacking))}. "
                "Complete the results, and verify again."
            )
            continue
        present = [file for file in files if (out / form.file_name(*file)).is_file()]
        try:
            for task in make_tasks(present, form, out, plan, store, inventory):
                yield from _check_task(out, task)
        except (StorageError, IncompleteError) as error:
            yield f"Verifying failed for {group.dataset} {group.key} of {out}: {error}"
    for name in sorted(expected.symmetric_difference(listed)):
        got = "none" if name in expected else "one that the shards do not have"
        yield f"Verifying failed for {out / name}: expected it as the shards have it, got {got}. {AGAIN}"


def _check_task(out: Path, task: FileTask | ParquetTask) -> Iterator[str]:
    try:
        difference = _text_differs(task) if isinstance(task, FileTask) else _table_differs(task)
    except (OSError, EOFError, zlib.error, pa.ArrowException, ResultsError, UnicodeDecodeError) as error:
        difference = f"(reading it failed: {error.__cause__ or error})"
    if difference is not None:
        told = f"expected the values of the shards, got others {difference}"
        yield f"Verifying failed for {out / task.name}: {told}. {AGAIN}"


def _text_differs(task: FileTask) -> str | None:
    with open_decompressed(task.folder / task.name) as stream:
        for unit, pieces in task.texts():
            text = b"".join(pieces)
            if bytes(stream.read(len(text))) != text:
                return f"from {unit.label} on" if unit is not None else "before its first or after its last unit"
        return "after its last unit" if stream.read(1) else None


def _table_differs(task: ParquetTask) -> str | None:
    with pq.ParquetFile(task.folder / task.name) as file:
        groups: Iterator[Any] = (file.read_row_group(number) for number in range(file.num_row_groups))
        for got, expected in itertools.zip_longest(groups, task.tables()):
            if got is None or expected is None:
                return "after its last unit"
            if not got.equals(expected):
                return _first_row(got, expected)
    return None


def _first_row(got: pa.Table, expected: pa.Table) -> str:
    if got.schema != expected.schema:
        return "in its columns"
    for row in range(min(len(got), len(expected))):
        if not got.slice(row, 1).equals(expected.slice(row, 1)):
            return f"from #{expected['architecture'][row]} at strength {expected['strength'][row]} on"
    return f"in a row group of {len(got)} rows, not {len(expected)}"
