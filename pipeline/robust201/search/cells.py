"""Interface between search methods and the cells of a space: indices, neighbours, mutations and path encodings."""

import itertools

import numpy as np
from numpy.typing import NDArray

from robust201.networks.spaces import CellSpace

_MAX_MUTATION_ATTEMPTS = 100
"""Maximum number of attempts to mutate a cell into a member, after which a random member is returned."""


class SearchCells:
    """Cells of a space, identified by their index; a search may query only those that are members.

    Attributes:
        space: the space.
        isomorphs: (n,) index of the cell that represents each cell's isomorphism class.
        members: indices of the cells that a search may query, ascending.
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
        # A cell's number has the codes of its operations as digits; the index of a cell differs from its number.
        codes = {name: code for code, name in enumerate(space.operations)}
        self._operations = np.array([[codes[name] for name in space.parse(spec)] for spec in space.specs()], np.int8)
        self._place_values = len(codes) ** np.arange(self._operations.shape[1])
        self._index_by_number = np.empty(len(self._operations), dtype=np.int64)
        self._index_by_number[self._operations @ self._place_values] = np.arange(len(self._operations))

    def __len__(self) -> int:
        return len(self.members)

    def draw_member(self, rng: np.random.Generator) -> int:
        """Return a uniformly random member."""
        return int(self.members[rng.integers(len(self.members))])

    def neighbours(self, cell: int) -> tuple[int, ...]:
        """Return the members that differ from a cell on one edge."""
        n_edges, n_operations = len(self._place_values), len(self.space.operations)
        edges, operations = np.divmod(np.arange(n_edges * n_operations), n_operations)
        changed = np.repeat(self._operations[cell][None], len(edges), axis=0)
        changed[np.arange(len(edges)), edges] = operations
        cells = self._index_by_number[changed @ self._place_values]
        return tuple(cells[self._is_member[cells] & (cells != cell)].tolist())

    def mutate(self, cell: int, rng: np.random.Generator, probability: float) -> int:
        """Return a mutant of a cell, in which each edge is changed with this probability; it may be the cell itself."""
        operations, n_operations = self._operations[cell], len(self.space.operations)
        for _ in range(_MAX_MUTATION_ATTEMPTS):
            is_changed = rng.random(len(operations)) < probability
            shifts = is_changed * rng.integers(1, n_operations, size=len(operations))
            mutant = int(self._index_by_number[(operations + shifts) % n_operations @ self._place_values])
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

    def _list_paths(self, node: int = 0) -> list[tuple[int, ...]]:
        """Return the paths from a node (default: the input) to the output, as tuples of edge positions."""
        edges = list(enumerate(self.space.edges))
        if node == max(target for _, (_, target) in edges):
            return [()]
        return [(edge, *rest) for edge, (start, end) in edges if start == node for rest in self._list_paths(end)]
