"""The inventory of a results folder: all its evaluations, as NumPy columns and a dictionary of unit ids.

A unit is all evaluations of one network on one dataset under one key. A row is one evaluation of a unit, or the slice
of an evaluation that covers a range of images.

An inventory takes 33 bytes per row and about 400 bytes per unit, so 1.6 million evaluations take less than 200 MB.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from robust201.core.errors import IncompleteError, StorageError
from robust201.core.files import load_json
from robust201.core.records import EvaluationProtocol, Part, Unit
from robust201.shards.arrow_arrays import from_bytes, from_numpy, to_numpy
from robust201.shards.row_identity import StoredUnit, UnitColumns
from robust201.tasks.columns import requested_columns


class Slice(NamedTuple):
    """The range [start, stop) of image positions of one row of the inventory, and the row's index."""

    start: int
    stop: int
    row: int


def choose_slices(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Return the disjoint slices that cover the most images, sorted by start.

    Slices must be disjoint, because sums over overlapping slices would count images twice. If several choices cover
    the same number of images, the choice with the fewest slices is returned. The input must be sorted by start, stop
    and shard name. Of slices with equal ranges, the first is chosen.
    """
    if len(slices) <= 1:
        return tuple(slices)
    # Weighted interval scheduling: best[i] is the best choice among slices[i:], as the number of images, the negative
    # number of chosen slices, and these slices.
    best: list[tuple[int, int, tuple[Slice, ...]]] = [(0, 0, ())] * (len(slices) + 1)
    starts = [image_slice.start for image_slice in slices]
    for i in range(len(slices) - 1, -1, -1):
        image_slice = slices[i]
        next_index = bisect_left(starts, image_slice.stop)
        n_images, negative_n_slices, following_slices = best[next_index]
        with_slice = (
            n_images + image_slice.stop - image_slice.start,
            negative_n_slices - 1,
            (image_slice, *following_slices),
        )
        best[i] = with_slice if with_slice[:2] >= best[i + 1][:2] else best[i + 1]
    return best[0][2]


def find_gaps(slices: Sequence[Slice], n_images: int) -> list[tuple[int, int]]:
    """Return the sorted ranges of image positions in [0, n_images) that disjoint slices do not cover."""
    gaps, position = [], 0
    for image_slice in slices:
        if image_slice.start > position:
            gaps.append((position, image_slice.start))
        position = image_slice.stop
    if position < n_images:
        gaps.append((position, n_images))
    return gaps


@dataclass(frozen=True)
class EvaluationSlices:
    """All rows of one evaluation, that is, of one unit at one strength."""

    unit: StoredUnit
    strength: float
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Contents:
    """Contents of an inventory: names of shards, measurement columns of each shard, units, and columns of all rows."""

    shards: tuple[str, ...]
    columns: list[frozenset[str]]
    units: UnitColumns
    rows: dict[str, NDArray[Any]]


class Inventory:
    """Finished evaluations and parts in a results folder, at the time of its scan.

    `damage` maps the name of each damaged shard to a line that describes the fault. The inventory does not contain rows
    of damaged shards. `is_hashed` is whether the scan hashed every shard of the inventory, and each hash matched the
    name of its shard.
    """

    def __init__(
        self,
        contents: Contents,
        *,
        damage: Mapping[str, str],
        protocols: Path | None = None,
        is_hashed: bool = False,
    ) -> None:
        self.is_hashed = is_hashed
        self.damage = dict(damage)
        self.damaged = tuple(sorted(damage))
        self.shards = contents.shards
        self._units = contents.units
        self._shard_columns = contents.columns
        self._protocols = protocols
        self._rows = _sort_rows(contents.rows)
        # Index of the first row of each unit, followed by the number of rows.
        self._unit_starts = np.searchsorted(self._rows["unit"], np.arange(len(self._units) + 1))
        self._n_images = to_numpy(self._units.columns["n_images"])
        self._cached_slices: tuple[str, dict[float, list[Slice]]] = ("", {})
        self._complete_strengths_cache: dict[frozenset[str], tuple[tuple[float, ...], list[int]]] = {}
        self._complete_evaluations_cache: dict[frozenset[str], tuple[NDArray[np.int32], NDArray[np.float64]]] = {}

    def __len__(self) -> int:
        return len(self._rows["unit"])

    @cached_property
    def units(self) -> list[StoredUnit]:
        """Units of the rows as objects; the row column ``unit`` contains indices into this list."""
        return list(self._units)

    def unit_columns(self, unit_numbers: NDArray[np.int64]) -> dict[str, pa.Array]:
        """Return the fields of some units as columns, without creating an object per unit; architectures are text."""
        columns = {name: column.take(from_numpy(unit_numbers)) for name, column in self._units.columns.items()}
        return {
            name: column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            for name, column in columns.items()
        }

    @cached_property
    def _unit_numbers(self) -> dict[str, int]:
        return {unit_id: number for number, unit_id in enumerate(self._units.columns["unit_id"].to_pylist())}

    def find_units(self, unit_ids: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """Return the indices in `units` of some unit ids; -1 for units without a row."""
        stored = self._units.columns["unit_id"].cast(pa.binary())
        indices = pc.index_in(from_bytes(unit_ids), value_set=stored)
        return to_numpy(indices, fill=-1).astype(np.int64)

    @cached_property
    def n_evaluations(self) -> int:
        """Number of complete evaluations, with any measurements."""
        return len(self._complete_evaluations(frozenset())[0])

    @property
    def seconds(self) -> float:
        """Total worker time of all rows, in seconds."""
        return float(self._rows["seconds"].sum(dtype=np.float64))

    @cached_property
    def _evaluation_starts(self) -> NDArray[np.int32]:
        """Index of the first row of each evaluation, followed by the number of rows."""
        unit, strength = self._rows["unit"], self._rows["strength"]
        starts_evaluation = np.ones(len(unit) + 1, dtype=bool)
        starts_evaluation[1:-1] = (unit[1:] != unit[:-1]) | (strength[1:] != strength[:-1])
        return np.flatnonzero(starts_evaluation).astype(np.int32)

    @property
    def _has_single_rows(self) -> bool:
        """Whether each evaluation has one row."""
        return len(self._evaluation_starts) - 1 == len(self)

    def iter_overlapping(self) -> Iterator[EvaluationSlices]:
        """Yield evaluations that have some images in several rows.

        The rows may be duplicates, or a row with all images and rows with parts of the images.
        """
        if self._has_single_rows:
            return
        n_images_of_rows = (self._rows["stop"] - self._rows["start"]).astype(np.int64)
        n_covered = np.add.reduceat(n_images_of_rows, self._evaluation_starts[:-1])
        n_images = self._n_images[self._rows["unit"][self._evaluation_starts[:-1]]]
        for evaluation in np.flatnonzero(n_covered > n_images).tolist():
            first_row, end_row = self._evaluation_starts[evaluation : evaluation + 2].tolist()
            unit = self.units[int(self._rows["unit"][first_row])]
            yield EvaluationSlices(
                unit, float(self._rows["strength"][first_row]), tuple(self._make_slices(first_row, end_row))
            )

    def _make_slices(self, first_row: int, end_row: int) -> list[Slice]:
        starts, stops = (self._rows[name][first_row:end_row].tolist() for name in ("start", "stop"))
        return list(map(Slice, starts, stops, range(first_row, end_row)))

    def _list_slices_by_strength(self, unit_id: str) -> dict[float, list[Slice]]:
        """Return the slices of a unit's rows by strength; empty if the unit has no rows."""
        if self._cached_slices[0] != unit_id:
            unit_number = self._unit_numbers.get(unit_id)
            slices_by_strength: dict[float, list[Slice]] = {}
            if unit_number is not None:
                first_row, end_row = self._unit_starts[unit_number : unit_number + 2].tolist()
                strengths = self._rows["strength"][first_row:end_row].tolist()
                strength_slices = zip(strengths, self._make_slices(first_row, end_row), strict=True)
                slices_by_strength = {
                    strength: [image_slice for _, image_slice in group]
                    for strength, group in groupby(strength_slices, itemgetter(0))
                }
            self._cached_slices = unit_id, slices_by_strength
        return self._cached_slices[1]

    def _find_usable_slices(self, unit: Unit, strength: float, columns: frozenset[str]) -> list[Slice]:
        slices = self._list_slices_by_strength(unit.id).get(strength, [])
        return [image_slice for image_slice in slices if columns <= self.columns(image_slice.row)]

    def slices(self, unit: Unit, strength: float, columns: frozenset[str]) -> tuple[Slice, ...]:
        """Return slices of an evaluation that together contain each image once, and whose rows have all of `columns`.

        If a row has all images, only its slice is returned; if several rows do, the first by shard name is used.
        Raises IncompleteError if images are missing.
        """
        chosen_slices = choose_slices(self._find_usable_slices(unit, strength, columns))
        gaps = find_gaps(chosen_slices, unit.n_images)
        if gaps:
            raise IncompleteError(
                f"Reading values failed for {unit.label} at {strength:g}: the results of images "
                f"{', '.join(f'{start}:{stop}' for start, stop in gaps)} are missing, out of {unit.n_images:,} images. "
                "Run the sweep to the end."
            )
        return chosen_slices

    def find_single_rows(self, units: Sequence[Unit], columns: frozenset[str]) -> NDArray[np.int64] | None:
        """Return the rows of units, by unit and strength, if each evaluation is exactly one row with all images.

        Return None if an evaluation has no row, several rows, or a row without all columns. In that case `slices` must
        choose the rows.
        """
        ids = np.array([unit.id.encode() for unit in units], dtype=np.bytes_)
        unit_numbers = self.find_units(ids)
        n_strengths = np.array([len(unit.strengths) for unit in units])
        if (unit_numbers < 0).any() or (
            self._unit_starts[unit_numbers + 1] - self._unit_starts[unit_numbers] != n_strengths
        ).any():
            return None
        first_evaluations = np.cumsum(n_strengths) - n_strengths
        first_rows = self._unit_starts[unit_numbers]
        rows = np.repeat(first_rows - first_evaluations, n_strengths) + np.arange(n_strengths.sum())
        n_images = np.repeat([unit.n_images for unit in units], n_strengths)
        has_columns = self._rows_have_columns(columns)[rows]
        strengths = np.array([strength for unit in units for strength in unit.strengths])
        is_complete = (self._rows["start"][rows] == 0) & (self._rows["stop"][rows] == n_images) & has_columns
        return rows if (is_complete & (self._rows["strength"][rows] == strengths)).all() else None

    def _rows_have_columns(self, columns: frozenset[str]) -> NDArray[np.bool_]:
        """Return (R,) booleans: whether each row has all of `columns`."""
        shard_has_columns = np.array([columns <= stored for stored in self._shard_columns], dtype=np.bool_)
        row_has_columns: NDArray[np.bool_] = shard_has_columns[self._rows["shard"]]
        return row_has_columns

    def is_complete(self, unit: Unit, strength: float, measurements: Collection[str]) -> bool:
        """Return whether an evaluation is complete, with all requested measurements."""
        return strength in self._complete_strengths(unit, required_unit_columns(unit, measurements))

    def count_complete(self, unit: Unit, measurements: Collection[str]) -> int:
        """Return the number of a unit's strengths that are complete, with all requested measurements."""
        complete_strengths = self._complete_strengths(unit, required_unit_columns(unit, measurements))
        if complete_strengths == unit.strengths:
            return len(complete_strengths)
        return len({*complete_strengths}.intersection(unit.strengths))

    def are_complete(self, units: Sequence[Unit], strength: float, measurements: Collection[str]) -> list[bool]:
        """Return whether each of some units is complete at a strength, without creating an object per unit.

        All units must have the same key.
        """
        if not units:
            return []
        unit_numbers = self.find_units(np.array([unit.id.encode() for unit in units], dtype=np.bytes_))
        n_complete = self.count_complete_at((strength,), required_unit_columns(units[0], measurements))
        # For units without a row, the unit number is -1, which selects the appended 0.
        are_complete: list[bool] = (np.append(n_complete, 0)[unit_numbers] > 0).tolist()
        return are_complete

    def count_complete_at(self, strengths: Sequence[float], columns: frozenset[str]) -> NDArray[np.int64]:
        """Return for each of `units` the number of `strengths` that are complete with all of `columns`."""
        unit, strength = self._complete_evaluations(columns)
        return np.bincount(unit[np.isin(strength, strengths)], minlength=len(self._units))

    def _complete_strengths(self, unit: Unit, columns: frozenset[str]) -> tuple[float, ...]:
        """Return the strengths, ascending, at which a unit's rows with all of `columns` cover every image."""
        unit_number = self._unit_numbers.get(unit.id)
        if unit_number is None:
            return ()
        if columns not in self._complete_strengths_cache:
            unit_of_evaluation, strength_of_evaluation = self._complete_evaluations(columns)
            offsets_of_units = np.searchsorted(unit_of_evaluation, np.arange(len(self._units) + 1))
            # Few strengths are distinct, so sharing their float objects reduces the memory to a quarter.
            distinct_strengths, indices = np.unique(strength_of_evaluation, return_inverse=True)
            strengths = tuple(map(distinct_strengths.tolist().__getitem__, indices.tolist()))
            self._complete_strengths_cache[columns] = strengths, offsets_of_units.tolist()
        strengths, offsets = self._complete_strengths_cache[columns]
        return strengths[offsets[unit_number] : offsets[unit_number + 1]]

    def _complete_evaluations(self, columns: frozenset[str]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the unit indices and strengths of the evaluations that are complete with all of `columns`.

        Only evaluations without a row that has all images are checked one by one.
        """
        if columns in self._complete_evaluations_cache:
            return self._complete_evaluations_cache[columns]
        if not len(self):
            return np.zeros(0, dtype=np.int32), np.zeros(0)
        has_columns = self._rows_have_columns(columns)
        first_rows = self._evaluation_starts[:-1]
        has_all_images = (self._rows["start"] == 0) & (self._rows["stop"] == self._n_images[self._rows["unit"]])
        is_complete = has_all_images & has_columns
        if self._has_single_rows and is_complete.all():  # avoids a copy of the columns
            self._complete_evaluations_cache[columns] = self._rows["unit"], self._rows["strength"]
            return self._complete_evaluations_cache[columns]
        is_complete = np.logical_or.reduceat(is_complete, first_rows)
        for evaluation in np.flatnonzero(~is_complete).tolist():
            first_row, end_row = self._evaluation_starts[evaluation : evaluation + 2].tolist()
            usable_slices = [
                image_slice for image_slice in self._make_slices(first_row, end_row) if has_columns[image_slice.row]
            ]
            n_images = int(self._n_images[self._rows["unit"][first_row]])
            is_complete[evaluation] = not find_gaps(choose_slices(usable_slices), n_images)
        complete_rows = first_rows[is_complete]
        unit, strength = (self._rows[name][complete_rows] for name in ("unit", "strength"))
        self._complete_evaluations_cache[columns] = unit, strength
        return self._complete_evaluations_cache[columns]

    def find_missing_parts(self, unit: Unit, measurements: Collection[str]) -> tuple[Part, ...]:
        """Return the missing parts of a unit, that is, ranges of images at some strengths.

        Strengths that lack the same images are in one part.
        """
        columns = required_unit_columns(unit, measurements)
        if self._complete_strengths(unit, columns) == unit.strengths:
            return ()
        if unit.id not in self._unit_numbers:
            return (Part(unit, unit.strengths, 0, unit.n_images),)
        strengths_by_range: dict[tuple[int, int], list[float]] = {}
        for strength in unit.strengths:
            for image_range in find_gaps(
                choose_slices(self._find_usable_slices(unit, strength, columns)), unit.n_images
            ):
                strengths_by_range.setdefault(image_range, []).append(strength)
        return tuple(
            Part(unit, tuple(strengths), *image_range) for image_range, strengths in sorted(strengths_by_range.items())
        )

    def count_foreign_evaluations(self, plan_unit_ids: NDArray[np.bytes_]) -> dict[str, int]:
        """Return the number of evaluations whose units are not in a plan, by protocol digest."""
        n_evaluations: Counter[str] = Counter()
        if len(self):
            is_foreign = np.ones(len(self._units) + 1, dtype=bool)
            # For units without a row, `find_units` returns -1, which selects the additional last element.
            is_foreign[self.find_units(plan_unit_ids)] = False
            unit_of_evaluation = self._rows["unit"][self._evaluation_starts[:-1]]
            n_evaluations_of_unit = np.bincount(unit_of_evaluation, minlength=len(self._units))
            foreign_units = np.flatnonzero(is_foreign[:-1])
            protocols = self._units.columns["protocol"].take(from_numpy(foreign_units)).to_pylist()
            for protocol, count in zip(protocols, n_evaluations_of_unit[foreign_units].tolist(), strict=True):
                n_evaluations[protocol] += count
        return dict(n_evaluations)

    def protocol_digests(self) -> frozenset[str]:
        return frozenset(self._units.columns["protocol"].unique().to_pylist())

    def protocol(self, digest: str) -> Mapping[str, Any]:
        """Return a protocol's payload, or an empty mapping if the folder does not have it.

        Raises StorageError if the protocol's file is damaged.
        """
        path = None if self._protocols is None else self._protocols / f"{digest}.json"
        if path is None or not path.is_file():
            return {}
        try:
            payload = load_json(path)
            is_valid = isinstance(payload, dict) and EvaluationProtocol.of(payload).digest == digest
        except ValueError:
            is_valid = False
        if not is_valid:
            raise StorageError(
                f"Reading a protocol failed for {path}: its content does not match the digest in its name. "
                "Delete the file, and run the sweep again, which writes the file again."
            )
        return dict(payload)

    def locate(self, row: int) -> tuple[str, int]:
        """Return the name of a row's shard, and the row's position in it."""
        return self.shards[self._rows["shard"][row]], int(self._rows["position"][row])

    def locate_rows(self, rows: NDArray[np.int64]) -> tuple[tuple[str, ...], NDArray[np.int32], NDArray[np.int32]]:
        """Return the names of the rows' shards, and arrays: the index of each row's shard, and its position there."""
        shard_numbers, shard_of_row = np.unique(self._rows["shard"][rows], return_inverse=True)
        names = tuple(self.shards[number] for number in shard_numbers.tolist())
        return names, shard_of_row.astype(np.int32), self._rows["position"][rows].astype(np.int32)

    def columns(self, row: int) -> frozenset[str]:
        """Return the measurement columns of a row."""
        return self._shard_columns[int(self._rows["shard"][row])]

    def shard_columns(self, shard_number: int) -> frozenset[str]:
        """Return a shard's measurement columns, by its index in `shards`."""
        return self._shard_columns[shard_number]

    def rows_of_shard(self, shard_number: int) -> NDArray[np.int32]:
        """Return the inventory's row indices of a shard, in file order; `shard_number` is an index in `shards`."""
        order, offsets = self._shard_index
        return order[offsets[shard_number] : offsets[shard_number + 1]]

    @cached_property
    def _shard_index(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        shard_of_row = self._rows["shard"]
        order = np.lexsort([self._rows["position"], shard_of_row]).astype(np.int32)
        return order, np.searchsorted(shard_of_row[order], np.arange(len(self.shards) + 1))

    def row_column(self, name: str) -> NDArray[Any]:
        """Return one column of the inventory. Rows are sorted by unit, strength, start, stop and shard.

        ``unit`` and ``shard`` are indices into `units` and `shards`, and ``position`` is the row's position in its
        shard. The other columns are ``strength``, ``start``, ``stop`` and ``seconds``.
        """
        return self._rows[name]


_ORDER = ("unit", "strength", "start", "stop", "shard", "position")


def _sort_rows(rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return rows in sorted order, without a copy if they are sorted already, as in compacted shards.

    If they are not sorted, the input dictionary is emptied to free memory.
    """
    is_tied = np.ones(max(0, len(rows["unit"]) - 1), dtype=bool)
    for name in _ORDER:
        column = rows[name]
        if (is_tied & (column[1:] < column[:-1])).any():
            order = np.lexsort([rows[name] for name in reversed(_ORDER)])
            # Columns are sorted one at a time, because all columns together may take a hundred megabytes.
            return {name: rows.pop(name)[order] for name in list(rows)}
        is_tied &= column[1:] == column[:-1]
    return rows


def required_unit_columns(unit: Unit, measurements: Collection[str]) -> frozenset[str]:
    """Return the columns that a unit's rows must have: a measure's columns, or the columns of `measurements`."""
    return frozenset(unit.columns) if unit.columns else required_columns(tuple(measurements))


@lru_cache(maxsize=64)
def required_columns(measurements: tuple[str, ...]) -> frozenset[str]:
    """Return the columns of measurements, always including `accuracy`.

    Every row also has counts, in one of two columns (see `tasks.columns.columns_of`).
    """
    return frozenset({"accuracy", *requested_columns(measurements)})
