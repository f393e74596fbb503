"""The driver: hashes the inputs, plans, subtracts what is done, runs the rest, and records how it went."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

from robust201.core.errors import EvaluationError
from robust201.core.files import MAX_JSON_BYTES, read_text, write_text
from robust201.core.records import Bundle, Part, Receipt, UnitFailure
from robust201.planning.bundles import make_bundles
from robust201.planning.config import SweepConfig
from robust201.planning.filters import EVERYTHING, Filters
from robust201.planning.identity import is_drawn, is_known
from robust201.planning.input_facts import InputFacts
from robust201.planning.inputs import Inputs
from robust201.planning.plan import (
    Plan,
    assumed_facts,
    check_sampled_protocols,
    describe_smaller_budget,
    make_plan,
)
from robust201.planning.plan_file import PLAN_FILE, load_facts, load_plan, save_plan
from robust201.planning.samples import SAMPLE_FILE, check_samples, read_samples
from robust201.runtime.driver import Driver, OnProgress
from robust201.runtime.executors.base import Executor
from robust201.runtime.heartbeat import remove_silent_heartbeats, warn_of_shares
from robust201.runtime.lease import Lease
from robust201.runtime.preview import RunPreview, preview_run
from robust201.runtime.progress import Tracker
from robust201.runtime.sampling import combine_whole_samples, draw_samples, note_counted_keys
from robust201.runtime.scheduler import RunTally
from robust201.runtime.work_log import WorkLog
from robust201.shards import MergeReport, ShardStore, merge_folders


def merge_results(sources: Sequence[Path], target: Path) -> tuple[MergeReport, tuple[Path, ...]]:
    """Join the results folders of several clusters that worked on one sweep; they stay as they are.

    The target gets their shards, and the first one's plan unless it has one. The second thing returned are the sources
    that were planned otherwise than the target.

    Raises:
        InputError: a source is no results folder of a sweep.
        LeaseHeldError: a driver works in the target.
    """
    plans = {source: load_plan(source) for source in sources}
    store = ShardStore.create(target)
    with Lease.acquire(store.root):
        report = merge_folders(sources, target)
        if not (target / PLAN_FILE).exists():
            write_text(target / PLAN_FILE, read_text(sources[0] / PLAN_FILE, MAX_JSON_BYTES))
        drawn = next((source for source in sources if (source / SAMPLE_FILE).exists()), None)
        if drawn is not None and not (target / SAMPLE_FILE).exists():
            write_text(target / SAMPLE_FILE, read_text(drawn / SAMPLE_FILE, MAX_JSON_BYTES))
        merged = load_plan(target)
        if not all(map(is_known, merged.protocols.values())):
            # Narrowed runs made different corrupted images: together they may know all of them.
            facts = reduce(InputFacts.completed_by, (plan.facts for plan in plans.values()), merged.facts)
            merged = make_plan(merged.config, facts)
            save_plan(merged, store)
    wanted = {unit.id for unit in merged.units}
    return report, tuple(source for source, plan in plans.items() if not plan.known_ids <= wanted)


MakeExecutor = Callable[[Plan], Executor]


def run_sweep(
    config: SweepConfig,
    make_executor: MakeExecutor,
    *,
    filters: Filters = EVERYTHING,
    on_preview: Callable[[RunPreview], None] = lambda _preview: None,
    on_progress: OnProgress = lambda _progress, _event: None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunTally:
    """Compute what a sweep, narrowed by the filters, still misses; failures are in the tally.

    The first stage computes what needs no missing images, and the adversarial images of transfers on their sources,
    which are work without a result. Then corrupted images are generated and samples are drawn from the outcomes of the
    pilot, and the second stage computes the rest. Samples that have all images are combined at the end. The
    executor is started only if something is missing. `on_preview` takes what is there and what is missing, before
    anything is computed; `on_progress` each event, and None now and then; `say` a line about each slow step.

    Raises:
        InputError: bad input; nothing was started.
        StorageError: the results folder is held by another driver, or cannot be written.
    """
    with _prepared(config, filters, say) as (preview, inputs, lease):
        on_preview(preview)
        # Also while no event comes: another driver may have taken over.
        driver = make_driver(preview, config.results, on_progress=on_progress, check=lease.check, say=say)
        planned = preview.plan
        with driver.recording_an_error():
            blocks = inputs.unmade_adversarial(preview.plan, preview.missing)
            now, later = _split_off_unmade(preview.plan, preview.missing, inputs, blocks)
            compute(driver, preview.plan, now, make_executor, blocks)
            if driver.tally.drained:
                driver.tally.remaining += sum(len(part.strengths) for part in later)
            elif later:
                driver.tracker.write(state="running")
                for dataset, keys in _keys_by_dataset(later).items():
                    inputs.make_corruptions(dataset, keys)
                lease.check()  # while images were made, another driver may have taken over
                replanned = _plan_with_images(preview.plan, filters, inputs, now, later, say)
                for shard in replanned.damaged:
                    say(f"Damaged result file set aside, its evaluations are recomputed: {shard}")
                failed = inputs.unmade_adversarial(replanned.plan, replanned.missing)
                ready, lacking = _split_off_unmade(replanned.plan, replanned.missing, inputs, failed)
                driver.tracker.replace(later, replanned.plan, (*ready, *lacking))
                driver.tally.remaining += sum(len(part.strengths) for part in lacking)
                _say_what_samples_lack(replanned.plan, lacking, say)
                compute(driver, replanned.plan, ready, make_executor)
                planned = replanned.plan
            if not driver.tally.drained:
                combine_whole_samples(planned, ShardStore.open(config.results), say)
        return driver.finish()


def prepare_sweep(
    config: SweepConfig, *, filters: Filters = EVERYTHING, say: Callable[[str], None] = lambda _line: None
) -> RunPreview:
    """Write down the plan and keep what workers read, so that shares can run; compute nothing.

    Corrupted and adversarial images are made as far as the filters ask for them, and samples drawn where the pilot is
    complete: shares do neither.
    """
    with _prepared(config, filters, say, make_images=True) as (preview, inputs, _):
        _make_blocks(preview.plan, inputs.unmade_adversarial(preview.plan, preview.missing))
        if config.sampling is not None:
            store = ShardStore.open(config.results)
            combine_whole_samples(preview.plan, store, say)
            if draw_samples(preview.plan, inputs, store, store.inventory(on_damage="report"), say):
                return _plan_again(preview.plan, filters, inputs)
        return preview


@contextmanager
def _prepared(
    config: SweepConfig, filters: Filters, say: Callable[[str], None], *, make_images: bool = False
) -> Iterator[tuple[RunPreview, Inputs, Lease]]:
    """Check and hash the inputs, take the lease, and write down everything that workers, status and export read."""
    filters.check(config)
    inputs = Inputs(config, say, keys=filters.keys, datasets=filters.datasets)
    inputs.check()
    samples = read_samples(config.results)
    check_samples(config, samples)
    make_plan(config, replace(assumed_facts(config), samples=samples))  # raises for a budget that is too small
    store = ShardStore.create(config.results, shards=config.shards or "")
    with Lease.acquire(config.results, on_wait=say) as lease:
        if make_images:
            for dataset in filters.datasets or tuple(config.datasets):
                inputs.make_corruptions(dataset, filters.keys)
        facts = replace(inputs.gather(load_facts(config.results)), samples=samples)
        full = make_plan(config, facts)
        check_sampled_protocols(full)
        plan = filters.narrow(full)
        inputs.keep_samples(samples)
        save_plan(full, store)
        inputs.keep_images()
        inputs.keep_code()
        warn_of_shares(config.results, say)
        remove_silent_heartbeats(config.results)
        store.folder.remove_leftovers()
        say("Checking finished results")
        inventory = store.inventory(verify="unverified", on_damage="set_aside")
        if (samples := note_counted_keys(full, inventory)) is not None:
            full = make_plan(config, replace(facts, samples=samples))
            plan = filters.narrow(full)
            save_plan(full, store)
        if smaller := describe_smaller_budget(full):
            say(smaller)
        yield preview_run(plan, full, inventory), inputs, lease


def make_driver(
    preview: RunPreview,
    folder: Path,
    *,
    on_progress: OnProgress,
    check: Callable[[], None] = lambda: None,
    say: Callable[[str], None],
) -> Driver:
    """Make the driver of a run, whose progress.json and failures.jsonl go into the folder."""
    config = preview.plan.config
    log = WorkLog(config.results, "driver")
    tracker = Tracker(preview.plan, preview.missing, folder, preview.done, log)
    return Driver(tracker, log, config.execution, on_progress=on_progress, check=check, say=say)


def compute(
    driver: Driver, plan: Plan, parts: Sequence[Part], make_executor: MakeExecutor, blocks: Sequence[Part] = ()
) -> None:
    """Compute parts, and `blocks` of images for later parts; without any, no executor is started."""

    def divide(executor: Executor) -> Sequence[Bundle]:
        has_gpu = executor.gpus_per_worker > 0
        of_parts = make_bundles(plan, parts, n_workers=executor.n_workers, has_gpu=has_gpu)
        return (*_bundle_blocks(plan, blocks), *of_parts)

    def find_committed(parts: Sequence[Part]) -> Sequence[Receipt]:
        return ShardStore.open(plan.config.results).find_receipts(parts, plan.measurements)

    if parts or blocks:
        driver.run_stage(partial(make_executor, plan), divide, find_committed=find_committed)


def _keys_by_dataset(parts: Iterable[Part]) -> dict[str, set[str]]:
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for part in parts:
        keys[part.unit.dataset].add(part.unit.key)
    return keys


def _split_off_unmade(
    plan: Plan, missing: Sequence[Part], inputs: Inputs, blocks: Sequence[Part]
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Split off the parts that are shown images which do not exist yet, or of samples that are not drawn yet.

    The `blocks` are images of transfers.
    """
    unmade = _keys_by_dataset(blocks)
    for dataset in plan.config.datasets:
        unmade[dataset] |= inputs.unmade_corruptions(dataset)
    now: list[Part] = []
    later: list[Part] = []
    for part in missing:
        is_made = part.unit.key not in unmade[part.unit.dataset] and is_drawn(plan.protocols[part.unit.protocol])
        (now if is_made else later).append(part)
    return tuple(now), tuple(later)


