"""The plan of a sweep: its units, computed from its configuration and the hashes of its inputs.

A unit is all results of one network on one dataset under one key. Planning is deterministic and does not need torch.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import DatasetError
from robust201.core.input_facts import DatasetFacts, ImageFacts, InputFacts
from robust201.core.records import ArchitectureId, EvaluationProtocol, ImageSelection, Part, Unit, Weights, unit_id
from robust201.images import load_images
from robust201.images.specs import UNKNOWN_COUNT
from robust201.planning.identity import is_complete, protocol_payload
from robust201.sweep.config import SweepConfig
from robust201.sweep.sweep_record import portable_fields
from robust201.tasks import Task
from robust201.tasks.parameters import Parameters


class PlannedNetwork(NamedTuple):
    """The fields in which units of one dataset and key differ (see `core.records.Unit`)."""

    architecture: ArchitectureId
    checkpoint_sha256: str
    weights: str


@dataclass(frozen=True)
class PlannedKey:
    """The units of one dataset and key: their common fields (see `core.records.Unit`) and one or more networks."""

    space: str
    dataset: str
    key: str
    strengths: tuple[float, ...]
    n_images: int
    protocol: str
    columns: tuple[str, ...]
    networks: tuple[PlannedNetwork, ...]

    @property
    def n_evaluations(self) -> int:
        return len(self.strengths) * len(self.networks)

    def ids(self) -> Iterator[str]:
        """Return the ids of the units, in the order of the networks."""
        return (
            unit_id(self.space, network.architecture, network.checkpoint_sha256, self.protocol)
            for network in self.networks
        )

    def unit(self, position: int) -> Unit:
        """Return the unit of the network at a position in `networks`."""
        architecture, sha256, weights = self.networks[position]
        return Unit(
            id=unit_id(self.space, architecture, sha256, self.protocol),
            architecture=architecture,
            dataset=self.dataset,
            key=self.key,
            strengths=self.strengths,
            n_images=self.n_images,
            protocol=self.protocol,
            checkpoint_sha256=sha256,
            weights=weights,
            columns=self.columns,
        )


@dataclass(frozen=True)
class Plan:
    """All units of a sweep, grouped by dataset and key; `units` lists them individually (290,970 in the paper's sweep).

    Attributes:
        planned_keys: units, sorted by dataset and key; the networks of each are sorted by architecture and weights.
        protocols: protocols by digest, in the order of datasets and keys.
        facts: hashes of the sweep's inputs.
    """

    config: SweepConfig
    planned_keys: tuple[PlannedKey, ...]
    protocols: Mapping[str, EvaluationProtocol]
    facts: InputFacts

    @classmethod
    def of_units(
        cls, config: SweepConfig, units: Iterable[Unit], protocols: Mapping[str, EvaluationProtocol], facts: InputFacts
    ) -> "Plan":
        """Group units, which must be sorted by dataset and key, into a plan."""

        def common_fields(unit: Unit) -> tuple[str, str, tuple[float, ...], int, str, tuple[str, ...]]:
            return unit.dataset, unit.key, unit.strengths, unit.n_images, unit.protocol, unit.columns

        planned_keys = []
        for fields, group in groupby(units, common_fields):
            networks = tuple(PlannedNetwork(unit.architecture, unit.checkpoint_sha256, unit.weights) for unit in group)
            planned_keys.append(PlannedKey(config.space_name, *fields, networks))
        return cls(config, tuple(planned_keys), protocols, facts)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """All units, sorted by dataset, key, architecture and weights."""
        return tuple(
            planned_key.unit(position)
            for planned_key in self.planned_keys
            for position in range(len(planned_key.networks))
        )

    @cached_property
    def n_units(self) -> int:
        return sum(len(planned_key.networks) for planned_key in self.planned_keys)

    @cached_property
    def unit_ids(self) -> NDArray[np.bytes_]:
        """Ids of all units, in the order of `units`."""
        ids = (identifier.encode() for planned_key in self.planned_keys for identifier in planned_key.ids())
        return np.fromiter(ids, dtype="S32", count=self.n_units)

    def find_units(self, ids: Collection[str]) -> dict[str, Unit]:
        """Return units by id; ids that are not in the plan are ignored."""
        if not ids:
            return {}
        starts = np.cumsum([0, *(len(planned_key.networks) for planned_key in self.planned_keys)])
        units = {}
        encoded_ids = np.array([identifier.encode() for identifier in ids])
        for position in np.flatnonzero(np.isin(self.unit_ids, encoded_ids)).tolist():
            key_index = int(np.searchsorted(starts, position, side="right")) - 1
            unit = self.planned_keys[key_index].unit(position - int(starts[key_index]))
            units[unit.id] = unit
        return units

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the datasets, in the order of the YAML."""
        return tuple(self.config.datasets)

    @property
    def measurements(self) -> tuple[str, ...]:
        return self.config.measurements

    @property
    def space_name(self) -> str:
        return self.config.space_name

    def n_classes(self, dataset: str) -> int:
        return self.config.dataset_spec(dataset).n_classes

    def measurements_of(self, key: str) -> tuple[str, ...]:
        """Return the measurements of a key: the columns if it is a measure, otherwise the sweep's measurements."""
        return self.tasks[key].columns or self.config.measurements

    @cached_property
    def parameters(self) -> dict[str, Parameters]:
        return self.config.parameters

    @cached_property
    def tasks(self) -> dict[str, Task]:
        return self.config.tasks

    @cached_property
    def evaluations_by_key(self) -> Counter[tuple[str, str]]:
        """Number of evaluations by dataset and key."""
        counts: Counter[tuple[str, str]] = Counter()
        for planned_key in self.planned_keys:
            counts[planned_key.dataset, planned_key.key] += planned_key.n_evaluations
        return counts

    @cached_property
    def n_evaluations(self) -> int:
        return sum(self.evaluations_by_key.values())

    @cached_property
    def known_ids(self) -> frozenset[str]:
        """Ids of the units whose images exist, so that their protocol is complete (see `identity.is_complete`)."""
        known_keys = (
            planned_key for planned_key in self.planned_keys if is_complete(self.protocols[planned_key.protocol])
        )
        return frozenset(identifier for planned_key in known_keys for identifier in planned_key.ids())

    def keys(self, dataset: str) -> tuple[str, ...]:
        """Return the keys evaluated on a dataset, in the order of the table of tasks."""
        return self.config.keys_of(dataset)

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        del dataset  # strengths are currently the same on every dataset, but callers must not rely on this
        return self.parameters[key].strengths

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """Weights by the short names that units contain; empty if each network has only one set of weights."""
        if not self.config.has_several_weights:
            return {}
        weights_of_networks = (
            network_weights
            for weights_by_network in self.facts.weights.values()
            for network_weights in weights_by_network.values()
        )
        return {weights.name: weights for network_weights in weights_of_networks for weights in network_weights}

    def recorded_accuracies(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, float, int]]:
        """Yield the units whose weights have a recorded accuracy, with that accuracy and the size of the test split."""
        accuracies = self.facts.test_accuracies
        for unit in units:
            n_test = self.config.dataset_spec(unit.dataset).n_test
            if unit.checkpoint_sha256 in accuracies and n_test != UNKNOWN_COUNT:
                yield unit, accuracies[unit.checkpoint_sha256], n_test

    def describe(self) -> dict[str, Any]:
        """Describe the origin of results for exports, as a JSON value without paths of this machine."""
        config = self.config
        return {
            "name": config.name,
            "space": config.space_name,
            "network": dict(config.make_space(self.facts.code).identity()),
            "images": config.images.model_dump(),
            "seed": config.seed,
            "measurements": list(config.measurements),
            "protocols": [protocol.payload for protocol in self.protocols.values()],
        }

    def portable_fields(self) -> dict[str, Any]:
        return portable_fields(self.config)

    def narrow(
        self,
        *,
        architectures: Collection[ArchitectureId] | None = None,
        datasets: Collection[str] | None = None,
        keys: Collection[str] | None = None,
    ) -> "Plan":
        """Return a plan of the units that match all filters; None matches everything."""
        planned_keys = []
        for planned_key in self.planned_keys:
            if planned_key.dataset in (datasets or self.datasets) and (keys is None or planned_key.key in keys):
                networks = tuple(
                    network
                    for network in planned_key.networks
                    if architectures is None or network.architecture in architectures
                )
                planned_keys += [replace(planned_key, networks=networks)] if networks else []
        return replace(self, planned_keys=tuple(planned_keys))

    def unit_macs(self, planned_key: PlannedKey) -> list[float]:
        """Estimate the multiply-accumulates of each unit of a key, in the order of its networks."""
        factor = self._passes[planned_key.dataset, planned_key.key] * len(planned_key.strengths) * planned_key.n_images
        return [
            self._network_macs[planned_key.dataset, network.architecture] * factor for network in planned_key.networks
        ]

    def macs(self, part: Part) -> float:
        """Estimate the multiply-accumulates of a part."""
        unit = part.unit
        per_pass = self._network_macs[unit.dataset, unit.architecture]
        return per_pass * self._passes[unit.dataset, unit.key] * len(part.strengths) * (part.stop - part.start)

    def passes(self, dataset: str, key: str) -> float:
        """Return the number of passes through the network per image and strength."""
        return self._passes[dataset, key]

    def network_macs(self, dataset: str, architecture: ArchitectureId) -> float:
        """Return the multiply-accumulates per pass; KeyError if the network is not in the plan."""
        return self._network_macs[dataset, architecture]

    @cached_property
    def _passes(self) -> dict[tuple[str, str], float]:
        """Passes through the network per image and strength, by dataset and key."""
        return {
            (dataset, key): self.tasks[key].passes(self.parameters[key], self.n_classes(dataset))
            for dataset in self.datasets
            for key in self.keys(dataset)
        }

    @cached_property
    def _network_macs(self) -> dict[tuple[str, ArchitectureId], float]:
        """Multiply-accumulates per pass through a network, by dataset and architecture."""
        space = self.config.make_space(self.facts.code)
        specs = {dataset: self.config.dataset_spec(dataset) for dataset in self.datasets}
        networks = {
            (planned_key.dataset, network.architecture)
            for planned_key in self.planned_keys
            for network in planned_key.networks
        }
        return {
            (dataset, architecture): space.macs(
                architecture, n_classes=specs[dataset].n_classes, image_size=specs[dataset].image_size
            )
            for dataset, architecture in networks
        }

    def seconds(self, part: Part) -> float:
        """Estimate a part's time on one worker (see `ExecutionSection.assumed_gmacs`)."""
        return self.macs(part) / (self.config.execution.assumed_gmacs() * 1e9)


