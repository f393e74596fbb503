"""The contract of a search method: `Optimiser`, which proposes architectures and receives their values."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from robust201.search.cells import SearchCells

Scores = tuple[float, ...]
"""Values of an architecture, one per objective; higher is better."""

_CHEBYSHEV_SUM = 0.05
"""Weight of the sum in the augmented Chebyshev function (rho of Knowles, "ParEGO", IEEE TEC 10, 2006)."""


class Query(NamedTuple):
    """What is to be evaluated.

    Attributes:
        architecture: index of the cell.
        n_evaluations: how many of the objective's evaluations, in the order of `Benchmark.order`; None for all.
    """

    architecture: int
    n_evaluations: int | None = None


class Preference:
    """What makes one architecture better than another: the value itself, or of several objectives a weighting of them.

    Weights are drawn anew whenever a method chooses (see `redraw`), so that a run covers the whole front. Values are
    scaled by the lowest and highest observed, and combined by the augmented Chebyshev function of ParEGO.
    """

    def __init__(self, n_objectives: int, rng: np.random.Generator) -> None:
        self.n_objectives = n_objectives
        self._rng = rng
        self._weights = np.full(n_objectives, 1 / n_objectives)
        self._low, self._high = np.full(n_objectives, np.inf), np.full(n_objectives, -np.inf)

    def redraw(self) -> None:
        if self.n_objectives > 1:
            self._weights = self._rng.dirichlet(np.ones(self.n_objectives))

    def observe(self, values: Scores) -> None:
        """Extend the range by which values are scaled."""
        if self.n_objectives > 1:
            self._low, self._high = np.fmin(self._low, values), np.fmax(self._high, values)

    def score(self, values: Scores) -> float:
        if self.n_objectives == 1:
            return values[0]
        span = np.where(self._high > self._low, self._high - self._low, 1.0)
        weighted = self._weights * (np.asarray(values) - self._low) / span
        return float(weighted.min() + _CHEBYSHEV_SUM * weighted.sum())


class Optimiser(ABC):
    """One run of a search method. All of its draws come from `rng`, so equal seeds and values give equal runs.

    The caller asks for a query, evaluates it, tells the values, and asks again, until the budget is spent or there is
    nothing left to ask for.

    Attributes:
        cells: what may be asked for.
        rng: source of all draws.
        n_queries: the budget, in evaluations of whole objectives; fractions count where a query is of a part.
        preference: how values are compared.
        asked: the architectures asked for so far, each once.
    """

    def __init__(
        self, cells: SearchCells, rng: np.random.Generator, *, n_queries: int, n_objectives: int, n_evaluations: int
    ) -> None:
        self.cells = cells
        self.rng = rng
        self.n_queries = n_queries
        self.n_evaluations = n_evaluations
        self.preference = Preference(n_objectives, rng)
        self.asked: set[int] = set()

    @classmethod  # noqa: B027 - most methods have nothing to prepare
    def prepare(cls, several: Sequence[Self]) -> None:
        """Do in one call what runs of this method with equally many observations could each do alone."""

    @abstractmethod
    def propose(self) -> Query | None:
        """Choose what to evaluate next; None if there is nothing."""

    @abstractmethod
    def learn(self, query: Query, values: Scores) -> None:
        """Take the values of the query that was proposed last."""

    def ask(self) -> Query | None:
        """Return the next query; None if there is nothing left to ask for."""
        query = self.propose()
        if query is not None:
            self.asked.add(query.architecture)
        return query

    def tell(self, query: Query, values: Scores) -> None:
        self.preference.observe(values)
        self.learn(query, values)

    def draw_new(self, count: int) -> list[int]:
        """Draw members that were not asked for, each once; fewer where fewer are left."""
        drawn: dict[int, None] = {}
        n_left = len(self.cells) - len(self.asked)
        count = min(count, n_left)
        if 2 * n_left < len(self.cells):  # few are left: trying would take long
            left = np.array([one for one in self.cells.members.tolist() if one not in self.asked], dtype=np.int64)
            return [int(one) for one in self.rng.permutation(left)[:count]]
        while len(drawn) < count:
            cell = self.cells.draw(self.rng)
            if cell not in self.asked:
                drawn[cell] = None
        return list(drawn)
