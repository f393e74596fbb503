"""Catalogues: tables with one row per shard, which contain the identities of the shard's rows.

A scan builds catalogues, and the index stores them.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from robust201.shards.arrow_arrays import empty_table, from_numpy, from_strings, from_values, to_numpy, true_indices
from robust201.shards.backends import ShardEntry
from robust201.shards.inventory import Contents
from robust201.shards.parquet import Footer
from robust201.shards.row_identity import ShardRows, StoredUnit, UnitColumns

Catalogue: TypeAlias = pa.Table

_UNIT_TYPES: dict[str, pa.DataType] = {
    "unit_id": pa.string(),
    "architecture": pa.string(),
    "dataset": pa.string(),
    "key": pa.string(),
    "protocol": pa.string(),
    "n_images": pa.int32(),
}
_ROW_TYPES: dict[str, pa.DataType] = {
    "unit": pa.int32(),
    "strength": pa.float64(),
    "start": pa.int32(),
    "stop": pa.int32(),
    "seconds": pa.float32(),
}
SCHEMA = pa.schema(
    {"name": pa.string(), "n_bytes": pa.int64(), "mark": pa.string(), "verified": pa.bool_()}
    | {"columns": pa.string()}
    | {"inputs": pa.list_(pa.string())}
    | {name: pa.list_(dtype) for name, dtype in (_UNIT_TYPES | _ROW_TYPES).items()}
)
"""Columns of a catalogue, and of the index files that store it. ``mark`` is the shard's change marker (see
`shards.backends.ShardEntry`), and ``verified`` is whether the shard is verified (see `ScannedShard`). ``columns``
(names of the measurement columns) and ``inputs`` (names of the shards that it replaces) are from its footer. The other
lists have one element per unit (all evaluations of one network on one dataset under one key) or per row of the shard. A
row's ``unit`` is an index into the shard's units."""


class ScannedShard(NamedTuple):
    """The data read from one shard.

    `verified` is true if the shard's bytes were hashed, and any later change is certain to change its change marker.
    """

    entry: ShardEntry
    footer: Footer
    rows: ShardRows
    verified: bool


def make_catalogue(shards: Sequence[ScannedShard]) -> Catalogue:
    """Return a catalogue of scanned shards, in the given order."""
    arrays: dict[str, Any] = {
        "name": from_strings(shard.entry.name for shard in shards),
        "n_bytes": from_numpy(np.array([shard.entry.n_bytes for shard in shards], np.int64)),
        "mark": from_strings(shard.entry.change_marker for shard in shards),
        "verified": from_numpy(np.array([shard.verified for shard in shards], bool)),
        "columns": from_strings(",".join(shard.footer.columns) for shard in shards),
        "inputs": _make_list_array(
            from_strings(name for shard in shards for name in shard.footer.inputs),
            [len(shard.footer.inputs) for shard in shards],
        ),
    }
    unit_lengths = [len(shard.rows.units) for shard in shards]
    for name, column in _make_unit_columns(shard.rows.units for shard in shards).items():
        arrays[name] = _make_list_array(column, unit_lengths)
    row_lengths = [len(shard.rows.unit) for shard in shards]
    for name, dtype in _ROW_TYPES.items():
        arrays_of_shards = [getattr(shard.rows, name) for shard in shards]
        flat = np.concatenate(arrays_of_shards) if arrays_of_shards else np.zeros(0)
        arrays[name] = _make_list_array(from_numpy(flat.astype(dtype.to_pandas_dtype(), copy=False)), row_lengths)
    return pa.table(arrays, schema=SCHEMA)


def _make_unit_columns(shard_units: Iterable[Sequence[StoredUnit] | UnitColumns]) -> dict[str, pa.Array]:
    """Return the columns of all shards' units, which are given as objects or as columns."""
    chunks_by_column: dict[str, list[pa.Array]] = {name: [pa.nulls(0, dtype)] for name, dtype in _UNIT_TYPES.items()}
    pending: list[StoredUnit] = []

    def add_pending() -> None:
        # If no units are pending, `zip(*pending)` yields no columns.
        for (name, dtype), unit_values in zip(_UNIT_TYPES.items(), zip(*pending, strict=True), strict=False):
            chunks_by_column[name].append(from_values(unit_values, dtype))
        pending.clear()

    for units in shard_units:
        if isinstance(units, UnitColumns):
            add_pending()
            for name, chunk in units.columns.items():
                chunks_by_column[name].append(chunk.cast(_UNIT_TYPES[name]))
        else:
            pending.extend(unit._replace(architecture=str(unit.architecture)) for unit in units)
    add_pending()
    return {name: pa.concat_arrays(arrays) for name, arrays in chunks_by_column.items()}


def _make_list_array(flat: pa.Array, lengths: Sequence[int]) -> pa.ListArray:
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(from_numpy(offsets), flat)


def _get_column(catalogue: Catalogue, name: str) -> pa.Array:
    chunks = [chunk for chunk in catalogue[name].chunks if len(chunk)]
    if len(chunks) == 1:  # avoids a copy
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.nulls(0, SCHEMA.field(name).type)


def list_shard_names(catalogue: Catalogue) -> list[str]:
    """Return the names of a catalogue's shards."""
    names: list[str] = _get_column(catalogue, "name").to_pylist()
    return names


def count_rows(catalogue: Catalogue) -> int:
    """Return the total number of rows in a catalogue's shards."""
    return int(pc.sum(pc.list_value_length(catalogue["unit"])).as_py() or 0)


