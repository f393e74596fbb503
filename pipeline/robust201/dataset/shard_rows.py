"""Results of units, merged from the shards of their slices, and batches of units."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from robust201.core.errors import IncompleteError
from robust201.core.records import Unit
from robust201.evaluation.measurements import merge_values
from robust201.store.folder import ResultsFolder
from robust201.store.names import Listing, Names, ShardName, names_of, shard_name
from robust201.store.shards import Shard, StackedColumn, decode, stack
from robust201.sweep.parts import find_rows
from robust201.sweep.plan import PlannedKey
from robust201.tasks.columns import COUNTS, OUTCOME_COUNTS, Values

UnitColumns: TypeAlias = Mapping[str, StackedColumn]
"""Columns of the strengths of a unit, by name."""

READ_AHEAD_BYTES = 256 << 10
"""Minimum total size of the files that are read before the first of them is decoded."""

T = TypeVar("T")


class UnitResults(Protocol):
    """The results of some units; can be pickled, so that another process can read them."""

    @property
    def provenances(self) -> Iterable[Any]:
        """Distinct provenances of the results that were read, as mappings or pairs of name and value."""

    def __iter__(self) -> Iterator[tuple[Unit, UnitColumns]]:
        """Yield each unit with the columns of its strengths."""


def decode_shard(folder: ResultsFolder, name: ShardName, content: bytes, columns: Collection[str] = ()) -> Shard:
    """Decode and check some or all columns of a shard; a damaged shard is moved aside.

    Raises:
        ShardDamagedError: the shard is damaged.
    """
    try:
        shard = decode(content, columns)
    except ValueError as error:
        raise folder.set_aside(name, str(error)) from error
    if shard.unit.id != name.unit:
        raise folder.set_aside(name, f"results of {shard.unit.label}")
    return shard


def check_images(folder: ResultsFolder, key: PlannedKey, name: ShardName, shard: Shard) -> None:
    """Check that a shard has the images of its slice; otherwise, it is moved aside.

    Raises:
        ShardDamagedError: the shard has other images.
    """
    expected = key.images_of_slice(name.slice, name.slices) if name.slice < name.slices else (0, 0)
    if (shard.start, shard.stop) != expected:
        fault = f"images {shard.start}:{shard.stop} instead of {expected[0]}:{expected[1]}"
        raise folder.set_aside(name, fault)


class _File(NamedTuple):
    """A file, the strengths that it provides, and its content."""

    name: ShardName
    strengths: list[float]
    content: bytes


class KeyRows:
    """Reads the results of one key from a listing of shards; can be pickled, so that another process can read them.

    Args:
        folder: the results folder.
        key: the key.
        listing: the shards.
        networks: positions of the networks to iterate over; None for all.
        columns: the columns to read in an iteration; empty for all.

    Attributes:
        key: the key.
        provenances: distinct provenances of the files that were read, each as sorted fields.
    """

    def __init__(
        self,
        folder: ResultsFolder,
        key: PlannedKey,
        listing: Listing,
        networks: Sequence[int] | None = None,
        columns: Collection[str] = (),
    ) -> None:
        self.key = key
        self.provenances: set[tuple[tuple[str, str], ...]] = set()
        self._folder = folder
        self._names: Names = names_of(listing, key.dataset)
        self._networks = range(len(key.networks)) if networks is None else networks
        self._columns = columns
        self._pixels: dict[float, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Names of other keys are left out. This changes the row numbers, so `_rows_of_network` is left out, too.
        state = vars(self) | {"_folder": self._folder.root, "_names": self._names[find_rows(self.key, self._names)[1]]}
        return {name: value for name, value in state.items() if name != "_rows_of_network"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"_folder": _open_folder(state["_folder"])})

    @cached_property
    def _rows_of_network(self) -> dict[int, list[int]]:
        rows_of_network: dict[int, list[int]] = {}
        positions, rows = find_rows(self.key, self._names)
        for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
            rows_of_network.setdefault(position, []).append(row)
        return rows_of_network

    def __iter__(self) -> Iterator[tuple[Unit, UnitColumns]]:
        """Yield each unit with the columns of its strengths, in the order of `networks` (see the class).

        Raises:
            IncompleteError: a part is missing, or files were computed from different corrupted images.
            ShardDamagedError: a shard is damaged.
        """
        units = (self._read_unit(network, self.key.strengths) for network in self._networks)
        # Reading several small files before decoding them takes less time than reading and decoding in turn.
        for bundle in _bundle(units, _bytes_of_files, READ_AHEAD_BYTES):
            for unit, slices in bundle:
                yield unit, self._decode(unit, slices, self.key.strengths, self._columns)

    def read(self, network: int, columns: Collection[str] = (), strengths: Sequence[float] = ()) -> UnitColumns:
        """Return some or all columns of some or all strengths of a network's unit.

        Raises:
            ValueError: the key has no such column.
            IncompleteError, ShardDamagedError: see `__iter__`.
        """
        if {*columns} - {*self.key.columns}:  # a file without them is not damaged
            raise ValueError(f"Reading results failed: {self.key.key} has columns {self.key.columns}, not {columns}.")
        strengths = strengths or self.key.strengths
        return self._decode(*self._read_unit(network, strengths), strengths, columns)

    def _read_unit(self, network: int, strengths: Sequence[float]) -> tuple[Unit, list[list[_File]]]:
        """Read the files of each slice of a network's unit. If several provide a strength, the first by name does."""
        unit = self.key.unit(network)
        slices: list[list[_File]] = [[] for _ in range(int(self.key.n_slices[network]))]
        missing = [list(strengths) for _ in slices]
        for row in self._rows_of_network.get(network, ()):  # in the order of names
            name = shard_name(self.key.dataset, self._names[row])
            if missing[name.slice] and set(self.key.columns) <= set(self._folder.read_tuple(name.columns)):
                provided = self._folder.read_tuple(name.strengths)
                found = [strength for strength in missing[name.slice] if strength in provided]
                if found:
                    slices[name.slice].append(_File(name, found, self._read_file(unit, name)))
                    missing[name.slice] = [strength for strength in missing[name.slice] if strength not in found]
        for index, missing_of_slice in enumerate(missing):
            if missing_of_slice:
                raise IncompleteError(
                    f"Reading results failed for {unit.label}: slice {index} at strength {missing_of_slice[0]:g} is "
                    "missing. Run the sweep again."
                )
        return unit, slices

    def _read_file(self, unit: Unit, name: ShardName) -> bytes:
        try:
            return self._folder.read(name)
        except FileNotFoundError as error:  # another process has moved a damaged file aside since the listing
            vanished = error.filename or "a file"
            raise IncompleteError(
                f"Reading results failed for {unit.label}: {vanished} has vanished since the results were listed. Run "
                "the same command again; if it fails again, run the sweep."
            ) from error

    def _decode(
        self, unit: Unit, slices: Sequence[Sequence[_File]], strengths: Sequence[float], columns: Collection[str]
    ) -> UnitColumns:
        """Decode the files of a unit, and merge the columns of its slices."""
        columns = columns or self.key.columns
        # To merge the means of slices, counts are required; to merge accuracies, only the numbers of images.
        needs_counts = len(slices) > 1 and {*columns} != {"accuracy"}
        counts = {"accuracy", COUNTS, OUTCOME_COUNTS} & set(self.key.columns) if needs_counts else set()
        decoded, n_images = [], []
        for files in slices:
            shards = [self._decode_file(file, {*columns, *counts}) for file in files]
            decoded.append(_join(shards, [file.strengths for file in files], strengths))
            n_images.append(shards[0].stop - shards[0].start)
        merged = _merge(decoded, n_images, unit.label) if len(decoded) > 1 else decoded[0]
        return {column: merged[column] for column in columns}

    def _decode_file(self, file: _File, columns: Collection[str]) -> Shard:
        name, shard = file.name, decode_shard(self._folder, file.name, file.content, columns)
        self.provenances.add(tuple(sorted(shard.provenance.items())))
        check_images(self._folder, self.key, name, shard)
        for severity, pixels in shard.pixels.items():
            expected = self._pixels.setdefault(severity, pixels)
            if pixels != expected:
                raise IncompleteError(
                    f"Reading results failed for {name.path}: its corrupted images of severity {severity:g} have the "
                    f"hash {pixels}, but other files of {self.key.dataset} {self.key.key} have the hash {expected}. "
                    f"List such files with: robust201 verify {self._folder.root}"
                )
        return shard


