"""Regularised evolution, which mutates the best of a random sample and removes the oldest member of the population.

Source: Real, Aggarwal, Huang and Le, "Regularized Evolution for Image Classifier Architecture Search", AAAI 2019; the
settings are taken from the library naszilla.
"""

from collections import deque

from robust201.search.optimiser import Optimiser

N_INITIAL_CELLS = 10
POPULATION_SIZE = 30
TOURNAMENT_SIZE = 10


def mutation_probability(n_edges: int) -> float:
    """Return the probability that an edge changes: 1 / (edges - 2), as in naszilla."""
    return 1 / max(1, n_edges - 2)


class RegularizedEvolution(Optimiser):
    """Mutate the best of `TOURNAMENT_SIZE` cells sampled with replacement from the population.

    As in naszilla, the oldest cell is removed as soon as the population has `POPULATION_SIZE` cells. A mutant
    that was already evaluated still counts as a query.
    """

    title = "Regularised evolution"

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._population: deque[tuple[int, float]] = deque()
        self._initial_cells: list[int] | None = None

    def propose(self) -> int:
        if self._initial_cells is None:
            self._initial_cells = self.draw_unqueried(N_INITIAL_CELLS)
        if self._initial_cells:
            return self._initial_cells.pop()
        contestants = [
            self._population[index] for index in self.rng.integers(len(self._population), size=TOURNAMENT_SIZE)
        ]
        parent, _ = max(contestants, key=lambda contestant: contestant[1])
        return self.cells.mutate(parent, self.rng, mutation_probability(len(self.cells.space.edges)))

    def tell(self, architecture: int, value: float) -> None:
        self._population.append((architecture, value))
        if len(self._population) >= POPULATION_SIZE:
            self._population.popleft()
