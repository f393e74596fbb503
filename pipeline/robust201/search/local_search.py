"""Local search: hill climbing from the best of several random cells, with restarts at local optima.

Source: White, Nolen and Savani, "Exploring the Loss Landscape in Neural Architecture Search", UAI 2021; the settings
are taken from the authors' library naszilla.
"""

from robust201.search.optimiser import Optimiser

N_STARTS = 10
"""Number of random cells evaluated per restart; the search continues from the best."""


class LocalSearch(Optimiser):
    """Move to the first better neighbour; at a local optimum, restart from random cells that have not been queried."""

    title = "Local search"

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._pending_starts: list[int] = []
        self._evaluated_starts: list[tuple[int, float]] = []
        self._neighbours: list[int] = []
        self._current_value: float | None = None

    def propose(self) -> int:
        while self._current_value is not None and self._neighbours:
            cell = self._neighbours.pop()
            if cell not in self.queried:
                return cell
        if not self._pending_starts:
            self._current_value, self._evaluated_starts = None, []
            self._pending_starts = self.draw_unqueried(N_STARTS)
        return self._pending_starts.pop()

    def tell(self, architecture: int, value: float) -> None:
        if self._current_value is None:
            self._evaluated_starts.append((architecture, value))
            if not self._pending_starts:
                self._move(*max(self._evaluated_starts, key=lambda observation: observation[1]))
        elif value > self._current_value:
            self._move(architecture, value)

    def _move(self, cell: int, value: float) -> None:
        self._current_value = value
        self._neighbours = self.rng.permutation(self.cells.neighbours(cell)).tolist()
