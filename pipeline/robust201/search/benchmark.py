"""A tabular benchmark: the cells that a search may ask for, and their values in a dataset's results."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robust201.search.cells import SearchCells
from robust201.search.optimiser import Query, Scores

_Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """One objective: a weighted sum of evaluations.

    Attributes:
        name: as it was asked for.
        columns: (n, E) values of its evaluations by index of the space; NaN where there are none.
        weights: (E,) of the evaluations.
        is_accuracy: whether it is made of fractions of images alone, which tables and figures show in percent.
    """

    name: str
    columns: _Floats
    weights: _Floats
    is_accuracy: bool = True

    @property
    def values(self) -> _Floats:
        """(n,) the objective by index."""
        if len(self.weights) == 1 and self.weights[0] == 1:
            return self.columns[:, 0]
        totals: _Floats = self.columns @ self.weights
        return totals


class Benchmark:
    """The values of every cell.

    Attributes:
        cells: the members of the search.
        names: of the objectives.
        values: (n, objectives) by index of the space; higher is better.
        order: (E,) of a single objective, the order in which part queries take its evaluations, so that any first few
            of them are spread over all.
    """

    def __init__(self, cells: SearchCells, objectives: Sequence[WeightedSum]) -> None:
        self.cells = cells
        self.names = tuple(objective.name for objective in objectives)
        self.values: _Floats = np.stack([objective.values[cells.isomorphs] for objective in objectives], axis=1)
        single = objectives[0] if len(objectives) == 1 else None
        self._columns = None if single is None else single.columns[cells.isomorphs]
        self._weights = None if single is None else single.weights
        self.order = spread_order(self.n_evaluations)

    @property
    def n_objectives(self) -> int:
        return len(self.names)

    @property
    def n_evaluations(self) -> int:
        """How many evaluations a single objective has; 1 where there are several objectives."""
        return 1 if self._weights is None else len(self._weights)

    def evaluate(self, query: Query) -> Scores:
        """Return what a query measures: the objectives, or the weighted mean of the first few evaluations of one."""
        if query.n_evaluations is None or query.n_evaluations == self.n_evaluations:
            return tuple(self.values[query.architecture].tolist())
        if self._columns is None or self._weights is None:
            raise ValueError(f"query of {query.n_evaluations} evaluations of {self.n_objectives} objectives")
        chosen = self.order[: query.n_evaluations]
        weights = self._weights[chosen]
        share = np.abs(weights).sum() / np.abs(self._weights).sum()
        return (float(self._columns[query.architecture, chosen] @ weights / share),)


def spread_order(count: int) -> NDArray[np.int64]:
    """Order positions so that any first few are spread over all: the middle, then the middles of the halves, and on."""
    order, spans = [], [(0, count)]
    while spans:
        start, end = spans.pop(0)
        if start < end:
            middle = (start + end) // 2
            order.append(middle)
            spans += [(start, middle), (middle + 1, end)]
    return np.array(order, dtype=np.int64)
