"""NAS-Bench-201: cells and their names, the network, and its compiled form."""

from robust201.spaces.nasbench201.cells import EDGES, OPERATIONS, evaluated_indices
from robust201.spaces.nasbench201.naming import (
    cell_index,
    cell_operations,
    cell_string,
    isomorph_index,
    neighbour_indices,
    operation_numbers,
    random_cell,
)

__all__ = [
    "EDGES",
    "OPERATIONS",
    "cell_index",
    "cell_operations",
    "cell_string",
    "evaluated_indices",
    "isomorph_index",
    "neighbour_indices",
    "operation_numbers",
    "random_cell",
]
