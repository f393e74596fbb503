"""The plan of a sweep: its units, computed from its configuration and the hashes of its inputs.

A unit is all results of one network on one dataset under one key. Planning is deterministic and does not need torch.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robust201.core.errors import ConfigError, DatasetError
from robust201.core.records import ArchitectureId, EvaluationProtocol, ImageSelection, Part, Unit, Weights, unit_id
from robust201.images import load_images
from robust201.images.specs import UNKNOWN_COUNT
from robust201.planning.budgets import SampleCosts, sample_sizes
from robust201.planning.config import SweepConfig
from robust201.planning.identity import has_known_images, is_complete, protocol_payload, sampled_payload
from robust201.planning.input_facts import DatasetFacts, ImageFacts, InputFacts
from robust201.planning.samples import choose_pilot
from robust201.planning.sampling_section import parse_budget
from robust201.planning.sweep_record import portable_fields
from robust201.planning.transfers import TransferParameters
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
    images: str = ""

    @property
    def dataset_and_key(self) -> tuple[str, str]:
        return self.dataset, self.key

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
            images=self.images,
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

        def common_fields(unit: Unit) -> tuple[str, str, tuple[float, ...], int, str, tuple[str, ...], str]:
            return unit.dataset, unit.key, unit.strengths, unit.n_images, unit.protocol, unit.columns, unit.images

        planned_keys = []
        for fields, group in groupby(units, common_fields):
            networks = tuple(PlannedNetwork(unit.architecture, unit.checkpoint_sha256, unit.weights) for unit in group)
            planned_keys.append(PlannedKey(config.space_name, *fields[:-1], networks, fields[-1]))
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

    @cached_property
    def unit_ids_and_replacement_ids(self) -> NDArray[np.bytes_]:
        """Ids of the plan's units, and of the units on all images that replace a sample when it contains all images."""
        if self.config.sampling is None:
            return self.unit_ids
        return np.union1d(self.unit_ids, plan_on_all_images(self).unit_ids)

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
        """Number of evaluations by dataset and key; all increments of a network's sample count as one evaluation."""
        counts: Counter[tuple[str, str]] = Counter()
        sampled_evaluations: defaultdict[tuple[str, str], set[tuple[ArchitectureId, float]]] = defaultdict(set)
        for planned_key in self.planned_keys:
            if is_sampled(self, planned_key):
                architectures = (network.architecture for network in planned_key.networks)
                sampled_evaluations[planned_key.dataset_and_key].update(
                    itertools.product(architectures, planned_key.strengths)
                )
            else:
                counts[planned_key.dataset_and_key] += planned_key.n_evaluations
        counts.update({dataset_key: len(evaluations) for dataset_key, evaluations in sampled_evaluations.items()})
        return counts

    @property
    def n_network_keys(self) -> int:
        """Number of combinations of network, key and dataset, each of which is one unit or several increments."""
        increment_keys = (planned_key for planned_key in self.planned_keys if is_sampled(self, planned_key))
        n_networks = Counter[tuple[str, str]]()
        for planned_key in increment_keys:
            dataset_key = planned_key.dataset_and_key
            n_networks[dataset_key] = max(n_networks[dataset_key], len(planned_key.networks))
        unsampled_keys = (planned_key for planned_key in self.planned_keys if not is_sampled(self, planned_key))
        return n_networks.total() + sum(len(planned_key.networks) for planned_key in unsampled_keys)

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
        passes = (self._source_passes if unit.makes_images else self._passes)[unit.dataset, unit.key]
        return per_pass * passes * len(part.strengths) * (part.stop - part.start)

    def passes(self, dataset: str, key: str) -> float:
        """Return the number of passes through the network per image and strength."""
        return self._passes[dataset, key]

    def network_macs(self, dataset: str, architecture: ArchitectureId) -> float:
        """Return the multiply-accumulates per pass; KeyError if the network is not in the plan."""
        return self._network_macs[dataset, architecture]

    @property
    def source_macs(self) -> float:
        """Estimate the multiply-accumulates of generating the images of transfers on their sources."""
        sources = self.config.transfers
        return sum(
            self._network_macs[planned_key.dataset, sources[planned_key.key]]
            * self._source_passes[planned_key.dataset, planned_key.key]
            * len(planned_key.strengths)
            * planned_key.n_images
            for planned_key in self.planned_keys
            if planned_key.key in sources
        )

    def source_unit(self, dataset: str, key: str) -> Unit:
        """Return the unit that generates a transfer's images on its source; it has no results and is in no plan."""
        architecture, parameters = self.config.transfers[key], self.parameters[key]
        assert isinstance(parameters, TransferParameters)  # noqa: S101 - `transfers` contains only these
        planned_key = next(candidate for candidate in self.planned_keys if candidate.dataset_and_key == (dataset, key))
        weights = parameters.choose_weights(self.facts.weights[dataset][architecture])
        return Unit(
            id=unit_id(f"images on {self.space_name}", architecture, weights.sha256, planned_key.protocol),
            architecture=architecture,
            dataset=dataset,
            key=key,
            strengths=planned_key.strengths,
            n_images=planned_key.n_images,
            protocol=planned_key.protocol,
            checkpoint_sha256=weights.sha256,
            weights=weights.name if self.config.has_several_weights else "",
            makes_images=True,
        )

    @cached_property
    def _passes(self) -> dict[tuple[str, str], float]:
        """Passes through the network per image and strength, by dataset and key."""
        return {
            (dataset, key): self.tasks[key].passes(self.parameters[key], self.n_classes(dataset))
            for dataset in self.datasets
            for key in self.keys(dataset)
        }

    @cached_property
    def _source_passes(self) -> dict[tuple[str, str], float]:
        """Passes through a transfer's source per image and strength, by dataset and key."""
        return {
            (dataset, key): parameters.attack_task.passes(parameters.attack, self.n_classes(dataset))
            for key, parameters in self.parameters.items()
            if isinstance(parameters, TransferParameters)
            for dataset in self.datasets
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
        transfers = self.config.transfers  # a narrowed plan may not contain the sources
        networks |= {
            (planned_key.dataset, transfers[planned_key.key])
            for planned_key in self.planned_keys
            if planned_key.key in transfers
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
    plan = plan_without_samples(config, facts)
    return plan if config.sampling is None else _plan_samples(plan)


def plan_without_samples(config: SweepConfig, facts: InputFacts) -> Plan:
    """Plan all units on all images, even if the sweep samples them."""
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


def sample_costs(plan: Plan) -> SampleCosts:
    """Estimate the fixed costs of a sampled sweep and its costs per image, from its `plan_without_samples`."""
    section = plan.config.sampling
    assert section is not None  # noqa: S101 - called only for sampled sweeps
    pilot, sampled_keys = set(pilot_of(plan)), set(plan.config.sampled_keys)
    fixed, per_image, n_images = plan.source_macs, dict[tuple[str, str], float](), dict[tuple[str, str], int]()
    for planned_key in plan.planned_keys:
        macs = plan.unit_macs(planned_key)
        if planned_key.key not in sampled_keys:
            fixed += sum(macs)
            continue
        pilot_flags = [network.architecture in pilot for network in planned_key.networks]
        fixed += sum(cost for cost, is_pilot in zip(macs, pilot_flags, strict=True) if is_pilot)
        sampled_cost = sum(cost for cost, is_pilot in zip(macs, pilot_flags, strict=True) if not is_pilot)
        if planned_key.n_images:
            dataset_key = planned_key.dataset_and_key
            per_image[dataset_key], n_images[dataset_key] = sampled_cost / planned_key.n_images, planned_key.n_images
    return SampleCosts(fixed, per_image, n_images, 3600e9 * plan.config.execution.assumed_gmacs())


def pilot_of(plan: Plan) -> tuple[ArchitectureId, ...]:
    """Return the pilot networks of a sampled sweep: those recorded with its samples or, before these exist, chosen.

    The choice depends only on the seed and the sweep's architectures.
    """
    if plan.facts.samples is not None:
        return plan.facts.samples.pilot
    section = plan.config.sampling
    assert section is not None  # noqa: S101 - called only for sampled sweeps
    return choose_pilot(plan.config.selected_architectures, section.pilot, section.seed)


def _plan_samples(plan: Plan) -> Plan:
    """For sampled keys, replace the units of networks outside the pilot with units on increments of samples.

    If the budget allows more images than have been drawn, units with an empty image hash represent the undrawn images.
    """
    config, samples = plan.config, plan.facts.samples
    assert config.sampling is not None  # noqa: S101 - called only for sampled sweeps
    sizes = sample_sizes(sample_costs(plan), parse_budget(config.sampling.budget), config.name)
    protocols: dict[str, EvaluationProtocol] = {}
    planned_keys: list[PlannedKey] = []
    for planned_key in plan.planned_keys:
        protocol = plan.protocols[planned_key.protocol]
        dataset_key = planned_key.dataset_and_key
        sample = None if samples is None else samples.key_samples.get(dataset_key)
        protocols[protocol.digest] = protocol
        fully_evaluated = _networks_on_all_images(plan, dataset_key)
        sampled_networks = tuple(
            network for network in planned_key.networks if network.architecture not in fully_evaluated
        )
        if (
            dataset_key not in sizes
            or not sampled_networks
            or (sample is None and sizes[dataset_key] == planned_key.n_images)
        ):
            planned_keys.append(planned_key)
            continue
        full_networks = tuple(network for network in planned_key.networks if network.architecture in fully_evaluated)
        planned_keys.append(replace(planned_key, networks=full_networks))
        increments = (
            [] if sample is None else [(increment.sha256, len(increment.positions)) for increment in sample.increments]
        )
        n_undrawn = sizes[dataset_key] - sum(count for _, count in increments)
        for sha256, count in (*increments, *([("", n_undrawn)] if n_undrawn > 0 else [])):
            sample_protocol = EvaluationProtocol.of(sampled_payload(protocol.payload, sha256))
            protocols[sample_protocol.digest] = sample_protocol
            planned_keys.append(
                replace(
                    planned_key,
                    networks=sampled_networks,
                    n_images=count,
                    protocol=sample_protocol.digest,
                    images=sha256,
                )
            )
    return replace(plan, planned_keys=tuple(planned_keys), protocols=protocols)


def _networks_on_all_images(plan: Plan, dataset_and_key: tuple[str, str]) -> set[ArchitectureId]:
    """Return the networks that a sampled key evaluates on all images.

    These are the pilot networks and `Samples.fully_evaluated_networks`.
    """
    samples = plan.facts.samples
    return {*pilot_of(plan), *(() if samples is None else samples.fully_evaluated_networks.get(dataset_and_key, ()))}


def describe_smaller_budget(plan: Plan) -> str:
    """Describe in one line the samples that are larger than the budget allows; return "" if there are none."""
    section, samples = plan.config.sampling, plan.facts.samples
    if section is None or samples is None:
        return ""
    costs = sample_costs(plan_without_samples(plan.config, plan.facts))
    affordable_sizes = sample_sizes(costs, parse_budget(section.budget), plan.config.name)
    architectures = set(plan.config.selected_architectures)
    current_sizes = {
        dataset_key: count
        for dataset_key, count in costs.n_images.items()
        if architectures <= _networks_on_all_images(plan, dataset_key)
    }
    current_sizes |= {dataset_key: sample.n_seen for dataset_key, sample in samples.key_samples.items()}
    larger_samples = [
        f"{key} on {dataset} has {current_sizes[dataset, key]:,} images instead of {size:,}"
        for (dataset, key), size in affordable_sizes.items()
        if current_sizes.get((dataset, key), 0) > size
    ]
    if not larger_samples:
        return ""
    return (
        f"The budget {section.budget} pays for fewer images than an earlier budget of the sweep in "
        f"{plan.config.results} did. The larger samples stay in use: {'; '.join(larger_samples)}."
    )


def plan_on_all_images(plan: Plan) -> Plan:
    """Return the plan of all units whose accuracies are exact because they are evaluated on all images.

    If a sample contains all images of its key, units on all images replace the units on its increments. Other units on
    samples are removed.
    """
    if plan.config.sampling is None:
        return plan
    samples = {} if plan.facts.samples is None else plan.facts.samples.key_samples
    full_keys = {dataset_key for dataset_key, sample in samples.items() if sample.is_full}
    full_plan = plan_without_samples(plan.config, plan.facts)
    keys_of_plan = {planned_key.dataset_and_key for planned_key in plan.planned_keys}
    planned_keys = [
        planned_key
        for planned_key in full_plan.planned_keys
        if planned_key.dataset_and_key in full_keys.intersection(keys_of_plan)
    ]
    planned_keys += [
        planned_key
        for planned_key in plan.planned_keys
        if planned_key.dataset_and_key not in full_keys and not is_sampled(plan, planned_key)
    ]
    sampled_keys = {planned_key.dataset_and_key for planned_key in plan.planned_keys if is_sampled(plan, planned_key)}
    if not sampled_keys - full_keys:  # then the export must equal the export of a sweep without samples
        full_plan = replace(full_plan, config=plan.config.model_copy(update={"sampling": None}))
    order = {planned_key.dataset_and_key: index for index, planned_key in enumerate(full_plan.planned_keys)}
    planned_keys.sort(key=lambda planned_key: order[planned_key.dataset_and_key])
    return replace(full_plan, planned_keys=tuple(planned_keys))


def check_sampled_protocols(plan: Plan) -> None:
    """Raise ConfigError if samples were drawn for protocols that differ from the sweep's current protocols."""
    samples = {} if plan.config.sampling is None or plan.facts.samples is None else plan.facts.samples.key_samples
    for planned_key in plan.planned_keys:
        sample = samples.get((planned_key.dataset, planned_key.key))
        if sample is not None and not is_sampled(plan, planned_key) and planned_key.protocol != sample.protocol:
            raise ConfigError(
                f"Sampling failed for {planned_key.dataset} {planned_key.key} in {plan.config.results}: the "
                "parameters, seed, images or code of the key changed after its sample was drawn. Restore them, or "
                "choose another results folder."
            )


def remove_undrawn_samples(plan: Plan) -> tuple[Plan, int]:
    """Return the plan without units of undrawn samples, and the number of evaluations removed."""
    drawn_keys = [
        planned_key for planned_key in plan.planned_keys if has_known_images(plan.protocols[planned_key.protocol])
    ]
    undrawn_keys = (
        planned_key for planned_key in plan.planned_keys if not has_known_images(plan.protocols[planned_key.protocol])
    )
    return replace(plan, planned_keys=tuple(drawn_keys)), sum(planned_key.n_evaluations for planned_key in undrawn_keys)


def is_sampled(plan: Plan, planned_key: PlannedKey) -> bool:
    """Return whether units are evaluated on a sample of the images, which may not have been drawn yet."""
    return "sample_of" in plan.protocols[planned_key.protocol].payload["images"]


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
