"""Verification of stored results, and removal of invalid results, which the next run recomputes."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from robust201.core.errors import EvaluationError, ShardDamagedError
from robust201.core.memory import give_back_freed_memory
from robust201.core.records import format_architecture
from robust201.shards.arrow_arrays import numbers_of
from robust201.shards.backends import is_compacted, map_ahead
from robust201.shards.folder import ResultsFolder, has_stem, stem_of
from robust201.shards.index import Index
from robust201.shards.inventory import EvaluationSlices, Inventory, Slice, choose_slices, find_gaps
from robust201.shards.parquet import (
    ShardFile,
    copy_row_values,
    invalid_shard_error,
)
from robust201.shards.row_checks import find_suspects
from robust201.shards.row_identity import (
    StoredUnit,
    iter_table_units,
    matches_units,
    read_footer,
)
from robust201.shards.row_reader import RowReader
from robust201.tasks.measurements import check_values

FindingKind = Literal["damaged", "invalid", "misplaced", "unequal duplicates"]

OnProgress = Callable[[int, int], None]
"""Called after each shard with the number of checked shards and the number of all shards."""

_READ_BYTES = 4 << 20
"""Maximum size of consecutive row groups that are checked together."""


@dataclass(frozen=True)
class ShardFinding:
    """A fault in the stored results of a unit, or in a whole shard if `unit` is ``""``.

    `faulty_shards` are the shards whose evaluations must be recomputed. `kind` is one of:

    - ``damaged``: bytes do not match the hash in the name.
    - ``invalid``: numbers break an invariant.
    - ``misplaced``: rows do not match the footer, the file name or the folder.
    - ``unequal duplicates``: two results of one evaluation differ.
    """

    shard: str
    unit: str
    kind: FindingKind
    message: str
    faulty_shards: tuple[str, ...] = ()

    @classmethod
    def damaged(cls, shard: str, message: str) -> "ShardFinding":
        return cls(shard, "", "damaged", message, (shard,))


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


def check_rows(
    folder: ResultsFolder,
    inventory: Inventory,
    on_progress: OnProgress = lambda _done, _all: None,
    provenances: set[str] | None = None,
) -> Iterator[ShardFinding]:
    """Check each row of an inventory's shards, and yield one fault for each shard with faulty rows.

    The provenances of all rows, as JSON text, are added to `provenances`.
    """
    checker = _RowChecker(folder, inventory, set() if provenances is None else provenances)
    # Reading, decoding and NumPy release the interpreter's lock.
    findings = map_ahead(checker.check_shard, range(len(inventory.shards)), threads=len(os.sched_getaffinity(0)))
    for n_checked, finding in enumerate(findings, start=1):
        if finding is not None:
            if finding.kind == "damaged":
                Index(folder.index).forget([finding.shard])  # its change marker may be unchanged
            yield finding
        on_progress(n_checked, len(inventory.shards))


@dataclass
class _RowChecker:
    """Checks the rows of one shard at a time, and collects their provenances."""

    folder: ResultsFolder
    inventory: Inventory
    provenances: set[str]

    def check_shard(self, shard_number: int) -> ShardFinding | None:
        """Return the first fault of the shard at an index of `inventory.shards`; thread-safe."""
        shard = self.inventory.shards[shard_number]
        try:
            if not self.inventory.is_hashed:
                self.folder.verify_hash(shard)
            file = ShardFile(self.folder.backend, shard)
            try:
                return next(self._check_rows(file, shard, self.inventory.rows_of_shard(shard_number)), None)
            finally:
                file.close()
        except ShardDamagedError as error:
            return ShardFinding.damaged(shard, str(error))

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
                message = (
                    f"Verifying failed for result file {file.label}: its rows do not match its footer and name. Set "
                    "the file aside and run the sweep again."
                )
                yield ShardFinding(shard, "", "misplaced", message, (shard,))
            for offset in np.flatnonzero(find_suspects(table, file.columns)).tolist():
                (identity,) = _iter_table_identities(table.slice(offset, 1))
                values = copy_row_values(table, offset, file.columns)
                try:
                    check_values(values, identity.stop - identity.start, name=f"{identity.label} in {shard}")
                except EvaluationError as error:
                    yield ShardFinding(shard, identity.label, "invalid", str(error), (shard,))

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
            shards = tuple(inventory.locate(image_slice.row)[0] for image_slice in (used_slice, *other_slices))
            used_shard, other_shard, *_ = shards
            message = (
                f"Comparing duplicates failed for {label}: values in {used_shard} and {other_shard} differ; "
                "the first file is used. Compare the devices and versions in their provenance, and set one file aside."
            )
            yield ShardFinding(other_shard, label, "unequal duplicates", message, shards)
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


def requeue_shards(folder: ResultsFolder, findings: Collection[ShardFinding]) -> tuple[str, ...]:
    """Move faulty shards into ``damaged/``, so that their rows count as missing, and return the names of these shards.

    A compacted shard with wrong values is moved together with the shards that it replaces, which have the same values.
    """
    entries = {entry.name: entry for entry in folder.backend.entries()}
    names: set[str] = set()
    for finding in findings:
        names.update(finding.faulty_shards)
        if finding.kind in {"invalid", "unequal duplicates"}:
            for shard in filter(entries.__contains__, finding.faulty_shards):
                names.update(read_footer(folder.backend, entries[shard]).inputs)
    moved_shards = tuple(sorted(names & entries.keys()))
    for shard in moved_shards:
        folder.backend.set_aside(shard)
    return moved_shards
