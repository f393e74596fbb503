"""Verification of stored results, and removal of invalid ones, so that the next run recomputes them."""

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
from robust201.shards.parquet import ROW_GROUP_BYTES, Footer, ShardFile, damaged_shard_error, row_values, write_tables
from robust201.shards.row_checks import find_suspects
from robust201.shards.row_identity import (
    ShardRows,
    StoredUnit,
    iter_table_units,
    matches_units,
    read_footer,
    read_shard_rows,
)
from robust201.shards.row_reader import RowReader, read_row_groups
from robust201.tasks.columns import COUNTS
from robust201.tasks.measurements import check_values

FindingKind = Literal["damaged", "invalid", "misplaced", "unlike others", "unequal duplicates", "lost in compaction"]

OnProgress = Callable[[int, int], None]
"""Called after each shard with the number of checked shards and their total."""

_READ_BYTES = 4 << 20
"""Size of consecutive row groups that are checked together."""


@dataclass(frozen=True)
class ShardFinding:
    """A fault of stored results, of a unit or, if `unit` is ``""``, of a whole shard.

    `kind` is ``damaged`` (bytes do not match the name), ``invalid`` (numbers break an invariant), ``misplaced`` (a row
    does not match footer, file name or folder), ``unlike others`` (its images differ from those of other rows),
    ``unequal duplicates`` (two results of one evaluation differ) or ``lost in compaction`` (a compacted shard lacks a
    row of a shard that it replaces). `locations` must be recomputed: rows of shards by position, or None for a whole
    shard.
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
    return map(_RowIdentity, iter_table_units(table), *numbers)


def verify_shards(folder: ResultsFolder, inventory: Inventory, on_progress: OnProgress) -> Iterator[ShardFinding]:
    """Check every live shard and every row of a results folder, and yield all faults.

    These include damaged shards in the inventory. Shards are hashed, unless the inventory was read with
    ``verify="all"``.
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
    """Check each row of an inventory's shards, and the images that it counts, and yield all faults.

    The texts of all rows' provenances are added to `provenances`.
    """
    check = _RowCheck(folder, inventory, set() if provenances is None else provenances)
    # Reading, decoding and NumPy release the interpreter's lock.
    checked = map_ahead(check.check_shard, range(len(inventory.shards)), threads=len(os.sched_getaffinity(0)))
    for number, findings in enumerate(checked, start=1):
        if any(finding.kind == "damaged" for finding in findings):
            Index(folder.index).forget([inventory.shards[number - 1]])  # its mark may not show the damage
        yield from findings
        on_progress(number, len(inventory.shards))
    for row, difference in check.counts.find_unlike():
        (identity,) = _identities_in(inventory, np.array([row]))
        shard, position = inventory.locate(row)
        message = f"Verifying failed for {identity.label}: {difference}"
        yield ShardFinding(shard, identity.label, "unlike others", message, ((shard, position),))


