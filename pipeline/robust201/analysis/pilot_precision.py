"""Precision of estimates from a sample of images, expected from a dataset's outcomes by image."""

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError
from robust201.planning.budgets import N_STRATA, smallest_sample
from robust201.planning.designs import worst_case
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.outcomes import has_outcomes_of, read_outcomes
from robust201.reader.result_files import paper_key
from robust201.statistics.sampling import allocate, expected_precision, stratify


class PilotPrecision:
    """Expected precision by key, from the outcomes of one dataset; of keys without outcomes the worst case."""

    def __init__(self, reader: RobustnessDataset) -> None:
        """Find the keys with outcomes.

        Raises:
            ConfigError: there are none, or those of one network only.
        """
        self._reader = reader
        self._outcomes: dict[str, NDArray[np.bool_] | None] = {}
        self._precision: dict[tuple[str, int, int], tuple[float, float | None]] = {}
        found = [dataset for dataset in reader.data if any(self._has(dataset, key) for key in reader.keys_all)]
        if not found:
            raise ConfigError(
                f"Planning failed for --like {reader.path}: expected a dataset with outcomes by image, got none. "
                "Measure `predictions`, and export with --parquet --outcomes bits, or leave --like out."
            )
        self._dataset = found[0]
        self._keys = {paper_key(key): key for key in reader.keys_all if self._has(self._dataset, key)}

    def _has(self, dataset: str, key: str) -> bool:
        return has_outcomes_of(self._reader.files, dataset, key)

    def __call__(self, dataset: str, key: str, n_seen: int, n_images: int) -> tuple[float, float | None]:
        """Return half-width and tau for a sample of so many images (see `planning.designs.Precision`)."""
        outcomes = self._read(paper_key(key))
        if outcomes is None:
            return worst_case(dataset, key, n_seen, n_images)
        if n_seen >= n_images:
            return 0.0, 1.0
        # Repeated images stand for a larger population, so that strata and errors have the sizes of the sweep.
        population = np.tile(outcomes, max(1, round(n_images / outcomes.shape[2])))
        count = population.shape[2]
        size = min(max(round(count * n_seen / n_images), smallest_sample(count)), count)
        place = key, size, count
        if place not in self._precision:
            design = stratify(population, n_strata=N_STRATA, seed=0, name=key)
            self._precision[place] = expected_precision(population, allocate(design, population, size))
        return self._precision[place]

    def _read(self, key: str) -> NDArray[np.bool_] | None:
        if key not in self._outcomes:
            self._outcomes[key] = self._stack(key)
        return self._outcomes[key]

    def _stack(self, key: str) -> NDArray[np.bool_] | None:
        """Read (P, S, N) outcomes of the networks that have all strengths; None of fewer than two."""
        stored = self._keys.get(key)
        if stored is None:
            return None
        files, dataset = self._reader.files, self._dataset
        several = [read_outcomes(files, dataset, stored, one) for one in files.strengths(dataset, stored)]
        shared = set.intersection(*({*one.architectures} for one in several))
        names = [name for name in several[0].architectures if name in shared]
        return np.stack([one.of(names).correct for one in several], axis=1) if len(names) > 1 else None
