"""Local search: from the best of a few random cells to better neighbours, and again from others at an optimum.

Source: White, Nolen and Savani, "Exploring the Loss Landscape in Neural Architecture Search", UAI 2021; the settings
are those of naszilla.
"""

from robust201.search.optimiser import Optimiser, Query, Scores

N_STARTS = 10
"""Random cells of a start, from the best of which it goes on."""


class LocalSearch(Optimiser):
    """Moves to the first neighbour that is better; where none is, starts again from cells not asked for before."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._starting: list[int] = []
        self._started: list[tuple[int, Scores]] = []
        self._around: list[int] = []
        self._current: Scores | None = None

    def propose(self) -> Query | None:
        while self._current is not None and self._around:
            cell = self._around.pop()
            if cell not in self.asked:
                return Query(cell)
        if not self._starting:
            self._current, self._started = None, []
            self.preference.redraw()
            self._starting = self.draw_new(N_STARTS)
        return Query(self._starting.pop()) if self._starting else None

    def learn(self, query: Query, values: Scores) -> None:
        if self._current is None:
            self._started.append((query.architecture, values))
            if not self._starting:
                self._move(*max(self._started, key=lambda start: self.preference.score(start[1])))
        elif self.preference.score(values) > self.preference.score(self._current):
            self._move(query.architecture, values)

    def _move(self, cell: int, values: Scores) -> None:
        self._current = values
        self._around = self.rng.permutation(self.cells.neighbours(cell)).tolist()
