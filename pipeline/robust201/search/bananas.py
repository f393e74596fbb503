"""BANANAS, which predicts values from a cell's paths with an ensemble of networks, and queries mutants of good cells.

Source: White, Neiswanger and Savani, "BANANAS: Bayesian Optimization with Neural Architectures for Neural Architecture
Search", AAAI 2021; the settings are those of the authors' library naszilla (see docs/protocol/statistics.md).
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from robust201.search.ensemble import fit_and_predict
from robust201.search.evolution import mutation_probability
from robust201.search.optimiser import Optimiser

N_RANDOM_CELLS = 10
BATCH_SIZE = 10
"""Number of cells that are queried each time after the ensemble is trained."""

ENSEMBLE_SIZE = 5
MAX_PATH_LENGTH = 2
"""Maximum number of edges of an encoded path; with 2, NAS-Bench-201 has 30 path features."""

N_PARENTS = 5
N_CANDIDATES = 100


class Bananas(Optimiser):
    """Query random cells first; then repeatedly train an ensemble, and query the best `BATCH_SIZE` candidates.

    Candidates are mutants of the best `N_PARENTS` cells, except cells that have already been queried. The parents, the
    best first, are each mutated `N_CANDIDATES` times, until there are `N_CANDIDATES` candidates. Candidates are ranked
    by independent Thompson sampling: each gets a normal sample with the mean and standard deviation of the ensemble's
    predictions.
    """

    title = "BANANAS"

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._observations: list[tuple[int, float]] = []
        self._pending_cells: list[int] = []
        self._encodings = self.cells.path_encodings(MAX_PATH_LENGTH)

    @classmethod
    def prepare(cls, runs: Sequence[Self]) -> None:
        """Train the ensembles of all runs without pending queries in one call, and choose their next batches."""
        idle_runs = [run for run in runs if run._observations and not run._pending_cells]
        proposals = [(run, candidates) for run in idle_runs if (candidates := run._draw_candidates())]
        for n_observations in sorted({len(run._observations) for run, _ in proposals}):
            group = [(run, candidates) for run, candidates in proposals if len(run._observations) == n_observations]
            predictions_by_run = fit_and_predict(
                [run._encodings[[cell for cell, _ in run._observations]] for run, _ in group],
                [run._compute_targets() for run, _ in group],
                [run._encodings[candidates] for run, candidates in group],
                [run.rng for run, _ in group],
                size=ENSEMBLE_SIZE,
            )
            for (run, candidates), predictions in zip(group, predictions_by_run, strict=True):
                run._choose_batch(candidates, predictions)

    def propose(self) -> int:
        if not self._pending_cells:
            if self._observations:
                self.prepare([self])
            if not self._pending_cells:  # at the start, or if all mutants have been queried
                self._pending_cells = self.draw_new(BATCH_SIZE if self._observations else N_RANDOM_CELLS)
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

    def _compute_targets(self) -> NDArray[np.float64]:
        """Return the training targets: 100 minus the accuracy of each queried cell in percent."""
        return 100 * (1 - np.array([accuracy for _, accuracy in self._observations]))

    def _choose_batch(self, candidates: list[int], predictions: NDArray[np.float64]) -> None:
        samples = self.rng.normal(predictions.mean(axis=0), predictions.std(axis=0))
        chosen_indices = np.argsort(samples, kind="stable")[:BATCH_SIZE]
        self._pending_cells = [candidates[index] for index in chosen_indices[::-1]]
