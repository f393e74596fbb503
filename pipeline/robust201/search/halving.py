"""Successive halving over strengths: many cells are evaluated at few strengths, the better part of them at more.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016.
"""

from functools import cache

from robust201.search.optimiser import Optimiser, Query, Scores

ETA = 3
"""One of so many cells is kept, and gets so many times as many evaluations."""


@cache
def plan_rungs(n_queries: int, n_evaluations: int, n_members: int) -> tuple[tuple[int, int], ...]:
    """Plan the rungs so that together they take at most the budget.

    Args:
        n_queries: the budget, in evaluations of whole objectives.
        n_evaluations: how many evaluations an objective has.
        n_members: cells that there are.

    Returns:
        For each rung, how many cells are evaluated, and at how many evaluations in all.
    """
    sizes = [n_evaluations]
    while sizes[0] >= ETA:
        sizes.insert(0, round(sizes[0] / ETA))
    while True:
        first = _count_first(sizes, n_queries * n_evaluations, n_members)
        if first >= ETA ** (len(sizes) - 1):
            return tuple((first // ETA**rung, size) for rung, size in enumerate(sizes))
        sizes.pop(0)  # too few for one to reach the last rung: begin at a later one


def _count_first(sizes: list[int], budget: int, n_members: int) -> int:
    """Count the cells of the first rung: as many as the budget, in single evaluations, allows; at least one."""
    steps = [size - before for size, before in zip(sizes, [0, *sizes], strict=False)]

    def cost(first: int) -> int:
        return sum(first // ETA**rung * step for rung, step in enumerate(steps))

    first = 1
    while first < n_members and cost(first + 1) <= budget:
        first += 1
    return first


class SuccessiveHalving(Optimiser):
    """One bracket that takes the whole budget; a query costs the share of the objective's evaluations that it adds.

    Where the objective has a single evaluation there is one rung, which is random search.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._rungs = list(reversed(plan_rungs(self.n_queries, self.n_evaluations, len(self.cells))))
        self._waiting: list[int] = []
        self._told: list[tuple[int, float]] = []
        self._size = 0

    def propose(self) -> Query | None:
        if not self._waiting:
            if not self._rungs:
                return None
            count, self._size = self._rungs.pop()
            if self._told:
                ranked = sorted(self._told, key=lambda one: -one[1])  # stable: of equals the earlier goes on
                self._waiting = [cell for cell, _ in ranked[:count]][::-1]
            else:
                self._waiting = self.draw_new(count)
            self._told = []
        return Query(self._waiting.pop(), self._size)

    def learn(self, query: Query, values: Scores) -> None:
        self._told.append((query.architecture, self.preference.score(values)))
