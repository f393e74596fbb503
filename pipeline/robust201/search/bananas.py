"""BANANAS: an ensemble of networks predicts accuracies from a cell's paths, and the best mutants are queried.

Source: White, Neiswanger and Savani, "BANANAS: Bayesian Optimization with Neural Architectures for Neural Architecture
Search", AAAI 2021; the settings are taken from the authors' library naszilla (see docs/protocol/statistics.md).
"""

import numpy as np

from robust201.search.ensemble import fit_and_predict
from robust201.search.evolution import mutation_probability
from robust201.search.optimiser import Optimiser

N_RANDOM_CELLS = 10
BATCH_SIZE = 10
"""Number of cells that are queried after each training of the ensemble."""

ENSEMBLE_SIZE = 5
MAX_PATH_LENGTH = 2
"""Maximum number of edges of an encoded path; with 2, NAS-Bench-201 has 30 path features."""

N_PARENTS = 5
N_CANDIDATES = 100


class Bananas(Optimiser):
    """Query random cells first; then repeatedly train an ensemble, and query the best `BATCH_SIZE` candidates.

    Candidates are mutants of the best `N_PARENTS` cells, except cells that have already been queried. The parents, the
    best first, are each mutated `N_CANDIDATES` times, until there are `N_CANDIDATES` candidates or more. Candidates are
    ranked by independent Thompson sampling: each gets a normal sample with the mean and standard deviation of the
    ensemble's predictions.
    """

    title = "BANANAS"

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._observations: list[tuple[int, float]] = []
        self._pending_cells: list[int] = []
        self._encodings = self.cells.path_encodings(MAX_PATH_LENGTH)

    def propose(self) -> int:
        if not self._pending_cells and self._observations:
            self._pending_cells = self._choose_batch()
        if not self._pending_cells:  # at the start, or if all mutants have been queried
            self._pending_cells = self.draw_unqueried(BATCH_SIZE if self._observations else N_RANDOM_CELLS)
        return self._pending_cells.pop()

    def tell(self, architecture: int, value: float) -> None:
        self._observations.append((architecture, value))

    def _draw_candidates(self) -> list[int]:
        parents = sorted(self._observations, key=lambda observation: -observation[1])[:N_PARENTS]
        probability = mutation_probability(len(self.cells.space.edges))
        candidates: dict[int, None] = {}
        for parent, _ in parents:
            if len(candidates) >= N_CANDIDATES:
                break
            mutants = (self.cells.mutate(parent, self.rng, probability) for _ in range(N_CANDIDATES))
            candidates |= dict.fromkeys(cell for cell in mutants if cell not in self.queried)
        return list(candidates)

    def _choose_batch(self) -> list[int]:
        """Train an ensemble, and return the best candidates by ascending sampled accuracy."""
        candidates = self._draw_candidates()
        if not candidates:
            return []
        cells, accuracies = zip(*self._observations, strict=True)
        targets = 100 * (1 - np.array(accuracies))  # errors in percent
        inputs = self._encodings[[*cells]], targets, self._encodings[candidates]
        predictions = fit_and_predict(*inputs, self.rng, size=ENSEMBLE_SIZE)
        samples = self.rng.normal(predictions.mean(axis=0), predictions.std(axis=0))
        best_indices = np.argsort(samples, kind="stable")[:BATCH_SIZE]
        return [candidates[index] for index in best_indices[::-1]]