class _ClassCounts:
    """Images of each true class by row of an inventory: the row sums of each confusion matrix.

    The images themselves may be elsewhere, so the expected counts come from the rows: all rows measured on the same
    images must agree, and a row that does not is reported.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._rows: dict[tuple[str, str, int, int], dict[tuple[int, ...], list[NDArray[np.integer[Any]]]]] = {}
        self._images: dict[str, str] = {}
        self._lock = Lock()

    def add(self, rows: NDArray[np.integer[Any]], images: NDArray[np.integer[Any]]) -> None:
        """Record the numbers of images of each true class, (R, C), in R rows of the inventory."""
        if not len(rows):
            return
        number, start, stop = (self._inventory.row_column(name)[rows] for name in ("unit", "start", "stop"))
        pairs, pair_of_unit = self._inventory.dataset_protocols
        counted = np.column_stack([pair_of_unit[number], start, stop, images])
        if (counted == counted[:1]).all():
            distinct, group = counted[:1], np.zeros(len(rows), np.intp)
        else:
            distinct, group = np.unique(counted, axis=0, return_inverse=True)
        with self._lock:
            for index, (pair, first, last, *counts) in enumerate(distinct.tolist()):
                dataset, protocol = pairs[pair]
                by_counts = self._rows.setdefault((dataset, self._images_of(protocol), first, last), {})
                by_counts.setdefault(tuple(counts), []).append(rows[group.ravel() == index])

    def _images_of(self, protocol: str) -> str:
        """Return the hash of a protocol's images if the folder knows it, otherwise the protocol's digest."""
        if protocol not in self._images:
            images = self._inventory.protocol(protocol).get("images", {})
            self._images[protocol] = str(images.get("sha256", protocol))
        return self._images[protocol]

    def find_unlike(self) -> Iterator[tuple[int, str]]:
        """Yield rows whose counts differ from most rows of the same dataset, images and range, and the difference."""
        for by_counts in self._rows.values():
            n_rows = {counts: sum(map(len, pieces)) for counts, pieces in by_counts.items()}
            first = {counts: min(int(rows.min()) for rows in pieces) for counts, pieces in by_counts.items()}
            majority = max(by_counts, key=lambda counts: (n_rows[counts], -first[counts]))
            message = f"expected rows of cm to count {list(majority)} images, as in {n_rows[majority]} other rows"
            others = ((pieces, counts) for counts, pieces in by_counts.items() if counts != majority)
            for row, counts in sorted(
                (row, counts) for pieces, counts in others for rows in pieces for row in rows.tolist()
            ):
                yield row, f"{message}, got {list(counts)}. Evaluate it again."


@dataclass
class _RowCheck:
    """Checks the rows of single shards, and collects their counts and provenances."""

    folder: ResultsFolder
    inventory: Inventory
    provenances: set[str]
    counts: _ClassCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = _ClassCounts(self.inventory)

    def check_shard(self, number: int) -> list[ShardFinding]:
        """Check one shard, by its position in the inventory; thread-safe."""
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
            raise damaged_shard_error(
                file.label, f"{file.first_rows[-1]:,} rows where {len(rows_in_order):,} were scanned"
            )
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
        """Return whether a table's rows match those of the inventory, and belong to the shard."""
        inventory, numbers = self.inventory, ("strength", "start", "stop")
        if not all(np.array_equal(numbers_of(table[name]), inventory.row_column(name)[rows]) for name in numbers):
            return False
        unit = inventory.row_column("unit")[rows]
        if not matches_units(table, inventory.unit_columns(unit)):
            return False
        if is_compacted(shard):
            return set(table["dataset"].unique().to_pylist()) == {shard.partition("/")[0]}
        return all(_is_named_for(shard, inventory.units[number]) for number in np.unique(unit).tolist())

    def _find_misplaced(
        self, shard: str, rows: NDArray[np.int32], table: pa.Table, label: str
    ) -> Iterator[ShardFinding]:
        """Yield findings for rows of a table that do not match the inventory's, or do not belong to the shard."""
        pairs = zip(_identities_in(self.inventory, rows), _identities_in_table(table), strict=True)
        for known, identity in pairs:
            if identity != known or not _is_named_for(shard, identity.unit):
                message = (
                    f"Verifying failed for result file {label}: expected {known.label} (as its footer and "
                    f"name say), got {identity.label}. Set the file aside and run the sweep again."
                )
                yield ShardFinding(shard, identity.label, "misplaced", message, ((shard, None),))


def _is_named_for(shard: str, unit: StoredUnit) -> bool:
    """Return whether a shard's name is that of a shard with rows of a unit."""
    in_dataset = shard.startswith(f"{unit.dataset}/")
    return in_dataset and (is_compacted(shard) or has_stem(shard, stem_of(unit.architecture, unit.key)))


