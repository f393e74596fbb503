"""Neighbours, mutations and encodings of the cells of a search agree with those of their space."""

import numpy as np

from robust201.search.cells import SearchCells
from robust201.search.evolution import mutation_probability
from robust201.spaces.cell_space import CellSpace
from robust201.spaces.nasbench201 import cell_index, isomorph_index, neighbour_indices, operation_numbers


def test_neighbours(cells: SearchCells, space: CellSpace) -> None:
    distinct = SearchCells(space, np.ones(15_625, dtype=bool), distinct=True)
    assert len(distinct) == len({*space.isomorphs()})
    for cell in (0, 1462, 9930):
        assert cells.neighbours(cell) == neighbour_indices(cell)
        near = {isomorph_index(one) for one in neighbour_indices(cell)} - {cell}
        assert distinct.neighbours(cell) == tuple(sorted(near))


def test_mutations_change_each_edge_at_the_rate(cells: SearchCells) -> None:
    rng = np.random.default_rng(0)
    own = np.array(operation_numbers(0))
    assert mutation_probability(6) == 0.25
    reached = np.array([operation_numbers(cells.mutate(0, rng, 0.25)) for _ in range(2000)])
    rates = (reached != own).mean(axis=0)
    assert abs(rates - 0.25).max() < 0.05
    others = np.bincount(reached[reached[:, 0] != own[0], 0], minlength=5)
    assert others[own[0]] == 0
    assert np.delete(others, own[0]).min() > 85  # about 125 each


def test_paths_are_the_features(cells: SearchCells) -> None:
    short, whole = cells.path_encodings(2), cells.path_encodings(3)
    assert short.shape == (15_625, 30)  # what naszilla keeps
    assert whole.shape == (15_625, 155)
    np.testing.assert_array_equal(whole[:, :30], short)
    skip, pool = 1, 4
    cell = cell_index((skip, pool, skip, pool, skip, pool))
    found = np.flatnonzero(short[cell])
    # In → out; in → 1 → out and in → 2 → out share the features of two edges.
    assert found.tolist() == sorted({pool, 5 + skip + 5 * skip, 5 + pool + 5 * pool})
