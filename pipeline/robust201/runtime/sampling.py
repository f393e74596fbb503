"""What a run of a sampled sweep does between its stages: samples are drawn, and whole ones are combined."""

import platform
from collections.abc import Callable
from importlib.metadata import version

import numpy as np

from robust201.core.records import EvaluationResult, Part, Unit
from robust201.planning.budgets import N_STRATA
from robust201.planning.identity import is_drawn
from robust201.planning.inputs import Inputs
from robust201.planning.plan import Plan, make_plan, pilot_of, plan_without_samples
from robust201.planning.samples import KeySample, Samples, write_samples
from robust201.runtime.pilot import OutcomeReader
from robust201.shards import Inventory, ShardStore
from robust201.statistics.sampling import allocate, stratify
from robust201.tasks.columns import COLUMNS
from robust201.tasks.measurements import merge_values


def draw_samples(narrowed: Plan, inputs: Inputs, store: ShardStore, inventory: Inventory) -> bool:
    """Draw the increments that a sweep lacks, of keys whose pilot is complete; return whether there were any.

    Of a narrowed plan, the whole sweep counts: the pilot may have been computed before.

    The images are kept first and the record is written last, in one step, so an interrupted run draws the same.
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
        samples = Samples(section.design(), pilot_of(plan), drawn)
        inputs.keep_samples(samples)
        write_samples(plan.config.results, samples)
    return found


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
    n_combined = 0
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
                n_combined += 1
    if n_combined:
        say(f"Every image is in the sample: combined the results of {n_combined:,} network-key pairs")
    return n_combined


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