def make_plan(config: SweepConfig, facts: InputFacts) -> Plan:
    """Plan all units of a sweep; equal arguments give equal unit ids on every machine."""
    protocols: dict[str, EvaluationProtocol] = {}
    planned_keys: list[PlannedKey] = []
    parameters, tasks = config.parameters, config.tasks
    for dataset in config.datasets:
        networks = tuple(_planned_networks(config, facts.weights[dataset]))
        for key in config.keys_of(dataset):
            protocol = EvaluationProtocol.of(protocol_payload(config, dataset, key, facts))
            protocols[protocol.digest] = protocol
            planned_keys.append(
                PlannedKey(
                    space=config.space_name,
                    dataset=dataset,
                    key=key,
                    strengths=parameters[key].strengths,
                    n_images=facts.datasets[dataset].images(parameters[key].own_images).n_images,
                    protocol=protocol.digest,
                    columns=tasks[key].columns,
                    networks=networks,
                )
            )
    return Plan(config, tuple(planned_keys), protocols, facts)


def _planned_networks(
    config: SweepConfig, weights_by_architecture: Mapping[ArchitectureId, Sequence[Weights]]
) -> Iterator[PlannedNetwork]:
    for architecture in config.selected_architectures:
        for weights in weights_by_architecture[architecture]:
            yield PlannedNetwork(architecture, weights.sha256, weights.name if config.has_several_weights else "")


