"""What can be wrong with stored results, how it is found, and how it is put out of the way of the next run."""

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError, ShardDamagedError
from robust201.core.memory import give_back_freed_memory
from robust201.core.records import show_architecture
from robust201.shards.arrow_arrays import numbers_of
from robust201.shards.backends import Entry, is_compacted, map_ahead
from robust201.shards.folder import ResultsFolder, has_stem, stem_of
from robust201.shards.index import Index
from robust201.shards.inventory import Inventory, Slice, UnitGroup, choose_slices, gaps
from robust201.shards.parquet import ROW_GROUP_BYTES, Footer, ShardFile, damaged_shard, row_values, write_tables
from robust201.shards.row_checks import find_suspects
from robust201.shards.row_identity import (
    ShardRows,
    StoredUnit,
    is_of_units,
    read_footer,
    read_shard_rows,
    units_of_table,
)
from robust201.shards.row_reader import RowReader, read_row_groups
from robust201.tasks.columns import COUNTS
from robust201.tasks.measurements import check_values

FindingKind = Literal["damaged", "invalid", "misplaced", "unlike others", "unequal duplicates", "lost in compaction"]

OnProgress = Callable[[int, int], None]
"""Receives after each shard how many of how many are checked."""

_READ_BYTES = 4 << 20
"""Bytes of small row groups that are checked together."""


@dataclass(frozen=True)
class ShardFinding:
    """Something wrong with stored results, of a unit or (``""``) of a whole shard.

    `kind` is ``damaged`` (bytes differ from the name), ``invalid`` (numbers break an invariant), ``misplaced`` (a row
    is not what footer, file name or folder say), ``unlike others`` (its images are not those of other rows), ``unequal
    duplicates`` (two results of one evaluation differ) or ``lost in compaction`` (a compacted shard lacks a row of a
    shard that it replaces). `locations` are to be computed again: rows of shards by position, None for the whole shard.
    """

    shard: str
    unit: str
    kind: FindingKind
    message: str
    locations: tuple[tuple[str, int | None], ...] = ()

    @classmethod
    def damaged(cls, shard: str, message: str) -> "ShardFinding":
        return cls(shard, "", "damaged", message, ((shard, None),))


class _RowIdentity(NamedTuple):
    unit: StoredUnit
    strength: float
    start: int
    stop: int

    @property
    def label(self) -> str:
        unit = self.unit
        name = show_architecture(unit.architecture)
        return f"{name} {unit.dataset} {unit.key} at {self.strength:g} images {self.start}:{self.stop}"


def _identities_in(inventory: Inventory, rows: NDArray[np.integer[Any]] | slice) -> list[_RowIdentity]:
    unit, *numbers = (inventory.row_column(name)[rows].tolist() for name in ("unit", "strength", "start", "stop"))
    return list(map(_RowIdentity, (inventory.units[number] for number in unit), *numbers))


def _identities_of(rows: ShardRows) -> Iterator[_RowIdentity]:
    units = (rows.units[number] for number in rows.unit.tolist())
    return map(_RowIdentity, units, rows.strength.tolist(), rows.start.tolist(), rows.stop.tolist())


def _identities_in_table(table: pa.Table) -> Iterator[_RowIdentity]:
    numbers = (table[name].to_pylist() for name in ("strength", "start", "stop"))
    return map(_RowIdentity, units_of_table(table), *numbers)


def verify_shards(folder: ResultsFolder, inventory: Inventory, on_progress: OnProgress) -> Iterator[ShardFinding]:
    """Check every live shard and every row of a results folder, and yield what is wrong.

    Damaged shards that the inventory reports are findings too. Shards are hashed unless it was read with
    ``verify="all"``, which did.
    """
    for shard, message in inventory.damage.items():
        yield ShardFinding.damaged(shard, message)
    damaged: set[str] = set()
    for finding in check_rows(folder, inventory, on_progress):
        if finding.kind == "damaged":
            damaged.add(finding.shard)
        yield finding
    give_back_freed_memory()
    intact = {*inventory.shards} - damaged
    yield from find_unequal_duplicates(RowReader(folder), inventory, intact)
    yield from _find_lost(folder, inventory)


