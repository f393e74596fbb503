"""Steps of a sampled sweep that the driver performs: drawing samples, and combining results on samples.

A sampled sweep evaluates its pilot networks on all images, and the other networks on a sample of the images per dataset
and key. A sample grows by increments: disjoint sets of images, each of which is evaluated as a separate unit. Once the
increments of a sample contain all images, the results on the increments are combined into results on all images.
"""

import platform
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from robust201.core.records import EvaluationResult, Part, Unit
from robust201.planning.budgets import N_STRATA
from robust201.planning.identity import has_known_images
from robust201.planning.inputs import Inputs
from robust201.planning.plan import Plan, make_plan, pilot_of, plan_without_samples
from robust201.planning.samples import SAMPLE_FILE, KeySample, Samples, write_samples
from robust201.runtime.pilot import OutcomeReader
from robust201.runtime.preview import count_coverage
from robust201.shards import Inventory, ShardStore
from robust201.statistics.sampling import allocate, stratify
from robust201.tasks.columns import COLUMNS
from robust201.tasks.measurements import merge_values


def draw_samples(
    filtered_plan: Plan,
    inputs: Inputs,
    store: ShardStore,
    inventory: Inventory,
    *,
    check: Callable[[], None],
    say: Callable[[str], None],
) -> bool:
    """Draw the missing increments of the keys under which the pilot is complete; return whether any were drawn.

    The pilot includes all pilot networks of the sweep, even if the run's filters exclude some. The sampled images are
    copied first. The record of the samples, `SAMPLE_FILE`, is written last and atomically, so that the next run after
    an interruption draws the same samples.

    Args:
        filtered_plan: the plan of a run, after filtering.
        inputs: inputs of the sweep.
        store: store of the sweep.
        inventory: inventory of the store.
        check: raises an error if another driver has taken over the results folder; called just before the record is
            written.
        say: receives a line if there are results on samples whose record is lost.
    """
    plan = make_plan(filtered_plan.config, filtered_plan.facts)
    section = plan.config.sampling
    samples_by_key = {} if plan.facts.samples is None else dict(plan.facts.samples.key_samples)
    has_new_increments = False
    for planned_key in plan.planned_keys:
        if has_known_images(plan.protocols[planned_key.protocol]):
            continue  # the key is not sampled, or this increment is already drawn
        images = inputs.images(planned_key.dataset)
        outcome_reader = OutcomeReader(plan, store, inventory, planned_key.dataset, images.labels)
        pilot = outcome_reader.read_pilot(planned_key.key)
        if section is None or pilot is None:
            continue
        sample = samples_by_key.get(planned_key.dataset_and_key)
        if sample is None:
            design = stratify(
                pilot.outcomes,
                n_strata=N_STRATA,
                seed=section.seed,
                name=f"{planned_key.dataset} {planned_key.key}",
                predicted=pilot.predicted,
            )
            sample = KeySample(outcome_reader.find_pilot_protocol(planned_key.key), images.sha256, design)
        n_images = sample.n_seen + planned_key.n_images
        larger_design = allocate(sample.design, pilot.outcomes, n_images, pilot.predicted)
        samples_by_key[planned_key.dataset_and_key] = sample.grow(larger_design, images)
        has_new_increments = True
    if has_new_increments and section is not None:
        fully_evaluated = {} if plan.facts.samples is None else plan.facts.samples.fully_evaluated_networks
        samples = Samples(section.design(), pilot_of(plan), samples_by_key, fully_evaluated)
        inputs.copy_sample_images(samples)
        check()
        write_samples(plan.config.results, samples)
        if lost_samples := _find_lost_samples(plan, samples, inventory):
            say(_describe_lost_samples(plan.config.results, lost_samples))
    return has_new_increments


def record_fully_evaluated_networks(plan: Plan, inventory: Inventory) -> Samples | None:
    """Record the networks outside the pilot that need no sample, because they have results on all images.

    The networks are recorded by dataset and key, and only if no sample is drawn yet for the dataset and key.

    Returns:
        The extended record, which was also written to `SAMPLE_FILE`; None if there are no such networks to add.
    """
    section = plan.config.sampling
    recorded_samples = Samples({}, (), {}) if plan.facts.samples is None else plan.facts.samples
    undrawn_keys = {
        planned_key.dataset_and_key
        for planned_key in plan.planned_keys
        if not has_known_images(plan.protocols[planned_key.protocol])
    } - set(recorded_samples.key_samples)
    if section is None or not undrawn_keys:
        return None
    pilot, fully_evaluated = set(pilot_of(plan)), dict(recorded_samples.fully_evaluated_networks)
    unsampled_plan = plan_without_samples(plan.config, plan.facts)
    planned_keys = tuple(
        planned_key for planned_key in unsampled_plan.planned_keys if planned_key.dataset_and_key in undrawn_keys
    )
    for coverage in count_coverage(replace(unsampled_plan, planned_keys=planned_keys), inventory):
        planned_key = coverage.planned_key
        unfinished = {planned_key.networks[position].architecture for position in coverage.unfinished}
        networks = dict.fromkeys(network.architecture for network in planned_key.networks)
        complete_networks = (network for network in networks if network not in unfinished and network not in pilot)
        if recorded_networks := tuple(
            dict.fromkeys([*fully_evaluated.get(planned_key.dataset_and_key, ()), *complete_networks])
        ):
            fully_evaluated[planned_key.dataset_and_key] = recorded_networks
    if fully_evaluated == recorded_samples.fully_evaluated_networks:
        return None
    samples = Samples(section.design(), tuple(pilot_of(plan)), recorded_samples.key_samples, fully_evaluated)
    write_samples(plan.config.results, samples)
    return samples


