"""From a sweep and the hashes of its inputs to units, parts and bundles: pure and deterministic, no disk, no torch."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from robust201.core.errors import ConfigError, closest
from robust201.core.files import portable_name
from robust201.core.records import Bundle, Part, Protocol, Unit, unit_id
from robust201.images import DATASETS
from robust201.planning.config import CORRUPTION_GROUP, SweepConfig
from robust201.planning.cost import assumed_gmacs, cpu_gmacs, may_turn_out_slow
from robust201.spaces.nasbench201 import cells as nasbench201
from robust201.tasks import CORRUPTIONS, PERTURBATIONS
from robust201.tasks.parameters import Parameters

# Sizes of the trial in docs/cifar10-trial.md (10 classes, uncompacted): a confusion count takes .8 bytes of Parquet and
# 3.3 of JSON, a mean confidence 6.1 and 21.7, the rest of a row with its share of the footer 670. At 100 classes it is
# unmeasured.
_SHARD_BYTES_PER_COUNT, _SHARD_BYTES_PER_MEAN, _SHARD_BYTES_PER_ROW = 1, 6, 670
_JSON_BYTES_PER_COUNT, _JSON_BYTES_PER_MEAN = 3, 22


@dataclass(frozen=True)
class DatasetFacts:
    """What planning must know of a dataset's images.

    Attributes:
        n_images: images selected.
        images_sha256: `ImageSet.sha256` of the selection.
        corruptions: identity payload of each corruption key's images (source, hash and, where generated, recipe).
    """

    n_images: int
    images_sha256: str
    corruptions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Facts:
    """Hashes of everything a sweep reads: what identity is made of.

    Attributes:
        datasets: by name.
        checkpoints: SHA-256 of the weights' file by dataset and architecture index.
    """

    datasets: Mapping[str, DatasetFacts]
    checkpoints: Mapping[str, Mapping[int, str]]

    def to_payload(self) -> dict[str, Any]:
        """JSON value that `from_payload` reads."""
        return {
            "datasets": {
                name: {
                    "n_images": facts.n_images,
                    "images_sha256": facts.images_sha256,
                    "corruptions": facts.corruptions,
                }
                for name, facts in self.datasets.items()
            },
            "checkpoints": {
                dataset: {str(index): digest for index, digest in digests.items()}
                for dataset, digests in self.checkpoints.items()
            },
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> "Facts":
        """Read what `to_payload` wrote."""
        return cls(
            {name: DatasetFacts(**facts) for name, facts in payload["datasets"].items()},
            {
                dataset: {int(index): digest for index, digest in digests.items()}
                for dataset, digests in payload["checkpoints"].items()
            },
        )


@dataclass(frozen=True)
class Plan:
    """Every unit of a sweep, sorted by dataset, key and architecture.

    Attributes:
        config: the sweep.
        units: all units.
        protocols: by digest, in the order of datasets and keys.
        slice_seconds: estimated time at which a part is cut that a worker commits as a whole.
    """

    config: SweepConfig
    units: tuple[Unit, ...]
    protocols: Mapping[str, Protocol]
    slice_seconds: ClassVar[float] = 300.0

    @property
    def datasets(self) -> tuple[str, ...]:
        """Names of the datasets, in the order of the YAML."""
        return tuple(self.config.datasets)

    @property
    def measurements(self) -> tuple[str, ...]:
        """Names of the measurements."""
        return self.config.measurements

    @cached_property
    def parameters(self) -> dict[str, Parameters]:
        """Parameters by key."""
        return self.config.parameters

    @cached_property
    def n_evaluations(self) -> int:
        """Number of evaluations: strengths summed over the units."""
        return sum(len(unit.strengths) for unit in self.units)

    def keys(self, dataset: str) -> tuple[str, ...]:
        """Keys evaluated on a dataset, in the order of the table."""
        return self.config.keys_of(dataset)

    def strengths(self, dataset: str, key: str) -> tuple[float, ...]:
        """Strengths of a key, ascending."""
        del dataset  # the same on every dataset today; callers need not know
        return self.parameters[key].strengths

    def meta_payload(self) -> dict[str, Any]:
        """What an export tells about how its numbers came about: a JSON value without paths of this machine."""
        return {
            "name": self.config.name,
            "space": self.config.space,
            "network": self.config.network.model_dump(),
            "images": self.config.images.model_dump(),
            "seed": self.config.seed,
            "measurements": list(self.measurements),
            "protocols": [protocol.payload for protocol in self.protocols.values()],
        }

    def sweep_payload(self) -> dict[str, Any]:
        """Fields of a sweep YAML that computes the same numbers, every default written out; nothing is of machines."""
        fields = self.config.model_dump(mode="json", exclude={"execution", "shards"})
        fields["results"] = "results"
        fields["keys"] = _write_out(self.parameters)
        for section in (fields["checkpoints"], *fields["datasets"].values()):
            for part in (section, section.get("corruptions") or {}):
                for name in ("path", "frost_path"):
                    if part.get(name) is not None:
                        part[name] = portable_name(Path(part[name]))
        return fields

    def narrow(
        self,
        *,
        architectures: Collection[int] | None = None,
        datasets: Collection[str] | None = None,
        keys: Collection[str] | None = None,
    ) -> "Plan":
        """Keep the units that match every filter given.

        Raises:
            ConfigError: a dataset or key is not in the plan (the closest is named), or no unit is left.
        """
        for given, known, what in (
            (datasets, set(self.datasets), "dataset"),
            (keys, {unit.key for unit in self.units}, "key"),
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
        )
        if not units:
            raise ConfigError(
                "Narrowing the sweep failed: expected at least one unit to match, got none. "
                "Check --architectures, --datasets and --keys against the sweep YAML."
            )
        return Plan(self.config, units, self.protocols)

    def macs(self, part: Part) -> float:
        """Estimate a part's work in multiply-accumulates."""
        return self._macs_per_evaluated_image(part.unit) * len(part.strengths) * (part.stop - part.start)

    def _macs_per_evaluated_image(self, unit: Unit) -> float:
        per_pass = self._network_macs[unit.dataset, unit.architecture]
        return per_pass * PERTURBATIONS[unit.key].passes(self.parameters[unit.key])

    @cached_property
    def _network_macs(self) -> dict[tuple[str, int], int]:
        network = self.config.network
        pairs = {(unit.dataset, unit.architecture) for unit in self.units}
        return {
            (dataset, index): nasbench201.multiply_accumulates(
                nasbench201.architecture(index).spec,
                channels=network.channels,
                cells=network.cells,
                n_classes=DATASETS[dataset].n_classes,
                image_size=DATASETS[dataset].image_size,
            )
            for dataset, index in pairs
        }

    def seconds(self, part: Part) -> float:
        """Estimate a part's time on one worker (see `planning.cost.assumed_gmacs`)."""
        return self.macs(part) / (assumed_gmacs(self.config.execution) * 1e9)

    def split(self, part: Part) -> tuple[Part, ...]:
        """Cut a part that would take longer than `execution.part_minutes`: first by strength, then by image range.

        Ranges are whole batches of draws, so a part draws what the whole unit would. A worker commits whole strengths,
        so a slice of one strength is cut at five minutes already. The fused engine keeps a part's strengths together,
        because strengths share its batches and FGSM's share a gradient; they are cut at five minutes too.
        """
        limit = 60 * self.config.execution.part_minutes
        splits_strengths = len(part.strengths) > 1 and self.config.engine == "reference"
        if not splits_strengths:
            limit = min(limit, self.slice_seconds)
        if self.seconds(part) <= limit:
            return (part,)
        if splits_strengths:
            singles = (Part(part.unit, (strength,), part.start, part.stop) for strength in part.strengths)
            return tuple(itertools.chain.from_iterable(self.split(single) for single in singles))
        batch = self.config.batch_size
        n_batches = -(-(part.stop - part.start) // batch)
        n_slices = min(n_batches, int(-(-self.seconds(part) // limit)))
        edges = [part.start + batch * (n_batches * i // n_slices) for i in range(n_slices)] + [part.stop]
        return tuple(Part(part.unit, part.strengths, a, b) for a, b in itertools.pairwise(edges))

    def bundles(self, parts: Iterable[Part]) -> tuple[Bundle, ...]:
        """Group parts by (dataset, architecture), longest bundle first, long parts split, no bundle much over a part.

        Longest first keeps the last hour of a sweep short. Within a bundle the cheap parts come first, so that results
        appear early and a bundle that is lost loses little.
        """
        limit = 60 * self.config.execution.part_minutes
        grouped: defaultdict[tuple[str, int], list[tuple[float, Part]]] = defaultdict(list)
        for part in parts:
            for piece in self.split(part):
                grouped[piece.unit.dataset, piece.unit.architecture].append((self.seconds(piece), piece))
        costed: list[tuple[float, Bundle]] = []
        for (dataset, architecture), pieces in grouped.items():
            pieces.sort(key=lambda item: item[0])
            pending: list[Part] = []
            total = 0.0
            for seconds, piece in pieces:
                if pending and total + seconds > limit:
                    costed.append((total, Bundle(architecture, dataset, tuple(pending))))
                    pending, total = [], 0.0
                pending.append(piece)
                total += seconds
            costed.append((total, Bundle(architecture, dataset, tuple(pending))))
        costed.sort(key=lambda item: (-item[0], item[1].dataset, item[1].architecture))
        return tuple(bundle for _, bundle in costed)

    def summary(self) -> dict[str, Any]:
        """Counts and estimates of the whole plan, as a JSON value (bytes and hours are estimates)."""
        rows = Counter((unit.dataset, unit.key) for unit in self.units)
        shard_bytes = json_bytes = 0
        for (dataset, key), n_units in rows.items():
            n_rows = n_units * len(self.strengths(dataset, key))
            counts, means = self._numbers_per_row(dataset)
            shard_bytes += n_rows * (
                _SHARD_BYTES_PER_ROW + counts * _SHARD_BYTES_PER_COUNT + means * _SHARD_BYTES_PER_MEAN
            )
            json_bytes += n_rows * (counts * _JSON_BYTES_PER_COUNT + means * _JSON_BYTES_PER_MEAN)
        execution = self.config.execution
        seconds = sum(self.seconds(Part(unit, unit.strengths, 0, unit.n_images)) for unit in self.units)
        return {
            "name": self.config.name,
            "architectures": len({unit.architecture for unit in self.units}),
            "units": len(self.units),
            "evaluations": self.n_evaluations,
            "evaluated_images": sum(len(unit.strengths) * unit.n_images for unit in self.units),
            "estimated_shard_bytes": shard_bytes,
            "estimated_json_bytes": json_bytes,
            "device": execution.device,
            "estimated_worker_hours": seconds / 3600,
            "assumed_gmacs_per_second": assumed_gmacs(execution),
            "assumed_cpu_gmacs_per_second": cpu_gmacs(execution) if may_turn_out_slow(execution) else None,
            "units_by_dataset_and_key": {
                dataset: {key: rows[dataset, key] for key in self.keys(dataset) if (dataset, key) in rows}
                for dataset in self.datasets
            },
        }

    def _numbers_per_row(self, dataset: str) -> tuple[int, int]:
        n_classes = DATASETS[dataset].n_classes
        means = 2 * n_classes**2 + 2 if "confidence" in self.measurements else 0
        return n_classes**2, means


def _write_out(parameters: Mapping[str, Parameters]) -> dict[str, Any]:
    """Give the `keys` of a sweep YAML with all parameters, one entry for corruptions that are all there and alike."""
    keys = {key: given.model_dump(mode="json") for key, given in parameters.items()}
    first, *others = (keys.get(key) for key in CORRUPTIONS)
    if first is None or any(other != first for other in others):
        return keys
    return {key: given for key, given in keys.items() if key not in CORRUPTIONS} | {CORRUPTION_GROUP: first}


def make_plan(config: SweepConfig, facts: Facts) -> Plan:
    """Write out every unit of a sweep.

    Args:
        config: the sweep.
        facts: hashes of the images, corruptions and checkpoints that it reads.

    Returns:
        The plan; equal arguments give equal ids on every machine.
    """
    protocols: dict[str, Protocol] = {}
    units: list[Unit] = []
    parameters = config.parameters
    for dataset in config.datasets:
        known = facts.datasets[dataset]
        for key in config.keys_of(dataset):
            protocol = Protocol.of(protocol_payload(config, dataset, key, known))
            protocols[protocol.digest] = protocol
            strengths = parameters[key].strengths
            for index in config.architecture_indices:
                checkpoint = facts.checkpoints[dataset][index]
                identifier = unit_id(config.space, index, checkpoint, protocol.digest)
                units.append(
                    Unit(identifier, index, dataset, key, strengths, known.n_images, protocol.digest, checkpoint)
                )
    return Plan(config, tuple(units), protocols)


def protocol_payload(config: SweepConfig, dataset: str, key: str, facts: DatasetFacts) -> dict[str, Any]:
    """Everything but architecture, checkpoint and strength that decides the numbers of one key on one dataset."""
    row = PERTURBATIONS[key]
    payload: dict[str, Any] = {
        "dataset": dataset,
        "images": {"sha256": facts.images_sha256} | _selection(config),
        "network": config.network.model_dump(),
        "key": key,
        "semantics_version": row.semantics_version,
        "parameters": config.parameters[key].identity(),
        "engine": config.engine,
        "precision": config.precision,
    }
    if config.engine == "reference":
        # The reference libraries draw once a batch; elsewhere the batch decides the last bits of a convolution.
        payload["batch_size"] = config.batch_size
    if row.kind == "attack":
        payload["seed"] = config.seed
    if row.kind == "corruption":
        payload["corruption"] = dict(facts.corruptions[key])
    return payload


def _selection(config: SweepConfig) -> dict[str, int]:
    """What picked the images; nothing where all of them were taken."""
    count, seed = config.images.count, config.images.seed
    return {} if count is None else {"count": count, "seed": seed}


def describe_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Say in which fields two protocol payloads differ.

    Returns:
        Lines such as ``parameters.steps: 40 → 20``, sorted by field.
    """
    left, right = dict(_flatten("", old)), dict(_flatten("", new))
    return [
        f"{name}: {left.get(name, 'absent')} → {right.get(name, 'absent')}"
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]


def _flatten(prefix: str, value: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(value, Mapping):
        nested = (_flatten(f"{prefix}{name}.", item) for name, item in value.items())
        return list(itertools.chain.from_iterable(nested))
    return [(prefix.removesuffix("."), value)]


def assumed_facts(config: SweepConfig) -> Facts:
    """Assume hashes of zeros and whole test splits, for counting alone: units planned with them have no identity."""
    nothing = "0" * 64
    datasets = {
        name: DatasetFacts(
            config.images.count or DATASETS[name].n_test,
            nothing,
            {key: {} for key in config.keys_of(name) if PERTURBATIONS[key].kind == "corruption"},
        )
        for name in config.datasets
    }
    digests = dict.fromkeys(config.architecture_indices, nothing)
    return Facts(datasets, dict.fromkeys(config.datasets, digests))
