"""Tabular benchmark, which looks up the values of queried cells in a dataset's results."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robust201.search.cells import SearchCells
from robust201.search.optimiser import Query, Scores

_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """An objective: a weighted sum of evaluations.

    Attributes:
        name: the objective as the user wrote it.
        columns: (n, E) values of its E evaluations by cell index; NaN if missing.
        weights: (E,) weights of the evaluations.
        is_accuracy: whether all terms are accuracies, which tables and figures show in percent.
    """

    name: str
    columns: _Floats
    weights: _Floats
    is_accuracy: bool = True

    @property
    def values(self) -> _Floats:
        """(n,) values of the objective, by cell index."""
        if len(self.weights) == 1 and self.weights[0] == 1:
            return self.columns[:, 0]
        totals: _Floats = self.columns @ self.weights
        return totals


class Benchmark:
    """Values of all cells that a search may query.

    Attributes:
        cells: the cells that may be queried.
        names: names of the objectives.
        values: (n, objectives) by cell index; higher is better.
        order: (E,) order in which partial queries use the evaluations of a single objective. The first evaluations in
            this order, however many, are spread over all evaluations.
    """

    def __init__(self, cells: SearchCells, objectives: Sequence[WeightedSum]) -> None:
        self.cells = cells
        self.names = tuple(objective.name for objective in objectives)
        self.values: _Floats = np.stack([objective.values[cells.isomorphs] for objective in objectives], axis=1)
        sole_objective = objectives[0] if len(objectives) == 1 else None
        self._columns = None if sole_objective is None else sole_objective.columns[cells.isomorphs]
        self._weights = None if sole_objective is None else sole_objective.weights
        self.order = make_bisection_order(self.n_evaluations)

    @property
    def n_objectives(self) -> int:
        return len(self.names)

    @property
    def n_evaluations(self) -> int:
        """Number of evaluations of a single objective; 1 if there are several objectives."""
        return 1 if self._weights is None else len(self._weights)

    def evaluate(self, query: Query) -> Scores:
        """Return the objectives of the queried cell.

        For a partial query, this is the weighted sum of the first evaluations in `order`, divided by the fraction of
        the total weight that these evaluations have.
        """
        if query.n_evaluations is None or query.n_evaluations == self.n_evaluations:
            return tuple(self.values[query.architecture].tolist())
        if self._columns is None or self._weights is None:
            raise ValueError(f"a partial query of {query.n_evaluations} evaluations requires a single objective")
        evaluations = self.order[: query.n_evaluations]
        weights = self._weights[evaluations]
        weight_fraction = np.abs(weights).sum() / np.abs(self._weights).sum()
        return (float(self._columns[query.architecture, evaluations] @ weights / weight_fraction),)


def make_bisection_order(count: int) -> NDArray[np.int64]:
    """Return the integers below `count` in bisection order: the middle, then the middles of both halves, and so on."""
    order, intervals = [], [(0, count)]
    while intervals:
        start, end = intervals.pop(0)
        if start < end:
            middle = (start + end) // 2
            order.append(middle)
            intervals += [(start, middle), (middle + 1, end)]
    return np.array(order, dtype=np.int64)
