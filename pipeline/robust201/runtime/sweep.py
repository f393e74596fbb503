"""Driver of sweeps: hashes the inputs, plans the sweep, computes missing evaluations in stages and records progress."""

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
from robust201.planning.identity import has_known_images, is_complete
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
from robust201.planning.samples import Samples, check_samples, merge_samples, read_samples, write_samples
from robust201.runtime.driver import Driver, OnProgress
from robust201.runtime.executors.base import Executor
from robust201.runtime.heartbeat import remove_silent_heartbeats, report_active_shares
from robust201.runtime.lease import Lease
from robust201.runtime.preview import RunPreview, preview_run
from robust201.runtime.progress import Tracker
from robust201.runtime.sampling import combine_complete_samples, draw_samples, record_fully_evaluated_networks
from robust201.runtime.scheduler import RunTally
from robust201.runtime.work_log import WorkLog
from robust201.shards import MergeReport, ShardStore, merge_folders


def merge_results(sources: Sequence[Path], target: Path) -> tuple[MergeReport, tuple[Path, ...]]:
    """Merge the results folders of several clusters that worked on the same sweep, without changing them.

    The target receives the shards of all sources. If it has no plan yet, it also receives the first source's plan.

    Returns:
        A report, and the sources whose plan differs from the target's plan.

    Raises:
        InputError: a source is not a results folder of a sweep, or the sources have different samples.
        LeaseHeldError: a driver is working in the target.
    """
    plans = {source: load_plan(source) for source in sources}
    store = ShardStore.create(target)
    with Lease.acquire(store.root):
        samples = _merge_samples([target, *sources])
        if samples is not None:  # written first, so that an interrupted merge leaves no results without their samples
            write_samples(target, samples)
        report = merge_folders(sources, target)
        if not (target / PLAN_FILE).exists():
            write_text(target / PLAN_FILE, read_text(sources[0] / PLAN_FILE, MAX_JSON_BYTES))
        merged_plan = load_plan(target)
        if not all(map(is_complete, merged_plan.protocols.values())):
            # Filtered runs may have generated different corrupted images, so combine the facts of all plans.
            facts = reduce(InputFacts.add_corruptions_of, (plan.facts for plan in plans.values()), merged_plan.facts)
            merged_plan = make_plan(merged_plan.config, facts)
            save_plan(merged_plan, store)
    merged_ids = {unit.id for unit in merged_plan.units}
    return report, tuple(source for source, plan in plans.items() if not plan.known_ids <= merged_ids)


def _merge_samples(folders: Sequence[Path]) -> Samples | None:
    """Combine the records of samples of several results folders; None if there are none."""
    merged_samples = None
    for folder in folders:
        samples = read_samples(folder)
        if samples is not None:
            merged_samples = samples if merged_samples is None else merge_samples(merged_samples, samples, folder)
    return merged_samples


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
    """Compute the missing evaluations of a sweep that match the filters; the returned tally lists the failures.

    The first stage computes all parts whose images exist, and generates the adversarial images of transfer attacks,
    using their source networks. Then corrupted images are generated, and samples are drawn on the basis of the pilot's
    outcomes. The second stage computes the remaining parts. At the end, the results on samples that contain all images
    are combined. An executor is started only if evaluations are missing.

    `on_preview` receives a summary before anything is computed. `on_progress` receives each event, and None regularly
    between events. `say` receives a line about each slow operation.

    Raises:
        InputError: bad input; nothing was started.
        StorageError: another driver holds the folder's lease, or the folder cannot be written.
    """
    with _prepare(config, filters, say) as (preview, inputs, lease):
        on_preview(preview)
        # The lease is also checked between events, because another driver may have taken over.
        driver = make_driver(preview, config.results, on_progress=on_progress, check=lease.check, say=say)
        last_plan = preview.plan
        with driver.recording_errors():
            blocks = inputs.missing_adversarial_blocks(preview.plan, preview.missing)
            ready_parts, waiting_parts = _split_by_readiness(preview.plan, preview.missing, inputs, blocks)
            compute(driver, preview.plan, ready_parts, make_executor, blocks)
            if driver.tally.drained:
                driver.tally.remaining += sum(len(part.strengths) for part in waiting_parts)
            elif waiting_parts:
                driver.tracker.write(state="running")
                for dataset, keys in _keys_by_dataset(waiting_parts).items():
                    inputs.generate_missing_corruptions(dataset, keys)
                lease.check()  # another driver may have taken over while images were generated
                new_preview = _plan_with_images(
                    preview.plan, filters, inputs, ready_parts, waiting_parts, check=lease.check, say=say
                )
                for shard in new_preview.damaged:
                    say(f"Damaged result file set aside; its evaluations are recomputed: {shard}")
                failed_blocks = inputs.missing_adversarial_blocks(new_preview.plan, new_preview.missing)
                new_ready_parts, still_waiting_parts = _split_by_readiness(
                    new_preview.plan, new_preview.missing, inputs, failed_blocks
                )
                driver.tracker.replace(waiting_parts, new_preview.plan, (*new_ready_parts, *still_waiting_parts))
                driver.tally.remaining += sum(len(part.strengths) for part in still_waiting_parts)
                _report_missing_samples(new_preview.plan, still_waiting_parts, say)
                compute(driver, new_preview.plan, new_ready_parts, make_executor)
                last_plan = new_preview.plan
            if not driver.tally.drained:
                combine_complete_samples(last_plan, ShardStore.open(config.results), say)
        return driver.finish()


