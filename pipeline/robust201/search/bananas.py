"""BANANAS: an ensemble of networks predicts values from a cell's paths, and selects among mutants of the best cells.

Source: White, Neiswanger and Savani, "BANANAS: Bayesian Optimization with Neural Architectures for Neural Architecture
Search", AAAI 2021; the settings are those of naszilla (see docs/protocol.md).
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from robust201.search.ensemble import fit_and_predict
from robust201.search.evolution import mutation_probability
from robust201.search.optimiser import Optimiser, Query, Scores

N_INITIAL_CELLS = 10
BATCH_SIZE = 10
ENSEMBLE_SIZE = 5
MAX_PATH_LENGTH = 2
"""Maximum length of a path in edges; it gives the first 30 path features of NAS-Bench-201."""

N_PARENTS = 5
N_CANDIDATES = 100


class Bananas(Optimiser):
    """Start with `N_INITIAL_CELLS` random cells, then query `BATCH_SIZE` promising candidates at a time and retrain.

    Candidates are new mutants of the best `N_PARENTS` cells, with `N_CANDIDATES` mutations per parent. The best parents
    come first, until there are that many candidates. They are ranked by independent Thompson sampling: a normal sample
    per candidate, with the mean and standard deviation of the ensemble's predictions.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._observations: list[tuple[int, Scores]] = []
        self._pending: list[int] = []
        self._encodings = self.cells.path_encodings(MAX_PATH_LENGTH)

    @classmethod
    def prepare(cls, several: Sequence[Self]) -> None:
        """Train the ensembles of all runs without pending queries, in one call."""
        due = [run for run in several if run._observations and not run._pending]
        proposals = [(run, candidates) for run in due if (candidates := run._candidates())]
        for count in sorted({len(run._observations) for run, _ in proposals}):
            group = [(run, candidates) for run, candidates in proposals if len(run._observations) == count]
            predicted = fit_and_predict(
                [run._encodings[[cell for cell, _ in run._observations]] for run, _ in group],
                [run._losses() for run, _ in group],
                [run._encodings[candidates] for run, candidates in group],
                [run.rng for run, _ in group],
                size=ENSEMBLE_SIZE,
            )
            for (run, candidates), predictions in zip(group, predicted, strict=True):
                run._choose(candidates, predictions)

    def propose(self) -> Query | None:
        if not self._pending:
            if self._observations:
                self.prepare([self])
            if not self._pending:  # at the start, or if no mutant is new
                self._pending = self.draw_new(BATCH_SIZE if self._observations else N_INITIAL_CELLS)
        return Query(self._pending.pop()) if self._pending else None

    def learn(self, query: Query, values: Scores) -> None:
        self._observations.append((query.architecture, values))

    def _candidates(self) -> list[int]:
        self.preference.redraw()
        best = sorted(self._observations, key=lambda observation: -self.preference.score(observation[1]))[:N_PARENTS]
        probability = mutation_probability(len(self.cells.space.edges))
        candidates: dict[int, None] = {}
        for parent, _ in best:
            if len(candidates) >= N_CANDIDATES:
                break
            mutants = (self.cells.mutate(parent, self.rng, probability) for _ in range(N_CANDIDATES))
            candidates |= dict.fromkeys(cell for cell in mutants if cell not in self.queried)
        return list(candidates)

    def _losses(self) -> NDArray[np.float64]:
        """Return 100 minus the observed values in percent; values other than fractions are scaled by their range."""
        scores = np.array([self.preference.score(values) for _, values in self._observations])
        low, high = scores.min(), scores.max()
        if (low < 0 or high > 1) and high > low:
            scores = (scores - low) / (high - low)
        return 100 * (1 - scores)

    def _choose(self, candidates: list[int], predictions: NDArray[np.float64]) -> None:
        samples = self.rng.normal(predictions.mean(axis=0), predictions.std(axis=0))
        chosen = np.argsort(samples, kind="stable")[:BATCH_SIZE]
        self._pending = [candidates[index] for index in chosen[::-1]]
