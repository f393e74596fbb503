"""What can be wrong with stored results, and how it is found."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError, ShardDamagedError
from robust201.core.records import is_imported
from robust201.shards.backends import Entry
from robust201.shards.class_counts import ClassCounts
from robust201.shards.covering import Slice, choose_slices, gaps
from robust201.shards.facts import read_footer, read_rows, table_rows
from robust201.shards.folder import ResultsFolder, has_stem, is_compacted, stem_of
from robust201.shards.identity import UnitFacts
from robust201.shards.imported import check_imported
from robust201.shards.index import Index
from robust201.shards.inventory import Inventory, UnitGroup
from robust201.shards.parquet import ShardFile, row_values
from robust201.shards.reading import RowReader
from robust201.tasks.measurements import check_values, merge_values

FindingKind = Literal["damaged", "invalid", "misplaced", "unlike others", "unequal duplicates", "lost in compaction"]


@dataclass(frozen=True)
class Finding:
    """Something wrong with stored results.

    Attributes:
        shard: name of the shard.
        unit: readable name of the unit, or ``""`` where the whole shard is meant.
        kind: ``damaged`` (bytes differ from the name), ``invalid`` (numbers break an invariant), ``misplaced`` (a row
            is not what footer, file name or folder say), ``unlike others`` (its images are not those of other rows),
            ``unequal duplicates`` (two results of one evaluation differ),
            ``lost in compaction`` (a compacted shard lacks a row of a shard that it replaces).
        message: what failed, what was expected and found, and what to do.
        places: shards, each with the position of the row concerned, None for the whole shard: what to compute again.
    """

    shard: str
    unit: str
    kind: FindingKind
    message: str
    places: tuple[tuple[str, int | None], ...] = ()


def verify(
    folder: ResultsFolder, inventory: Inventory, on_progress: Callable[[int, int], None] = lambda _done, _all: None
) -> Iterator[Finding]:
    """Check every live shard and every row of a results folder.

    Args:
        folder: the results folder.
        inventory: what it holds; damaged shards that it reports are among the findings. Shards are hashed unless it
            was read with ``verify="all"``, which did.
        on_progress: told after each shard how many of how many are checked.

    Yields:
        What is wrong.
    """
    for shard, message in inventory.damage.items():
        yield Finding(shard, "", "damaged", message, ((shard, None),))
    intact: set[str] = set()
    counts = ClassCounts(inventory)
    for number, shard in enumerate(inventory.shards):
        try:
            if not inventory.hashed:
                folder.verify_hash(shard)
            yield from _check_rows(folder, shard, inventory, inventory.rows_of_shard(number), counts)
            intact.add(shard)
        except ShardDamagedError as error:
            Index(folder.index).forget([shard])  # the time of its last change may not show the damage
            yield Finding(shard, "", "damaged", str(error), ((shard, None),))
        on_progress(number + 1, len(inventory.shards))
    for row, message in counts.find_unlike():
        label = _describe(_identities(inventory, np.array([row]))[0])
        place = inventory.place(row)
        yield Finding(place[0], label, "unlike others", f"Verifying failed for {label}: {message}", (place,))
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


def _check_rows(
    folder: ResultsFolder, shard: str, inventory: Inventory, rows_in_order: NDArray[np.int64], counts: ClassCounts
) -> Iterator[Finding]:
    scanned = _identities(inventory, rows_in_order)
    compacted = is_compacted(shard)
    file = ShardFile(folder.place, shard)
    try:
        for group in range(len(file.first_rows) - 1):
            table = file.read(group)
            rows = table_rows(table)
            identities = zip(rows.units, rows.strength.tolist(), rows.start.tolist(), rows.stop.tolist(), strict=True)
            for position, identity in enumerate(identities):
                unit, label = identity[0], _describe(identity)
                place = int(file.first_rows[group]) + position
                known = scanned[place]
                in_place = shard.startswith(f"{unit.dataset}/")
                if identity != known or not in_place or not (compacted or has_stem(shard, _stem(unit))):
                    yield Finding(
                        shard,
                        label,
                        "misplaced",
                        f"Verifying failed for shard {file.label}: expected {_describe(known)} (as its footer and "
                        f"name say), got {label}. Set the shard aside and run the sweep again.",
                        ((shard, None),),
                    )
                values = row_values(table, position, file.columns)
                protocol = inventory.protocol(unit.protocol) if is_imported(unit.protocol) else None
                broken = list(_check_row(shard, label, values, identity, place, protocol))
                yield from broken
                if "cm" in values and not broken:
                    counts.add(int(rows_in_order[place]), values["cm"])
    finally:
        file.close()


def _stem(unit: UnitFacts) -> str:
    return stem_of(unit.architecture, unit.key)


def _check_row(
    shard: str,
    label: str,
    values: dict[str, NDArray[Any]],
    identity: _Identity,
    place: int,
    imported: Mapping[str, Any] | None,
) -> Iterator[Finding]:
    _, _, start, stop = identity
    name = f"{label} in shard {shard}"
    try:
        if imported is None:
            check_values(values, stop - start, name=name)
        else:
            check_imported(values, stop - start, imported.get("decimals", {}), name=name)
    except EvaluationError as error:
        yield Finding(shard, label, "invalid", str(error), ((shard, place),))


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
            yield _unequal(inventory, group, [kept, item])
    whole = first.pop((0, group.unit.n_images), None)
    parts = choose_slices(sorted(first.values()))
    if whole is not None and parts and not gaps(parts, group.unit.n_images):
        columns = inventory.columns(whole.row).intersection(*(inventory.columns(part.row) for part in parts))
        if not _equal(reader, inventory, [whole], parts, columns):
            yield _unequal(inventory, group, [whole, *parts])


def _equal(
    reader: RowReader, inventory: Inventory, left: Collection[Slice], right: Collection[Slice], columns: frozenset[str]
) -> bool:
    one, other = (_read(reader, inventory, side, columns) for side in (left, right))
    return all(np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f") for name in columns)


def _read(
    reader: RowReader, inventory: Inventory, side: Collection[Slice], columns: frozenset[str]
) -> dict[str, NDArray[Any]]:
    rows = [reader.row(*inventory.place(item.row), columns) for item in side]
    return rows[0] if len(rows) == 1 else merge_values(rows)


def _unequal(inventory: Inventory, group: UnitGroup, differing: list[Slice]) -> Finding:
    kept, other = differing[:2]
    label = _describe((group.unit, group.strength, kept.start, kept.stop))
    used, unused = inventory.place(kept.row)[0], inventory.place(other.row)[0]
    return Finding(
        unused,
        label,
        "unequal duplicates",
        f"Comparing duplicates failed for {label}: expected equal values in shards {used} and {unused}, got different "
        "ones; the first is used. Find out which device or version differs (their provenance says), and set one aside.",
        tuple(inventory.place(item.row) for item in differing),
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
                    tuple((name, None) for name in _replacing(folder, entries, inventory, shard)),
                )


def _replacing(folder: ResultsFolder, entries: Mapping[str, Entry], inventory: Inventory, shard: str) -> list[str]:
    compacted = (name for name in inventory.shards if is_compacted(name) and name in entries)
    return [name for name in compacted if shard in read_footer(folder.place, entries[name]).inputs]
