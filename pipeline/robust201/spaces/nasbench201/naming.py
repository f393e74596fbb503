"""Conversion between the names of NAS-Bench-201 cells (index, cell string, operations); neighbours; random cells."""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from robust201.core.errors import ArchitectureError
from robust201.spaces.nasbench201.cells import (
    EDGES,
    OPERATIONS,
    format_spec,
    isomorphs,
    neighbours,
    parse,
    resolve,
    specs,
)

if TYPE_CHECKING:
    import numpy as np

Cell = int | str | Sequence[str] | Sequence[int]
"""An index, a cell string, or six operations in the order of `EDGES`, by name or by position in `OPERATIONS`."""


def cell_index(cell: Cell) -> int:
    """Return the index of a cell itself in the published order, 0 to 15,624 (see also `isomorph_index`).

    Raises:
        ArchitectureError: there is no such cell.
    """
    if isinstance(cell, str):
        return resolve(cell).index
    try:
        number = operator.index(cell)  # type: ignore[arg-type]
    except TypeError:
        return resolve(format_spec(_names(cell))).index  # type: ignore[arg-type]
    return resolve(number).index


def cell_string(cell: Cell) -> str:
    """Return a cell's string, such as ``|skip_connect~0|+|none~0|…``."""
    return specs()[cell_index(cell)]


def cell_operations(cell: Cell) -> tuple[str, ...]:
    """Return a cell's six operations, in the order of `EDGES`."""
    return parse(cell_string(cell))


def operation_numbers(cell: Cell) -> tuple[int, ...]:
    """Return a cell's six operations as positions in `OPERATIONS`: 0 none, 1 skip, 2 and 3 convolutions, 4 pooling."""
    return tuple(OPERATIONS.index(name) for name in cell_operations(cell))


def isomorph_index(cell: Cell) -> int:
    """Return the index of the architecture evaluated for a cell: the lowest of its isomorphism class."""
    return isomorphs()[cell_index(cell)]


def neighbour_indices(cell: Cell) -> tuple[int, ...]:
    """Return the 24 cells that differ from a cell on one edge, by edge and then in the order of `OPERATIONS`."""
    return tuple(cell_index(neighbour.spec) for neighbour in neighbours(cell_string(cell)))


def random_cell(rng: "np.random.Generator") -> str:
    """Return the string of a random cell, with all 15,625 cells equally likely."""
    return format_spec([OPERATIONS[number] for number in rng.integers(len(OPERATIONS), size=len(EDGES))])


def _names(operations: Sequence[str | int]) -> list[str]:
    try:
        return [value if isinstance(value, str) else _name(operator.index(value)) for value in operations]
    except TypeError as error:
        raise ArchitectureError(
            f"Looking up a cell failed for {operations!r}: expected an index, a cell string or {len(EDGES)} "
            f"operations, got a value of type {type(operations).__name__}. Give one of them."
        ) from error


def _name(number: int) -> str:
    if not 0 <= number < len(OPERATIONS):
        raise ArchitectureError(
            f"Looking up an operation failed for {number}: expected 0 to {len(OPERATIONS) - 1} "
            f"({', '.join(OPERATIONS)}), got {number}. Give one of them."
        )
    return OPERATIONS[number]