def assumed_facts(config: SweepConfig) -> InputFacts:
    """Return facts with placeholder hashes, for counting only; units planned from them have invalid ids."""
    placeholder = "0" * 64
    datasets = {}
    for name in config.datasets:
        own_images = {
            selection: ImageFacts(_assumed_count(config, name, selection), placeholder)
            for selection in config.own_images
        }
        corruptions: dict[str, dict[str, str]] = {
            key: {} for key in config.keys_of(name) if config.tasks[key].kind == "corruption"
        }
        count = _assumed_count(config, name, ImageSelection("test", config.images.count, config.images.seed))
        datasets[name] = DatasetFacts(count, placeholder, corruptions, own_images)
    weights_by_architecture = dict.fromkeys(config.selected_architectures, config.placeholder_weights(placeholder))
    return InputFacts(datasets, dict.fromkeys(config.datasets, weights_by_architecture))


def _assumed_count(config: SweepConfig, dataset: str, selection: ImageSelection) -> int:
    """Count selected images; read them only if the table of datasets lacks their number, as for custom datasets."""
    section, spec = config.datasets[dataset], config.dataset_spec(dataset)
    count = selection.count or (spec.n_test if selection.split == "test" else spec.n_train)
    if count != UNKNOWN_COUNT:
        return count
    try:
        return len(load_images(spec, form=section.form, path=section.path, split=selection.split))
    except DatasetError:  # the images may not be there yet when a sweep is planned; `doctor` reports the reason
        return UNKNOWN_COUNT