def _plan_with_images(
    plan: Plan,
    filters: Filters,
    inputs: Inputs,
    tried: Sequence[Part],
    parts: Sequence[Part],
    say: Callable[[str], None],
) -> RunPreview:
    """Plan some parts again once their images exist, as the ids include the hashes of the images.

    What was `tried` and failed is not tried again.
    """
    if plan.config.sampling is not None:
        store = ShardStore.open(plan.config.results)
        draw_samples(plan, inputs, store, store.inventory(on_damage="report"), say)
    preview = _plan_again(plan, filters, inputs)
    wanted, done = {(part.unit.dataset, part.unit.key) for part in parts}, {part.unit.id for part in tried}
    missing = (part for part in preview.missing if (part.unit.dataset, part.unit.key) in wanted)
    return replace(preview, missing=tuple(part for part in missing if part.unit.id not in done))


def _plan_again(plan: Plan, filters: Filters, inputs: Inputs) -> RunPreview:
    config = plan.config
    facts = replace(inputs.gather(plan.facts), samples=read_samples(config.results))
    full, store = make_plan(config, facts), ShardStore.open(config.results)
    save_plan(full, store)
    return preview_run(filters.narrow(full), full, store.inventory(verify="unverified", on_damage="set_aside"))


def _say_what_samples_lack(plan: Plan, parts: Sequence[Part], say: Callable[[str], None]) -> None:
    keys = sorted({part.unit.key for part in parts if not is_drawn(plan.protocols[part.unit.protocol])})
    if keys:
        say(
            f"No sample was drawn for {', '.join(keys)}: some pilot network lacks results. Run the whole sweep, not "
            "narrowed, to complete the pilot."
        )


def _bundle_blocks(plan: Plan, blocks: Sequence[Part]) -> tuple[Bundle, ...]:
    """Make a bundle of each block of images, so that all workers share them."""
    return tuple(Bundle(part.unit.architecture, part.unit.dataset, (part,), plan.seconds(part)) for part in blocks)


def _make_blocks(plan: Plan, blocks: Sequence[Part]) -> None:
    """Make the images of transfers in this process, for shares, which make none."""
    if not blocks:
        return
    from robust201.runtime.worker import Worker

    worker = Worker(plan.config, plan.facts)
    for bundle in _bundle_blocks(plan, blocks):
        for outcome in worker.run(bundle):
            if isinstance(outcome, UnitFailure):
                n_images = outcome.part.stop - outcome.part.start
                raise EvaluationError(
                    f"Making images failed for {outcome.part.label}: expected {n_images} images, got "
                    f"{outcome.message}. Correct the source of this key, or leave the key out by --keys."
                )
