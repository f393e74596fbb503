"""Columns of several units, from which result files are written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import Unit
from robust201.dataset.shard_rows import UnitRows

StoredColumn: TypeAlias = NDArray[Any] | list[NDArray[Any]]

ROW_GROUP_BYTES = 16 << 20
"""Minimum size of all row groups of a Parquet file except the last, in memory; each is a batch."""

JSON_BYTES = 2 << 20
"""Size of a batch from which numbers are converted to text at full speed."""


class UnitResults(Protocol):
    """The results of some units; can be pickled, so that another process reads them."""

    @property
    def provenances(self) -> Sequence[Mapping[str, str]]:
        """Distinct provenances of the results that were read."""

    def __iter__(self) -> Iterator[tuple[Unit, UnitRows]]:
        """Yield each unit with its columns by strength."""


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Columns of the E evaluations of some units, ordered by unit and strength.

    A column is an array (E, …), or a list of E arrays if their shapes differ.
    """

    units: tuple[Unit, ...]
    columns: Mapping[str, StoredColumn]


def iter_batches(rows: Iterable[tuple[Unit, UnitRows]], min_bytes: int) -> Iterator[RowBatch]:
    """Yield the units' columns in batches, all but the last of at least `min_bytes`."""
    batch: list[tuple[Unit, UnitRows]] = []
    n_bytes = 0
    for unit, columns in rows:
        batch.append((unit, columns))
        n_bytes += sum(array.nbytes for values in columns.values() for array in values.values())
        if n_bytes >= min_bytes:
            yield make_batch(batch)
            batch, n_bytes = [], 0
    if batch:
        yield make_batch(batch)


def make_batch(rows: Sequence[tuple[Unit, UnitRows]]) -> RowBatch:
    """Return the columns of some units as one batch."""
    evaluations = [columns[strength] for unit, columns in rows for strength in unit.strengths]
    columns = {name: _stack([np.asarray(values[name]) for values in evaluations]) for name in evaluations[0]}
    return RowBatch(tuple(unit for unit, _ in rows), columns)


def _stack(arrays: list[NDArray[Any]]) -> StoredColumn:
    if not arrays[0].ndim:
        return np.array(arrays)
    if len({array.shape for array in arrays}) > 1:
        return arrays
    # Stacking adds an axis to each array; concatenating contiguous arrays is several times as fast.
    return np.concatenate(arrays).reshape(len(arrays), *arrays[0].shape)
