"""Estimated accuracies of a sampled sweep: a file of their own, since an estimate is no count."""

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
from robust201.export.groups import FileForm, Group
from robust201.export.number_text import array_text
from robust201.export.outcome_files import ImagesOf
from robust201.export.published_layout import NAMES, layout_of
from robust201.planning.plan import Plan, is_sampled
from robust201.planning.samples import KeySample
from robust201.reader.result_files import ESTIMATED_FOLDER
from robust201.runtime.pilot import OutcomeReader, Pilot
from robust201.shards import Inventory, ShardStore
from robust201.statistics.sampling import Estimates, estimate

_NUMBERS = {
    "value": "Estimated accuracy on all images.",
    "standard_error": "Standard error of the value, from the design of the sample.",
    "low": "Lower bound of the 95% interval.",
    "high": "Upper bound of the 95% interval.",
}


@dataclass(frozen=True, eq=False)
class NetworkEstimates:
    """Estimates of one network under one key, at its strengths."""

    unit: Unit
    n_images: int
    estimates: Estimates
    design: str


@dataclass(frozen=True, eq=False)
class SampledResults:
    """Everything that a sampled sweep estimates; `missing` evaluations by dataset and key have no results yet."""

    networks: Sequence[NetworkEstimates]
    missing: Mapping[tuple[str, str], int]
    record: Mapping[str, Any]

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """Datasets and keys that are estimated."""
        return tuple(dict.fromkeys((one.unit.dataset, one.unit.key) for one in self.networks))


def estimate_accuracies(plan: Plan, store: ShardStore, inventory: Inventory, images_of: ImagesOf) -> SampledResults:
    """Estimate the accuracies of all networks that saw samples; of those alone whose samples are complete."""
    found: list[NetworkEstimates] = []
    missing: Counter[tuple[str, str]] = Counter()
    samples = {} if plan.facts.samples is None else plan.facts.samples.keys
    for dataset in plan.datasets:
        pieces = _pieces(plan, dataset)
        if not pieces:
            continue
        reader = OutcomeReader(plan, store, inventory, dataset, images_of(plan, dataset).labels)
        pilots = {key: reader.pilot(key) for key in {key for _, key in pieces}}
        cheap: dict[ArchitectureId, Any] = {}
        for (architecture, key), units in sorted(pieces.items(), key=lambda item: list(plan.tasks).index(item[0][1])):
            pilot, sample = pilots[key], samples.get((dataset, key))
            is_whole = sample is not None and len(units) == len(sample.increments)
            if pilot is None or sample is None or not is_whole or not _is_ready(reader, architecture, units):
                missing[dataset, key] += len(units[0].strengths)
                continue
            if architecture not in cheap:
                cheap[architecture] = np.packbits(reader.cheap(architecture), axis=1)
            own = np.unpackbits(cheap[architecture], axis=1, count=len(sample.design.stratum)).astype(bool)
            found.append(_estimate(reader, units, sample, pilot, own))
    return SampledResults(found, dict(missing), _record(plan))


def _pieces(plan: Plan, dataset: str) -> dict[tuple[ArchitectureId, str], list[Unit]]:
    """Units of samples on a dataset, increments in order, by network and key; without keys of which all was seen."""
    samples = {} if plan.facts.samples is None else plan.facts.samples.keys
    found: dict[tuple[ArchitectureId, str], list[Unit]] = {}
    for planned in plan.planned_keys:
        sample = samples.get((dataset, planned.key))
        if planned.dataset == dataset and is_sampled(plan, planned) and not (sample and sample.is_whole):
            for position in range(len(planned.networks)):
                unit = planned.unit(position)
                found.setdefault((unit.architecture, unit.key), []).append(unit)
    return found


def _is_ready(reader: OutcomeReader, architecture: ArchitectureId, units: Sequence[Unit]) -> bool:
    return reader.has_cheap(architecture) and reader.is_complete(units)


