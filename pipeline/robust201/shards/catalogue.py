"""Identities of the rows of shards, as a table with one row per shard: a scan's result, and the index's content."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from robust201.shards.arrow_arrays import empty_table, from_numpy, from_strings, from_values, to_numpy, true_indices
from robust201.shards.backends import Entry
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
    | {name: pa.list_(kind) for name, kind in (_UNIT_TYPES | _ROW_TYPES).items()}
)
"""Columns: name, size and mark of a shard (see `shards.backends.Entry`), whether it is verified (see `ScannedShard`),
its footer, its units, and its rows. A row's `unit` is an index into the shard's units."""


class ScannedShard(NamedTuple):
    """The data read from one shard; if `verified`, its bytes were hashed, and any later change changes its mark."""

    entry: Entry
    footer: Footer
    rows: ShardRows
    verified: bool


def make_catalogue(shards: Sequence[ScannedShard]) -> Catalogue:
    """Return the table of scanned shards, in their order."""
    arrays: dict[str, Any] = {
        "name": from_strings(shard.entry.name for shard in shards),
        "n_bytes": from_numpy(np.array([shard.entry.n_bytes for shard in shards], np.int64)),
        "mark": from_strings(shard.entry.mark for shard in shards),
        "verified": from_numpy(np.array([shard.verified for shard in shards], bool)),
        "columns": from_strings(",".join(shard.footer.columns) for shard in shards),
        "inputs": _lists(
            from_strings(name for shard in shards for name in shard.footer.inputs),
            [len(shard.footer.inputs) for shard in shards],
        ),
    }
    unit_lengths = [len(shard.rows.units) for shard in shards]
    for name, column in _unit_columns(shard.rows.units for shard in shards).items():
        arrays[name] = _lists(column, unit_lengths)
    row_lengths = [len(shard.rows.unit) for shard in shards]
    for name, kind in _ROW_TYPES.items():
        pieces = [getattr(shard.rows, name) for shard in shards]
        flat = np.concatenate(pieces) if pieces else np.zeros(0)
        arrays[name] = _lists(from_numpy(flat.astype(kind.to_pandas_dtype(), copy=False)), row_lengths)
    return pa.table(arrays, schema=SCHEMA)


def _unit_columns(shard_units: Iterable[Sequence[StoredUnit] | UnitColumns]) -> dict[str, pa.Array]:
    pieces: dict[str, list[pa.Array]] = {name: [pa.nulls(0, kind)] for name, kind in _UNIT_TYPES.items()}
    pending: list[StoredUnit] = []

    def add_pending() -> None:
        for (name, kind), column in zip(_UNIT_TYPES.items(), zip(*pending, strict=True), strict=False):
            pieces[name].append(from_values(column, kind))
        pending.clear()

    for units in shard_units:
        if isinstance(units, UnitColumns):
            add_pending()
            for name, piece in units.columns.items():
                pieces[name].append(piece.cast(_UNIT_TYPES[name]))
        else:
            pending.extend(unit._replace(architecture=str(unit.architecture)) for unit in units)
    add_pending()
    return {name: pa.concat_arrays(arrays) for name, arrays in pieces.items()}


def _lists(flat: pa.Array, lengths: Sequence[int]) -> pa.ListArray:
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    return pa.ListArray.from_arrays(from_numpy(offsets), flat)


def _column(catalogue: Catalogue, name: str) -> pa.Array:
    chunks = [chunk for chunk in catalogue[name].chunks if len(chunk)]
    if len(chunks) == 1:  # not copied
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.nulls(0, SCHEMA.field(name).type)


def shard_names(catalogue: Catalogue) -> list[str]:
    """Return the names of the shards."""
    names: list[str] = _column(catalogue, "name").to_pylist()
    return names


def count_rows(catalogue: Catalogue) -> int:
    """Return the total number of rows of the shards."""
    return int(pc.sum(pc.list_value_length(catalogue["unit"])).as_py() or 0)


def replaced_names(catalogue: Catalogue, among: Iterable[str]) -> set[str]:
    """Return those of some names that other shards in the table replace."""
    # The table mostly names replaced shards that were deleted long ago, so `among` filters them before the conversion.
    inputs = _column(catalogue, "inputs").flatten()
    return set(inputs.filter(pc.is_in(inputs, value_set=from_strings(among))).to_pylist())


def _states(catalogue: Catalogue) -> Iterator[tuple[str, int, str, bool]]:
    """Yield name, size and mark of each shard, and whether it is verified."""
    yield from zip(*(_column(catalogue, name).to_pylist() for name in SCHEMA.names[:4]), strict=True)


def verified_names(catalogue: Catalogue, entries: Iterable[Entry]) -> set[str]:
    """Return the names of verified shards that are unchanged in a listing."""
    listed = _states_of(entries)
    return {name for name, *state, verified in _states(catalogue) if verified and (name, *state) in listed}


def _states_of(entries: Iterable[Entry]) -> set[tuple[Any, ...]]:
    return {(entry.name, entry.n_bytes, entry.mark) for entry in entries if entry.mark}


def matching(catalogue: Catalogue, entries: Iterable[Entry], verified: Collection[str], taken: set[str]) -> Catalogue:
    """Return the rows of shards that are unchanged in a listing.

    For names in `verified`, only verified rows are returned. Names in `taken` are left out, and the returned names are
    added to it.
    """
    listed = _states_of(entries)
    mask = []
    for name, *state, is_verified in _states(catalogue):
        matches = (name, *state) in listed and name not in taken and (is_verified or name not in verified)
        mask.append(matches)
        if matches:
            taken.add(name)
    return _filter(catalogue, mask)


def without(catalogue: Catalogue, names: Iterable[str]) -> Catalogue:
    """Return the table without some shards."""
    unwanted = set(names)
    return _filter(catalogue, [name not in unwanted for name in shard_names(catalogue)])


def _filter(catalogue: Catalogue, mask: Sequence[bool]) -> Catalogue:
    return catalogue if all(mask) else catalogue.take(true_indices(mask))


def join(catalogues: Iterable[Catalogue]) -> Catalogue:
    """Concatenate catalogues."""
    return pa.concat_tables([empty_table(SCHEMA), *catalogues])


class _Columns:
    """The columns of a catalogue. Each can be taken once, which frees its memory afterwards."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def take(self, name: str) -> pa.Array:
        column = _column(self._catalogue, name)
        self.drop(name)
        return column

    def drop(self, name: str) -> None:
        self._catalogue = self._catalogue.drop_columns([name])