def _find_lost_samples(plan: Plan, samples: Samples, inventory: Inventory) -> dict[str, bool]:
    """Find keys with results on samples whose record is lost.

    Returns:
        A dictionary from names such as "pgd on cifar10" to whether the new sample equals the lost sample.
    """
    if plan.facts.samples is not None and plan.facts.samples.key_samples:
        return {}
    new_hashes = {
        dataset_and_key: sample.increments[0].sha256 for dataset_and_key, sample in samples.key_samples.items()
    }
    is_same_by_name: dict[str, bool] = {}
    for digest in inventory.count_foreign_evaluations(plan.unit_ids_and_replacement_ids):
        payload = inventory.protocol(digest)
        dataset, key = payload.get("dataset", ""), payload.get("key", "")
        if (dataset, key) in new_hashes and "sample_of" in payload["images"]:
            name = f"{key} on {dataset}"
            is_same = payload["images"]["sha256"] == new_hashes[dataset, key]
            is_same_by_name[name] = is_same_by_name.get(name, False) or is_same
    return dict(sorted(is_same_by_name.items()))


def _describe_lost_samples(results: Path, is_same_by_name: Mapping[str, bool]) -> str:
    same_names, different_names = (
        ", ".join(name for name in is_same_by_name if is_same_by_name[name] == value) for value in (True, False)
    )
    comparisons = [f"{same_names} with the same images as before"] * bool(same_names)
    comparisons += [f"{different_names} with other images than before, so earlier results are not used"] * bool(
        different_names
    )
    return (
        f"{results} has results on samples but no {SAMPLE_FILE}, so the samples were drawn again from the pilot: "
        f"{'; '.join(comparisons)}."
    )


def combine_complete_samples(plan: Plan, store: ShardStore, say: Callable[[str], None]) -> int:
    """Combine the results on the increments of each sample that contains all images into results on all images.

    The combined results equal, byte for byte, the results of an evaluation on all images: results are summed as
    integers, and predictions are sorted by image.

    Returns:
        The number of units with combined results.
    """
    samples = {} if plan.facts.samples is None else plan.facts.samples.key_samples
    complete_samples = {dataset_and_key: sample for dataset_and_key, sample in samples.items() if sample.is_full}
    if not complete_samples:
        return 0
    inventory = store.inventory(on_damage="report")
    unsampled_plan = plan_without_samples(plan.config, plan.facts)
    n_combined: Counter[tuple[str, str]] = Counter()
    for planned_key in unsampled_plan.planned_keys:
        sample = complete_samples.get(planned_key.dataset_and_key)
        if sample is None:
            continue
        increment_units = {
            (unit.images, unit.architecture): unit
            for increment in plan.planned_keys
            if increment.dataset_and_key == planned_key.dataset_and_key and increment.images
            for unit in (increment.unit(position) for position in range(len(increment.networks)))
        }
        store.save_protocol(unsampled_plan.protocols[planned_key.protocol])
        for position in range(len(planned_key.networks)):
            unit = planned_key.unit(position)
            hashes = [increment.sha256 for increment in sample.increments]
            units = [
                increment_units[sha256, unit.architecture]
                for sha256 in hashes
                if (sha256, unit.architecture) in increment_units
            ]
            is_done = inventory.count_complete(unit, plan.measurements) == len(unit.strengths)
            if not is_done and len(units) == len(hashes) and _are_complete(units, plan, inventory):
                store.commit(_combine(unit, units, sample, plan, store, inventory))
                n_combined[planned_key.dataset_and_key] += 1
    for (dataset, key), n_networks in n_combined.items():
        networks = "1 network" if n_networks == 1 else f"{n_networks:,} networks"
        say(f"The sample of {key} on {dataset} now contains all images; the results of {networks} were combined")
    return n_combined.total()


def _are_complete(units: list[Unit], plan: Plan, inventory: Inventory) -> bool:
    return all(inventory.count_complete(unit, plan.measurements) == len(unit.strengths) for unit in units)


def _combine(
    unit: Unit, increment_units: list[Unit], sample: KeySample, plan: Plan, store: ShardStore, inventory: Inventory
) -> list[EvaluationResult]:
    """Merge the results on all increments of a network's sample into results on all images."""
    order = np.argsort(np.concatenate([increment.positions for increment in sample.increments]))
    part = Part(unit, unit.strengths, 0, unit.n_images)
    results = []
    for strength in unit.strengths:
        values = merge_values(
            [store.values(increment, strength, inventory, plan.measurements) for increment in increment_units],
            name=unit.label,
        )
        values |= {name: array[order] for name, array in values.items() if COLUMNS[name].is_per_image}
        # No time is added: the increments' rows stay in the store with their seconds and provenance.
        results.append(EvaluationResult(part, strength, values, seconds=0.0, provenance=_provenance()))
    return results


def _provenance() -> dict[str, str]:
    return {name: version(name) for name in ("robust201", "numpy")} | {"python": platform.python_version()}
