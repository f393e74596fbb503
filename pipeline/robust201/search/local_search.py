"""Local search: hill climbing from the best of several random cells, with restarts at local optima.

Source: White, Nolen and Savani, "Exploring the Loss Landscape in Neural Architecture Search", UAI 2021; the settings
are those of the authors' library naszilla.
"""

from robust201.search.optimiser import Optimiser, Query, Scores

N_STARTS = 10
"""Number of random cells evaluated per restart; the search continues from the best."""


class LocalSearch(Optimiser):
    """Move to the first better neighbour; at a local optimum, restart from random cells that have not been queried."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._pending_starts: list[int] = []
        self._evaluated_starts: list[tuple[int, Scores]] = []
        self._neighbours: list[int] = []
        self._current_scores: Scores | None = None

    def propose(self) -> Query | None:
        while self._current_scores is not None and self._neighbours:
            cell = self._neighbours.pop()
            if cell not in self.queried:
                return Query(cell)
        if not self._pending_starts:
            self._current_scores, self._evaluated_starts = None, []
            self.preference.redraw()
            self._pending_starts = self.draw_new(N_STARTS)
        return Query(self._pending_starts.pop()) if self._pending_starts else None

    def learn(self, query: Query, values: Scores) -> None:
        if self._current_scores is None:
            self._evaluated_starts.append((query.architecture, values))
            if not self._pending_starts:
                self._move(*max(self._evaluated_starts, key=lambda observation: self.preference.score(observation[1])))
        elif self.preference.score(values) > self.preference.score(self._current_scores):
            self._move(query.architecture, values)

    def _move(self, cell: int, values: Scores) -> None:
        self._current_scores = values
        self._neighbours = self.rng.permutation(self.cells.neighbours(cell)).tolist()
