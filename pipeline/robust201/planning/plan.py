"""From a sweep and the hashes of its inputs to units: pure and deterministic, no torch."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from robust201.core.errors import ConfigError, DatasetError, closest
from robust201.core.records import ArchitectureId, EvaluationProtocol, ImageSelection, Part, Unit, Weights, unit_id
from robust201.images import load_images
from robust201.images.specs import UNKNOWN_COUNT
from robust201.planning.config import SweepConfig
from robust201.planning.cost import assumed_gmacs
from robust201.planning.facts import DatasetFacts, Facts, ImageFacts
from robust201.planning.identity import is_known, protocol_payload
from robust201.planning.sweep_record import describe_sweep, portable_fields
from robust201.tasks import Task
from robust201.tasks.parameters import Parameters


@dataclass(frozen=True)
class Plan:
    """Every unit of a sweep, sorted by dataset, key, architecture and weights.

    Attributes:
        protocols: by digest, in the order of datasets and keys.
        facts: hashes of what the sweep reads.
    """

    config: SweepConfig
    units: tuple[Unit, ...]
    protocols: Mapping[str, EvaluationProtocol]
    facts: Facts

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the datasets, in the order of the YAML."""
        return tuple(self.config.datasets)

    @property
    def measurements(self) -> tuple[str, ...]:
        """Names of the measurements of answers to images."""
        return self.config.measurements

    @property
    def space_name(self) -> str:
        """Name of the space of the architectures."""
        return self.config.space_name

    def n_classes(self, dataset: str) -> int:
        """Number of classes of a dataset."""
        return self.config.dataset_spec(dataset).n_classes

    def measurements_of(self, key: str) -> tuple[str, ...]:
        """Names of the measurements of a key: those of the sweep, or the columns of a measure."""
        return self.tasks[key].columns or self.config.measurements

    @cached_property
    def parameters(self) -> dict[str, Parameters]:
        """Parameters by key."""
        return self.config.parameters

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """What is done, by key."""
        return self.config.tasks

    @cached_property
    def n_evaluations(self) -> int:
        """Number of evaluations: strengths summed over the units."""
        return sum(len(unit.strengths) for unit in self.units)

    @cached_property
    def known_ids(self) -> frozenset[str]:
        """Ids of the units whose protocol is known (see `planning.identity.is_known`)."""
        return frozenset(unit.id for unit in self.units if is_known(self.protocols[unit.protocol]))

    def keys(self, dataset: str) -> tuple[str, ...]:
        """Keys evaluated on a dataset, in the order of the table."""
        return self.config.keys_of(dataset)

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Strengths of a key, ascending."""
        del dataset  # the same on every dataset today; callers need not know
        return self.parameters[key].strengths

    @cached_property
    def weights(self) -> dict[str, Weights]:
        """Weights by the short names that units have; empty where each network has one state."""
        states = (state for networks in self.facts.weights.values() for found in networks.values() for state in found)
        return {} if not self.config.has_several_weights else {state.name: state for state in states}

    def describe(self) -> dict[str, Any]:
        """What an export records about how its numbers came about (see `planning.sweep_record`)."""
        return describe_sweep(self.config, self.facts, self.protocols.values())

    def portable_fields(self) -> dict[str, Any]:
        """Fields of a sweep YAML that computes the same numbers (see `planning.sweep_record`)."""
        return portable_fields(self.config)

    def narrow(
        self,
        *,
        architectures: Collection[ArchitectureId] | None = None,
        datasets: Collection[str] | None = None,
        keys: Collection[str] | None = None,
        weights: Collection[str] | None = None,
    ) -> "Plan":
        """Keep the units that match every filter given.

        Raises:
            ConfigError: a dataset, key or name of weights is not in the plan (the closest is named), or no unit is
                left.
        """
        for given, known, what in (
            (datasets, set(self.datasets), "dataset"),
            (keys, {unit.key for unit in self.units}, "key"),
            (weights, {unit.weights for unit in self.units} - {""}, "weights"),
        ):
            for name in given or ():
                if name not in known:
                    raise ConfigError(
                        f"Narrowing the sweep failed for {what} {name!r}: expected one of this sweep's, got another."
                        f"{closest(name, sorted(known))}"
                    )
        units = tuple(
            unit
            for unit in self.units
            if (architectures is None or unit.architecture in architectures)
            and (datasets is None or unit.dataset in datasets)
            and (keys is None or unit.key in keys)
            and (weights is None or unit.weights in weights)
        )
        if not units:
            raise ConfigError(
                "Narrowing the sweep failed: expected at least one network and key to match, got none. "
                "Check --architectures, --datasets and --keys against the sweep YAML."
            )
        return Plan(self.config, units, self.protocols, self.facts)

    def macs(self, part: Part) -> float:
        """Estimate a part's work in multiply-accumulates."""
        unit = part.unit
        per_pass = self._network_macs[unit.dataset, unit.architecture]
        return per_pass * self._passes[unit.dataset, unit.key] * len(part.strengths) * (part.stop - part.start)

    @cached_property
    def _passes(self) -> dict[tuple[str, str], float]:
        """Passes through the network that an image takes at a strength, by dataset and key."""
        return {
            (dataset, key): self.tasks[key].passes(self.parameters[key], self.n_classes(dataset))
            for dataset in self.datasets
            for key in self.keys(dataset)
        }

    @cached_property
    def _network_macs(self) -> dict[tuple[str, ArchitectureId], float]:
        space = self.config.make_space(self.facts.code)
        specs = {dataset: self.config.dataset_spec(dataset) for dataset in self.datasets}
        return {
            (dataset, architecture): space.macs(
                architecture, n_classes=specs[dataset].n_classes, image_size=specs[dataset].image_size
            )
            for dataset, architecture in {(unit.dataset, unit.architecture) for unit in self.units}
        }

    def seconds(self, part: Part) -> float:
        """Estimate a part's time on one worker (see `planning.cost.assumed_gmacs`)."""
        return self.macs(part) / (assumed_gmacs(self.config.execution) * 1e9)


