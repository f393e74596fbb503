"""The missing parts of a plan: the difference between its evaluations and a listing of shards.

A slice of a unit counts as stored at a strength if a shard has the slice, the planned number of slices, the strength
and at least the required columns. All missing strengths of a slice form one part, so that they are computed together.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import Part, Unit
from robust201.store.names import Listing, Names, names_of, shard_name
from robust201.sweep.plan import Plan, PlannedKey

ReadTuple = Callable[[str], tuple[Any, ...]]
"""Function that returns the strengths or columns for a digest in a shard's name (`ResultsFolder.read_tuple`)."""


@dataclass(frozen=True, slots=True)
class SlicePart:
    """A part to compute.

    Attributes:
        part: unit, strengths and positions of the images.
        index: number of the slice, from 0.
        n_slices: number of slices of the unit.
        columns: columns that the result must have.
        macs: estimated multiply-accumulates.
    """

    part: Part
    index: int
    n_slices: int
    columns: tuple[str, ...]
    macs: float

    @property
    def id(self) -> tuple[str, int]:
        """Identifier of the part: unit and slice."""
        return self.unit.id, self.index

    @property
    def unit(self) -> Unit:
        return self.part.unit

    @property
    def label(self) -> str:
        return self.part.label

    @property
    def network(self) -> tuple[str, Any, str]:
        """Dataset, architecture and weights that a worker loads for the part."""
        return self.unit.dataset, self.unit.architecture, self.unit.checkpoint_sha256

    @property
    def fields(self) -> dict[str, Any]:
        """Fields that identify the part in events."""
        return {
            "part": self.label,
            "dataset": self.unit.dataset,
            "key": self.unit.key,
            "unit": self.unit.id,
            "slice": self.index,
            "slices": self.n_slices,
            "strengths": self.part.strengths,
            "macs": self.macs,
        }


@dataclass(frozen=True, eq=False)
class KeyState:
    """Record of the stored evaluations of a key.

    Attributes:
        done: (slices of all units, strengths) bool, stored or not (see `PlannedKey.first_slices`).
    """

    key: PlannedKey
    done: NDArray[np.bool_]

    @property
    def complete(self) -> NDArray[np.bool_]:
        """(networks, strengths) bool: evaluations whose slices are all stored."""
        return np.logical_and.reduceat(self.done, self.key.first_slices[:-1]) if len(self.done) else self.done

    @property
    def n_done(self) -> int:
        """Number of evaluations whose slices are all stored."""
        return int(self.complete.sum())

    @property
    def n_missing_parts(self) -> int:
        return int((~self.done.all(axis=1)).sum())

    @property
    def missing_macs(self) -> float:
        """Estimated multiply-accumulates of the missing strengths of all slices."""
        macs_of_slices = np.repeat(self.key.macs / self.key.n_slices, self.key.n_slices)
        return float(macs_of_slices @ (~self.done).sum(axis=1))

    def missing_parts(self, network: int) -> Iterator[SlicePart]:
        """Yield the missing parts of the network with the index `network`."""
        first, stop = self.key.first_slices[network : network + 2].tolist()
        for row in range(first, stop):
            if not self.done[row].all():
                yield self._part(network, row - first, self.done[row])

    def _part(self, network: int, index: int, done: NDArray[np.bool_]) -> SlicePart:
        key, n_slices = self.key, int(self.key.n_slices[network])
        strengths = tuple(strength for strength, is_done in zip(key.strengths, done, strict=True) if not is_done)
        start, stop = key.images_of_slice(index, n_slices)
        macs = float(key.macs[network]) * len(strengths) * (stop - start) / key.n_images
        return SlicePart(Part(key.unit(network), strengths, start, stop), index, n_slices, key.columns, macs)