def find_unequal_duplicates(
    reader: RowReader, inventory: Inventory, intact: Collection[str] | None = None
) -> Iterator[ShardFinding]:
    """Compare results that exist more than once: equal ranges of images, and a whole with its merged parts.

    Yields one finding for each result that differs from the one that readers use, in the `intact` shards (None for
    all).
    """
    for group in inventory.overlapping():
        slices = [item for item in group.slices if intact is None or inventory.locate(item.row)[0] in intact]
        for used_slice, others in _duplicates(group, slices):
            if _equal(reader, inventory, used_slice, others):
                continue
            label = _RowIdentity(group.unit, group.strength, used_slice.start, used_slice.stop).label
            locations = tuple(inventory.locate(item.row) for item in (used_slice, *others))
            (used, _), (unused, _), *_ = locations
            message = (
                f"Comparing duplicates failed for {label}: expected equal values in {used} and {unused}, got "
                "different ones; the first is used. Find out which device or version differs (see their provenance), "
                "and set one aside."
            )
            yield ShardFinding(unused, label, "unequal duplicates", message, locations)
    reader.close()


def _duplicates(group: UnitGroup, slices: Sequence[Slice]) -> Iterator[tuple[Slice, Sequence[Slice]]]:
    """Yield pairs for the same images: the slice that readers use, and another slice or equivalent parts."""
    first: dict[tuple[int, int], Slice] = {}
    for item in slices:
        used_slice = first.setdefault((item.start, item.stop), item)
        if used_slice is not item:
            yield used_slice, [item]
    whole = first.pop((0, group.unit.n_images), None)
    parts = choose_slices(sorted(first.values()))
    if whole is not None and parts and not gaps(parts, group.unit.n_images):
        yield whole, parts


def _equal(reader: RowReader, inventory: Inventory, used_slice: Slice, others: Sequence[Slice]) -> bool:
    columns = inventory.columns(used_slice.row).intersection(*(inventory.columns(item.row) for item in others))
    values = reader.merged([inventory.locate(used_slice.row)], columns)
    other = reader.merged([inventory.locate(item.row) for item in others], columns)
    return all(np.array_equal(values[name], other[name], equal_nan=values[name].dtype.kind == "f") for name in columns)


def _find_lost(folder: ResultsFolder, inventory: Inventory) -> Iterator[ShardFinding]:
    """Yield rows of replaced shards, while these still exist, that are missing in the shards that replace them."""
    if not inventory.superseded:
        return
    present = {(unit.id, *numbers) for unit, *numbers in _identities_in(inventory, slice(None))}
    entries = {entry.name: entry for entry in folder.backend.entries()}
    for shard in filter(entries.__contains__, inventory.superseded):
        try:
            rows = read_shard_rows(folder.backend, shard, read_footer(folder.backend, entries[shard]))
        except (FileNotFoundError, ShardDamagedError):
            continue  # replaced shards may be deleted; the shards that replace them were checked above
        for identity in _identities_of(rows):
            if (identity.unit.id, *identity[1:]) not in present:
                message = (
                    f"Verifying failed for {identity.label}: the compacted file that replaces {shard} lacks this row. "
                    "Set the compacted file aside and run the sweep again."
                )
                compacted = (name for name in inventory.shards if is_compacted(name) and name in entries)
                locations = tuple(
                    (name, None) for name in compacted if shard in read_footer(folder.backend, entries[name]).inputs
                )
                yield ShardFinding(shard, identity.label, "lost in compaction", message, locations)


def requeue_shards(folder: ResultsFolder, inventory: Inventory, findings: Collection[ShardFinding]) -> tuple[str, ...]:
    """Move faulty shards into ``damaged/``, so that their rows count as missing, and return the shards' names.

    A shard of one unit is moved as a whole. A compacted shard with some faulty rows is first rewritten without them.
    The new shard lists the old one and its inputs as replaced, so no faulty row comes back.
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
    """Rewrite a compacted shard without some rows, and move replaced shards that still contain these rows."""
    rows = inventory.rows_of_shard(inventory.shards.index(shard))
    left_out = np.isin(inventory.row_column("position")[rows], list(positions))
    wrong = {inventory.units[number].id for number in inventory.row_column("unit")[rows[left_out]].tolist()}
    rows = rows[~left_out]
    if not len(rows):
        return []
    footer = read_footer(folder.backend, entries[shard])
    replaced = [name for name in footer.inputs if name in entries]
    reader = RowReader(folder)
    with folder.open_compacted_shard(shard.partition("/")[0]) as stream:
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
