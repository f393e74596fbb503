"""Verification of stored results, and removal of invalid results, which the next run recomputes."""

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
from robust201.core.records import format_architecture
from robust201.shards.arrow_arrays import numbers_of
from robust201.shards.backends import ShardEntry, is_compacted, map_ahead
from robust201.shards.folder import ResultsFolder, has_stem, stem_of
from robust201.shards.index import Index
from robust201.shards.inventory import EvaluationSlices, Inventory, Slice, choose_slices, find_gaps
from robust201.shards.parquet import (
    ROW_GROUP_BYTES,
    Footer,
    ShardFile,
    copy_row_values,
    invalid_shard_error,
    write_tables,
)
from robust201.shards.row_checks import find_suspects
from robust201.shards.row_identity import (
    ShardRows,
    StoredUnit,
    iter_table_units,
    matches_units,
    read_footer,
    read_shard_rows,
)
from robust201.shards.row_reader import RowReader, read_rows_in_order
from robust201.tasks.columns import COUNTS
from robust201.tasks.measurements import check_values

FindingKind = Literal["damaged", "invalid", "misplaced", "unlike others", "unequal duplicates", "lost in compaction"]

OnProgress = Callable[[int, int], None]
"""Called after each shard with the number of checked shards and the number of all shards."""

_READ_BYTES = 4 << 20
"""Maximum size of consecutive row groups that are checked together."""