def check_rows(
    folder: ResultsFolder,
    inventory: Inventory,
    on_progress: OnProgress = lambda _done, _all: None,
    provenances: set[str] | None = None,
) -> Iterator[ShardFinding]:
    """Check every row of the shards of an inventory by itself, and the images that it counts; yield what is wrong.

    The `provenances` receive the texts of all rows.
    """
    check = _RowCheck(folder, inventory, set() if provenances is None else provenances)
    # Reading, decoding and NumPy's work leave the interpreter's lock to other threads.
    checked = map_ahead(check.check_shard, range(len(inventory.shards)), threads=len(os.sched_getaffinity(0)))
    for number, findings in enumerate(checked, start=1):
        if any(finding.kind == "damaged" for finding in findings):
            Index(folder.index).forget([inventory.shards[number - 1]])  # the time of its change may not show the damage
        yield from findings
        on_progress(number, len(inventory.shards))
    for row, difference in check.counts.find_unlike():
        (identity,) = _identities_in(inventory, np.array([row]))
        shard, position = inventory.locate(row)
        message = f"Verifying failed for {identity.label}: {difference}"
        yield ShardFinding(shard, identity.label, "unlike others", message, ((shard, position),))


class _ClassCounts:
    """Images of each true class by row of an inventory: the sums of the rows of each confusion matrix.

    What the classes of a dataset should count is not asked of the images, which may be elsewhere, but of the rows: all
    that were measured on the same images agree, and one that does not stands out.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._rows: dict[tuple[str, str, int, int], dict[tuple[int, ...], list[NDArray[np.integer[Any]]]]] = {}
        self._images: dict[str, str] = {}
        self._lock = Lock()

    def add(self, rows: NDArray[np.integer[Any]], images: NDArray[np.integer[Any]]) -> None:
        """Record the images of each true class, (R, C), that R rows of the inventory count."""
        if not len(rows):
            return
        number, start, stop = (self._inventory.row_column(name)[rows] for name in ("unit", "start", "stop"))
        kinds, kind_of_unit = self._inventory.dataset_protocols
        counted = np.column_stack([kind_of_unit[number], start, stop, images])
        if (counted == counted[:1]).all():
            different, group = counted[:1], np.zeros(len(rows), np.intp)
        else:
            different, group = np.unique(counted, axis=0, return_inverse=True)
        with self._lock:
            for place, (kind, first, last, *counts) in enumerate(different.tolist()):
                dataset, protocol = kinds[kind]
                by_counts = self._rows.setdefault((dataset, self._images_of(protocol), first, last), {})
                by_counts.setdefault(tuple(counts), []).append(rows[group.ravel() == place])

    def _images_of(self, protocol: str) -> str:
        """Name the images of a protocol: by their hash, where the folder knows it."""
        if protocol not in self._images:
            images = self._inventory.protocol(protocol).get("images", {})
            self._images[protocol] = str(images.get("sha256", protocol))
        return self._images[protocol]

    def find_unlike(self) -> Iterator[tuple[int, str]]:
        """Find the rows that count other images than most of their dataset, images and range, and what was expected."""
        for by_counts in self._rows.values():
            n_rows = {counts: sum(map(len, pieces)) for counts, pieces in by_counts.items()}
            first = {counts: min(int(rows.min()) for rows in pieces) for counts, pieces in by_counts.items()}
            usual = max(by_counts, key=lambda counts: (n_rows[counts], -first[counts]))
            message = f"expected rows of cm to count {list(usual)} images, as in {n_rows[usual]} other rows"
            others = ((pieces, counts) for counts, pieces in by_counts.items() if counts != usual)
            for row, counts in sorted(
                (row, counts) for pieces, counts in others for rows in pieces for row in rows.tolist()
            ):
                yield row, f"{message}, got {list(counts)}. Evaluate it again."


@dataclass
class _RowCheck:
    """Checks the rows of one shard after the other, and gathers what they count and the texts of provenances."""

    folder: ResultsFolder
    inventory: Inventory
    provenances: set[str]
    counts: _ClassCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = _ClassCounts(self.inventory)

    def check_shard(self, number: int) -> list[ShardFinding]:
        """Check one shard, by its position in the inventory; safe to be called by several threads."""
        shard = self.inventory.shards[number]
        try:
            if not self.inventory.hashed:
                self.folder.verify_hash(shard)
            file = ShardFile(self.folder.backend, shard)
            try:
                return list(self._check_rows(file, shard, self.inventory.rows_of_shard(number)))
            finally:
                file.close()
        except ShardDamagedError as error:
            return [ShardFinding.damaged(shard, str(error))]

    def _check_rows(self, file: ShardFile, shard: str, rows_in_order: NDArray[np.int32]) -> Iterator[ShardFinding]:
        if int(file.first_rows[-1]) != len(rows_in_order):
            raise damaged_shard(file.label, f"{file.first_rows[-1]:,} rows where {len(rows_in_order):,} were scanned")
        for group, stop in file.runs(_READ_BYTES):
            table = file.read(group, stop=stop)
            first_row = int(file.first_rows[group])
            rows = rows_in_order[first_row : first_row + len(table)]
            self.provenances.update(table["provenance"].unique().to_pylist())
            if not self._is_as_scanned(shard, rows, table):
                yield from self._find_misplaced(shard, rows, table, file.label)
            suspects, images = find_suspects(table, file.columns)
            invalid = np.zeros(len(table), dtype=bool)
            for offset in np.flatnonzero(suspects).tolist():
                (identity,) = _identities_in_table(table.slice(offset, 1))
                values = row_values(table, offset, file.columns)
                try:
                    check_values(values, identity.stop - identity.start, name=f"{identity.label} in {shard}")
                except EvaluationError as error:
                    invalid[offset] = True
                    yield ShardFinding(shard, identity.label, "invalid", str(error), ((shard, first_row + offset),))
                    continue
                if COUNTS in file.columns and images is None:
                    self.counts.add(rows[offset : offset + 1], values[COUNTS].sum(axis=1)[None])
            if images is not None:
                self.counts.add(rows[~invalid], images[~invalid])

    def _is_as_scanned(self, shard: str, rows: NDArray[np.int32], table: pa.Table) -> bool:
        """Whether the rows of a table are what the inventory has at these rows, and belong into the shard."""
        inventory, numbers = self.inventory, ("strength", "start", "stop")
        if not all(np.array_equal(numbers_of(table[name]), inventory.row_column(name)[rows]) for name in numbers):
            return False
        unit = inventory.row_column("unit")[rows]
        if not is_of_units(table, inventory.unit_columns(unit)):
            return False
        if is_compacted(shard):
            return set(table["dataset"].unique().to_pylist()) == {shard.partition("/")[0]}
        return all(_is_named_for(shard, inventory.units[number]) for number in np.unique(unit).tolist())

    def _find_misplaced(
        self, shard: str, rows: NDArray[np.int32], table: pa.Table, label: str
    ) -> Iterator[ShardFinding]:
        """Find the rows of a table that are not what the inventory has at these rows, or that do not belong there."""
        pairs = zip(_identities_in(self.inventory, rows), _identities_in_table(table), strict=True)
        for known, identity in pairs:
            if identity != known or not _is_named_for(shard, identity.unit):
                message = (
                    f"Verifying failed for result file {label}: expected {known.label} (as its footer and "
                    f"name say), got {identity.label}. Set the file aside and run the sweep again."
                )
                yield ShardFinding(shard, identity.label, "misplaced", message, ((shard, None),))


def _is_named_for(shard: str, unit: StoredUnit) -> bool:
    """Whether a shard's name is that of one with rows of a unit."""
    in_dataset = shard.startswith(f"{unit.dataset}/")
    return in_dataset and (is_compacted(shard) or has_stem(shard, stem_of(unit.architecture, unit.key)))


