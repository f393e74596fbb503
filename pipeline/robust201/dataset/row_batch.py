"""Columns of several units, from which result files are written."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import Unit
from robust201.dataset.shard_rows import UnitRows

StoredColumn: TypeAlias = NDArray[Any] | list[NDArray[Any]]


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

    @classmethod
    def of(cls, rows: Sequence[tuple[Unit, UnitRows]]) -> Self:
        evaluations = [columns[strength] for unit, columns in rows for strength in unit.strengths]
        names = evaluations[0] if evaluations else ()
        columns = {name: _stack([np.asarray(values[name]) for values in evaluations]) for name in names}
        return cls(tuple(unit for unit, _ in rows), columns)


def _stack(arrays: list[NDArray[Any]]) -> StoredColumn:
    if not arrays[0].ndim:
        return np.array(arrays)
    if len({array.shape for array in arrays}) > 1:
        return arrays
    # Stacking adds an axis to each array; concatenating contiguous arrays is several times as fast.
    return np.concatenate(arrays).reshape(len(arrays), *arrays[0].shape)


def count_bytes(rows: UnitRows) -> int:
    """Return the size of a unit's columns in bytes."""
    return sum(array.nbytes for values in rows.values() for array in values.values())
