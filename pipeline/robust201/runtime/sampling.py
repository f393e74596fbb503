"""What a run of a sampled sweep does between its stages: samples are drawn, and whole ones are combined."""

import platform
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from robust201.core.records import EvaluationResult, Part, Unit
from robust201.planning.budgets import N_STRATA
from robust201.planning.identity import is_drawn
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
    narrowed: Plan,
    inputs: Inputs,
    store: ShardStore,
    inventory: Inventory,
    *,
    check: Callable[[], None],
    say: Callable[[str], None],
) -> bool:
    """Draw the increments that a sweep lacks, of keys whose pilot is complete; return whether there were any.

    The pilot is that of the whole sweep, even if the run's filters leave networks out. The images are copied first and
    the record is written last, in one step, so that an interrupted run draws the same samples.

    Args:
        narrowed: the plan of a run, after filtering.
        inputs: inputs of the sweep.
        store: store of the sweep.
        inventory: inventory of the store.
        check: raises an error if another driver has taken over; called just before the record is written.
        say: receives a line if there are results on samples, but no record of them.
    """
    plan = make_plan(narrowed.config, narrowed.facts)
    section = plan.config.sampling
    drawn = {} if plan.facts.samples is None else dict(plan.facts.samples.keys)
    found = False
    for undrawn in (planned for planned in plan.planned_keys if not is_drawn(plan.protocols[planned.protocol])):
        images = inputs.images(undrawn.dataset)
        outcomes = OutcomeReader(plan, store, inventory, undrawn.dataset, images.labels)
        pilot = outcomes.pilot(undrawn.key)
        if section is None or pilot is None:
            continue
        place = undrawn.dataset, undrawn.key
        sample = drawn.get(place)
        if sample is None:
            design = stratify(
                pilot.outcomes,
                n_strata=N_STRATA,
                seed=section.seed,
                name=f"{undrawn.dataset} {undrawn.key}",
                predicted=pilot.predicted,
            )
            sample = KeySample(outcomes.pilot_protocol(undrawn.key), images.sha256, design)
        count = sample.n_seen + undrawn.n_images
        drawn[place] = sample.grow(allocate(sample.design, pilot.outcomes, count, pilot.predicted), images)
        found = True
    if found and section is not None:
        counted = {} if plan.facts.samples is None else plan.facts.samples.counted
        samples = Samples(section.design(), pilot_of(plan), drawn, counted)
        inputs.copy_sample_images(samples)
        check()
        write_samples(plan.config.results, samples)
        if lost := _find_lost_samples(plan, samples, inventory):
            say(_describe_lost_samples(plan.config.results, lost))
    return found


def note_counted_networks(plan: Plan, inventory: Inventory) -> Samples | None:
    """Record the networks that need no sample, as they already have results on all images; None if there are none.

    They are recorded by key, and only for keys whose sample is not drawn yet.
    """
    section, before = plan.config.sampling, plan.facts.samples
    recorded = Samples({}, (), {}) if before is None else before
    undrawn = {
        (planned.dataset, planned.key)
        for planned in plan.planned_keys
        if not is_drawn(plan.protocols[planned.protocol])
    } - set(recorded.keys)
    if section is None or not undrawn:
        return None
    pilot, counted = set(pilot_of(plan)), dict(recorded.counted)
    everything = plan_without_samples(plan.config, plan.facts)
    planned_keys = tuple(planned for planned in everything.planned_keys if (planned.dataset, planned.key) in undrawn)
    for covered in count_coverage(replace(everything, planned_keys=planned_keys), inventory):
        planned = covered.planned
        unfinished = {planned.networks[position].architecture for position in covered.unfinished}
        networks = dict.fromkeys(network.architecture for network in planned.networks)
        complete = (name for name in networks if name not in unfinished and name not in pilot)
        place = planned.dataset, planned.key
        if names := tuple(dict.fromkeys([*counted.get(place, ()), *complete])):
            counted[place] = names
    if counted == recorded.counted:
        return None
    samples = Samples(section.design(), tuple(pilot_of(plan)), recorded.keys, counted)
    write_samples(plan.config.results, samples)
    return samples


