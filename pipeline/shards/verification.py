"""What can be wrong with stored results, and how it is found."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import EvaluationError, ShardDamagedError
from pipeline.measurements import check_values, merge_values
from pipeline.shards.facts import read_footer, read_rows, table_rows
from pipeline.shards.folder import ResultsFolder, has_stem, is_compacted, stem_of
from pipeline.shards.identity import UnitFacts
from pipeline.shards.index import Index
from pipeline.shards.inventory import Inventory, Slice, UnitGroup, choose_slices, gaps
from pipeline.shards.parquet import ShardFile, row_values
from pipeline.shards.reading import RowReader

FindingKind = Literal["damaged", "invalid", "misplaced", "unequal duplicates", "lost in compaction"]


@dataclass(frozen=True)
class Finding:
    """Something wrong with stored results.

    Attributes:
        shard: name of the shard.
        unit: readable name of the unit, or ``""`` where the whole shard is meant.
        kind: ``damaged`` (bytes differ from the name), ``invalid`` (numbers break an invariant), ``misplaced`` (a row
            is not what footer, file name or folder say), ``unequal duplicates`` (two results of one evaluation differ),
            ``lost in compaction`` (a compacted shard lacks a row of a shard that it replaces).
        message: what failed, what was expected and found, and what to do.
    """

    shard: str
    unit: str
    kind: FindingKind
    message: str


def verify(
    folder: ResultsFolder, inventory: Inventory, on_progress: Callable[[int, int], None] = lambda _done, _all: None
) -> Iterator[Finding]:
    """Check every live shard and every row of a results folder.

    Args:
        folder: the results folder.
        inventory: what it holds; damaged shards that it reports are among the findings.
        on_progress: told after each shard how many of how many are checked.

    Yields:
        What is wrong.
    """
    for shard, message in inventory.damage.items():
        yield Finding(shard, "", "damaged", message)
    intact: set[str] = set()
    for number, shard in enumerate(inventory.shards):
        try:
            folder.verify_hash(shard)
            yield from _check_rows(folder, shard, _identities(inventory, inventory.rows_of_shard(number)))
            intact.add(shard)
        except ShardDamagedError as error:
            Index(folder.index).forget([shard])  # the time of its last change may not show the damage
            yield Finding(shard, "", "damaged", str(error))
        on_progress(number + 1, len(inventory.shards))
    yield from find_unequal_duplicates(RowReader(folder), inventory, intact)
    yield from _find_lost(folder, inventory)


_Identity = tuple[UnitFacts, float, int, int]


_IDENTITY_COLUMNS = ("unit", "strength", "start", "stop")


def _identities(inventory: Inventory, rows: NDArray[np.int64] | slice) -> list[_Identity]:
    unit, *numbers = (inventory.row_column(name)[rows].tolist() for name in _IDENTITY_COLUMNS)
    return list(zip((inventory.units[number] for number in unit), *numbers, strict=True))


def _describe(identity: _Identity) -> str:
    unit, strength, start, stop = identity
    return f"#{unit.architecture} {unit.dataset} {unit.key} at {strength:g} images {start}:{stop}"


def _check_rows(folder: ResultsFolder, shard: str, scanned: list[_Identity]) -> Iterator[Finding]:
    compacted = is_compacted(shard)
    file = ShardFile(folder.place, shard)
    try:
        for group in range(len(file.first_rows) - 1):
            table = file.read(group)
            rows = table_rows(table)
            identities = zip(rows.units, rows.strength.tolist(), rows.start.tolist(), rows.stop.tolist(), strict=True)
            for position, identity in enumerate(identities):
                unit, label = identity[0], _describe(identity)
                known = scanned[int(file.first_rows[group]) + position]
                in_place = shard.startswith(f"{unit.dataset}/")
                if identity != known or not in_place or not (compacted or has_stem(shard, _stem(unit))):
                    yield Finding(
                        shard,
                        label,
                        "misplaced",
                        f"Verifying failed for shard {file.label}: expected {_describe(known)} (as its footer and "
                        f"name say), got {label}. Set the shard aside and run the sweep again.",
                    )
                yield from _check_row(shard, label, row_values(table, position, file.columns), identity)
    finally:
        file.close()


def _stem(unit: UnitFacts) -> str:
    return stem_of(unit.architecture, unit.key)


def _check_row(shard: str, label: str, values: dict[str, NDArray[Any]], identity: _Identity) -> Iterator[Finding]:
    _, _, start, stop = identity
    try:
        check_values(values, stop - start, name=f"{label} in shard {shard}")
    except EvaluationError as error:
        yield Finding(shard, label, "invalid", str(error))


def find_unequal_duplicates(
    reader: RowReader, inventory: Inventory, intact: Collection[str] | None = None
) -> Iterator[Finding]:
    """Compare results that exist more than once: equal ranges of images, and a whole with its merged parts.

    Args:
        reader: reads the rows.
        inventory: what the folder holds.
        intact: shards that may be read; None for all.

    Yields:
        One finding for each result that differs from the one that readers use.
    """
    for group in inventory.overlapping():
        slices = [item for item in group.slices if intact is None or inventory.place(item.row)[0] in intact]
        yield from _compare_group(reader, inventory, group, slices)
    reader.close()


def _compare_group(reader: RowReader, inventory: Inventory, group: UnitGroup, slices: list[Slice]) -> Iterator[Finding]:
    first: dict[tuple[int, int], Slice] = {}
    for item in slices:
        kept = first.setdefault((item.start, item.stop), item)
        columns = inventory.columns(kept.row) & inventory.columns(item.row)
        if kept is not item and not _equal(reader, inventory, [kept], [item], columns):
            yield _unequal(inventory, group, kept, item)
    whole = first.pop((0, group.unit.n_images), None)
    parts = choose_slices(sorted(first.values()))
    if whole is not None and parts and not gaps(parts, group.unit.n_images):
        columns = inventory.columns(whole.row).intersection(*(inventory.columns(part.row) for part in parts))
        if not _equal(reader, inventory, [whole], parts, columns):
            yield _unequal(inventory, group, whole, parts[0])


def _equal(
    reader: RowReader, inventory: Inventory, left: Collection[Slice], right: Collection[Slice], columns: frozenset[str]
) -> bool:
    one, other = (
        merge_values([reader.row(*inventory.place(item.row), columns) for item in side]) for side in (left, right)
    )
    return all(np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f") for name in columns)


def _unequal(inventory: Inventory, group: UnitGroup, kept: Slice, other: Slice) -> Finding:
    label = _describe((group.unit, group.strength, kept.start, kept.stop))
    used, unused = inventory.place(kept.row)[0], inventory.place(other.row)[0]
    return Finding(
        unused,
        label,
        "unequal duplicates",
        f"Comparing duplicates failed for {label}: expected equal values in shards {used} and {unused}, got different "
        "ones; the first is used. Find out which device or version differs (their provenance says), and set one aside.",
    )


def _find_lost(folder: ResultsFolder, inventory: Inventory) -> Iterator[Finding]:
    """Compare shards that were replaced, while they still lie there, with what replaced them."""
    present: set[tuple[Any, ...]] | None = None
    entries = {entry.name: entry for entry in folder.place.entries()} if inventory.superseded else {}
    for shard in filter(entries.__contains__, inventory.superseded):
        try:
            rows = read_rows(folder.place, shard, read_footer(folder.place, entries[shard]))
        except (FileNotFoundError, ShardDamagedError):
            continue  # replaced shards are about to be deleted; what replaced them was checked above
        if present is None:
            present = {(unit.id, *numbers) for unit, *numbers in _identities(inventory, slice(None))}
        units = [rows.units[number] for number in rows.unit.tolist()]
        for identity in zip(units, rows.strength.tolist(), rows.start.tolist(), rows.stop.tolist(), strict=True):
            if (identity[0].id, *identity[1:]) not in present:
                label = _describe(identity)
                yield Finding(
                    shard,
                    label,
                    "lost in compaction",
                    f"Verifying failed for {label}: expected it in what replaces {shard}, got none. "
                    "Set the compacted shard aside and run the sweep again.",
                )
