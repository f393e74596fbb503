"""The evaluations in a results folder: a few NumPy columns and a dictionary of unit ids.

1.6 million evaluations take less than 200 MB: 33 bytes per row, and about 400 per unit.
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
    """One row of the inventory: image positions [start, stop), and the row's number."""

    start: int
    stop: int
    row: int


def choose_slices(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Choose disjoint slices that cover the most images, and among those the fewest slices; sorted by start.

    They must be disjoint, because sums over overlapping parts would count images twice. The input is sorted by start,
    stop and shard name; of equal slices the first is chosen.
    """
    if len(slices) <= 1:
        return tuple(slices)
    # Weighted interval scheduling: best[i] is the best choice among the slices that start at or after slices[i].
    best: list[tuple[int, int, tuple[Slice, ...]]] = [(0, 0, ())] * (len(slices) + 1)
    starts = [item.start for item in slices]
    for i in range(len(slices) - 1, -1, -1):
        item = slices[i]
        following = bisect_left(starts, item.stop)
        images, negative_count, rest = best[following]
        taken = images + item.stop - item.start, negative_count - 1, (item, *rest)
        best[i] = taken if taken[:2] >= best[i + 1][:2] else best[i + 1]
    return best[0][2]


def gaps(slices: Sequence[Slice], n_images: int) -> list[tuple[int, int]]:
    """Return the ranges of [0, n_images) that disjoint slices do not cover, sorted."""
    open_ranges, position = [], 0
    for item in slices:
        if item.start > position:
            open_ranges.append((position, item.start))
        position = item.stop
    if position < n_images:
        open_ranges.append((position, n_images))
    return open_ranges


@dataclass(frozen=True)
class UnitGroup:
    """All rows of one evaluation, which is a unit at a strength."""

    unit: StoredUnit
    strength: float
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Contents:
    """Contents of an inventory: shards by name, their measurement columns, units, and columns over all rows."""

    shards: tuple[str, ...]
    columns: list[frozenset[str]]
    units: UnitColumns
    rows: dict[str, NDArray[Any]]


class Inventory:
    """Finished evaluations and parts of a results folder, at the time of its scan.

    `damage` describes the fault of each of the `damaged` shards in one line; the inventory does not contain their rows.
    `superseded` shards still exist, but are replaced by a compacted one. `hashed` is whether the scan hashed every
    shard of the inventory and each hash matched its shard's name.
    """

    def __init__(
        self,
        contents: Contents,
        *,
        damage: Mapping[str, str],
        superseded: Sequence[str] = (),
        protocols: Path | None = None,
        hashed: bool = False,
    ) -> None:
        self.hashed = hashed
        self.damage = dict(damage)
        self.damaged = tuple(sorted(damage))
        self.superseded = tuple(superseded)
        self.shards = contents.shards
        self._units = contents.units
        self._shard_columns = contents.columns
        self._protocols = protocols
        self._rows = _sorted(contents.rows)
        self._offsets = np.searchsorted(self._rows["unit"], np.arange(len(self._units) + 1))
        self._n_images = to_numpy(self._units.columns["n_images"])
        self._last: tuple[str, dict[float, list[Slice]]] = ("", {})
        self._complete: dict[frozenset[str], tuple[tuple[float, ...], list[int]]] = {}
        self._evaluations: dict[frozenset[str], tuple[NDArray[np.int32], NDArray[np.float64]]] = {}

    def __len__(self) -> int:
        return len(self._rows["unit"])

    @cached_property
    def units(self) -> list[StoredUnit]:
        """Units of the rows, one object each, indexed by the column ``unit``."""
        return list(self._units)

    def unit_columns(self, numbers: NDArray[np.int64]) -> dict[str, pa.Array]:
        """Return fields of some `units` as columns, architectures as text, without creating an object per unit."""
        taken = {name: column.take(from_numpy(numbers)) for name, column in self._units.columns.items()}
        return {
            name: column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            for name, column in taken.items()
        }

    @cached_property
    def dataset_protocols(self) -> tuple[list[tuple[str, str]], NDArray[np.int64]]:
        """Distinct (dataset, protocol) pairs of units, and the index of each unit's pair."""
        dataset, protocol = (self._units.columns[name].dictionary_encode() for name in ("dataset", "protocol"))
        codes = to_numpy(dataset.indices).astype(np.int64) * len(protocol.dictionary) + to_numpy(protocol.indices)
        _, first, pair = np.unique(codes, return_index=True, return_inverse=True)
        names = (column.take(from_numpy(first)).to_pylist() for column in (dataset, protocol))
        return list(zip(*names, strict=True)), pair.astype(np.int64)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._units.columns["unit_id"].to_pylist())}

    def find(self, unit_ids: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """Return the indices of units in `units`; -1 for units without a row."""
        stored = self._units.columns["unit_id"].cast(pa.binary())
        indices = pc.index_in(from_bytes(unit_ids), value_set=stored)
        return to_numpy(indices, fill=-1).astype(np.int64)

    @cached_property
    def n_evaluations(self) -> int:
        """Number of complete evaluations, whatever they measured."""
        return len(self._complete_evaluations(frozenset())[0])

    @property
    def seconds(self) -> float:
        """Total wall time of all rows, in seconds."""
        return float(self._rows["seconds"].sum(dtype=np.float64))

    @cached_property
    def _group_starts(self) -> NDArray[np.int32]:
        """Index of the first row of each evaluation, followed by the number of rows."""
        unit, strength = self._rows["unit"], self._rows["strength"]
        new = np.ones(len(unit) + 1, dtype=bool)
        new[1:-1] = (unit[1:] != unit[:-1]) | (strength[1:] != strength[:-1])
        return np.flatnonzero(new).astype(np.int32)

    @property
    def _has_single_rows(self) -> bool:
        """Whether each evaluation has one row."""
        return len(self._group_starts) - 1 == len(self)

    def overlapping(self) -> Iterator[UnitGroup]:
        """Yield evaluations whose rows cover an image more than once: duplicates, or a whole next to its parts."""
        if self._has_single_rows:
            return
        lengths = (self._rows["stop"] - self._rows["start"]).astype(np.int64)
        totals = np.add.reduceat(lengths, self._group_starts[:-1])
        n_images = self._n_images[self._rows["unit"][self._group_starts[:-1]]]
        for number in np.flatnonzero(totals > n_images).tolist():
            first, stop = self._group_starts[number : number + 2].tolist()
            unit = self.units[int(self._rows["unit"][first])]
            yield UnitGroup(unit, float(self._rows["strength"][first]), tuple(self._slices(first, stop)))

    def _slices(self, first: int, stop: int) -> list[Slice]:
        starts, stops = (self._rows[name][first:stop].tolist() for name in ("start", "stop"))
        return list(map(Slice, starts, stops, range(first, stop)))

    def _by_strength(self, unit_id: str) -> dict[float, list[Slice]]:
        if self._last[0] != unit_id:
            number = self._numbers.get(unit_id)
            by_strength: dict[float, list[Slice]] = {}
            if number is not None:
                first, stop = self._offsets[number : number + 2].tolist()
                strengths = self._rows["strength"][first:stop].tolist()
                pairs = zip(strengths, self._slices(first, stop), strict=True)
                by_strength = {s: [item for _, item in group] for s, group in groupby(pairs, itemgetter(0))}
            self._last = unit_id, by_strength
        return self._last[1]

    def _usable(self, unit: Unit, strength: float, columns: frozenset[str]) -> list[Slice]:
        rows = self._by_strength(unit.id).get(strength, [])
        return [item for item in rows if columns <= self._shard_columns[self._rows["shard"][item.row]]]

    def slices(self, unit: Unit, strength: float, columns: frozenset[str]) -> tuple[Slice, ...]:
        """Return the rows that make up an evaluation: they have the required columns, and cover every image once.

        If there is a row for the whole evaluation, it is returned; of several, the first by shard name. Raises
        IncompleteError if images are missing.
        """
        cover = choose_slices(self._usable(unit, strength, columns))
        missing = gaps(cover, unit.n_images)
        if missing:
            raise IncompleteError(
                f"Reading values failed for {unit.label} at {strength:g}: expected images 0:{unit.n_images}, "
                f"missing {', '.join(f'{start}:{stop}' for start, stop in missing)}. Run the sweep to the end."
            )
        return cover

    def single_rows(self, units: Sequence[Unit], columns: frozenset[str]) -> NDArray[np.int64] | None:
        """Return the rows of units by strength if each evaluation has exactly one row, with all images and columns.

        Return None if some evaluation has no row or several, which `slices` must choose among.
        """
        ids = np.array([unit.id.encode() for unit in units], dtype=np.bytes_)
        number = self.find(ids)
        n_strengths = np.array([len(unit.strengths) for unit in units])
        if (number < 0).any() or (self._offsets[number + 1] - self._offsets[number] != n_strengths).any():
            return None
        first = np.cumsum(n_strengths) - n_strengths
        rows = np.repeat(self._offsets[number] - first, n_strengths) + np.arange(n_strengths.sum())
        n_images = np.repeat([unit.n_images for unit in units], n_strengths)
        has_columns = self._have_columns(columns)[rows]
        strengths = np.array([strength for unit in units for strength in unit.strengths])
        is_whole = (self._rows["start"][rows] == 0) & (self._rows["stop"][rows] == n_images) & has_columns
        return rows if (is_whole & (self._rows["strength"][rows] == strengths)).all() else None

    def _have_columns(self, columns: frozenset[str]) -> NDArray[np.bool_]:
        """Return whether each row has some columns."""
        shard_has_columns = np.array([columns <= stored for stored in self._shard_columns], dtype=np.bool_)
        row_has_columns: NDArray[np.bool_] = shard_has_columns[self._rows["shard"]]
        return row_has_columns

    def is_complete(self, unit: Unit, strength: float, measurements: Collection[str]) -> bool:
        """Return whether an evaluation is complete, with all requested measurements."""
        return strength in self._complete_strengths(unit, required_unit_columns(unit, measurements))

    def count_complete(self, unit: Unit, measurements: Collection[str]) -> int:
        """Return the number of a unit's strengths that are complete, with all requested measurements."""
        complete = self._complete_strengths(unit, required_unit_columns(unit, measurements))
        return len(complete) if complete == unit.strengths else len({*complete}.intersection(unit.strengths))

    def are_complete(self, units: Sequence[Unit], strength: float, measurements: Collection[str]) -> list[bool]:
        """Return whether units of one key are complete at a strength, without an object for each known unit."""
        if not units:
            return []
        numbers = self.find(np.array([unit.id.encode() for unit in units], dtype=np.bytes_))
        counts = self.count_complete_at((strength,), required_unit_columns(units[0], measurements))
        complete: list[bool] = (np.append(counts, 0)[numbers] > 0).tolist()  # index -1 is for units without a row
        return complete

    def count_complete_at(self, strengths: Sequence[float], columns: frozenset[str]) -> NDArray[np.int64]:
        """Return for each of `units` the number of some strengths that are complete, with all of some columns."""
        unit, strength = self._complete_evaluations(columns)
        return np.bincount(unit[np.isin(strength, strengths)], minlength=len(self._units))

    def _complete_strengths(self, unit: Unit, columns: frozenset[str]) -> tuple[float, ...]:
        """Return a unit's strengths at which rows with all columns cover every image, ascending."""
        number = self._numbers.get(unit.id)
        if number is None:
            return ()
        if columns not in self._complete:
            numbers, strength = self._complete_evaluations(columns)
            firsts = np.searchsorted(numbers, np.arange(len(self._units) + 1))
            # There are many rows, but few distinct strengths: sharing the objects reduces the memory to a quarter.
            values, indices = np.unique(strength, return_inverse=True)
            strengths = tuple(map(values.tolist().__getitem__, indices.tolist()))
            self._complete[columns] = strengths, firsts.tolist()
        strengths, offsets = self._complete[columns]
        return strengths[offsets[number] : offsets[number + 1]]

    def _complete_evaluations(self, columns: frozenset[str]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return unit and strength of the complete evaluations; only evaluations in parts are checked one by one."""
        if columns in self._evaluations:
            return self._evaluations[columns]
        if not len(self):
            return np.zeros(0, dtype=np.int32), np.zeros(0)
        has_columns = self._have_columns(columns)
        firsts = self._group_starts[:-1]
        whole = (self._rows["start"] == 0) & (self._rows["stop"] == self._n_images[self._rows["unit"]])
        complete = whole & has_columns
        if self._has_single_rows and complete.all():  # not copied
            self._evaluations[columns] = self._rows["unit"], self._rows["strength"]
            return self._evaluations[columns]
        complete = np.logical_or.reduceat(complete, firsts)
        for number in np.flatnonzero(~complete).tolist():
            first, stop = self._group_starts[number : number + 2].tolist()
            usable = [item for item in self._slices(first, stop) if has_columns[item.row]]
            n_images = int(self._n_images[self._rows["unit"][first]])
            complete[number] = not gaps(choose_slices(usable), n_images)
        complete_firsts = firsts[complete]
        self._evaluations[columns] = self._rows["unit"][complete_firsts], self._rows["strength"][complete_firsts]
        return self._evaluations[columns]

    def missing(self, unit: Unit, measurements: Collection[str]) -> tuple[Part, ...]:
        """Return the parts that complete a unit; strengths with the same missing images share parts."""
        columns = required_unit_columns(unit, measurements)
        if self._complete_strengths(unit, columns) == unit.strengths:
            return ()
        if unit.id not in self._numbers:
            return (Part(unit, unit.strengths, 0, unit.n_images),)
        strengths_of: dict[tuple[int, int], list[float]] = {}
        for strength in unit.strengths:
            for gap in gaps(choose_slices(self._usable(unit, strength, columns)), unit.n_images):
                strengths_of.setdefault(gap, []).append(strength)
        return tuple(Part(unit, tuple(strengths), *gap) for gap, strengths in sorted(strengths_of.items()))

    def foreign(self, plan_unit_ids: NDArray[np.bytes_]) -> dict[str, int]:
        """Return the number of evaluations outside of a plan's units, by protocol digest."""
        counts: Counter[str] = Counter()
        if len(self):
            is_foreign = np.ones(len(self._units) + 1, dtype=bool)
            is_foreign[self.find(plan_unit_ids)] = False  # index -1 is for units without a row
            per_unit = np.bincount(self._rows["unit"][self._group_starts[:-1]], minlength=len(self._units))
            foreign = np.flatnonzero(is_foreign[:-1])
            protocols = self._units.columns["protocol"].take(from_numpy(foreign)).to_pylist()
            for protocol, count in zip(protocols, per_unit[foreign].tolist(), strict=True):
                counts[protocol] += count
        return dict(counts)

    def protocol_digests(self) -> frozenset[str]:
        return frozenset(self._units.columns["protocol"].unique().to_pylist())

    def protocol(self, digest: str) -> Mapping[str, Any]:
        """Return a protocol's payload, empty if the folder lacks it. Raises StorageError if its file is damaged."""
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
                "Delete the file, and run the sweep again: that rewrites it."
            )
        return dict(payload)

    def locate(self, row: int) -> tuple[str, int]:
        """Return the name of a row's shard, and the row's position in it."""
        return self.shards[self._rows["shard"][row]], int(self._rows["position"][row])

    def locate_rows(self, rows: NDArray[np.int64]) -> tuple[tuple[str, ...], NDArray[np.int32], NDArray[np.int32]]:
        """Return names of shards, and for each row the index of its shard's name and its position in the shard."""
        numbers, shard = np.unique(self._rows["shard"][rows], return_inverse=True)
        names = tuple(self.shards[number] for number in numbers.tolist())
        return names, shard.astype(np.int32), self._rows["position"][rows].astype(np.int32)

    def columns(self, row: int) -> frozenset[str]:
        return self._shard_columns[int(self._rows["shard"][row])]

    def shard_columns(self, shard_number: int) -> frozenset[str]:
        """Return a shard's measurement columns, by its index in `shards`."""
        return self._shard_columns[shard_number]

    def rows_of_shard(self, shard_number: int) -> NDArray[np.int32]:
        """Return the inventory's rows of a shard, in file order, by the shard's index in `shards`."""
        order, offsets = self._shard_index
        return order[offsets[shard_number] : offsets[shard_number + 1]]

    @cached_property
    def _shard_index(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        shard = self._rows["shard"]
        order = np.lexsort([self._rows["position"], shard]).astype(np.int32)
        return order, np.searchsorted(shard[order], np.arange(len(self.shards) + 1))

    def row_column(self, name: str) -> NDArray[Any]:
        """Return one column over all rows, sorted by unit, strength, start, stop and shard.

        ``unit`` and ``shard`` are indices into `units` and `shards`, and ``position`` is the row's position in its
        shard. The other columns are ``strength``, ``start``, ``stop`` and ``seconds``.
        """
        return self._rows[name]


_ORDER = ("unit", "strength", "start", "stop", "shard", "position")


def _sorted(rows: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Sort rows, unless they are sorted already, as in compacted shards; the input dictionary is emptied."""
    is_tied = np.ones(max(0, len(rows["unit"]) - 1), dtype=bool)
    for name in _ORDER:
        column = rows[name]
        if (is_tied & (column[1:] < column[:-1])).any():
            order = np.lexsort([rows[name] for name in reversed(_ORDER)])
            # One column at a time, since all columns together may have a hundred megabytes.
            return {name: rows.pop(name)[order] for name in list(rows)}
        is_tied &= column[1:] == column[:-1]
    return rows


def required_unit_columns(unit: Unit, measurements: Collection[str]) -> frozenset[str]:
    """Return the columns that a row of a unit must have: a measure's own, or those of the measurements."""
    return frozenset(unit.columns) if unit.columns else required_columns(tuple(measurements))


@lru_cache(maxsize=64)
def required_columns(measurements: tuple[str, ...]) -> frozenset[str]:
    """Return the columns of measurements, always including `accuracy`.

    Every row also has counts, in one of two columns (see `tasks.columns.columns_of`).
    """
    return frozenset({"accuracy", *requested_columns(measurements)})