@dataclass(frozen=True)
class ShardFinding:
    """A fault in the stored results of a unit, or in a whole shard if `unit` is ``""``.

    `locations` are the (shard, position) pairs of the rows that must be recomputed; the position is None for a whole
    shard. `kind` is one of:

    - ``damaged``: bytes do not match the hash in the name.
    - ``invalid``: numbers break an invariant.
    - ``misplaced``: a row does not match the footer, the file name or the folder.
    - ``unlike others``: the numbers of images per class differ from other rows on the same images.
    - ``unequal duplicates``: two results of one evaluation differ.
    - ``lost in compaction``: a compacted shard lacks a row of a shard that it replaces.
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
        name = format_architecture(unit.architecture)
        return f"{name} {unit.dataset} {unit.key} at {self.strength:g}, images {self.start}:{self.stop}"


def _list_inventory_identities(inventory: Inventory, rows: NDArray[np.integer[Any]] | slice) -> list[_RowIdentity]:
    unit_numbers, *columns = (
        inventory.row_column(name)[rows].tolist() for name in ("unit", "strength", "start", "stop")
    )
    return list(map(_RowIdentity, (inventory.units[unit_number] for unit_number in unit_numbers), *columns))


def _iter_shard_identities(rows: ShardRows) -> Iterator[_RowIdentity]:
    units = (rows.units[number] for number in rows.unit.tolist())
    return map(_RowIdentity, units, rows.strength.tolist(), rows.start.tolist(), rows.stop.tolist())


def _iter_table_identities(table: pa.Table) -> Iterator[_RowIdentity]:
    columns = (table[name].to_pylist() for name in ("strength", "start", "stop"))
    return map(_RowIdentity, iter_table_units(table), *columns)


def verify_shards(folder: ResultsFolder, inventory: Inventory, on_progress: OnProgress) -> Iterator[ShardFinding]:
    """Check every shard and every row of an inventory, and yield all faults.

    Damaged shards that the scan found are yielded first. Shards are hashed, unless the inventory was read with
    ``verify="all"``.
    """
    for shard, message in inventory.damage.items():
        yield ShardFinding.damaged(shard, message)
    damaged_shards: set[str] = set()
    for finding in check_rows(folder, inventory, on_progress):
        if finding.kind == "damaged":
            damaged_shards.add(finding.shard)
        yield finding
    give_back_freed_memory()
    intact_shards = {*inventory.shards} - damaged_shards
    yield from find_unequal_duplicates(RowReader(folder), inventory, intact_shards)
    yield from _find_rows_lost_in_compaction(folder, inventory)


def check_rows(
    folder: ResultsFolder,
    inventory: Inventory,
    on_progress: OnProgress = lambda _done, _all: None,
    provenances: set[str] | None = None,
) -> Iterator[ShardFinding]:
    """Check each row of an inventory's shards, including its numbers of images per class, and yield all faults.

    The provenances of all rows, as JSON text, are added to `provenances`.
    """
    checker = _RowChecker(folder, inventory, set() if provenances is None else provenances)
    # Reading, decoding and NumPy release the interpreter's lock.
    findings_of_shards = map_ahead(
        checker.check_shard, range(len(inventory.shards)), threads=len(os.sched_getaffinity(0))
    )
    for n_checked, findings in enumerate(findings_of_shards, start=1):
        if any(finding.kind == "damaged" for finding in findings):
            Index(folder.index).forget([inventory.shards[n_checked - 1]])  # its change marker may be unchanged
        yield from findings
        on_progress(n_checked, len(inventory.shards))
    for row, difference in checker.class_size_check.find_disagreements():
        (identity,) = _list_inventory_identities(inventory, np.array([row]))
        shard, position = inventory.locate(row)
        message = f"Verifying failed for {identity.label}: {difference}"
        yield ShardFinding(shard, identity.label, "unlike others", message, ((shard, position),))


class _ClassSizeCheck:
    """Checks that rows measured on the same images have the same number of images of each true class.

    These numbers, the class sizes, are the row sums of a confusion matrix. The images may not be available, so rows are
    compared with each other, and rows that differ from the majority are reported.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        # Outer keys are (dataset, hash of the images, start, stop), and inner keys are the numbers of images per class.
        self._rows: dict[tuple[str, str, int, int], dict[tuple[int, ...], list[NDArray[np.integer[Any]]]]] = {}
        self._image_hashes: dict[str, str] = {}
        self._lock = Lock()

    def add(self, rows: NDArray[np.integer[Any]], class_sizes: NDArray[np.integer[Any]]) -> None:
        """Record `class_sizes` (R, C), the numbers of images per true class, for R rows of the inventory."""
        if not len(rows):
            return
        unit_numbers, start, stop = (self._inventory.row_column(name)[rows] for name in ("unit", "start", "stop"))
        dataset_protocols, pair_of_unit = self._inventory.dataset_protocols
        ranges_and_sizes = np.column_stack([pair_of_unit[unit_numbers], start, stop, class_sizes])
        if (ranges_and_sizes == ranges_and_sizes[:1]).all():
            distinct_entries, group_of_row = ranges_and_sizes[:1], np.zeros(len(rows), np.intp)
        else:
            distinct_entries, group_of_row = np.unique(ranges_and_sizes, axis=0, return_inverse=True)
        with self._lock:
            for index, (pair_number, start_image, stop_image, *sizes) in enumerate(distinct_entries.tolist()):
                dataset, protocol = dataset_protocols[pair_number]
                rows_by_sizes = self._rows.setdefault(
                    (dataset, self._find_image_hash(protocol), start_image, stop_image), {}
                )
                rows_by_sizes.setdefault(tuple(sizes), []).append(rows[group_of_row.ravel() == index])

    def _find_image_hash(self, protocol: str) -> str:
        """Return the hash of a protocol's images, or the protocol's digest if its payload has no such hash."""
        if protocol not in self._image_hashes:
            image_fields = self._inventory.protocol(protocol).get("images", {})
            self._image_hashes[protocol] = str(image_fields.get("sha256", protocol))
        return self._image_hashes[protocol]

    def find_disagreements(self) -> Iterator[tuple[int, str]]:
        """Yield rows whose class sizes differ from the majority's class sizes, each with a message.

        Rows with the same dataset, images and range of images are compared.
        """
        for rows_by_sizes in self._rows.values():
            n_rows = {class_sizes: sum(map(len, row_arrays)) for class_sizes, row_arrays in rows_by_sizes.items()}
            first_row = {
                class_sizes: min(int(rows.min()) for rows in row_arrays)
                for class_sizes, row_arrays in rows_by_sizes.items()
            }
            majority = max(rows_by_sizes, key=lambda class_sizes: (n_rows[class_sizes], -first_row[class_sizes]))
            other_rows = "1 other row" if n_rows[majority] == 1 else f"{n_rows[majority]} other rows"
            message = f"expected {list(majority)} images per class in cm, as in {other_rows}"
            minorities = (
                (row_arrays, class_sizes)
                for class_sizes, row_arrays in rows_by_sizes.items()
                if class_sizes != majority
            )
            for row, class_sizes in sorted(
                (row, class_sizes)
                for row_arrays, class_sizes in minorities
                for rows in row_arrays
                for row in rows.tolist()
            ):
                yield row, f"{message}, got {list(class_sizes)}. Evaluate it again."