@cache
def _open_folder(root: Path) -> ResultsFolder:
    """Return the folder with the indexes of its packs, which a process reads once for all keys."""
    return ResultsFolder.open(root)


def _join(
    shards: Sequence[Shard], strengths_of_shards: Sequence[Sequence[float]], strengths: Sequence[float]
) -> UnitColumns:
    """Return the columns of strengths, each from the shard that provides it."""
    if shards[0].unit.strengths == tuple(strengths):
        return shards[0].columns
    rows: dict[float, Values] = {}
    for shard, provided in zip(shards, strengths_of_shards, strict=True):
        rows_of_shard = shard.rows
        rows |= {strength: rows_of_shard[strength] for strength in provided}
    return {name: stack([rows[strength][name] for strength in strengths]) for name in rows[strengths[0]]}


def _merge(slices: Sequence[UnitColumns], n_images: Sequence[int], name: str) -> UnitColumns:
    """Merge the columns of slices."""
    if slices[0].keys() == {"accuracy"}:
        n_correct = [np.rint(values["accuracy"] * count) for values, count in zip(slices, n_images, strict=True)]
        return {"accuracy": np.sum(n_correct, axis=0) / sum(n_images)}
    n_strengths = len(next(iter(slices[0].values())))
    rows = [
        merge_values([{column: values[column][index] for column in values} for values in slices], name=name)
        for index in range(n_strengths)
    ]
    return {column: stack([row[column] for row in rows]) for column in rows[0]}


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Columns of the evaluations of some units, ordered by unit and strength."""

    units: tuple[Unit, ...]
    columns: Mapping[str, StackedColumn]


def iter_batches(rows: Iterable[tuple[Unit, UnitColumns]], min_bytes: int) -> Iterator[RowBatch]:
    """Yield the units' columns in batches, all but the last of at least `min_bytes`."""
    yield from map(make_batch, _bundle(rows, _bytes_of_row, min_bytes))