def _find_lost_samples(plan: Plan, samples: Samples, inventory: Inventory) -> dict[str, bool]:
    """Find the keys that have results on samples of which there was no record: whether the samples now are the same."""
    if plan.facts.samples is not None and plan.facts.samples.keys:
        return {}
    drawn = {place: sample.increments[0].sha256 for place, sample in samples.keys.items()}
    lost: dict[str, bool] = {}
    for payload in map(inventory.protocol, inventory.foreign(plan.useful_ids)):
        place = payload.get("dataset", ""), payload.get("key", "")
        if place in drawn and "sample_of" in payload["images"]:
            name = f"{place[1]} on {place[0]}"
            lost[name] = lost.get(name, False) or payload["images"]["sha256"] == drawn[place]
    return dict(sorted(lost.items()))


def _describe_lost_samples(results: Path, lost: Mapping[str, bool]) -> str:
    words = [
        f"{', '.join(name for name, is_same in lost.items() if is_same == same)} {what}"
        for same, what in ((True, "as before"), (False, "otherwise than before, so earlier results are not used"))
        if same in lost.values()
    ]
    return (
        f"{results} has results on samples but no {SAMPLE_FILE}, so the samples were drawn again from the pilot: "
        f"{'; '.join(words)}."
    )


def combine_whole_samples(plan: Plan, store: ShardStore, say: Callable[[str], None]) -> int:
    """Combine results on samples that have all images into those of the plain sweep; return how many were written.

    What is combined has the bytes of an evaluation of all images: sums are integers, and predictions are put in order.
    """
    samples = {} if plan.facts.samples is None else plan.facts.samples.keys
    whole = {place: sample for place, sample in samples.items() if sample.is_whole}
    if not whole:
        return 0
    inventory = store.inventory(on_damage="report")
    everything = plan_without_samples(plan.config, plan.facts)
    n_combined: Counter[tuple[str, str]] = Counter()
    for planned in everything.planned_keys:
        sample = whole.get((planned.dataset, planned.key))
        if sample is None:
            continue
        pieces = {
            (unit.images, unit.architecture): unit
            for one in plan.planned_keys
            if (one.dataset, one.key) == (planned.dataset, planned.key) and one.images
            for unit in (one.unit(position) for position in range(len(one.networks)))
        }
        store.save_protocol(everything.protocols[planned.protocol])
        for position in range(len(planned.networks)):
            unit = planned.unit(position)
            found = [pieces.get((increment.sha256, unit.architecture)) for increment in sample.increments]
            units = [piece for piece in found if piece is not None]
            is_done = inventory.count_complete(unit, plan.measurements) == len(unit.strengths)
            if not is_done and len(units) == len(found) and _are_complete(units, plan, inventory):
                store.commit(_combine(unit, units, sample, plan, store, inventory))
                n_combined[planned.dataset, planned.key] += 1
    for (dataset, key), count in n_combined.items():
        networks = "1 network" if count == 1 else f"{count:,} networks"
        say(f"The sample of {key} on {dataset} has all images by now: combined the results of {networks}")
    return n_combined.total()


def _are_complete(units: list[Unit], plan: Plan, inventory: Inventory) -> bool:
    return all(inventory.count_complete(unit, plan.measurements) == len(unit.strengths) for unit in units)


def _combine(
    unit: Unit, pieces: list[Unit], sample: KeySample, plan: Plan, store: ShardStore, inventory: Inventory
) -> list[EvaluationResult]:
    order = np.argsort(np.concatenate([increment.positions for increment in sample.increments]))
    whole = Part(unit, unit.strengths, 0, unit.n_images)
    results = []
    for strength in unit.strengths:
        values = merge_values(
            [store.values(piece, strength, inventory, plan.measurements) for piece in pieces], name=unit.label
        )
        values |= {name: array[order] for name, array in values.items() if COLUMNS[name].by_image}
        # The pieces stay, with the time that they took and what computed them.
        results.append(EvaluationResult(whole, strength, values, seconds=0.0, provenance=_provenance()))
    return results


def _provenance() -> dict[str, str]:
    return {name: version(name) for name in ("robust201", "numpy")} | {"python": platform.python_version()}
