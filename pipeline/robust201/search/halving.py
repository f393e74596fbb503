"""Successive halving over strengths, which evaluates many cells at few strengths, and the best of them at more.

A rung is a number of strengths at which a number of cells is evaluated. A bracket is a sequence of rungs, each with
fewer cells and more strengths than the rung before.

Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016.
"""

from functools import cache

from robust201.search.optimiser import Optimiser, Query, Scores

ETA = 3
"""Factor between rungs: the best 1 / `ETA` of a rung's cells get `ETA` times as many evaluations in the next rung."""


@cache
def plan_rungs(n_queries: int, n_evaluations: int, n_members: int) -> tuple[tuple[int, int], ...]:
    """Plan the rungs of one bracket within the budget.

    Args:
        n_queries: budget, in evaluations of complete objectives.
        n_evaluations: number of evaluations per objective.
        n_members: number of available cells.

    Returns:
        For each rung, the number of cells, and the number of evaluations that each cell has after the rung.
    """
    evaluation_counts = [n_evaluations]
    while evaluation_counts[0] >= ETA:
        evaluation_counts.insert(0, round(evaluation_counts[0] / ETA))
    while True:
        n_first = _count_first_rung_cells(evaluation_counts, n_queries * n_evaluations, n_members)
        if n_first >= ETA ** (len(evaluation_counts) - 1):
            return tuple((n_first // ETA**rung, count) for rung, count in enumerate(evaluation_counts))
        evaluation_counts.pop(0)  # too few cells to reach the last rung, so start at the next rung


def _count_first_rung_cells(evaluation_counts: list[int], budget: int, n_members: int) -> int:
    """Return the largest number of cells in the first rung within the budget (in evaluations); at least one."""
    n_added_by_rung = [
        count - previous for count, previous in zip(evaluation_counts, [0, *evaluation_counts], strict=False)
    ]

    def cost(n_first: int) -> int:
        return sum(n_first // ETA**rung * n_added for rung, n_added in enumerate(n_added_by_rung))

    n_first = 1
    while n_first < n_members and cost(n_first + 1) <= budget:
        n_first += 1
    return n_first


class SuccessiveHalving(Optimiser):
    """Run one bracket with the full budget; a query costs only the evaluations that it adds for its cell.

    For an objective with a single evaluation, there is one rung, which is random search.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._rungs = list(reversed(plan_rungs(self.n_queries, self.n_evaluations, len(self.cells))))
        self._pending_cells: list[int] = []
        self._observations: list[tuple[int, float]] = []
        self._n_evaluations_of_rung = 0

    def propose(self) -> Query | None:
        if not self._pending_cells:
            if not self._rungs:
                return None
            count, self._n_evaluations_of_rung = self._rungs.pop()
            if self._observations:
                # The sort is stable, so ties keep the earlier cell.
                ranked_observations = sorted(self._observations, key=lambda observation: -observation[1])
                self._pending_cells = [cell for cell, _ in ranked_observations[:count]][::-1]
            else:
                self._pending_cells = self.draw_new(count)
            self._observations = []
        return Query(self._pending_cells.pop(), self._n_evaluations_of_rung)

    def learn(self, query: Query, values: Scores) -> None:
        self._observations.append((query.architecture, self.preference.score(values)))