@dataclass(frozen=True, eq=False)
class SweepState:
    """Record of the stored evaluations of a plan."""

    keys: tuple[KeyState, ...]

    @property
    def n_done(self) -> int:
        return sum(state.n_done for state in self.keys)

    @property
    def n_missing_parts(self) -> int:
        return sum(state.n_missing_parts for state in self.keys)

    def select(self, is_selected: Callable[[PlannedKey], bool]) -> "SweepState":
        """Return a state with only the selected keys; it shares their records, so `add` on either changes both."""
        return SweepState(tuple(state for state in self.keys if is_selected(state.key)))

    def add(self, part: SlicePart) -> int:
        """Record that a part was stored; return the number of evaluations that it completes."""
        (state,) = (s for s in self.keys if (s.key.dataset, s.key.key) == (part.unit.dataset, part.unit.key))
        network = int(np.flatnonzero(state.key.units == part.unit.id.encode())[0])
        first, stop = state.key.first_slices[network : network + 2].tolist()
        is_new = np.isin(state.key.strengths, part.part.strengths) & ~state.done[first + part.index]
        state.done[first + part.index] |= is_new
        return int(state.done[first:stop, is_new].all(axis=0).sum())

    def is_missing(self, unit: str, index: int) -> bool:
        """Return whether any strength of a planned unit's slice is missing."""
        for state in self.keys:
            for network in np.flatnonzero(state.key.units == unit.encode()).tolist():
                if 0 <= index < state.key.n_slices[network]:
                    return not state.done[state.key.first_slices[network] + index].all()
        return False

    def missing_parts(self) -> Iterator[SlicePart]:
        """Yield the missing parts, ordered by dataset and network, so that a worker loads a network once.

        All keys of a dataset have the same networks in the same order (see `Plan.narrow`).
        """
        for states in self._by_dataset().values():
            networks = np.unique(np.concatenate([_networks_with_missing_parts(state) for state in states]))
            for network in networks.tolist():
                for state in states:
                    yield from state.missing_parts(network)

    def _by_dataset(self) -> dict[str, list[KeyState]]:
        states: dict[str, list[KeyState]] = {}
        for state in self.keys:
            states.setdefault(state.key.dataset, []).append(state)
        return states


def _networks_with_missing_parts(state: KeyState) -> NDArray[np.int64]:
    rows = np.flatnonzero(~state.done.all(axis=1))
    return np.searchsorted(state.key.first_slices, rows, side="right") - 1


def compare(plan: Plan, listing: Listing, read_tuple: ReadTuple) -> SweepState:
    """Compare a plan with a listing of shards."""
    read_tuple = cache(read_tuple)
    states = (
        KeyState(key, find_stored(key, names_of(listing, key.dataset), key.columns, read_tuple)) for key in plan.keys
    )
    return SweepState(tuple(states))


def find_stored(key: PlannedKey, names: Names, columns: Collection[str], read_tuple: ReadTuple) -> NDArray[np.bool_]:
    """Return which slices of a key are stored at each strength with at least `columns` (see `KeyState.done`)."""
    stored = np.zeros((int(key.first_slices[-1]), len(key.strengths)), bool)
    positions, rows = find_rows(key, names)
    codes, first_rows = _distinct_contents(names, rows)
    for code, row in enumerate(first_rows):
        strengths, stored_columns = (read_tuple(names[row][field].decode()) for field in ("strengths", "columns"))
        if set(columns) <= set(stored_columns):
            selected = codes == code
            slices = key.first_slices[positions[selected]] + names["slice"][rows[selected]].astype(np.int64)
            stored[np.ix_(slices, np.isin(key.strengths, strengths))] = True
    return stored


def is_stored(part: SlicePart, listing: Listing, read_tuple: ReadTuple) -> bool:
    """Return whether all strengths of a part are in a listing, which may be limited to the part's unit."""
    stored: set[float] = set()
    for row in names_of(listing, part.unit.dataset):
        name = shard_name(part.unit.dataset, row)
        is_slice = (name.unit, name.slice, name.slices) == (part.unit.id, part.index, part.n_slices)
        if is_slice and set(part.columns) <= set(read_tuple(name.columns)):
            stored |= set(read_tuple(name.strengths))
    return set(part.part.strengths) <= stored


def find_rows(key: PlannedKey, names: Names) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the files of a key's units whose names have the planned number of slices.

    Returns:
        Positions of the networks (R,), and of the files in `names` (R,), in the order of the files.
    """
    order = np.argsort(key.units)
    sorted_units = key.units[order]
    # `names` are sorted by unit, so a key's files are found with few comparisons per unit.
    first, last = (np.searchsorted(names["unit"], sorted_units, side=side) for side in ("left", "right"))
    counts = last - first
    rows = np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
    positions = np.repeat(order, counts)
    slices, index = names["slices"][rows].astype(np.int64), names["slice"][rows].astype(np.int64)
    is_planned = (slices == key.n_slices[positions]) & (index < slices)
    return positions[is_planned], rows[is_planned]


def _distinct_contents(names: Names, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
    """Return a code (R,) for each row's strengths and columns, and one row for each code."""
    contents = np.strings.add(names["strengths"][rows], names["columns"][rows])
    _, first_positions, codes = np.unique(contents, return_index=True, return_inverse=True)
    return codes, rows[first_positions].tolist()
