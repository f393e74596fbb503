"""Expected precision of a sampled sweep's estimates, computed from known per-image outcomes for `plan`.

A sampled sweep evaluates a few networks, the pilot, on all images. The other networks are evaluated on a sample of the
images, except under cheap keys, under which all networks are evaluated on all images.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError
from robust201.planning.budgets import N_STRATA, smallest_sample
from robust201.planning.designs import worst_case_precision
from robust201.planning.plan import Plan, is_sampled
from robust201.planning.samples import choose_pilot
from robust201.planning.sampling_section import DEFAULT_CHEAP
from robust201.reader.dataset import RobustnessDataset
from robust201.reader.outcomes import has_outcomes_of, read_outcomes
from robust201.reader.result_files import paper_key
from robust201.runtime.pilot import OutcomeReader
from robust201.shards import Inventory, ShardStore
from robust201.statistics.expected_precision import (
    MIN_NETWORKS,
    Fold,
    leave_out_folds,
    sampled_precision,
    simple_precision,
)

MAX_NETWORKS = 20
"""Maximum number of a dataset's networks to use, which is as many as in a pilot.

With more networks, the computation would take longer, and the precision would look better than it is in a sweep.
"""

_Bools = NDArray[np.bool_]


class KnownOutcomes(NamedTuple):
    """Outcomes of A networks on N images.

    Attributes:
        outcomes: (A, S, N) outcomes under a key at S strengths.
        cheap_outcomes: (A, C, N) outcomes under the keys that a sweep evaluates on all networks and images.
    """

    outcomes: _Bools
    cheap_outcomes: _Bools


class PilotPrecision:
    """Expected precision of estimates under each key, computed from known outcomes.

    Without known outcomes, the precision of the worst case is returned.

    `sampled` and `simple` have the parameters and results that `planning.designs.PrecisionEstimate` documents.
    """

    def __init__(self, read: Callable[[str, str], KnownOutcomes | None]) -> None:
        """Set the function that reads known outcomes.

        Args:
            read: returns the outcomes for a dataset and a key, or None if too few networks have outcomes.
        """
        self._read = read
        self._known_outcomes: dict[tuple[str, str], KnownOutcomes | None] = {}
        self._folds: dict[tuple[str, str], list[Fold]] = {}
        self._precision: dict[tuple[str, str, int, int], tuple[float, float | None]] = {}

    def sampled(self, dataset: str, key: str, n_seen: int, n_images: int) -> tuple[float, float | None]:
        """Return the half-width and tau of estimates from a stratified sample and a model's predictions."""
        known_outcomes = self._read_once(dataset, key)
        if known_outcomes is None:
            return worst_case_precision(dataset, key, n_seen, n_images)
        if n_seen >= n_images:
            return 0.0, 1.0
        cache_key = dataset, key, n_seen, n_images
        if cache_key not in self._precision:
            if (dataset, key) not in self._folds:
                self._folds[dataset, key] = leave_out_folds(*known_outcomes)
            size = max(n_seen, smallest_sample(n_images))
            self._precision[cache_key] = sampled_precision(
                self._folds[dataset, key], size, n_images, n_strata=N_STRATA, name=f"{dataset} {key}"
            )
        return self._precision[cache_key]

    def simple(self, dataset: str, key: str, n_seen: int, n_images: int) -> tuple[float, float | None]:
        """Return the half-width and tau of accuracies on a simple random sample of images."""
        known_outcomes = self._read_once(dataset, key)
        if known_outcomes is None:
            return worst_case_precision(dataset, key, n_seen, n_images)
        return simple_precision(known_outcomes.outcomes, n_seen, n_images)

    def _read_once(self, dataset: str, key: str) -> KnownOutcomes | None:
        cache_key = dataset, key
        if cache_key not in self._known_outcomes:
            self._known_outcomes[cache_key] = self._read(dataset, key)
        return self._known_outcomes[cache_key]


