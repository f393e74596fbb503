"""The cells that a search chooses from, as the optimisers see them: numbers, neighbours, mutations, encodings."""

import itertools
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robust201.spaces.cell_space import CellSpace

_MUTATION_TRIES = 100
"""After this many mutations into cells that are no members, a random member is taken."""


class SearchCells:
    """The members of a search: cells of a space, each named by its index there.

    Attributes:
        space: the space.
        isomorphs: (n,) the index of the evaluated architecture of each cell of the space.
        members: the indices that a search may ask for, ascending.
        distinct: whether isomorphic cells are one member, named by the evaluated one.
    """

    def __init__(self, space: CellSpace, evaluated: NDArray[np.bool_], *, distinct: bool = False) -> None:
        """Choose the members.

        Args:
            space: the space.
            evaluated: (n,) by index, whether an evaluated architecture has all values; others are ignored.
            distinct: see the attribute.
        """
        self.space = space
        self.isomorphs: NDArray[np.int32] = np.array(space.isomorphs(), dtype=np.int32)
        self.distinct = distinct
        allowed = evaluated[self.isomorphs]
        if distinct:
            allowed &= self.isomorphs == np.arange(len(self.isomorphs))
        self.members = np.flatnonzero(allowed)
        self._is_member = allowed
        self._neighbours: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def draw(self, rng: np.random.Generator) -> int:
        return int(self.members[rng.integers(len(self.members))])

    def neighbours(self, cell: int) -> tuple[int, ...]:
        """List the members that differ from a cell on one edge; where isomorphs are one, those reached, ascending."""
        found = self._neighbours.get(cell)
        if found is None:
            near = [self._by_spec[neighbour.spec] for neighbour in self.space.neighbours(self._specs[cell])]
            if self.distinct:
                near = sorted({int(self.isomorphs[one]) for one in near} - {cell})
            found = self._neighbours[cell] = tuple(one for one in near if self._is_member[one])
        return found

    def mutate(self, cell: int, rng: np.random.Generator, probability: float) -> int:
        """Change each edge of a cell with a probability, to another operation; the member reached may be the cell."""
        own = self._operations[cell]
        n_others = len(self.space.operations) - 1
        for _ in range(_MUTATION_TRIES):
            changed = rng.random(len(own)) < probability
            shift = changed * rng.integers(1, n_others + 1, size=len(own))
            reached = int(self._by_operations[int((own + shift) % (n_others + 1) @ self._radix)])
            reached = int(self.isomorphs[reached]) if self.distinct else reached
            if self._is_member[reached]:
                return reached
        return self.draw(rng)

    def path_encodings(self, longest: int) -> NDArray[np.float32]:
        """Encode all cells of the space by their paths from the input to the output.

        A path is the operations on its edges. Paths of equal length share their features, whichever nodes they pass;
        `none` counts as an operation like the others (White, Neiswanger and Savani, "BANANAS", AAAI 2021).

        Args:
            longest: number of edges beyond which paths are left out.

        Returns:
            (n, features) zeros and ones, features by length of the path.
        """
        n_operations = len(self.space.operations)
        parts = []
        for length, paths in itertools.groupby(sorted(self._paths(), key=len), key=len):
            if length > longest:
                break
            part = np.zeros((len(self._operations), n_operations**length), dtype=np.float32)
            for path in paths:
                numbers = self._operations[:, path] @ (n_operations ** np.arange(length))
                part[np.arange(len(part)), numbers] = 1
            parts.append(part)
        return np.concatenate(parts, axis=1)

    def _paths(self) -> list[tuple[int, ...]]:
        edges = self.space.edges
        last = max(target for _, target in edges)
        found: list[tuple[int, ...]] = []
        begun: list[tuple[tuple[int, ...], int]] = [((), 0)]
        while begun:
            path, node = begun.pop()
            if node == last:
                found.append(path)
            begun += [((*path, edge), target) for edge, (source, target) in enumerate(edges) if source == node]
        return found

    @cached_property
    def _specs(self) -> tuple[str, ...]:
        return tuple(self.space.specs())

    @cached_property
    def _by_spec(self) -> dict[str, int]:
        return {spec: index for index, spec in enumerate(self._specs)}

    @cached_property
    def _operations(self) -> NDArray[np.int64]:
        """(n, edges) the operation on each edge, as a position in the space's `operations`."""
        numbers = {name: number for number, name in enumerate(self.space.operations)}
        return np.array([[numbers[name] for name in self.space.parse(spec)] for spec in self._specs])

    @cached_property
    def _radix(self) -> NDArray[np.int64]:
        n_edges = len(self.space.edges)
        return np.array([len(self.space.operations) ** edge for edge in range(n_edges)], dtype=np.int64)

    @cached_property
    def _by_operations(self) -> NDArray[np.int64]:
        """The index of a cell by its operations, read as the digits of a number."""
        by_number = np.empty(len(self._operations), dtype=np.int64)
        by_number[self._operations @ self._radix] = np.arange(len(self._operations))
        return by_number

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made again where it is needed: processes get small objects."""
        kept = ("space", "isomorphs", "distinct", "members", "_is_member")
        return {name: self.__dict__[name] for name in kept} | {"_neighbours": {}}
