"""The driver: hashes the inputs, plans, subtracts what is done, runs the rest, and records how it went."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path

from robust201.core.files import MAX_JSON_BYTES, read_text, write_text
from robust201.core.records import Bundle, Part, Receipt
from robust201.planning.bundles import make_bundles
from robust201.planning.config import SweepConfig
from robust201.planning.filters import EVERYTHING, Filters
from robust201.planning.identity import is_known
from robust201.planning.input_facts import InputFacts
from robust201.planning.inputs import Inputs
from robust201.planning.plan import Plan, make_plan
from robust201.planning.plan_file import PLAN_FILE, load_facts, load_plan, save_plan
from robust201.runtime.driver import Driver
from robust201.runtime.executors.base import Event, Executor
from robust201.runtime.heartbeat import remove_silent_heartbeats, warn_of_shares
from robust201.runtime.lease import Lease
from robust201.runtime.missing_images import (
    LaterWork,
    ReadyWork,
    bundle_blocks,
    make_blocks,
    make_images,
    plan_with_images,
    split_off_unmade,
    unmade_keys,
)
from robust201.runtime.preview import RunPreview, preview_run
from robust201.runtime.progress import RunProgress, Tracker
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
        merged = load_plan(target)
        if not all(map(is_known, merged.protocols.values())):
            # Narrowed runs made different corrupted images: together they may know all of them.
            facts = reduce(InputFacts.completed_by, (plan.facts for plan in plans.values()), merged.facts)
            merged = make_plan(merged.config, facts)
            save_plan(merged, facts, store)
    wanted = {unit.id for unit in merged.units}
    return report, tuple(source for source, plan in plans.items() if not plan.known_ids <= wanted)


MakeExecutor = Callable[[Plan, InputFacts], Executor]


def run_sweep(
    config: SweepConfig,
    make_executor: MakeExecutor,
    *,
    filters: Filters = EVERYTHING,
    on_preview: Callable[[RunPreview], None] = lambda _preview: None,
    on_progress: Callable[[RunProgress, Event | None], None] = lambda _progress, _event: None,
    say: Callable[[str], None] = lambda _line: None,
) -> RunTally:
    """Compute what a sweep, narrowed by the filters, still misses; failures are in the tally.

    The executor is started only if something is missing. `on_preview` takes what is there and what is missing, before
    anything is computed; `on_progress` after each event, and without one now and then; `say` of steps that take long.

    Raises:
        InputError: bad input; nothing was started.
        StorageError: the results folder is held by another driver, or cannot be written.
    """
    with _prepared(config, filters, say) as (preview, inputs, lease):
        on_preview(preview)
        blocks = inputs.unmade_adversarial(preview.plan, preview.missing)
        now, later = split_off_unmade(preview.missing, unmade_keys(config, inputs, blocks))

        def make_ready() -> ReadyWork:
            make_images(config, inputs, later)
            lease.check()  # while images were made, another driver may have taken over
            replanned = plan_with_images(preview.plan, filters, inputs, later)
            failed = inputs.unmade_adversarial(replanned.plan, replanned.missing)
            ready, lacking = split_off_unmade(replanned.missing, unmade_keys(config, inputs, failed))
            for shard in replanned.damaged:
                say(f"Damaged result file set aside, its evaluations are recomputed: {shard}")
            start = partial(make_executor, replanned.plan, replanned.plan.facts)
            return ReadyWork(replanned.plan, ready, lacking, start)

        return compute(
            preview,
            now,
            partial(make_executor, preview.plan, preview.plan.facts),
            blocks=blocks,
            later=LaterWork(later, make_ready),
            folder=config.results,
            on_progress=on_progress,
            check=lease.check,  # also while no event comes: another driver may have taken over
            say=say,
        )


def prepare_sweep(
    config: SweepConfig, *, filters: Filters = EVERYTHING, say: Callable[[str], None] = lambda _line: None
) -> RunPreview:
    """Write down the plan and keep what workers read, so that shares can run; compute nothing.

    Corrupted and adversarial images are made as far as the filters ask for them: shares make none.
    """
    with _prepared(config, filters, say, make_images=True) as (preview, inputs, _):
        make_blocks(preview.plan, inputs.unmade_adversarial(preview.plan, preview.missing))
        return preview


@contextmanager
def _prepared(
    config: SweepConfig, filters: Filters, say: Callable[[str], None], *, make_images: bool = False
) -> Iterator[tuple[RunPreview, Inputs, Lease]]:
    """Check and hash the inputs, take the lease, and write down everything that workers, status and export read."""
    filters.check(config)
    inputs = Inputs(config, say, keys=filters.keys, datasets=filters.datasets)
    inputs.check()
    store = ShardStore.create(config.results, shards=config.shards or "")
    with Lease.acquire(config.results, on_wait=say) as lease:
        if make_images:
            for dataset in filters.datasets or tuple(config.datasets):
                inputs.make_corruptions(dataset, filters.keys)
        facts = inputs.gather(load_facts(config.results))
        full = make_plan(config, facts)
        plan = filters.narrow(full)
        save_plan(full, facts, store)
        inputs.keep_images()
        inputs.keep_code()
        warn_of_shares(config.results, say)
        remove_silent_heartbeats(config.results)
        store.folder.remove_leftovers()
        say("Checking finished results")
        inventory = store.inventory(verify="unverified", on_damage="set_aside")
        yield preview_run(plan, full, inventory), inputs, lease


def compute(
    preview: RunPreview,
    parts: Sequence[Part],
    start_executor: Callable[[], Executor],
    *,
    blocks: Sequence[Part] = (),
    later: LaterWork | None = None,
    folder: Path,
    on_progress: Callable[[RunProgress, Event | None], None],
    check: Callable[[], None] = lambda: None,
    say: Callable[[str], None],
) -> RunTally:
    """Compute what is missing until it is done or a signal asks to drain: first the parts, then what comes later.

    With the parts, workers make `blocks` of images for what comes later. The folder gets progress.json and
    failures.jsonl. An executor is started only if there is something to compute. `check` is called now and then, and
    raises where the run must stop; `on_progress` after each event, and without one now and then.
    """
    log = WorkLog(preview.plan.config.results, "driver")
    tracker = Tracker(preview.plan, preview.missing, folder, preview.done, log)
    driver = Driver(tracker, log, on_progress=on_progress, check=check, say=say)

    def run_parts(
        plan: Plan,
        parts: Sequence[Part],
        start_executor: Callable[[], Executor],
        tally: RunTally,
        blocks: Sequence[Part] = (),
    ) -> RunTally:
        def bundles_for(executor: Executor) -> Sequence[Bundle]:
            has_gpu = executor.gpus_per_worker > 0
            of_parts = make_bundles(plan, parts, n_workers=executor.n_workers, has_gpu=has_gpu)
            return (*bundle_blocks(plan, blocks), *of_parts)

        def find_committed(parts: Sequence[Part]) -> Sequence[Receipt]:
            return ShardStore.open(plan.config.results).find_receipts(parts, plan.measurements)

        return driver.run_stage(
            start_executor,
            bundles_for,
            execution=plan.config.execution,
            find_committed=find_committed,
            tally=tally,
        )

    tally = RunTally()
    with driver.recording_an_error():
        if parts or blocks:
            tally = run_parts(preview.plan, parts, start_executor, tally, blocks)
        if later and later.parts and tally.drained:
            tally.remaining += sum(len(part.strengths) for part in later.parts)
        elif later and later.parts:
            tracker.write(state="running")
            ready = later.make_ready()
            tracker.replace(later.parts, ready.plan, (*ready.parts, *ready.lacking))
            tally.remaining += sum(len(part.strengths) for part in ready.lacking)
            if ready.parts:
                tally = run_parts(ready.plan, ready.parts, ready.start_executor, tally)
    return driver.finish(tally)
