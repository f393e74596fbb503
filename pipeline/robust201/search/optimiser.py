"""`Optimiser`, the interface of search methods, which propose architectures and receive their values."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from robust201.search.cells import SearchCells

Scores = tuple[float, ...]
"""Values of an architecture, one per objective. Higher is better."""

_CHEBYSHEV_SUM = 0.05
"""Weight of the sum in the augmented Chebyshev function (rho of Knowles, "ParEGO", IEEE TEC 10, 2006)."""


class Query(NamedTuple):
    """A request for an evaluation.

    Attributes:
        architecture: index of the cell.
        n_evaluations: number of the objective's evaluations, taken in the order of `Benchmark.order`; None for all.
    """

    architecture: int
    n_evaluations: int | None = None


class Preference:
    """Scalar score of architectures: the objective, or a random weighting of several objectives.

    Methods draw new weights before each choice (see `redraw`), so that a run covers the full front. Values are scaled
    by their observed range, and combined with the augmented Chebyshev function of ParEGO.
    """

    def __init__(self, n_objectives: int, rng: np.random.Generator) -> None:
        self.n_objectives = n_objectives
        self._rng = rng
        self._weights = np.full(n_objectives, 1 / n_objectives)
        self._low, self._high = np.full(n_objectives, np.inf), np.full(n_objectives, -np.inf)

    def redraw(self) -> None:
        """Draw new weights; does nothing for a single objective."""
        if self.n_objectives > 1:
            self._weights = self._rng.dirichlet(np.ones(self.n_objectives))

    def observe(self, values: Scores) -> None:
        """Extend the observed range to include these values."""
        if self.n_objectives > 1:
            self._low, self._high = np.fmin(self._low, values), np.fmax(self._high, values)

    def score(self, values: Scores) -> float:
        """Return the scalar score of values; higher is better."""
        if self.n_objectives == 1:
            return values[0]
        span = np.where(self._high > self._low, self._high - self._low, 1.0)
        weighted_values = self._weights * (np.asarray(values) - self._low) / span
        return float(weighted_values.min() + _CHEBYSHEV_SUM * weighted_values.sum())


class Optimiser(ABC):
    """A run of a search method. All random numbers come from `rng`, so equal seeds and values give equal runs.

    The caller repeats three steps until the budget is spent or no query is left: `ask` for a query, evaluate it, and
    `tell` its values.

    Attributes:
        cells: cells that may be queried.
        rng: random generator.
        n_queries: budget, in evaluations of complete objectives; partial queries count as fractions.
        n_evaluations: number of evaluations of a complete query.
        preference: scalar score of values.
        queried: architectures queried so far.
    """

    def __init__(
        self, cells: SearchCells, rng: np.random.Generator, *, n_queries: int, n_objectives: int, n_evaluations: int
    ) -> None:
        self.cells = cells
        self.rng = rng
        self.n_queries = n_queries
        self.n_evaluations = n_evaluations
        self.preference = Preference(n_objectives, rng)
        self.queried: set[int] = set()

    @classmethod  # noqa: B027 - most methods have nothing to prepare
    def prepare(cls, runs: Sequence[Self]) -> None:
        """Prepare the next queries of several runs in one call; by default, do nothing."""

    @abstractmethod
    def propose(self) -> Query | None:
        """Choose the next query; None if nothing is left to query."""

    @abstractmethod
    def learn(self, query: Query, values: Scores) -> None:
        """Process the values of the last proposed query."""

    def ask(self) -> Query | None:
        """Return the next query; None if nothing is left to query."""
        query = self.propose()
        if query is not None:
            self.queried.add(query.architecture)
        return query

    def tell(self, query: Query, values: Scores) -> None:
        """Pass the values of a query to the method."""
        self.preference.observe(values)
        self.learn(query, values)

    def draw_new(self, count: int) -> list[int]:
        """Return `count` distinct random members that have not been queried, or all of them if there are fewer."""
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