def _estimate(
    reader: OutcomeReader, units: Sequence[Unit], sample: KeySample, pilot: Pilot, own_cheap: Any
) -> NetworkEstimates:
    positions = [increment.positions for increment in sample.increments]
    seen = np.concatenate([reader.read(unit, shown) for unit, shown in zip(units, positions, strict=True)], axis=1)
    seen = seen[:, np.argsort(np.concatenate(positions))]
    numbers = estimate(sample.design, seen, pilot.predict(own_cheap))
    design = f"stratified difference estimator, {len(sample.design.sizes)} strata, pilot of {len(pilot.outcomes)}"
    return NetworkEstimates(units[0], len(sample.design.stratum), numbers, design)


def _record(plan: Plan) -> dict[str, Any]:
    """Return what sweep.json says of the samples."""
    section, drawn = plan.config.sampling, plan.facts.samples
    assert section is not None  # noqa: S101 - asked of sampled sweeps only
    samples = {} if drawn is None else drawn.keys
    return {
        **section.model_dump(mode="json"),
        "pilot_networks": [] if drawn is None else list(drawn.pilot),
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
            if not sample.is_whole
        ],
    }


def estimates_bytes(results: SampledResults, space: str) -> bytes:
    """Write estimates as Parquet: a row per network, key and strength."""
    layout = layout_of(space)
    rows = list(_rows(results))
    architectures = [one.unit.architecture for one, _ in rows]
    arrays: dict[str, Any] = {
        "dataset": pa.array([one.unit.dataset for one, _ in rows], NAMES),
        "key": pa.array([one.unit.key for one, _ in rows], NAMES),
        **{name: pa.array(values, layout.columns[name].kind) for name, values in layout.values(architectures).items()},
        "strength": pa.array([one.unit.strengths[s] for one, s in rows], pa.float64()),
        **{name: pa.array([float(getattr(one.estimates, name)[s]) for one, s in rows]) for name in _NUMBERS},
        "n_seen": pa.array([one.estimates.n_seen for one, _ in rows], pa.int32()),
        "n_images": pa.array([one.n_images for one, _ in rows], pa.int32()),
        "design": pa.array([one.design for one, _ in rows], NAMES),
    }
    fields = [
        pa.field(name, array.type, metadata={"description": _NUMBERS[name]} if name in _NUMBERS else None)
        for name, array in arrays.items()
    ]
    stream = io.BytesIO()
    table = pa.table(list(arrays.values()), schema=pa.schema(fields))
    pq.write_table(table, stream, compression="zstd", write_page_checksum=True)
    return stream.getvalue()


def estimates_json(
    results: SampledResults, groups: Iterable[Group], form: FileForm, store: ShardStore, inventory: Inventory
) -> Iterator[tuple[str, bytes]]:
    """Write the accuracies of sampled keys in the published layout: counts of the pilot, estimates of all others.

    Yields the name and the text of each file; the names begin with the folder `ESTIMATED_FOLDER`.
    """
    by_place: dict[tuple[str, str], dict[ArchitectureId, Any]] = {}
    for one in results.networks:
        by_place.setdefault((one.unit.dataset, one.unit.key), {})[one.unit.architecture] = one.estimates.value
    for group in groups:
        values = by_place.get((group.dataset, group.key))
        if values is None:
            continue
        rows = store.select(group.complete_units, inventory, group.measurements).iter_values("accuracy")
        counted = {
            unit.architecture: np.array([float(columns["accuracy"]) for columns in by_strength.values()])
            for unit, by_strength in rows
        }
        accuracies = {**values, **counted}
        texts = (
            b'"%s": %s' % (str(name).encode(), array_text(accuracies[name], form.round_to, form.empty))
            for name in sorted(accuracies)
        )
        opening = "{" + "".join(f"{json.dumps(name)}: {{" for name in (group.dataset, form.spell(group), "accuracy"))
        yield (
            f"{ESTIMATED_FOLDER}/{group.dataset}/{form.spell(group)}_accuracy.json",
            opening.encode() + b", ".join(texts) + b"}}}}",
        )


def _rows(results: SampledResults) -> Iterator[tuple[NetworkEstimates, int]]:
    for one in results.networks:
        for strength in range(len(one.unit.strengths)):
            yield one, strength