def prepare_sweep(
    config: SweepConfig, *, filters: Filters = EVERYTHING, say: Callable[[str], None] = lambda _line: None
) -> RunPreview:
    """Save the plan and copy the inputs of workers, so that job shares can run.

    Corrupted and adversarial images that match the filters are generated, and samples are drawn if the pilot is
    complete, because job shares do neither.
    """
    with _prepare(config, filters, say, generate_corruptions=True) as (preview, inputs, lease):
        _generate_blocks(preview.plan, inputs.missing_adversarial_blocks(preview.plan, preview.missing))
        if config.sampling is not None:
            store = ShardStore.open(config.results)
            combine_complete_samples(preview.plan, store, say)
            inventory = store.inventory(on_damage="report")
            if draw_samples(preview.plan, inputs, store, inventory, check=lease.check, say=say):
                return _plan_again(preview.plan, filters, inputs)
        return preview


@contextmanager
def _prepare(
    config: SweepConfig, filters: Filters, say: Callable[[str], None], *, generate_corruptions: bool = False
) -> Iterator[tuple[RunPreview, Inputs, Lease]]:
    """Check and hash the inputs, take the lease, and write all files that workers, `status` and `export` read."""
    filters.check(config)
    inputs = Inputs(config, say, keys=filters.keys, datasets=filters.datasets)
    inputs.check()
    samples = read_samples(config.results)
    check_samples(config, samples)
    make_plan(config, replace(assumed_facts(config), samples=samples))  # raises ConfigError if the budget is too small
    store = ShardStore.create(config.results, shards=config.shards or "")
    with Lease.acquire(config.results, on_wait=say) as lease:
        if generate_corruptions:
            for dataset in filters.datasets or tuple(config.datasets):
                inputs.generate_missing_corruptions(dataset, filters.keys)
        facts = replace(inputs.gather(load_facts(config.results)), samples=samples)
        full_plan = make_plan(config, facts)
        check_sampled_protocols(full_plan)
        plan = filters.narrow(full_plan)
        inputs.copy_sample_images(samples)
        save_plan(full_plan, store)
        inputs.copy_images()
        inputs.save_code_copies()
        report_active_shares(config.results, say)
        remove_silent_heartbeats(config.results)
        store.folder.remove_leftovers()
        say("Checking finished results")
        inventory = store.inventory(verify="unverified", on_damage="set_aside")
        lease.check()  # checking results can take minutes
        if (samples := record_fully_evaluated_networks(full_plan, inventory)) is not None:
            full_plan = make_plan(config, replace(facts, samples=samples))
            plan = filters.narrow(full_plan)
            save_plan(full_plan, store)
        if budget_message := describe_smaller_budget(full_plan):
            say(budget_message)
        yield preview_run(plan, full_plan, inventory), inputs, lease


def make_driver(
    preview: RunPreview,
    folder: Path,
    *,
    on_progress: OnProgress,
    check: Callable[[], None] = lambda: None,
    say: Callable[[str], None],
) -> Driver:
    """Create the driver of a run, which writes progress.json and failures.jsonl to `folder`."""
    config = preview.plan.config
    log = WorkLog(config.results, "driver")
    tracker = Tracker(preview.plan, preview.missing, folder, preview.done, log)
    return Driver(tracker, log, config.execution, on_progress=on_progress, check=check, say=say)


