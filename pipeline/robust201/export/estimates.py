"""Estimated accuracies of a sampled sweep, exported to separate files so that they are not mistaken for exact ones.

In a sampled sweep, only the networks of the pilot are evaluated on all images under every key. Under the sampled keys,
the accuracies of all other networks are estimated from a sample of the images, which grows by increments. The estimates
also use outcomes under the cheap keys, under which all networks are evaluated on all images.
"""

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from robust201.core.records import ArchitectureId, Unit
from robust201.export.groups import FileFormat, Group
from robust201.export.number_text import array_text
from robust201.export.outcome_files import ImageLoader
from robust201.export.published_layout import CATEGORICAL, layout_of
from robust201.planning.plan import Plan, is_sampled
from robust201.planning.samples import KeySample
from robust201.reader.result_files import ESTIMATED_FOLDER
from robust201.runtime.pilot import OutcomeReader, Pilot
from robust201.shards import Inventory, ShardStore
from robust201.statistics.sampling import Estimates, estimate

_ESTIMATE_COLUMNS = {
    "value": "Estimated accuracy on all images.",
    "standard_error": "Standard error of the value, from the design of the sample.",
    "low": "Lower bound of the 95% interval.",
    "high": "Upper bound of the 95% interval.",
}


@dataclass(frozen=True, eq=False)
class NetworkEstimates:
    """Estimates for one network under one key, one per strength.

    Attributes:
        unit: the network's unit on the images of the sample's first increment.
        n_images: number of images on which the accuracies are estimated.
        estimates: the estimates.
        design: description of the sample's design.
    """

    unit: Unit
    n_images: int
    estimates: Estimates
    design: str


@dataclass(frozen=True, eq=False)
class SampledResults:
    """Estimates of a sampled sweep.

    Attributes:
        networks: the estimates.
        missing: number of accuracies, by dataset and key, that cannot be estimated yet because results on which the
            estimates depend are missing.
        record: description of the samples for sweep.json.
    """

    networks: Sequence[NetworkEstimates]
    missing: Mapping[tuple[str, str], int]
    record: Mapping[str, Any]

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """Datasets and keys that have estimates."""
        return tuple(dict.fromkeys((network.unit.dataset, network.unit.key) for network in self.networks))


def estimate_accuracies(plan: Plan, store: ShardStore, inventory: Inventory, images_of: ImageLoader) -> SampledResults:
    """Estimate the accuracies of all networks for which all results that the estimates depend on are stored."""
    networks: list[NetworkEstimates] = []
    n_missing: Counter[tuple[str, str]] = Counter()
    samples = {} if plan.facts.samples is None else plan.facts.samples.key_samples
    for dataset in plan.datasets:
        units_by_key = _find_sampled_units(plan, dataset)
        if not units_by_key:
            continue
        outcome_reader = OutcomeReader(plan, store, inventory, dataset, images_of(plan, dataset).labels)
        pilots = {key: outcome_reader.read_pilot(key) for key in {key for _, key in units_by_key}}
        cheap_outcomes: dict[ArchitectureId, Any] = {}
        for (architecture, key), units in sorted(
            units_by_key.items(), key=lambda item: list(plan.tasks).index(item[0][1])
        ):
            pilot, sample = pilots[key], samples.get((dataset, key))
            has_all_increments = sample is not None and len(units) == len(sample.increments)
            if (
                pilot is None
                or sample is None
                or not has_all_increments
                or not _has_complete_samples(outcome_reader, architecture, units)
            ):
                n_missing[dataset, key] += len(units[0].strengths)
                continue
            if architecture not in cheap_outcomes:
                cheap_outcomes[architecture] = np.packbits(outcome_reader.read_cheap_outcomes(architecture), axis=1)
            correct_on_cheap_keys = np.unpackbits(
                cheap_outcomes[architecture], axis=1, count=len(sample.design.stratum)
            ).astype(bool)
            networks.append(_estimate_network(outcome_reader, units, sample, pilot, correct_on_cheap_keys))
    return SampledResults(networks, dict(n_missing), _describe_samples(plan))


def _find_sampled_units(plan: Plan, dataset: str) -> dict[tuple[ArchitectureId, str], list[Unit]]:
    """Return the sampled units on a dataset by network and key, in the order of the sample's increments.

    Keys that are evaluated on all images are omitted.
    """
    samples = {} if plan.facts.samples is None else plan.facts.samples.key_samples
    units: dict[tuple[ArchitectureId, str], list[Unit]] = {}
    for planned in plan.planned_keys:
        sample = samples.get((dataset, planned.key))
        if planned.dataset == dataset and is_sampled(plan, planned) and not (sample and sample.is_full):
            for position in range(len(planned.networks)):
                unit = planned.unit(position)
                units.setdefault((unit.architecture, unit.key), []).append(unit)
    return units


def _has_complete_samples(outcome_reader: OutcomeReader, architecture: ArchitectureId, units: Sequence[Unit]) -> bool:
    return outcome_reader.has_cheap_outcomes(architecture) and outcome_reader.are_complete(units)