class ReferenceDataset:
    """Known outcomes of a folder's first dataset with per-image outcomes; every dataset of a plan uses them."""

    def __init__(self, reader: RobustnessDataset, cheap: Sequence[str] = DEFAULT_CHEAP) -> None:
        """Index the keys that have outcomes.

        Args:
            reader: reader of the folder.
            cheap: keys that are cheap to evaluate, under which the sweep evaluates all networks on all images.

        Raises:
            ConfigError: no key has outcomes.
        """
        self._reader = reader
        datasets_with_outcomes = [
            dataset for dataset in reader.data if any(self._has_outcomes(dataset, key) for key in reader.keys_all)
        ]
        if not datasets_with_outcomes:
            raise ConfigError(
                f"Planning failed for --like {reader.path}: it has no dataset with per-image outcomes. "
                "Measure `predictions`, and export with --parquet --outcomes bits, or leave --like out."
            )
        self._dataset = datasets_with_outcomes[0]
        self._keys = {paper_key(key): key for key in reader.keys_all if self._has_outcomes(self._dataset, key)}
        self._cheap = [paper_key(key) for key in cheap]

    def _has_outcomes(self, dataset: str, key: str) -> bool:
        return has_outcomes_of(self._reader.files, dataset, key)

    def read(self, _dataset: str, key: str) -> KnownOutcomes | None:
        """Return the outcomes of the networks that were evaluated at all strengths and under all cheap keys.

        If there are more than `MAX_NETWORKS` such networks, the outcomes of a sample of them are returned. The name of
        the requested dataset is ignored.
        """
        target = paper_key(key)
        if target not in self._keys:
            return None
        cheap = [name for name in self._cheap if name in self._keys and name != target]
        files, dataset = self._reader.files, self._dataset
        tables = {
            name: [read_outcomes(files, dataset, self._keys[name], strength) for strength in self._strengths(name)]
            for name in (target, *cheap)
        }
        common_networks = set.intersection(
            *({*outcomes.architectures} for tables_of_key in tables.values() for outcomes in tables_of_key)
        )
        networks = [name for name in tables[target][0].architectures if name in common_networks]
        if len(networks) < MIN_NETWORKS:
            return None
        sampled_networks = choose_pilot(networks, MAX_NETWORKS, 0)
        arrays = {
            name: np.stack([outcomes.of(sampled_networks).correct for outcomes in tables[name]], axis=1)
            for name in tables
        }
        target_outcomes = arrays.pop(target)
        # The empty array makes the concatenation valid if there are no cheap keys.
        return KnownOutcomes(target_outcomes, np.concatenate([target_outcomes[:, :0], *arrays.values()], axis=1))

    def _strengths(self, key: str) -> list[float]:
        return list(self._reader.files.strengths(self._dataset, self._keys[key]))


def read_pilots(
    plan: Plan, store: ShardStore, inventory: Inventory, labels_of: Callable[[Plan, str], NDArray[np.int64]]
) -> Mapping[tuple[str, str], KnownOutcomes]:
    """Return the outcomes of a sampled sweep's pilot, by dataset and key, for keys whose pilot is complete.

    Args:
        plan: plan of a sweep with `sampling`, as stored in the results folder.
        store: store of the sweep.
        inventory: inventory of the store.
        labels_of: function of the plan and a dataset that returns the images' labels.
    """
    keys_by_dataset: dict[str, dict[str, None]] = {}
    for planned in plan.planned_keys:
        if is_sampled(plan, planned):
            keys_by_dataset.setdefault(planned.dataset, {})[planned.key] = None
    outcomes_by_dataset_and_key = {}
    for dataset, keys in keys_by_dataset.items():
        outcome_reader = OutcomeReader(plan, store, inventory, dataset, labels_of(plan, dataset))
        for key in keys:
            pilot = outcome_reader.read_pilot(key)
            if pilot is not None and len(pilot.outcomes) >= MIN_NETWORKS:
                outcomes_by_dataset_and_key[dataset, key] = KnownOutcomes(pilot.outcomes, pilot.cheap)
    return outcomes_by_dataset_and_key
