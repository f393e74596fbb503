"""Conversion between names of NAS-Bench-201 cells (index, cell string, operations), neighbours, and random cells."""

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
"""An index, a cell string, or six operations in the order of `EDGES`, by name or by index in `OPERATIONS`."""


def cell_index(cell: Cell) -> int:
    """Return a cell's index in the published order, 0 to 15,624; isomorphic cells have different indices.

    Raises:
        ArchitectureError: there is no such cell.
    """
    if isinstance(cell, str):
        return resolve(cell).index
    try:
        index = operator.index(cell)  # type: ignore[arg-type]
    except TypeError:
        return resolve(format_spec(_operation_names(cell))).index  # type: ignore[arg-type]
    return resolve(index).index


def cell_string(cell: Cell) -> str:
    """Return a cell's string, such as ``|skip_connect~0|+|none~0|…``."""
    return specs()[cell_index(cell)]


def cell_operations(cell: Cell) -> tuple[str, ...]:
    """Return a cell's six operations, in the order of `EDGES`."""
    return parse(cell_string(cell))


def operation_numbers(cell: Cell) -> tuple[int, ...]:
    """Return a cell's six operations as indices in `OPERATIONS`: none, skip, two convolutions, pooling."""
    return tuple(OPERATIONS.index(name) for name in cell_operations(cell))


def isomorph_index(cell: Cell) -> int:
    """Return the lowest index in a cell's isomorphism class; this architecture is evaluated for the whole class."""
    return isomorphs()[cell_index(cell)]


def neighbour_indices(cell: Cell) -> tuple[int, ...]:
    """Return the indices of the 24 cells that differ from a cell on one edge, ordered by edge, then by `OPERATIONS`."""
    return tuple(cell_index(neighbour.spec) for neighbour in neighbours(cell_string(cell)))


def random_cell(rng: "np.random.Generator") -> str:
    """Return a random cell's string; all 15,625 cells are equally likely."""
    return format_spec([OPERATIONS[number] for number in rng.integers(len(OPERATIONS), size=len(EDGES))])


def _operation_names(operations: Sequence[str | int]) -> list[str]:
    try:
        return [
            operation if isinstance(operation, str) else _operation_name(operator.index(operation))
            for operation in operations
        ]
    except TypeError as error:
        raise ArchitectureError(
            f"Looking up a cell failed for {operations!r}: a cell is an index, a cell string or "
            f"{len(EDGES)} operations, not a value of type {type(operations).__name__}."
        ) from error


def _operation_name(index: int) -> str:
    if not 0 <= index < len(OPERATIONS):
        raise ArchitectureError(
            f"Looking up an operation failed for {index}: it must be from 0 to "
            f"{len(OPERATIONS) - 1} ({', '.join(OPERATIONS)})."
        )
    return OPERATIONS[index]
