"""`Optimiser`, the interface of search methods, which propose architectures and receive their values."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from robust201.search.cells import SearchCells


class Optimiser(ABC):
    """A run of a search method. All random numbers come from `rng`, so equal seeds and values give equal runs.

    The caller repeats three steps `n_queries` times: `ask` for an architecture, look up its value, and `tell` it.
    `n_queries` must not exceed the number of cells that may be queried (the members of `cells`).

    Attributes:
        title: name of the method in tables.
        cells: cells that may be queried.
        rng: random generator.
        n_queries: budget of the run, as a number of queries.
        queried: architectures queried so far.
    """

    title: ClassVar[str]

    def __init__(self, cells: SearchCells, rng: np.random.Generator, *, n_queries: int) -> None:
        self.cells = cells
        self.rng = rng
        self.n_queries = n_queries
        self.queried: set[int] = set()

    @abstractmethod
    def propose(self) -> int:
        """Choose the next architecture, and return the index of its cell."""

    @abstractmethod
    def tell(self, architecture: int, value: float) -> None:
        """Process the value of the last proposed architecture; higher is better."""

    def ask(self) -> int:
        """Return the next architecture to query."""
        architecture = self.propose()
        self.queried.add(architecture)
        return architecture

    def draw_unqueried(self, count: int) -> list[int]:
        """Draw `count` distinct cells that may be queried and have not been queried, or all such cells if fewer."""
        new_cells: dict[int, None] = {}
        n_unqueried = len(self.cells) - len(self.queried)
        count = min(count, n_unqueried)
        if 2 * n_unqueried < len(self.cells):  # if few remain, rejection sampling would be slow
            available_cells = np.array(
                [cell for cell in self.cells.members.tolist() if cell not in self.queried], dtype=np.int64
            )
            return [int(cell) for cell in self.rng.permutation(available_cells)[:count]]
        while len(new_cells) < count:
            cell = self.cells.draw_member(self.rng)
            if cell not in self.queried:
                new_cells[cell] = None
        return list(new_cells)
