"""Precision of estimates from a sample of images, expected from outcomes by image that are known already."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError
from robust201.planning.budgets import N_STRATA, smallest_sample
from robust201.planning.designs import worst_case
from robust201.planning.plan import Plan, is_sampled
from robust201.planning.samples import choose_pilot
from robust201.planning.sampling_section import DEFAULT_CHEAP
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.outcomes import has_outcomes_of, read_outcomes
from robust201.reader.result_files import paper_key
from robust201.runtime.pilot import OutcomeReader
from robust201.shards import Inventory, ShardStore
from robust201.statistics.expected_precision import (
    FEWEST_NETWORKS,
    Fold,
    leave_out,
    sampled_precision,
    simple_precision,
)

MOST_NETWORKS = 20
"""Networks of a dataset that precision is expected from, as many as a pilot has: more would take long, and flatter."""

_Bools = NDArray[np.bool_]


class KnownOutcomes(NamedTuple):
    """Outcomes of A networks on N images: under a key (A, S, N), and under the cheap keys (A, C, N)."""

    outcomes: _Bools
    cheap: _Bools


class PilotPrecision:
    """Expected precision by key, from known outcomes; of keys without them that of the worst case.

    `sampled` and `simple` take and return what `planning.designs.Precision` says.
    """

    def __init__(self, read: Callable[[str, str], KnownOutcomes | None]) -> None:
        """Expect precision from what `read` returns for a dataset and a key: None if it has too few networks."""
        self._read = read
        self._known: dict[tuple[str, str], KnownOutcomes | None] = {}
        self._folds: dict[tuple[str, str], list[Fold]] = {}
        self._precision: dict[tuple[str, str, int, int], tuple[float, float | None]] = {}

    def sampled(self, dataset: str, key: str, n_seen: int, n_images: int) -> tuple[float, float | None]:
        """Return half-width and tau for estimates from a stratified sample, with predictions."""
        known = self._outcomes(dataset, key)
        if known is None:
            return worst_case(dataset, key, n_seen, n_images)
        if n_seen >= n_images:
            return 0.0, 1.0
        place = dataset, key, n_seen, n_images
        if place not in self._precision:
            if (dataset, key) not in self._folds:
                self._folds[dataset, key] = leave_out(*known)
            size = max(n_seen, smallest_sample(n_images))
            self._precision[place] = sampled_precision(
                self._folds[dataset, key], size, n_images, n_strata=N_STRATA, name=f"{dataset} {key}"
            )
        return self._precision[place]

    def simple(self, dataset: str, key: str, n_seen: int, n_images: int) -> tuple[float, float | None]:
        """Return half-width and tau for accuracies on images chosen at random."""
        known = self._outcomes(dataset, key)
        if known is None:
            return worst_case(dataset, key, n_seen, n_images)
        return simple_precision(known.outcomes, n_seen, n_images)

    def _outcomes(self, dataset: str, key: str) -> KnownOutcomes | None:
        place = dataset, key
        if place not in self._known:
            self._known[place] = self._read(dataset, key)
        return self._known[place]


class LikeDataset:
    """Outcomes of the first of a dataset folder's datasets that has some, whichever dataset is asked for."""

    def __init__(self, reader: RobustnessDataset, cheap: Sequence[str] = DEFAULT_CHEAP) -> None:
        """Find the keys with outcomes.

        Args:
            reader: the folder.
            cheap: keys that all networks of the sweep are evaluated under on all images.

        Raises:
            ConfigError: no key has outcomes.
        """
        self._reader = reader
        with_outcomes = [dataset for dataset in reader.data if any(self._has(dataset, key) for key in reader.keys_all)]
        if not with_outcomes:
            raise ConfigError(
                f"Planning failed for --like {reader.path}: expected a dataset with outcomes by image, got none. "
                "Measure `predictions`, and export with --parquet --outcomes bits, or leave --like out."
            )
        self._dataset = with_outcomes[0]
        self._keys = {paper_key(key): key for key in reader.keys_all if self._has(self._dataset, key)}
        self._cheap = [paper_key(key) for key in cheap]

    def _has(self, dataset: str, key: str) -> bool:
        return has_outcomes_of(self._reader.files, dataset, key)

    def read(self, _dataset: str, key: str) -> KnownOutcomes | None:
        """Read the outcomes of networks that have all strengths and cheap keys; of many networks, of some at random."""
        wanted = paper_key(key)
        if wanted not in self._keys:
            return None
        cheap = [name for name in self._cheap if name in self._keys and name != wanted]
        files, dataset = self._reader.files, self._dataset
        tables = {
            name: [read_outcomes(files, dataset, self._keys[name], one) for one in self._strengths(name)]
            for name in (wanted, *cheap)
        }
        shared = set.intersection(*({*one.architectures} for several in tables.values() for one in several))
        names = [name for name in tables[wanted][0].architectures if name in shared]
        if len(names) < FEWEST_NETWORKS:
            return None
        chosen = choose_pilot(names, MOST_NETWORKS, 0)
        arrays = {name: np.stack([one.of(chosen).correct for one in tables[name]], axis=1) for name in tables}
        outcomes = arrays.pop(wanted)
        return KnownOutcomes(outcomes, np.concatenate([outcomes[:, :0], *arrays.values()], axis=1))

    def _strengths(self, key: str) -> list[float]:
        return list(self._reader.files.strengths(self._dataset, self._keys[key]))


def read_pilots(
    plan: Plan, store: ShardStore, inventory: Inventory, labels_of: Callable[[Plan, str], NDArray[np.int64]]
) -> Mapping[tuple[str, str], KnownOutcomes]:
    """Read the outcomes of a sampled sweep's pilot, by dataset and key; of keys whose pilot is complete.

    Args:
        plan: as the results folder keeps it, of a sweep with `sampling`.
        store: its results.
        inventory: of the store.
        labels_of: (plan, dataset) to the labels of the images.
    """
    wanted: dict[str, dict[str, None]] = {}
    for planned in plan.planned_keys:
        if is_sampled(plan, planned):
            wanted.setdefault(planned.dataset, {})[planned.key] = None
    known = {}
    for dataset, keys in wanted.items():
        outcomes = OutcomeReader(plan, store, inventory, dataset, labels_of(plan, dataset))
        for key in keys:
            pilot = outcomes.pilot(key)
            if pilot is not None and len(pilot.outcomes) >= FEWEST_NETWORKS:
                known[dataset, key] = KnownOutcomes(pilot.outcomes, pilot.cheap)
    return known