def make_plan(config: SweepConfig, facts: Facts) -> Plan:
    """Write out every unit of a sweep; equal arguments give equal ids on every machine."""
    protocols: dict[str, EvaluationProtocol] = {}
    units: list[Unit] = []
    parameters, tasks = config.parameters, config.tasks
    space, architectures = config.space_name, config.selected_architectures
    named = config.has_several_weights
    for dataset in config.datasets:
        for key in config.keys_of(dataset):
            protocol = EvaluationProtocol.of(protocol_payload(config, dataset, key, facts))
            protocols[protocol.digest] = protocol
            strengths, columns = parameters[key].strengths, tasks[key].columns
            n_images = facts.datasets[dataset].images(parameters[key].own_images).n_images
            units.extend(
                Unit(
                    id=unit_id(space, architecture, weights.sha256, protocol.digest),
                    architecture=architecture,
                    dataset=dataset,
                    key=key,
                    strengths=strengths,
                    n_images=n_images,
                    protocol=protocol.digest,
                    checkpoint_sha256=weights.sha256,
                    weights=weights.name if named else "",
                    columns=columns,
                )
                for architecture in architectures
                for weights in facts.weights[dataset][architecture]
            )
    return Plan(config, tuple(units), protocols, facts)


def assumed_facts(config: SweepConfig) -> Facts:
    """Assume hashes of zeros and whole test splits, for counting alone: units planned with them have no identity."""
    nothing = "0" * 64
    datasets = {}
    for name in config.datasets:
        own = {wanted: ImageFacts(_assumed_count(config, name, wanted), nothing) for wanted in config.own_images}
        corruptions: dict[str, dict[str, str]] = {
            key: {} for key in config.keys_of(name) if config.tasks[key].kind == "corruption"
        }
        count = _assumed_count(config, name, ImageSelection("test", config.images.count, config.images.seed))
        datasets[name] = DatasetFacts(count, nothing, corruptions, own)
    states = config.assumed_weights(nothing)
    networks = dict.fromkeys(config.selected_architectures, states)
    return Facts(datasets, dict.fromkeys(config.datasets, networks))


def _assumed_count(config: SweepConfig, dataset: str, wanted: ImageSelection) -> int:
    """Count images without reading them, but for those of the user's own, which no table counts."""
    section, spec = config.datasets[dataset], config.dataset_spec(dataset)
    count = wanted.count or (spec.n_test if wanted.split == "test" else spec.n_train)
    if count != UNKNOWN_COUNT:
        return count
    try:
        return len(load_images(spec, form=section.form, path=section.path, split=wanted.split))
    except DatasetError:  # who plans without them may not have them yet; `doctor` says what is wrong
        return UNKNOWN_COUNT
