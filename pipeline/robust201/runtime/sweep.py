"""Driver of sweeps: hashes the inputs, plans the sweep, computes missing evaluations in stages and records progress."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

from robust201.core.files import MAX_JSON_BYTES, read_text, write_text
from robust201.core.input_facts import InputFacts
from robust201.core.records import Bundle, Part, Receipt
from robust201.planning.bundles import make_bundles
from robust201.planning.identity import is_complete
from robust201.planning.plan import Plan, make_plan
from robust201.planning.plan_file import PLAN_FILE, load_facts, load_plan, save_plan
from robust201.runtime.driver import Driver, OnProgress
from robust201.runtime.executors.base import Executor
from robust201.runtime.heartbeat import remove_silent_heartbeats, report_active_shares
from robust201.runtime.lease import Lease
from robust201.runtime.preview import RunPreview, preview_run
from robust201.runtime.progress import Tracker
from robust201.runtime.scheduler import RunTally
from robust201.runtime.work_log import WorkLog
from robust201.shards import MergeReport, ShardStore, merge_folders
from robust201.sweep.config import SweepConfig
from robust201.sweep.filters import EVERYTHING, Filters
from robust201.sweep.inputs import Inputs


def merge_results(sources: Sequence[Path], target: Path) -> tuple[MergeReport, tuple[Path, ...]]:
    """Merge the results folders of several clusters that worked on the same sweep, without changing them.

    The target receives the shards of all sources. If it has no plan yet, it also receives the first source's plan.

    Returns:
        A report, and the sources whose plan differs from the target's plan.

    Raises:
        InputError: a source is not a results folder of a sweep.
        LeaseHeldError: a driver is working in the target.
    """
    plans = {source: load_plan(source) for source in sources}
    store = ShardStore.create(target)
    with Lease.acquire(store.root):
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

    The first stage computes all parts whose images exist. Then corrupted images are generated, and the second stage
    computes the remaining parts. An executor is started only if evaluations are missing.

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
        with driver.recording_errors():
            ready_parts, waiting_parts = _split_by_readiness(preview.plan, preview.missing, inputs)
            compute(driver, preview.plan, ready_parts, make_executor)
            if driver.tally.drained:
                driver.tally.remaining += sum(len(part.strengths) for part in waiting_parts)
            elif waiting_parts:
                driver.tracker.write(state="running")
                for dataset, keys in _keys_by_dataset(waiting_parts).items():
                    inputs.generate_missing_corruptions(dataset, keys)
                lease.check()  # another driver may have taken over while images were generated
                new_preview = _plan_with_images(preview.plan, filters, inputs, ready_parts, waiting_parts)
                for shard in new_preview.damaged:
                    say(f"Damaged result file set aside; its evaluations are recomputed: {shard}")
                driver.tracker.replace(waiting_parts, new_preview.plan, new_preview.missing)
                compute(driver, new_preview.plan, new_preview.missing, make_executor)
        return driver.finish()


def prepare_sweep(
    config: SweepConfig, *, filters: Filters = EVERYTHING, say: Callable[[str], None] = lambda _line: None
) -> RunPreview:
    """Save the plan and copy the inputs of workers, so that job shares can run.

    Corrupted images that match the filters are generated, because job shares generate none.
    """
    with _prepare(config, filters, say, generate_corruptions=True) as (preview, _, _):
        return preview


@contextmanager
def _prepare(
    config: SweepConfig, filters: Filters, say: Callable[[str], None], *, generate_corruptions: bool = False
) -> Iterator[tuple[RunPreview, Inputs, Lease]]:
    """Check and hash the inputs, take the lease, and write all files that workers, `status` and `export` read."""
    filters.check(config)
    inputs = Inputs(config, say, keys=filters.keys, datasets=filters.datasets)
    inputs.check()
    store = ShardStore.create(config.results, shards=config.shards or "")
    with Lease.acquire(config.results, on_wait=say) as lease:
        if generate_corruptions:
            for dataset in filters.datasets or tuple(config.datasets):
                inputs.generate_missing_corruptions(dataset, filters.keys)
        full_plan = make_plan(config, inputs.gather(load_facts(config.results)))
        save_plan(full_plan, store)
        inputs.copy_images()
        inputs.save_code_copies()
        report_active_shares(config.results, say)
        remove_silent_heartbeats(config.results)
        store.folder.remove_leftovers()
        say("Checking finished results")
        inventory = store.inventory(verify="unverified", on_damage="set_aside")
        lease.check()  # checking results can take minutes
        yield preview_run(filters.narrow(full_plan), full_plan, inventory), inputs, lease


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


def compute(driver: Driver, plan: Plan, parts: Sequence[Part], make_executor: MakeExecutor) -> None:
    """Compute parts; do nothing if there are none."""

    def bundle_work(executor: Executor) -> Sequence[Bundle]:
        has_gpu = executor.gpus_per_worker > 0
        return make_bundles(plan, parts, n_workers=executor.n_workers, has_gpu=has_gpu)

    def find_committed(parts: Sequence[Part]) -> Sequence[Receipt]:
        return ShardStore.open(plan.config.results).find_receipts(parts, plan.measurements)

    if parts:
        driver.run_stage(partial(make_executor, plan), bundle_work, find_committed=find_committed)


def _keys_by_dataset(parts: Iterable[Part]) -> dict[str, set[str]]:
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for part in parts:
        keys[part.unit.dataset].add(part.unit.key)
    return keys


def _split_by_readiness(
    plan: Plan, missing: Sequence[Part], inputs: Inputs
) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Split missing parts into ready parts, and waiting parts, whose corrupted images do not exist yet."""
    keys_without_images = {dataset: inputs.missing_corruptions(dataset) for dataset in plan.config.datasets}
    ready_parts: list[Part] = []
    waiting_parts: list[Part] = []
    for part in missing:
        is_ready = part.unit.key not in keys_without_images[part.unit.dataset]
        (ready_parts if is_ready else waiting_parts).append(part)
    return tuple(ready_parts), tuple(waiting_parts)


def _plan_with_images(
    plan: Plan, filters: Filters, inputs: Inputs, tried_parts: Sequence[Part], parts: Sequence[Part]
) -> RunPreview:
    """Plan `parts` again and save the plan: their images now exist, and their unit ids include the images' hashes.

    Parts of the units in `tried_parts` are excluded, so that failures are not retried.
    """
    full_plan, store = make_plan(plan.config, inputs.gather(plan.facts)), ShardStore.open(plan.config.results)
    save_plan(full_plan, store)
    inventory = store.inventory(verify="unverified", on_damage="set_aside")
    preview = preview_run(filters.narrow(full_plan), full_plan, inventory)
    keys, tried_ids = {(part.unit.dataset, part.unit.key) for part in parts}, {part.unit.id for part in tried_parts}
    missing = (part for part in preview.missing if (part.unit.dataset, part.unit.key) in keys)
    return replace(preview, missing=tuple(part for part in missing if part.unit.id not in tried_ids))