@dataclass
class _RowChecker:
    """Checks the rows of one shard at a time, and collects their class sizes and provenances."""

    folder: ResultsFolder
    inventory: Inventory
    provenances: set[str]
    class_size_check: _ClassSizeCheck = field(init=False)

    def __post_init__(self) -> None:
        self.class_size_check = _ClassSizeCheck(self.inventory)

    def check_shard(self, shard_number: int) -> list[ShardFinding]:
        """Check the shard at an index of `inventory.shards`; thread-safe."""
        shard = self.inventory.shards[shard_number]
        try:
            if not self.inventory.is_hashed:
                self.folder.verify_hash(shard)
            file = ShardFile(self.folder.backend, shard)
            try:
                return list(self._check_rows(file, shard, self.inventory.rows_of_shard(shard_number)))
            finally:
                file.close()
        except ShardDamagedError as error:
            return [ShardFinding.damaged(shard, str(error))]

    def _check_rows(self, file: ShardFile, shard: str, inventory_rows: NDArray[np.int32]) -> Iterator[ShardFinding]:
        """Yield the faults of a shard's rows, whose indices in the inventory are `inventory_rows`."""
        if int(file.first_rows[-1]) != len(inventory_rows):
            raise invalid_shard_error(
                file.label, f"{file.first_rows[-1]:,} rows, but the scan read {len(inventory_rows):,}"
            )
        for first_group, end_group in file.iter_group_ranges(_READ_BYTES):
            table = file.read(first_group, stop=end_group)
            first_row = int(file.first_rows[first_group])
            rows = inventory_rows[first_row : first_row + len(table)]
            self.provenances.update(table["provenance"].unique().to_pylist())
            if not self._matches_inventory(shard, rows, table):
                yield from self._find_misplaced(shard, rows, table, file.label)
            suspects, class_sizes = find_suspects(table, file.columns)
            is_invalid = np.zeros(len(table), dtype=bool)
            for offset in np.flatnonzero(suspects).tolist():
                (identity,) = _iter_table_identities(table.slice(offset, 1))
                values = copy_row_values(table, offset, file.columns)
                try:
                    check_values(values, identity.stop - identity.start, name=f"{identity.label} in {shard}")
                except EvaluationError as error:
                    is_invalid[offset] = True
                    yield ShardFinding(shard, identity.label, "invalid", str(error), ((shard, first_row + offset),))
                    continue
                if COUNTS in file.columns and class_sizes is None:
                    self.class_size_check.add(rows[offset : offset + 1], values[COUNTS].sum(axis=1)[None])
            if class_sizes is not None:
                self.class_size_check.add(rows[~is_invalid], class_sizes[~is_invalid])

    def _matches_inventory(self, shard: str, rows: NDArray[np.int32], table: pa.Table) -> bool:
        """Return whether a table's rows match the inventory's rows, and belong in a shard of this name."""
        inventory, columns = self.inventory, ("strength", "start", "stop")
        if not all(np.array_equal(numbers_of(table[name]), inventory.row_column(name)[rows]) for name in columns):
            return False
        unit_numbers = inventory.row_column("unit")[rows]
        if not matches_units(table, inventory.unit_columns(unit_numbers)):
            return False
        if is_compacted(shard):
            return set(table["dataset"].unique().to_pylist()) == {shard.partition("/")[0]}
        return all(
            _is_named_for(shard, inventory.units[unit_number]) for unit_number in np.unique(unit_numbers).tolist()
        )

    def _find_misplaced(
        self, shard: str, rows: NDArray[np.int32], table: pa.Table, label: str
    ) -> Iterator[ShardFinding]:
        """Yield findings for a table's rows that do not match the inventory's rows, or do not belong in the shard."""
        identity_pairs = zip(
            _list_inventory_identities(self.inventory, rows), _iter_table_identities(table), strict=True
        )
        for expected, identity in identity_pairs:
            if identity != expected or not _is_named_for(shard, identity.unit):
                message = (
                    f"Verifying failed for result file {label}: expected {expected.label}, according to "
                    f"its footer and name, got {identity.label}. Set the file aside and run the sweep again."
                )
                yield ShardFinding(shard, identity.label, "misplaced", message, ((shard, None),))


