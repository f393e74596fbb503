"""BANANAS: an ensemble of networks predicts values from the paths of a cell, and chooses among mutants of the best.

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
BATCH_OF_QUERIES = 10
ENSEMBLE = 5
LONGEST_PATH = 2
"""Longer paths are left out: the first 30 features of NAS-Bench-201's paths."""

N_PARENTS = 5
N_CANDIDATES = 100


class Bananas(Optimiser):
    """After `N_INITIAL_CELLS` draws, asks for the `BATCH_OF_QUERIES` most promising candidates, and learns again.

    Candidates are mutants of the best `N_PARENTS` cells, `N_CANDIDATES` tries each, from the best on until there are
    that many which were not asked for. They are ranked by independent Thompson sampling: a normal draw for each, with
    the mean and the deviation of the ensemble's predictions.
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._told: list[tuple[int, Scores]] = []
        self._waiting: list[int] = []
        self._encodings = self.cells.path_encodings(LONGEST_PATH)

    @classmethod
    def prepare(cls, several: Sequence[Self]) -> None:
        """Train the ensembles of all runs that have nothing left to ask for, in one call."""
        due = [one for one in several if one._told and not one._waiting]
        candidates = [one._candidates() for one in due]
        left = [(one, found) for one, found in zip(due, candidates, strict=True) if found]
        for count in sorted({len(one._told) for one, _ in left}):
            group = [(one, found) for one, found in left if len(one._told) == count]
            predicted = fit_and_predict(
                [one._encodings[[cell for cell, _ in one._told]] for one, _ in group],
                [one._losses() for one, _ in group],
                [one._encodings[found] for one, found in group],
                [one.rng for one, _ in group],
                size=ENSEMBLE,
            )
            for (one, found), predictions in zip(group, predicted, strict=True):
                one._choose(found, predictions)

    def propose(self) -> Query | None:
        if not self._waiting:
            if self._told:
                self.prepare([self])
            if not self._waiting:  # at the start, and where no mutant is new
                self._waiting = self.draw_new(BATCH_OF_QUERIES if self._told else N_INITIAL_CELLS)
        return Query(self._waiting.pop()) if self._waiting else None

    def learn(self, query: Query, values: Scores) -> None:
        self._told.append((query.architecture, values))

    def _candidates(self) -> list[int]:
        self.preference.redraw()
        best = sorted(self._told, key=lambda one: -self.preference.score(one[1]))[:N_PARENTS]
        probability = mutation_probability(len(self.cells.space.edges))
        found: dict[int, None] = {}
        for parent, _ in best:
            if len(found) >= N_CANDIDATES:
                break
            mutants = (self.cells.mutate(parent, self.rng, probability) for _ in range(N_CANDIDATES))
            found |= dict.fromkeys(cell for cell in mutants if cell not in self.asked)
        return list(found)

    def _losses(self) -> NDArray[np.float64]:
        """Return 100 minus the observed values in percent; other numbers than fractions are scaled by their range."""
        scores = np.array([self.preference.score(values) for _, values in self._told])
        low, high = scores.min(), scores.max()
        if (low < 0 or high > 1) and high > low:
            scores = (scores - low) / (high - low)
        return 100 * (1 - scores)

    def _choose(self, candidates: list[int], predictions: NDArray[np.float64]) -> None:
        draws = self.rng.normal(predictions.mean(axis=0), predictions.std(axis=0))
        chosen = np.argsort(draws, kind="stable")[:BATCH_OF_QUERIES]
        self._waiting = [candidates[place] for place in chosen[::-1]]
