"""The two stages of a run: what needs no missing image, then what needs corrupted images that were generated for it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from robust201.core.records import Part
from robust201.planning.config import SweepConfig
from robust201.planning.inputs import Inputs
from robust201.planning.plan import Plan, make_plan
from robust201.planning.plan_file import save_plan
from robust201.runtime.executors.base import Executor
from robust201.runtime.preview import Filters, RunPreview, preview_run
from robust201.shards import ShardStore


class ReadyWork(NamedTuple):
    """Work whose inputs have just been made: its plan, its parts, and how to start what computes them."""

    plan: Plan
    parts: tuple[Part, ...]
    start_executor: Callable[[], Executor]


class LaterWork(NamedTuple):
    """Work that still needs inputs: its parts as a preview has them, and a function that makes it ready."""

    parts: tuple[Part, ...]
    make_ready: Callable[[], ReadyWork]


def split_off_unmade(
    missing: Sequence[Part], unmade: Mapping[str, Collection[str]]
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Split off the parts that need corrupted images which do not exist yet."""
    now = tuple(part for part in missing if part.unit.key not in unmade[part.unit.dataset])
    return now, tuple(part for part in missing if part.unit.key in unmade[part.unit.dataset])


def make_images(config: SweepConfig, inputs: Inputs, parts: Sequence[Part]) -> None:
    """Generate the corrupted images that some parts need."""
    wanted = {(part.unit.dataset, part.unit.key) for part in parts}
    for dataset in config.datasets:
        inputs.make_corruptions(dataset, {key for name, key in wanted if name == dataset})


def plan_with_images(plan: Plan, filters: Filters, inputs: Inputs, parts: Sequence[Part]) -> RunPreview:
    """Plan some parts again once their images exist, as the ids include the hashes of the images."""
    config, facts = plan.config, inputs.gather(plan.facts)
    full, store = make_plan(config, facts), ShardStore.open(config.results)
    save_plan(full, facts, store)
    preview = preview_run(filters.narrow(full), full, store.inventory(verify="unverified", on_damage="set_aside"))
    wanted = {(part.unit.dataset, part.unit.key) for part in parts}
    missing = tuple(part for part in preview.missing if (part.unit.dataset, part.unit.key) in wanted)
    return replace(preview, missing=missing)
