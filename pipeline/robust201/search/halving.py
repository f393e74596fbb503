"""Successive halving over strengths: evaluate many cells at few strengths, and the best of them at more.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016.
"""

from functools import cache

from robust201.search.optimiser import Optimiser, Query, Scores

ETA = 3
"""Factor between rungs: one of `ETA` cells is kept, with `ETA` times as many evaluations."""


@cache
def plan_rungs(n_queries: int, n_evaluations: int, n_members: int) -> tuple[tuple[int, int], ...]:
    """Plan rungs that together fit into the budget.

    Args:
        n_queries: budget, in evaluations of whole objectives.
        n_evaluations: number of evaluations per objective.
        n_members: number of available cells.

    Returns:
        For each rung, the number of cells and their total number of evaluations.
    """
    sizes = [n_evaluations]
    while sizes[0] >= ETA:
        sizes.insert(0, round(sizes[0] / ETA))
    while True:
        first = _count_first(sizes, n_queries * n_evaluations, n_members)
        if first >= ETA ** (len(sizes) - 1):
            return tuple((first // ETA**rung, size) for rung, size in enumerate(sizes))
        sizes.pop(0)  # too few cells to reach the last rung: start at a later one


def _count_first(sizes: list[int], budget: int, n_members: int) -> int:
    """Return the number of cells in the first rung: the most that the budget, in evaluations, allows; at least one."""
    steps = [size - before for size, before in zip(sizes, [0, *sizes], strict=False)]

    def cost(first: int) -> int:
        return sum(first // ETA**rung * step for rung, step in enumerate(steps))

    first = 1
    while first < n_members and cost(first + 1) <= budget:
        first += 1
    return first


class SuccessiveHalving(Optimiser):
    """Run one bracket with the whole budget; a query costs the fraction of the objective's evaluations that it adds.

    For an objective with a single evaluation there is one rung, which is random search.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._rungs = list(reversed(plan_rungs(self.n_queries, self.n_evaluations, len(self.cells))))
        self._pending: list[int] = []
        self._observations: list[tuple[int, float]] = []
        self._size = 0

    def propose(self) -> Query | None:
        if not self._pending:
            if not self._rungs:
                return None
            count, self._size = self._rungs.pop()
            if self._observations:
                ranked = sorted(
                    self._observations, key=lambda observation: -observation[1]
                )  # stable: ties keep the earlier cell
                self._pending = [cell for cell, _ in ranked[:count]][::-1]
            else:
                self._pending = self.draw_new(count)
            self._observations = []
        return Query(self._pending.pop(), self._size)

    def learn(self, query: Query, values: Scores) -> None:
        self._observations.append((query.architecture, self.preference.score(values)))