def _is_named_for(shard: str, unit: StoredUnit) -> bool:
    """Return whether a shard with this name may contain rows of a unit."""
    has_dataset = shard.startswith(f"{unit.dataset}/")
    return has_dataset and (is_compacted(shard) or has_stem(shard, stem_of(unit.architecture, unit.key)))


def find_unequal_duplicates(
    reader: RowReader, inventory: Inventory, intact_shards: Collection[str] | None = None
) -> Iterator[ShardFinding]:
    """Compare results that exist more than once, and yield a finding for each that differs from the result in use.

    Results are compared if they have the same range of images, or if one has all images and others are parts of it.
    Only results in `intact_shards` are compared, or all results if it is None.
    """
    for evaluation in inventory.iter_overlapping():
        slices = [
            image_slice
            for image_slice in evaluation.slices
            if intact_shards is None or inventory.locate(image_slice.row)[0] in intact_shards
        ]
        for used_slice, other_slices in _pair_duplicates(evaluation, slices):
            if _has_equal_values(reader, inventory, used_slice, other_slices):
                continue
            label = _RowIdentity(evaluation.unit, evaluation.strength, used_slice.start, used_slice.stop).label
            locations = tuple(inventory.locate(image_slice.row) for image_slice in (used_slice, *other_slices))
            (used_shard, _), (other_shard, _), *_ = locations
            message = (
                f"Comparing duplicates failed for {label}: values in {used_shard} and {other_shard} differ; "
                "the first file is used. Compare the devices and versions in their provenance, and set one file aside."
            )
            yield ShardFinding(other_shard, label, "unequal duplicates", message, locations)
    reader.close()


def _pair_duplicates(evaluation: EvaluationSlices, slices: Sequence[Slice]) -> Iterator[tuple[Slice, Sequence[Slice]]]:
    """Yield pairs of the slice in use and its duplicates.

    The duplicates are one slice of the same range, or several parts that cover this range.
    """
    first_of_range: dict[tuple[int, int], Slice] = {}
    for image_slice in slices:
        used_slice = first_of_range.setdefault((image_slice.start, image_slice.stop), image_slice)
        if used_slice is not image_slice:
            yield used_slice, [image_slice]
    full_slice = first_of_range.pop((0, evaluation.unit.n_images), None)
    parts = choose_slices(sorted(first_of_range.values()))
    if full_slice is not None and parts and not find_gaps(parts, evaluation.unit.n_images):
        yield full_slice, parts


def _has_equal_values(
    reader: RowReader, inventory: Inventory, used_slice: Slice, other_slices: Sequence[Slice]
) -> bool:
    columns = inventory.columns(used_slice.row).intersection(
        *(inventory.columns(image_slice.row) for image_slice in other_slices)
    )
    used_values = reader.read_merged([inventory.locate(used_slice.row)], columns)
    other_values = reader.read_merged([inventory.locate(image_slice.row) for image_slice in other_slices], columns)
    return all(
        np.array_equal(used_values[name], other_values[name], equal_nan=used_values[name].dtype.kind == "f")
        for name in columns
    )


