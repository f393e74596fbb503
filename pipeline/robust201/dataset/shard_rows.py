"""Results of units, merged from the shards of their slices, and batches of units."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import IncompleteError
from robust201.core.records import Unit
from robust201.evaluation.measurements import merge_values
from robust201.store.folder import ResultsFolder
from robust201.store.names import Listing, Names, ShardName, names_of, shard_name
from robust201.store.shards import Shard, decode
from robust201.sweep.parts import find_rows
from robust201.sweep.plan import PlannedKey
from robust201.tasks.columns import COUNTS, OUTCOME_COUNTS, Values

UnitRows = Mapping[float, Values]
"""Columns of a unit by strength."""

ChosenFiles: TypeAlias = Mapping[tuple[int, float], ShardName]
"""File that provides each strength of each slice."""

READ_AHEAD_BYTES = 128 << 10
"""Minimum total size of the files that are read before the first of them is decoded."""

T = TypeVar("T")

StoredColumn: TypeAlias = NDArray[Any] | list[NDArray[Any]]


class UnitResults(Protocol):
    """The results of some units; can be pickled, so that another process can read them."""

    @property
    def provenances(self) -> Iterable[Any]:
        """Distinct provenances of the results that were read, as mappings or pairs of name and value."""

    def __iter__(self) -> Iterator[tuple[Unit, UnitRows]]:
        """Yield each unit with its columns by strength."""


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

    def __iter__(self) -> Iterator[tuple[Unit, UnitRows]]:
        """Yield each unit with its columns by strength, in the order of `networks` (see the class).

        Raises:
            IncompleteError: a part is missing, or files were computed from different corrupted images.
            ShardDamagedError: a shard is damaged.
        """
        files = ((network, *self._read_files(network, self.key.strengths)) for network in self._networks)
        # Reading several small files before decoding them takes less time than reading and decoding in turn.
        for bundle in _bundle(files, lambda item: sum(map(len, item[2].values())), READ_AHEAD_BYTES):
            for network, chosen, contents in bundle:
                yield self.key.unit(network), self._decode(network, chosen, contents, self._columns)

    def read(self, network: int, columns: Collection[str] = (), strengths: Collection[float] = ()) -> UnitRows:
        """Return some or all columns and strengths of a network's unit.

        Raises:
            ValueError: the key has no such column.
            IncompleteError, ShardDamagedError: see `__iter__`.
        """
        if {*columns} - {*self.key.columns}:  # a file without them is not damaged
            raise ValueError(f"Reading results failed: {self.key.key} has columns {self.key.columns}, not {columns}.")
        return self._decode(network, *self._read_files(network, strengths or self.key.strengths), columns)

    def _read_files(self, network: int, strengths: Collection[float]) -> tuple[ChosenFiles, dict[ShardName, bytes]]:
        """Return the file of each strength of each slice, and the contents of the files."""
        key, files = self.key, self._choose_files(network)
        required = [(index, strength) for strength in strengths for index in range(int(key.n_slices[network]))]
        if not files.keys() >= {*required}:
            index, strength = min({*required} - files.keys())
            raise IncompleteError(
                f"Reading results failed for {key.unit(network).label}: slice {index} at strength {strength:g} is "
                "missing. Run the sweep again."
            )
        chosen = {slice_and_strength: files[slice_and_strength] for slice_and_strength in required}
        try:
            return chosen, {name: self._folder.read(name) for name in dict.fromkeys(chosen.values())}
        except FileNotFoundError as error:  # another process has moved a damaged file aside since the listing
            vanished = error.filename or "a file"
            raise IncompleteError(
                f"Reading results failed for {key.unit(network).label}: {vanished} has vanished since the results "
                "were listed. Run the same command again; if it fails again, run the sweep."
            ) from error

    def _decode(
        self, network: int, chosen: ChosenFiles, contents: Mapping[ShardName, bytes], columns: Collection[str]
    ) -> UnitRows:
        """Decode files, and merge the columns of slices."""
        key, n_slices, columns = self.key, int(self.key.n_slices[network]), columns or self.key.columns
        # To merge the means of slices, counts are required; to merge accuracies, only the numbers of images.
        needs_counts = n_slices > 1 and {*columns} != {"accuracy"}
        counts = {"accuracy", COUNTS, OUTCOME_COUNTS} & set(key.columns) if needs_counts else set()
        shards = {name: self._decode_file(name, content, {*columns, *counts}) for name, content in contents.items()}
        slices: dict[float, list[Shard]] = {}
        for (_, strength), name in chosen.items():
            slices.setdefault(strength, []).append(shards[name])
        label = key.unit(network).label
        return {strength: _merge(shards, strength, columns, label) for strength, shards in slices.items()}

    def _choose_files(self, network: int) -> dict[tuple[int, float], ShardName]:
        """Return the file that provides each strength of each slice; if there are several, the first by name."""
        chosen: dict[tuple[int, float], ShardName] = {}
        for row in self._rows_of_network.get(network, ()):  # in the order of names
            name = shard_name(self.key.dataset, self._names[row])
            if set(self.key.columns) <= set(self._folder.read_tuple(name.columns)):
                for strength in self._folder.read_tuple(name.strengths):
                    chosen.setdefault((name.slice, strength), name)
        return chosen

    def _decode_file(self, name: ShardName, content: bytes, columns: Collection[str]) -> Shard:
        shard = decode_shard(self._folder, name, content, columns)
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


def _merge(slices: Sequence[Shard], strength: float, columns: Collection[str], name: str) -> Values:
    rows = [shard.rows[strength] for shard in slices]
    if len(rows) == 1:
        values = rows[0]
    elif {*columns} == {"accuracy"}:
        values = {"accuracy": _merge_accuracies(rows, [shard.stop - shard.start for shard in slices])}
    else:
        values = merge_values(rows, name=name)
    return {column: values[column] for column in columns}


def _merge_accuracies(rows: Sequence[Values], n_images: Sequence[int]) -> NDArray[np.float64]:
    n_correct = [round(float(values["accuracy"]) * count) for values, count in zip(rows, n_images, strict=True)]
    return np.array(sum(n_correct) / sum(n_images))


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Columns of the E evaluations of some units, ordered by unit and strength.

    A column is an array (E, …), or a list of E arrays if their shapes differ.
    """

    units: tuple[Unit, ...]
    columns: Mapping[str, StoredColumn]


def iter_batches(rows: Iterable[tuple[Unit, UnitRows]], min_bytes: int) -> Iterator[RowBatch]:
    """Yield the units' columns in batches, all but the last of at least `min_bytes`."""
    yield from map(make_batch, _bundle(rows, _bytes_of_row, min_bytes))


def _bytes_of_row(row: tuple[Unit, UnitRows]) -> int:
    return sum(array.nbytes for values in row[1].values() for array in values.values())


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


def make_batch(rows: Sequence[tuple[Unit, UnitRows]]) -> RowBatch:
    """Return the columns of some units as one batch."""
    evaluations = [columns[strength] for unit, columns in rows for strength in unit.strengths]
    columns = {name: _stack([np.asarray(values[name]) for values in evaluations]) for name in evaluations[0]}
    return RowBatch(tuple(unit for unit, _ in rows), columns)


def _stack(arrays: list[NDArray[Any]]) -> StoredColumn:
    return arrays if len({array.shape for array in arrays}) > 1 else np.array(arrays)