def _estimate_network(
    outcome_reader: OutcomeReader, units: Sequence[Unit], sample: KeySample, pilot: Pilot, correct_on_cheap_keys: Any
) -> NetworkEstimates:
    positions = [increment.positions for increment in sample.increments]
    outcomes = np.concatenate(
        [
            outcome_reader.read_outcomes(unit, image_positions)
            for unit, image_positions in zip(units, positions, strict=True)
        ],
        axis=1,
    )
    outcomes = outcomes[:, np.argsort(np.concatenate(positions))]
    estimates = estimate(sample.design, outcomes, pilot.predict(correct_on_cheap_keys))
    design = f"stratified difference estimator, {len(sample.design.sizes)} strata, pilot of {len(pilot.outcomes)}"
    return NetworkEstimates(units[0], len(sample.design.stratum), estimates, design)


def _describe_samples(plan: Plan) -> dict[str, Any]:
    """Return the description of the samples in sweep.json."""
    section, plan_samples = plan.config.sampling, plan.facts.samples
    assert section is not None  # noqa: S101 - called for sampled sweeps only
    samples = {} if plan_samples is None else plan_samples.key_samples
    return {
        **section.model_dump(mode="json"),
        "pilot_networks": [] if plan_samples is None else list(plan_samples.pilot),
        "samples": [
            {
                "dataset": dataset,
                "key": key,
                "n_images": len(sample.design.stratum),
                "n_seen": sample.n_seen,
                "strata": len(sample.design.sizes),
                "increments": [increment.sha256 for increment in sample.increments],
            }
            for (dataset, key), sample in samples.items()
            if not sample.is_full
        ],
    }


def estimates_bytes(results: SampledResults, space: str) -> bytes:
    """Return the estimates as a Parquet file with one row per network, key and strength."""
    layout = layout_of(space)
    rows = list(_iter_rows(results))
    architectures = [network.unit.architecture for network, _ in rows]
    arrays: dict[str, Any] = {
        "dataset": pa.array([network.unit.dataset for network, _ in rows], CATEGORICAL),
        "key": pa.array([network.unit.key for network, _ in rows], CATEGORICAL),
        **{name: pa.array(values, layout.columns[name].dtype) for name, values in layout.values(architectures).items()},
        "strength": pa.array(
            [network.unit.strengths[strength_index] for network, strength_index in rows], pa.float64()
        ),
        **{
            name: pa.array(
                [float(getattr(network.estimates, name)[strength_index]) for network, strength_index in rows]
            )
            for name in _ESTIMATE_COLUMNS
        },
        "n_seen": pa.array([network.estimates.n_seen for network, _ in rows], pa.int32()),
        "n_images": pa.array([network.n_images for network, _ in rows], pa.int32()),
        "design": pa.array([network.design for network, _ in rows], CATEGORICAL),
    }
    fields = [
        pa.field(
            name, array.type, metadata={"description": _ESTIMATE_COLUMNS[name]} if name in _ESTIMATE_COLUMNS else None
        )
        for name, array in arrays.items()
    ]
    stream = io.BytesIO()
    table = pa.table(list(arrays.values()), schema=pa.schema(fields))
    pq.write_table(table, stream, compression="zstd", write_page_checksum=True)
    return stream.getvalue()


def estimates_json(
    results: SampledResults, groups: Iterable[Group], file_format: FileFormat, store: ShardStore, inventory: Inventory
) -> Iterator[tuple[str, bytes]]:
    """Yield JSON files of the sampled keys in the published layout.

    They contain exact accuracies for the pilot networks, and estimates for all other networks.

    Yields:
        Name, in the folder `ESTIMATED_FOLDER`, and content of each file.
    """
    estimates_by_key: dict[tuple[str, str], dict[ArchitectureId, Any]] = {}
    for network in results.networks:
        values_by_architecture = estimates_by_key.setdefault((network.unit.dataset, network.unit.key), {})
        values_by_architecture[network.unit.architecture] = network.estimates.value
    for group in groups:
        estimates_by_architecture = estimates_by_key.get((group.dataset, group.key))
        if estimates_by_architecture is None:
            continue
        unit_rows = store.select(group.complete_units, inventory, group.measurements).iter_values("accuracy")
        exact_accuracies = {
            unit.architecture: np.array([float(columns["accuracy"]) for columns in columns_by_strength.values()])
            for unit, columns_by_strength in unit_rows
        }
        accuracies = {**estimates_by_architecture, **exact_accuracies}
        entries = (
            b'"%s": %s'
            % (
                str(architecture).encode(),
                array_text(accuracies[architecture], file_format.round_to, file_format.empty),
            )
            for architecture in sorted(accuracies)
        )
        opening = "{" + "".join(
            f"{json.dumps(name)}: {{" for name in (group.dataset, file_format.spell_key(group), "accuracy")
        )
        yield (
            f"{ESTIMATED_FOLDER}/{group.dataset}/{file_format.spell_key(group)}_accuracy.json",
            opening.encode() + b", ".join(entries) + b"}}}}",
        )


def _iter_rows(results: SampledResults) -> Iterator[tuple[NetworkEstimates, int]]:
    for network in results.networks:
        for strength_index in range(len(network.unit.strengths)):
            yield network, strength_index