def find_unequal_duplicates(
    reader: RowReader, inventory: Inventory, intact: Collection[str] | None = None
) -> Iterator[ShardFinding]:
    """Compare results that exist more than once: equal ranges of images, and a whole with its merged parts.

    Yields one finding for each result that differs from the one that readers use, in shards that are intact (None:
    all).
    """
    for group in inventory.overlapping():
        slices = [item for item in group.slices if intact is None or inventory.locate(item.row)[0] in intact]
        for kept, others in _duplicates(group, slices):
            if _equal(reader, inventory, kept, others):
                continue
            label = _RowIdentity(group.unit, group.strength, kept.start, kept.stop).label
            locations = tuple(inventory.locate(item.row) for item in (kept, *others))
            (used, _), (unused, _), *_ = locations
            message = (
                f"Comparing duplicates failed for {label}: expected equal values in {used} and {unused}, got "
                "different ones; the first is used. Find out which device or version differs (their provenance says), "
                "and set one aside."
            )
            yield ShardFinding(unused, label, "unequal duplicates", message, locations)
    reader.close()


def _duplicates(group: UnitGroup, slices: Sequence[Slice]) -> Iterator[tuple[Slice, Sequence[Slice]]]:
    """Find slices of the same images: each one that readers use, and another or the parts that make up as much."""
    first: dict[tuple[int, int], Slice] = {}
    for item in slices:
        kept = first.setdefault((item.start, item.stop), item)
        if kept is not item:
            yield kept, [item]
    whole = first.pop((0, group.unit.n_images), None)
    parts = choose_slices(sorted(first.values()))
    if whole is not None and parts and not gaps(parts, group.unit.n_images):
        yield whole, parts