def compute(
    driver: Driver, plan: Plan, parts: Sequence[Part], make_executor: MakeExecutor, blocks: Sequence[Part] = ()
) -> None:
    """Compute parts, and generate `blocks` of adversarial images for the next stage; do nothing if both are empty.

    A block is a part whose computation stores attacked images instead of results.
    """

    def bundle_work(executor: Executor) -> Sequence[Bundle]:
        has_gpu = executor.gpus_per_worker > 0
        part_bundles = make_bundles(plan, parts, n_workers=executor.n_workers, has_gpu=has_gpu)
        return (*_bundle_blocks(plan, blocks), *part_bundles)

    def find_committed(parts: Sequence[Part]) -> Sequence[Receipt]:
        return ShardStore.open(plan.config.results).find_receipts(parts, plan.measurements)

    if parts or blocks:
        driver.run_stage(partial(make_executor, plan), bundle_work, find_committed=find_committed)


def _keys_by_dataset(parts: Iterable[Part]) -> dict[str, set[str]]:
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for part in parts:
        keys[part.unit.dataset].add(part.unit.key)
    return keys


def _split_by_readiness(
    plan: Plan, missing: Sequence[Part], inputs: Inputs, blocks: Sequence[Part]
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Split missing parts into ready parts, and waiting parts, whose images or samples do not exist yet.

    `blocks` are the missing blocks of adversarial images.
    """
    keys_without_images = _keys_by_dataset(blocks)
    for dataset in plan.config.datasets:
        keys_without_images[dataset] |= inputs.missing_corruptions(dataset)
    ready_parts: list[Part] = []
    waiting_parts: list[Part] = []
    for part in missing:
        has_images = part.unit.key not in keys_without_images[part.unit.dataset]
        is_ready = has_images and has_known_images(plan.protocols[part.unit.protocol])
        (ready_parts if is_ready else waiting_parts).append(part)
    return tuple(ready_parts), tuple(waiting_parts)


def _plan_with_images(
    plan: Plan,
    filters: Filters,
    inputs: Inputs,
    tried_parts: Sequence[Part],
    parts: Sequence[Part],
    *,
    check: Callable[[], None],
    say: Callable[[str], None],
) -> RunPreview:
    """Draw samples, and plan `parts` again: their images now exist, and their unit ids include the images' hashes.

    Parts of the units in `tried_parts` are excluded, so that failures are not retried.
    """
    if plan.config.sampling is not None:
        store = ShardStore.open(plan.config.results)
        draw_samples(plan, inputs, store, store.inventory(on_damage="report"), check=check, say=say)
    preview = _plan_again(plan, filters, inputs)
    keys, tried_ids = {(part.unit.dataset, part.unit.key) for part in parts}, {part.unit.id for part in tried_parts}
    missing = (part for part in preview.missing if (part.unit.dataset, part.unit.key) in keys)
    return replace(preview, missing=tuple(part for part in missing if part.unit.id not in tried_ids))


def _plan_again(plan: Plan, filters: Filters, inputs: Inputs) -> RunPreview:
    """Plan the sweep with the images and samples that exist now, save the plan, and preview the run."""
    config = plan.config
    facts = replace(inputs.gather(plan.facts), samples=read_samples(config.results))
    full_plan, store = make_plan(config, facts), ShardStore.open(config.results)
    save_plan(full_plan, store)
    return preview_run(
        filters.narrow(full_plan), full_plan, store.inventory(verify="unverified", on_damage="set_aside")
    )


def _report_missing_samples(plan: Plan, parts: Sequence[Part], say: Callable[[str], None]) -> None:
    keys = sorted({part.unit.key for part in parts if not has_known_images(plan.protocols[part.unit.protocol])})
    if keys:
        say(
            f"No sample was drawn for {', '.join(keys)}, because the results of the pilot are incomplete. Run the "
            "sweep without filters to complete the pilot."
        )


def _bundle_blocks(plan: Plan, blocks: Sequence[Part]) -> tuple[Bundle, ...]:
    """Return one bundle per block of images, so that blocks are distributed among all workers."""
    return tuple(Bundle(part.unit.architecture, part.unit.dataset, (part,), plan.seconds(part)) for part in blocks)


def _generate_blocks(plan: Plan, blocks: Sequence[Part]) -> None:
    """Generate the images of transfer attacks in this process, because job shares do not generate images."""
    if not blocks:
        return
    from robust201.runtime.worker import Worker

    worker = Worker(plan.config, plan.facts)
    for bundle in _bundle_blocks(plan, blocks):
        for outcome in worker.run(bundle):
            if isinstance(outcome, UnitFailure):
                n_images = outcome.part.stop - outcome.part.start
                raise EvaluationError(
                    f"Generating {n_images} images failed for {outcome.part.label}: {outcome.message}. Fix the cause "
                    "of this error, or exclude the key with --keys."
                )