def find_replaced_names(catalogue: Catalogue, candidates: Iterable[str]) -> set[str]:
    """Return the names in `candidates` of shards that other shards in the catalogue replace."""
    # Most replaced shards were deleted long ago, so names are filtered before they are converted to Python objects.
    inputs = _get_column(catalogue, "inputs").flatten()
    return set(inputs.filter(pc.is_in(inputs, value_set=from_strings(candidates))).to_pylist())


def _iter_states(catalogue: Catalogue) -> Iterator[tuple[str, int, str, bool]]:
    """Yield the name, size and change marker of each shard, and whether it is verified."""
    yield from zip(*(_get_column(catalogue, name).to_pylist() for name in SCHEMA.names[:4]), strict=True)


def find_verified_names(catalogue: Catalogue, entries: Iterable[ShardEntry]) -> set[str]:
    """Return the names of verified shards that are in `entries` with the same size and change marker."""
    listed_states = _list_states(entries)
    return {name for name, *state, verified in _iter_states(catalogue) if verified and (name, *state) in listed_states}


def _list_states(entries: Iterable[ShardEntry]) -> set[tuple[Any, ...]]:
    return {(entry.name, entry.n_bytes, entry.change_marker) for entry in entries if entry.change_marker}


def select_unchanged(
    catalogue: Catalogue, entries: Iterable[ShardEntry], must_be_verified: Collection[str], used_names: set[str]
) -> Catalogue:
    """Return a catalogue of the shards that are in `entries` with the same size and change marker.

    A shard named in `must_be_verified` is returned only if it is verified in this catalogue. Shards named in
    `used_names` are omitted, and the names of the returned shards are added to `used_names`.
    """
    listed_states = _list_states(entries)
    is_selected = []
    for shard, *state, is_verified in _iter_states(catalogue):
        is_unchanged = (shard, *state) in listed_states and shard not in used_names
        is_selected.append(is_unchanged and (is_verified or shard not in must_be_verified))
        if is_selected[-1]:
            used_names.add(shard)
    return _select_shards(catalogue, is_selected)


def drop_shards(catalogue: Catalogue, shards: Iterable[str]) -> Catalogue:
    """Return a catalogue without the given shards."""
    dropped_names = set(shards)
    return _select_shards(catalogue, [name not in dropped_names for name in list_shard_names(catalogue)])


def _select_shards(catalogue: Catalogue, mask: Sequence[bool]) -> Catalogue:
    return catalogue if all(mask) else catalogue.take(true_indices(mask))


def concat_catalogues(catalogues: Iterable[Catalogue]) -> Catalogue:
    """Concatenate catalogues."""
    return pa.concat_tables([empty_table(SCHEMA), *catalogues])


class _Columns:
    """The columns of a catalogue, each of which can be taken only once.

    Taking a column removes the reference to it, so that its memory is freed after its use.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def take(self, name: str) -> pa.Array:
        column = _get_column(self._catalogue, name)
        self.drop(name)
        return column

    def drop(self, name: str) -> None:
        self._catalogue = self._catalogue.drop_columns([name])


def make_contents(catalogues: list[Catalogue], replaced: set[str]) -> Contents:
    """Return the contents of an inventory of all shards in some catalogues except those named in `replaced`.

    Shards are sorted by name, and units by their first appearance, so the result does not depend on the order of the
    catalogues. The list of catalogues is emptied, so that their memory can be freed during the conversion.
    """
    catalogue = concat_catalogues(catalogues)
    catalogues.clear()
    names = list_shard_names(catalogue)
    shard_order = sorted((index for index, name in enumerate(names) if name not in replaced), key=names.__getitem__)
    if shard_order != list(range(len(names))):
        catalogue = catalogue.take(from_numpy(np.array(shard_order, np.int64)))
    unit_lengths, row_lengths = (_list_lengths(catalogue, name) for name in ("unit_id", "unit"))
    columns = _Columns(catalogue)
    del catalogue
    columns.drop("inputs")
    ids = columns.take("unit_id").flatten().dictionary_encode()
    unit_numbers = to_numpy(ids.indices)
    _, first_positions = np.unique(unit_numbers, return_index=True)  # ids are numbered in order of first appearance
    shard_of_row = np.repeat(np.arange(len(shard_order), dtype=np.int32), row_lengths)
    row_starts, unit_starts = (
        (np.cumsum(lengths) - lengths).astype(np.int32) for lengths in (row_lengths, unit_lengths)
    )
    rows = {name: to_numpy(columns.take(name).flatten()) for name in _ROW_TYPES}
    rows["unit"] = unit_numbers[rows["unit"] + unit_starts[shard_of_row]].astype(np.int32, copy=False)
    rows["shard"] = shard_of_row
    rows["position"] = np.arange(len(shard_of_row), dtype=np.int32) - row_starts[shard_of_row]
    column_sets: dict[str, frozenset[str]] = {}
    shard_columns = [
        column_sets.setdefault(column_names, frozenset(column_names.split(",")) if column_names else frozenset())
        for column_names in columns.take("columns").to_pylist()
    ]
    unit_columns = {
        name: columns.take(name).flatten().take(from_numpy(first_positions))
        for name in _UNIT_TYPES
        if name != "unit_id"
    }
    # These columns have few distinct values, so encoding them as dictionaries reduces the memory of units to a third.
    for name in ("dataset", "key", "protocol"):
        unit_columns[name] = unit_columns[name].dictionary_encode()
    units = UnitColumns({"unit_id": ids.dictionary} | unit_columns)
    return Contents(tuple(names[index] for index in shard_order), shard_columns, units, rows)


def _list_lengths(catalogue: Catalogue, name: str) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = to_numpy(pc.list_value_length(_get_column(catalogue, name)))
    return lengths.astype(np.int64)