def _bytes_of_files(unit: tuple[Unit, list[list[_File]]]) -> int:
    return sum(len(file.content) for files in unit[1] for file in files)


def _bytes_of_row(row: tuple[Unit, UnitColumns]) -> int:
    return sum(
        sum(array.nbytes for array in column) if isinstance(column, list) else column.nbytes
        for column in row[1].values()
    )


def _bundle(items: Iterable[T], bytes_of: Callable[[T], int], min_bytes: int) -> Iterator[list[T]]:
    """Yield items in lists, all but the last of at least `min_bytes`."""
    bundle: list[T] = []
    n_bytes = 0
    for item in items:
        bundle.append(item)
        n_bytes += bytes_of(item)
        if n_bytes >= min_bytes:
            yield bundle
            bundle, n_bytes = [], 0
    if bundle:
        yield bundle


def make_batch(rows: Sequence[tuple[Unit, UnitColumns]]) -> RowBatch:
    """Return the columns of some units as one batch."""
    columns = {name: _concatenate([values[name] for _, values in rows]) for name in rows[0][1]}
    return RowBatch(tuple(unit for unit, _ in rows), columns)


def _concatenate(columns: Sequence[StackedColumn]) -> StackedColumn:
    shapes = {array.shape[1:] for array in columns if not isinstance(array, list)}
    if len(shapes) > 1 or any(isinstance(column, list) for column in columns):
        return [array for column in columns for array in column]
    return np.concatenate(columns)