def make_contents(catalogues: list[Catalogue], hidden: set[str]) -> Contents:
    """Number shards and units, and convert rows to the columns of an inventory, leaving hidden shards out.

    The result does not depend on the order of shards: shards are sorted by name, units by first appearance. The list of
    catalogues is emptied, so that their memory can be freed during the conversion.
    """
    catalogue = join(catalogues)
    catalogues.clear()
    names = shard_names(catalogue)
    order = sorted((number for number, name in enumerate(names) if name not in hidden), key=names.__getitem__)
    if order != list(range(len(names))):
        catalogue = catalogue.take(from_numpy(np.array(order, np.int64)))
    unit_lengths, row_lengths = (_lengths(catalogue, name) for name in ("unit_id", "unit"))
    columns = _Columns(catalogue)
    del catalogue
    columns.drop("inputs")
    ids = columns.take("unit_id").flatten().dictionary_encode()
    numbers = to_numpy(ids.indices)
    _, first = np.unique(numbers, return_index=True)  # ids are numbered in order of first appearance
    shard = np.repeat(np.arange(len(order), dtype=np.int32), row_lengths)
    row_starts, unit_starts = (
        (np.cumsum(lengths) - lengths).astype(np.int32) for lengths in (row_lengths, unit_lengths)
    )
    rows = {name: to_numpy(columns.take(name).flatten()) for name in _ROW_TYPES}
    rows["unit"] = numbers[rows["unit"] + unit_starts[shard]].astype(np.int32, copy=False)
    rows["shard"] = shard
    rows["position"] = np.arange(len(shard), dtype=np.int32) - row_starts[shard]
    column_sets: dict[str, frozenset[str]] = {}
    shard_columns = [
        column_sets.setdefault(text, frozenset(text.split(",")) if text else frozenset())
        for text in columns.take("columns").to_pylist()
    ]
    fields = {name: columns.take(name).flatten().take(from_numpy(first)) for name in list(_UNIT_TYPES)[1:]}
    for name in ("dataset", "key", "protocol"):  # few distinct values: codes reduce the memory of units to a third
        fields[name] = fields[name].dictionary_encode()
    units = UnitColumns({"unit_id": ids.dictionary} | fields)
    return Contents(tuple(names[number] for number in order), shard_columns, units, rows)


def _lengths(catalogue: Catalogue, name: str) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = to_numpy(pc.list_value_length(_column(catalogue, name)))
    return lengths.astype(np.int64)
