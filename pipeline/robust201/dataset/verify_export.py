"""An export compared with its listing and with the shards that it was made of."""

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from robust201.core.errors import ConfigError, IncompleteError, ResultsError, StorageError
from robust201.core.records import show_architecture
from robust201.dataset.export_files import FileForm, Format, list_files, make_files
from robust201.dataset.groups import Group, KeyStyle, SweepPlan, group_units
from robust201.dataset.json_files import JsonFile
from robust201.dataset.listing import AGAIN, check_listing, read_listing
from robust201.dataset.parquet_files import ParquetFile
from robust201.dataset.written_file import compression_of
from robust201.reader.json_files import open_decompressed, read_json
from robust201.reader.parquet_results import is_converted
from robust201.reader.result_files import META_FILE, MISSING_FILE, SWEEP_FILE
from robust201.shards import Inventory, ShardStore

_CACHE_BYTES = 256 << 20


def check_export(plan: SweepPlan, store: ShardStore, inventory: Inventory, out: Path) -> Iterator[str]:
    """Compare an export's files with its listing, those of results with the shards, and strengths with the plan.

    Yields what is wrong: which file, from which unit on, and what to do. Damage never raises.

    Raises:
        ResultsError: the folder is no export of robust201.
    """
    listing = read_listing(out)
    if listing.is_other_content:
        yield from listing.wrong
        return
    yield from check_listing(out, listing)
    names = listing.digests
    try:
        sweep = read_json(out / SWEEP_FILE, missing={})
        told = sweep if isinstance(sweep, dict) else {}
        form = _read_form(out, told, names)
        named = told.get("weights")
        chosen = [*named] if isinstance(named, dict) else []
        groups = group_units(plan, inventory, chosen[0] if len(chosen) == 1 else None)
    except (ResultsError, ConfigError) as error:
        yield str(error)
        return
    yield from _check_strengths(out, told, form, groups)
    yield from _check_groups(out, names, form, groups, plan=plan, store=store, inventory=inventory)


def _read_form(out: Path, told: Mapping[str, Any], names: Iterable[str]) -> FileForm:
    """Find out how the files of results were written."""
    compression = next((found for name in names if (found := compression_of(Path(name)))), None)
    round_to = told.get("round_to", "none")
    style = next((known for known in get_args(KeyStyle) if told.get("key_style") == known), None)
    if style is None or not (round_to is None or isinstance(round_to, int)):
        raise ResultsError(
            f"Verifying failed for {out / SWEEP_FILE}: expected a file with key_style and round_to, got none, or "
            f"{style} and {round_to}. {AGAIN}"
        )
    return FileForm(key_style=style, round_to=round_to, compression=compression, cache_bytes=_CACHE_BYTES)


def _check_strengths(out: Path, sweep: Mapping[str, Any], form: FileForm, groups: Iterable[Group]) -> Iterator[str]:
    """Compare the strengths that readers take values to be at with the plan's: files of results do not name them."""
    strengths: dict[str, dict[str, list[float]]] = {}
    epsilons: dict[str, list[float]] = {}
    for group in groups:
        key, held = group.spell(form.key_style), list(group.strengths)
        strengths.setdefault(group.dataset, {})[key] = held
        if group.task.kind == "attack":
            epsilons[key] = held
    try:
        meta = read_json(out / META_FILE, missing={})
    except ResultsError as error:
        yield str(error)
        meta = {"epsilons": epsilons}
    for name, told, field, wanted in (
        (SWEEP_FILE, sweep, "strengths", strengths),
        (META_FILE, meta, "epsilons", epsilons),
    ):
        if not isinstance(told, dict) or told.get(field) != wanted:
            yield f"Verifying failed for {out / name}: expected {field} as the plan has them, got others. {AGAIN}"


def _check_groups(
    out: Path,
    names: Iterable[str],
    form: FileForm,
    groups: Iterable[Group],
    *,
    plan: SweepPlan,
    store: ShardStore,
    inventory: Inventory,
) -> Iterator[str]:
    """Compare the files of results with the shards, key by key."""
    listed = {name for name in names if "/" in name and not _is_converted(out / name)}
    formats: list[Format] = ["json"] if any(".json" in name for name in listed) else []
    formats += ["parquet"] if any(name.endswith(".parquet") for name in listed) else []
    partial = MISSING_FILE in names
    expected: set[str] = set()
    for group in groups:
        files = list_files([group], formats) if group.complete_units or not partial else []
        expected |= {form.file_name(*file) for file in files}
        if group.lacking and not partial:
            told = (
                f"expected shards of all its units to compare it with, got none of {len(group.lacking)} units, such as"
            )
            first = show_architecture(group.incomplete_units[0].architecture)
            yield (
                f"Verifying failed for {group.dataset} {group.key} of {out}: {told} {first}. "
                "Complete the results, and verify again."
            )
            continue
        present = [file for file in files if (out / form.file_name(*file)).is_file()]
        try:
            for file in make_files(present, form, out, plan, store, inventory):
                yield from _check_file(out, file)
        except (StorageError, IncompleteError) as error:
            yield f"Verifying failed for {group.dataset} {group.key} of {out}: {error}"
    for name in sorted(expected.symmetric_difference(listed)):
        got = "none" if name in expected else "one that the shards do not have"
        yield f"Verifying failed for {out / name}: expected it as the shards have it, got {got}. {AGAIN}"


def _is_converted(path: Path) -> bool:
    """Whether a file was made of the JSON files beside it, which are compared with the shards."""
    try:
        return path.suffix == ".parquet" and path.is_file() and is_converted(path)
    except ResultsError:
        return False  # a damaged file, which the comparison tells of


def _check_file(out: Path, file: JsonFile | ParquetFile) -> Iterator[str]:
    try:
        difference = _text_differs(file) if isinstance(file, JsonFile) else _table_differs(file)
    except (OSError, EOFError, zlib.error, pa.ArrowException, ResultsError, UnicodeDecodeError) as error:
        difference = f"(reading it failed: {error.__cause__ or error})"
    if difference is not None:
        told = f"expected the values of the shards, got others {difference}"
        yield f"Verifying failed for {out / file.name}: {told}. {AGAIN}"


def _text_differs(file: JsonFile) -> str | None:
    with open_decompressed(file.folder / file.name) as stream:
        for unit, pieces in file.texts():
            text = b"".join(pieces)
            if bytes(stream.read(len(text))) != text:
                return f"from {unit.label} on" if unit is not None else "before its first or after its last unit"
        return "after its last unit" if stream.read(1) else None


def _table_differs(file: ParquetFile) -> str | None:
    with pq.ParquetFile(file.folder / file.name) as stored:
        groups: Iterator[Any] = (stored.read_row_group(number) for number in range(stored.num_row_groups))
        for got, expected in itertools.zip_longest(groups, file.tables()):
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
            architecture = expected["architecture"][row].as_py()
            return f"from {show_architecture(architecture)} at strength {expected['strength'][row]} on"
    return f"in a row group of {len(got)} rows, not {len(expected)}"