def _equal(reader: RowReader, inventory: Inventory, kept: Slice, others: Sequence[Slice]) -> bool:
    columns = inventory.columns(kept.row).intersection(*(inventory.columns(item.row) for item in others))
    one = reader.merged([inventory.locate(kept.row)], columns)
    other = reader.merged([inventory.locate(item.row) for item in others], columns)
    return all(np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f") for name in columns)


def _find_lost(folder: ResultsFolder, inventory: Inventory) -> Iterator[ShardFinding]:
    """Compare shards that were replaced, while they still lie there, with what replaced them."""
    if not inventory.superseded:
        return
    present = {(unit.id, *numbers) for unit, *numbers in _identities_in(inventory, slice(None))}
    entries = {entry.name: entry for entry in folder.backend.entries()}
    for shard in filter(entries.__contains__, inventory.superseded):
        try:
            rows = read_shard_rows(folder.backend, shard, read_footer(folder.backend, entries[shard]))
        except (FileNotFoundError, ShardDamagedError):
            continue  # replaced shards are about to be deleted; what replaced them was checked above
        for identity in _identities_of(rows):
            if (identity.unit.id, *identity[1:]) not in present:
                message = (
                    f"Verifying failed for {identity.label}: expected it in what replaces {shard}, got none. "
                    "Set the compacted file aside and run the sweep again."
                )
                compacted = (name for name in inventory.shards if is_compacted(name) and name in entries)
                locations = tuple(
                    (name, None) for name in compacted if shard in read_footer(folder.backend, entries[name]).inputs
                )
                yield ShardFinding(shard, identity.label, "lost in compaction", message, locations)


def requeue_shards(folder: ResultsFolder, inventory: Inventory, findings: Collection[ShardFinding]) -> tuple[str, ...]:
    """Move what is wrong into ``damaged/``, so that it counts as missing, and name the shards that were moved.

    A shard of one unit moves whole. A compacted shard that is intact but for some rows is written again without them
    first; the new one lists the old one and what that replaced, so nothing wrong comes back.
    """
    rows_of: defaultdict[str, set[int | None]] = defaultdict(set)
    for finding in findings:
        for shard, position in finding.locations:
            rows_of[shard].add(position)
    moved: list[str] = []
    entries = {entry.name: entry for entry in folder.backend.entries()}
    for shard, positions in sorted(rows_of.items()):
        if shard not in entries or shard in moved:
            continue
        wrong = {position for position in positions if position is not None}
        if is_compacted(shard) and len(wrong) == len(positions):
            moved += _write_without(folder, entries, inventory, shard, wrong)
        folder.backend.set_aside(shard)
        moved.append(shard)
    return tuple(sorted(moved))


def _write_without(
    folder: ResultsFolder, entries: Mapping[str, Entry], inventory: Inventory, shard: str, positions: Collection[int]
) -> list[str]:
    """Write a compacted shard again without some rows; move replaced shards that still hold these rows."""
    rows = inventory.rows_of_shard(inventory.shards.index(shard))
    left_out = np.isin(inventory.row_column("position")[rows], list(positions))
    wrong = {inventory.units[number].id for number in inventory.row_column("unit")[rows[left_out]].tolist()}
    rows = rows[~left_out]
    if not len(rows):
        return []
    footer = read_footer(folder.backend, entries[shard])
    replaced = [name for name in footer.inputs if name in entries]
    reader = RowReader(folder)
    with folder.publishing_compacted(shard.partition("/")[0]) as stream:
        tables = read_row_groups(reader, inventory, rows, ROW_GROUP_BYTES)
        write_tables(stream, tables, Footer("compacted", footer.columns, tuple(sorted({*replaced, shard}))))
    reader.close()
    moved = []
    for name in replaced:
        stored = read_shard_rows(folder.backend, name, read_footer(folder.backend, entries[name]))
        if wrong & {stored.units[number].id for number in set(stored.unit.tolist())}:
            folder.backend.set_aside(name)
            moved.append(name)
    return moved
