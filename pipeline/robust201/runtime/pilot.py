"""Pilot of a sampled sweep: networks that are evaluated on all images, and a model of other networks' outcomes.

An outcome is True if a network classifies an image correctly. Cheap keys are the keys in the field `sampling.cheap`,
for which every network is evaluated on all images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robust201.core.records import ArchitectureId, Unit
from robust201.planning.plan import Plan, is_sampled, pilot_of
from robust201.shards import Inventory, ShardStore
from robust201.shards.outcomes import read_outcomes
from robust201.statistics.sampling import OutcomeModel, features, pilot_features, predict_pilots

_BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Pilot:
    """Outcomes of P pilot networks on all N images under one key, and a model that is fitted to these outcomes only.

    Attributes:
        outcomes: (P, S, N) outcomes under the key at each of its S strengths.
        cheap: (P, C, N) outcomes under the cheap keys; C is the number of pairs of a cheap key and a strength.
        model: model that predicts other networks' outcomes.
        predicted: (P, S, N) probabilities that each pilot network is correct, predicted from the other pilot networks.
    """

    outcomes: _BoolArray
    cheap: _BoolArray
    model: OutcomeModel
    predicted: NDArray[np.float64]

    @classmethod
    def fit(cls, outcomes: _BoolArray, cheap_outcomes: _BoolArray) -> "Pilot":
        """Fit the model to the pilot networks' outcomes."""
        feature_values = pilot_features(outcomes, cheap_outcomes)
        model = OutcomeModel().fit(feature_values, outcomes)
        return cls(outcomes, cheap_outcomes, model, predict_pilots(model, feature_values))

    def predict(self, cheap_outcomes: _BoolArray) -> NDArray[np.float64]:
        """Predict the probability (S, N) that another network is correct, from its outcomes (C, N) under cheap keys."""
        return self.model.predict(features(self.outcomes, cheap_outcomes, self.cheap))


class OutcomeReader:
    """Reads per-image outcomes of a sampled sweep on one dataset."""

    def __init__(
        self, plan: Plan, store: ShardStore, inventory: Inventory, dataset: str, labels: NDArray[np.int64]
    ) -> None:
        section = plan.config.sampling
        assert section is not None  # noqa: S101 - only used for sampled sweeps
        self._plan, self._store, self._inventory, self._labels = plan, store, inventory, labels
        self._units_on_all_images: dict[tuple[ArchitectureId, str], Unit] = {}
        for planned_key in plan.planned_keys:
            if planned_key.dataset == dataset and not is_sampled(plan, planned_key) and not planned_key.columns:
                units = (planned_key.unit(position) for position in range(len(planned_key.networks)))
                self._units_on_all_images |= {(unit.architecture, unit.key): unit for unit in units}
        tasks = plan.tasks
        cheap_keys = (key for key in section.cheap if key in tasks and tasks[key].kind in ("clean", "attack"))
        self._cheap_keys = tuple(key for key in tasks if key in set(cheap_keys))

    def are_complete(self, units: Sequence[Unit | None]) -> bool:
        """Return whether no unit is None and all evaluations of the units are complete."""
        measurements = self._plan.measurements
        return all(
            unit is not None and self._inventory.count_complete(unit, measurements) == len(unit.strengths)
            for unit in units
        )

    def has_cheap_outcomes(self, architecture: ArchitectureId) -> bool:
        return self.are_complete([self._units_on_all_images.get((architecture, key)) for key in self._cheap_keys])

    def read_cheap_outcomes(self, architecture: ArchitectureId) -> _BoolArray:
        """Read the outcomes (C, N) of a network under the cheap keys."""
        units = [self._units_on_all_images[architecture, key] for key in self._cheap_keys]
        empty = np.zeros((0, len(self._labels)), bool)
        return np.concatenate([empty, *(self.read_outcomes(unit) for unit in units)])

    def read_outcomes(self, unit: Unit, positions: NDArray[np.int64] | slice = slice(None)) -> _BoolArray:
        """Read the outcomes of a unit at each strength; `positions` are the positions of its images in the dataset."""
        return read_outcomes(self._store, self._inventory, unit, self._labels[positions], self._plan.measurements)

    def read_pilot(self, key: str) -> Pilot | None:
        """Read the pilot's outcomes under a key; return None if some are missing."""
        architectures = pilot_of(self._plan)
        units = [self._units_on_all_images.get((architecture, key)) for architecture in architectures]
        if not self.are_complete(units) or not all(map(self.has_cheap_outcomes, architectures)):
            return None
        outcomes = [self.read_outcomes(unit) for unit in units if unit is not None]
        return Pilot.fit(
            np.stack(outcomes), np.stack([self.read_cheap_outcomes(architecture) for architecture in architectures])
        )

    def find_pilot_protocol(self, key: str) -> str:
        return self._units_on_all_images[pilot_of(self._plan)[0], key].protocol