def _find_rows_lost_in_compaction(folder: ResultsFolder, inventory: Inventory) -> Iterator[ShardFinding]:
    """Yield findings for rows that compacted shards lack although a replaced shard, which still exists, has them."""
    if not inventory.replaced_shards:
        return
    present_rows = {(unit.id, *location) for unit, *location in _list_inventory_identities(inventory, slice(None))}
    entries = {entry.name: entry for entry in folder.backend.entries()}
    for shard in filter(entries.__contains__, inventory.replaced_shards):
        try:
            rows = read_shard_rows(folder.backend, shard, read_footer(folder.backend, entries[shard]))
        except (FileNotFoundError, ShardDamagedError):
            continue  # replaced shards are not needed: the compacted shards were checked above
        for identity in _iter_shard_identities(rows):
            if (identity.unit.id, *identity[1:]) not in present_rows:
                message = (
                    f"Verifying failed for {identity.label}: the compacted file that replaces {shard} lacks this row. "
                    "Set the compacted file aside and run the sweep again."
                )
                compacted_shards = (name for name in inventory.shards if is_compacted(name) and name in entries)
                locations = tuple(
                    (name, None)
                    for name in compacted_shards
                    if shard in read_footer(folder.backend, entries[name]).inputs
                )
                yield ShardFinding(shard, identity.label, "lost in compaction", message, locations)


def requeue_shards(folder: ResultsFolder, inventory: Inventory, findings: Collection[ShardFinding]) -> tuple[str, ...]:
    """Move faulty shards into ``damaged/``, so that their rows count as missing, and return the names of these shards.

    If only some rows of a compacted shard are faulty, the shard is first rewritten without these rows. The new shard
    replaces the old shard and its inputs, so that faulty rows in the inputs do not reappear.
    """
    positions_by_shard: defaultdict[str, set[int | None]] = defaultdict(set)
    for finding in findings:
        for shard, position in finding.locations:
            positions_by_shard[shard].add(position)
    moved_shards: list[str] = []
    entries = {entry.name: entry for entry in folder.backend.entries()}
    for shard, positions in sorted(positions_by_shard.items()):
        if shard not in entries or shard in moved_shards:
            continue
        faulty_positions = {position for position in positions if position is not None}
        if is_compacted(shard) and len(faulty_positions) == len(positions):
            moved_shards += _rewrite_without_rows(folder, entries, inventory, shard, faulty_positions)
        folder.backend.set_aside(shard)
        moved_shards.append(shard)
    return tuple(sorted(moved_shards))


def _rewrite_without_rows(
    folder: ResultsFolder,
    entries: Mapping[str, ShardEntry],
    inventory: Inventory,
    shard: str,
    positions: Collection[int],
) -> list[str]:
    """Rewrite a compacted shard without some rows, and set aside the replaced shards with results of the same units.

    Returns the names of the replaced shards that were set aside.
    """
    rows = inventory.rows_of_shard(inventory.shards.index(shard))
    is_faulty = np.isin(inventory.row_column("position")[rows], list(positions))
    faulty_unit_ids = {
        inventory.units[unit_number].id for unit_number in inventory.row_column("unit")[rows[is_faulty]].tolist()
    }
    rows = rows[~is_faulty]
    if not len(rows):
        return []
    footer = read_footer(folder.backend, entries[shard])
    replaced_shards = [name for name in footer.inputs if name in entries]
    reader = RowReader(folder)
    with folder.open_compacted_shard(shard.partition("/")[0]) as stream:
        tables = read_rows_in_order(reader, inventory, rows, ROW_GROUP_BYTES)
        write_tables(stream, tables, Footer("compacted", footer.columns, tuple(sorted({*replaced_shards, shard}))))
    reader.close()
    moved_shards = []
    for name in replaced_shards:
        shard_rows = read_shard_rows(folder.backend, name, read_footer(folder.backend, entries[name]))
        if faulty_unit_ids & {shard_rows.units[unit_number].id for unit_number in set(shard_rows.unit.tolist())}:
            folder.backend.set_aside(name)
            moved_shards.append(name)
    return moved_shards
