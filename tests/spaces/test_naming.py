"""Index, cell string and operations of NAS-Bench-201 name the same cell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust201.core.errors import ArchitectureError
from robust201.spaces.nasbench201 import (
    OPERATIONS,
    cell_index,
    cell_operations,
    cell_string,
    isomorph_index,
    neighbour_indices,
    operation_numbers,
    random_cell,
)
from robust201.spaces.nasbench201.cells import isomorphs, specs

INDICES = st.integers(0, 15_624)


@given(INDICES)
def test_all_names_of_a_cell_lead_to_it(index: int) -> None:
    operations = cell_operations(index)
    numbers = operation_numbers(index)
    assert cell_string(index) == specs()[index]
    assert [OPERATIONS[number] for number in numbers] == list(operations)
    for name in (index, np.int64(index), specs()[index], operations, list(operations), numbers, np.array(numbers)):
        assert cell_index(name) == index
    assert isomorph_index(operations) == isomorphs()[index]


@given(INDICES)
def test_neighbours_differ_on_one_edge(index: int) -> None:
    own = operation_numbers(index)
    near = neighbour_indices(index)
    assert len({*near, index}) == 25
    assert all(sum(a != b for a, b in zip(own, operation_numbers(one), strict=True)) == 1 for one in near)
    assert all(index in neighbour_indices(one) for one in near[:3])


def test_random_cells_are_uniform_over_operations() -> None:
    rng = np.random.default_rng(0)
    drawn = np.array([operation_numbers(random_cell(rng)) for _ in range(1000)])
    counts = np.stack([(drawn == number).sum(axis=0) for number in range(len(OPERATIONS))])
    assert abs(counts - 200).max() < 65  # five standard deviations
    assert random_cell(np.random.default_rng(3)) == random_cell(np.random.default_rng(3))


@pytest.mark.parametrize(
    ("cell", "got"),
    [
        (15_625, "got 15625"),
        ((0, 1, 2, 3, 4), "got 5 operations"),
        ((0, 1, 2, 3, 4, 5), "got 5"),
        (("skip_connect",) * 7, "got 7 operations"),
        (1.5, "type float"),
        ([None] * 6, "type list"),
        ("|none~0|", "got 1 edge"),
    ],
)
def test_what_is_no_cell_is_refused(cell: object, got: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        cell_index(cell)  # type: ignore[arg-type]
    assert got in str(caught.value)
