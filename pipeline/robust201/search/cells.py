"""Interface between search methods and the cells of a space: indices, neighbours, mutations and path encodings."""

import itertools
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.networks.spaces import CellSpace

_MAX_MUTATION_ATTEMPTS = 100
"""Maximum number of attempts to mutate a cell into a member, after which a random member is returned."""


class SearchCells:
    """The members of a search: cells of a space, identified by their index.

    Attributes:
        space: the space.
        isomorphs: (n,) index of the evaluated representative of each cell.
        members: indices that a search may query, ascending.
    """

    def __init__(self, space: CellSpace, is_evaluated: NDArray[np.bool_]) -> None:
        """Select the members.

        Args:
            space: the space.
            is_evaluated: (n,) whether each cell that represents its isomorphism class has all values; other elements
                are ignored.
        """
        self.space = space
        self.isomorphs: NDArray[np.int32] = np.array(space.isomorphs(), dtype=np.int32)
        self._is_member = is_evaluated[self.isomorphs]
        self.members = np.flatnonzero(self._is_member)
        self._neighbours: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def draw_member(self, rng: np.random.Generator) -> int:
        """Return a uniformly random member."""
        return int(self.members[rng.integers(len(self.members))])

    def neighbours(self, cell: int) -> tuple[int, ...]:
        """Return the members that differ from a cell on one edge."""
        neighbours = self._neighbours.get(cell)
        if neighbours is None:
            candidates = [self._index_by_spec[neighbour.spec] for neighbour in self.space.neighbours(self._specs[cell])]
            neighbours = self._neighbours[cell] = tuple(index for index in candidates if self._is_member[index])
        return neighbours

    def mutate(self, cell: int, rng: np.random.Generator, probability: float) -> int:
        """Return a mutant of a cell, in which each edge is changed with this probability; it may be the cell itself."""
        operations = self._operations[cell]
        n_other_operations = len(self.space.operations) - 1
        for _ in range(_MAX_MUTATION_ATTEMPTS):
            is_changed = rng.random(len(operations)) < probability
            shifts = is_changed * rng.integers(1, n_other_operations + 1, size=len(operations))
            mutant = int(
                self._index_by_operations[int((operations + shifts) % (n_other_operations + 1) @ self._place_values)]
            )
            if self._is_member[mutant]:
                return mutant
        return self.draw_member(rng)

    def path_encodings(self, max_length: int) -> NDArray[np.float32]:
        """Encode all cells of the space by their paths from the input to the output.

        A path is encoded by the sequence of operations on its edges. Paths of equal length share their features,
        whichever nodes they pass through; `none` is an operation like the others (White, Neiswanger and Savani,
        "BANANAS", AAAI 2021).

        Args:
            max_length: maximum number of edges in a path.

        Returns:
            (n, features) zeros and ones; features are ordered by path length.
        """
        n_operations = len(self.space.operations)
        encodings_by_length = []
        for length, paths in itertools.groupby(sorted(self._list_paths(), key=len), key=len):
            if length > max_length:
                break
            encodings = np.zeros((len(self._operations), n_operations**length), dtype=np.float32)
            for path in paths:
                sequence_numbers = self._operations[:, path] @ (n_operations ** np.arange(length))
                encodings[np.arange(len(encodings)), sequence_numbers] = 1
            encodings_by_length.append(encodings)
        return np.concatenate(encodings_by_length, axis=1)

    def _list_paths(self) -> list[tuple[int, ...]]:
        """Return the paths from the input to the output, each as a tuple of edge positions."""
        edges = self.space.edges
        output_node = max(target for _, target in edges)
        complete_paths: list[tuple[int, ...]] = []
        partial_paths: list[tuple[tuple[int, ...], int]] = [((), 0)]
        while partial_paths:
            path, node = partial_paths.pop()
            if node == output_node:
                complete_paths.append(path)
            partial_paths += [((*path, edge), target) for edge, (source, target) in enumerate(edges) if source == node]
        return complete_paths

    @cached_property
    def _specs(self) -> tuple[str, ...]:
        return tuple(self.space.specs())

    @cached_property
    def _index_by_spec(self) -> dict[str, int]:
        return {spec: index for index, spec in enumerate(self._specs)}

    @cached_property
    def _operations(self) -> NDArray[np.int64]:
        """(n, edges) operation on each edge, as an index into the space's `operations`."""
        codes = {name: code for code, name in enumerate(self.space.operations)}
        return np.array([[codes[name] for name in self.space.parse(spec)] for spec in self._specs])

    @cached_property
    def _place_values(self) -> NDArray[np.int64]:
        """(edges,) place value of each edge if a cell's operations are read as the digits of a number."""
        n_edges = len(self.space.edges)
        return np.array([len(self.space.operations) ** edge for edge in range(n_edges)], dtype=np.int64)

    @cached_property
    def _index_by_operations(self) -> NDArray[np.int64]:
        """(n,) index of each cell, by the number whose digits are its operations."""
        index_by_number = np.empty(len(self._operations), dtype=np.int64)
        index_by_number[self._operations @ self._place_values] = np.arange(len(self._operations))
        return index_by_number

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only the fields that cannot be recomputed, because each process receives a copy."""
        fields = ("space", "isomorphs", "members", "_is_member")
        return {name: self.__dict__[name] for name in fields} | {"_neighbours": {}}
