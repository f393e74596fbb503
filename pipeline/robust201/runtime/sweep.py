"""The driver: hashes the inputs, plans, subtracts what is done, runs the rest, and records how it went."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from robust201.core.errors import ConfigError, closest
from robust201.core.files import write_text
from robust201.core.interrupts import draining_on_signals
from robust201.core.records import ArchitectureId, Bundle, Part, Receipt, is_imported
from robust201.planning.bundles import cut_for_cpus, make_bundles
from robust201.planning.config import SweepConfig
from robust201.planning.facts import Facts
from robust201.planning.identity import describe_difference
from robust201.planning.inputs import Inputs
from robust201.planning.plan import Plan, make_plan
from robust201.planning.plan_file import PLAN_FILE, load_plan, refuse_imports, save_plan
from robust201.runtime.executors.base import Event, Executor
from robust201.runtime.heartbeat import remove_silent_heartbeats, warn_of_shares
from robust201.runtime.lease import Lease
from robust201.runtime.progress import RunProgress, Tracker
from robust201.runtime.scheduler import RunTally, Scheduler
from robust201.runtime.work_log import WorkLog
from robust201.shards import Inventory, MergeReport, ShardStore, merge_folders
from robust201.tasks import TASKS


@dataclass(frozen=True)
class Filters:
    """What a run is narrowed to; None keeps everything."""

    architectures: tuple[ArchitectureId, ...] | None = None
    datasets: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None

    def check(self, config: SweepConfig) -> None:
        """Make sure that something is left of a sweep.

        Raises:
            ConfigError: a dataset or key is not in the sweep (the closest is named), or nothing is left.
        """
        datasets = self.datasets or tuple(config.datasets)
        for given, known, others, what in (
            (datasets, list(config.datasets), (), "dataset"),
            (self.keys or (), list(config.parameters), TASKS, "key"),
        ):
            for name in given:
                if name not in known:
                    # A misspelt key may mean one that this sweep lacks; of one that is spelt well the sweep's are told.
                    likely = known if name in others else [*known, *(key for key in others if key not in known)]
                    raise ConfigError(
                        f"Narrowing the sweep failed for {what} {name!r}: expected one of {config.name}'s, got another."
                        f"{closest(name, likely)}"
                    )
        keys: set[str | int] = {key for dataset in datasets for key in config.keys_of(dataset)}
        for names, left, what in (
            (self.keys, keys, f"keys on {', '.join(datasets)}"),
            (self.architectures, config.selected_architectures, "architectures"),
        ):
            if names is not None and not {*names} & {*left}:
                raise ConfigError(
                    f"Narrowing the sweep failed for {', '.join(map(str, names[:5]))}: expected some of "
                    f"{config.name}'s {what}, got none of them. Correct the option, or add them to the sweep."
                )


EVERYTHING = Filters()


@dataclass(frozen=True)
class RunPreview:
    """What a run is about to do.

    Attributes:
        plan: the units of this run, narrowed.
        done: evaluations of it that are already there.
        damaged: shards that were set aside.
        stale: lines that say which results in the folder this plan cannot use, and why.
    """

    plan: Plan
    missing: tuple[Part, ...]
    done: int
    damaged: tuple[str, ...]
    stale: tuple[str, ...]


def merge_results(sources: Sequence[Path], target: Path) -> tuple[MergeReport, tuple[Path, ...]]:
    """Join the results folders of several clusters that worked on one sweep; they stay as they are.

    The target gets their shards, and the first one's plan unless it has one. The second thing returned are the sources
    that were planned otherwise than the target.

    Raises:
        InputError: a source is no results folder of a sweep, or the target holds imported results.
        LeaseHeldError: a driver works in the target.
    """
    plans = {source: load_plan(source) for source in sources}
    refuse_imports(target)
    with Lease.acquire(ShardStore.create(target).root):
        report = merge_folders(sources, target)
        if not (target / PLAN_FILE).exists():
            write_text(target / PLAN_FILE, (sources[0] / PLAN_FILE).read_text(encoding="utf-8"))
    wanted = {unit.id for unit in load_plan(target).units}
    return report, tuple(source for source, plan in plans.items() if {unit.id for unit in plan.units} != wanted)


def preview_run(plan: Plan, full: Plan, inventory: Inventory) -> RunPreview:
    """Subtract what is done from what is planned, `plan` being narrowed; results of the `full` plan are not stale."""
    missing = tuple(part for unit in plan.units for part in inventory.missing(unit, plan.measurements))
    missing_strengths = {(part.unit.id, strength) for part in missing for strength in part.strengths}
    return RunPreview(
        plan,
        missing,
        plan.n_evaluations - len(missing_strengths),
        tuple(inventory.damaged),
        tuple(explain_stale(full, inventory)),
    )


def explain_stale(plan: Plan, inventory: Inventory) -> Iterator[str]:
    """Say which results in a folder belong to another protocol or checkpoint, and what differs; by key and field."""
    by_key: defaultdict[tuple[str, str], list[Any]] = defaultdict(list)
    for protocol in plan.protocols.values():
        by_key[protocol.payload["dataset"], protocol.payload["key"]].append(protocol.payload)
    found: list[tuple[int, str, str, int]] = []
    order = list(TASKS)
    for digest, count in inventory.foreign({unit.id for unit in plan.units}).items():
        if digest in plan.protocols:
            what = "another checkpoint, or architectures outside this sweep"
            key = plan.protocols[digest].payload["key"]
        else:
            payload = inventory.protocol(digest)
            key = payload.get("key", "?")
            current = by_key.get((payload.get("dataset", "?"), key))
            what = "; ".join(describe_difference(payload, current[0])) if current else "a key outside this sweep"
            what = "they were imported, not computed" if is_imported(digest) else what
        found.append((order.index(key) if key in order else len(order), key, what, count))
    for _, key, what, count in sorted(found):
        yield f"{count:,} evaluations of {key} are kept but not used: {what}"


MakeExecutor = Callable[[Plan, Facts], Executor]


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
    with _prepared(config, filters, say) as (preview, facts, lease):
        on_preview(preview)
        return compute(
            preview,
            make_bundles(preview.plan, preview.missing),
            partial(make_executor, preview.plan, facts),
            folder=config.results,
            on_progress=on_progress,
            check=lease.check,  # also while no event comes: another driver may have taken over
            say=say,
        )


def prepare_sweep(config: SweepConfig, *, say: Callable[[str], None] = lambda _line: None) -> RunPreview:
    """Write down the plan and keep what workers read, so that shares can run; compute nothing.

    Raises:
        InputError: bad input; nothing was written.
        StorageError: the results folder is held by a driver, or cannot be written.
    """
    with _prepared(config, EVERYTHING, say) as (preview, _, _):
        return preview


@contextmanager
def _prepared(
    config: SweepConfig, filters: Filters, say: Callable[[str], None]
) -> Iterator[tuple[RunPreview, Facts, Lease]]:
    """Check and hash the inputs, take the lease, and write down everything that workers, status and export read."""
    filters.check(config)
    refuse_imports(config.results)
    inputs = Inputs(config, say)
    inputs.check()
    store = ShardStore.create(config.results, shards=config.shards or "")
    with Lease.acquire(config.results, on_wait=say) as lease:
        refuse_imports(config.results)  # an import may have ended while the lease was waited for
        facts = inputs.gather()
        full = make_plan(config, facts)
        plan = full.narrow(architectures=filters.architectures, datasets=filters.datasets, keys=filters.keys)
        save_plan(full, facts, store)
        inputs.keep_images()
        inputs.keep_code()
        warn_of_shares(config.results, say)
        remove_silent_heartbeats(config.results)
        store.folder.remove_leftovers()
        say("Checking finished shards")
        inventory = store.inventory(verify="unverified", on_damage="set_aside")
        yield preview_run(plan, full, inventory), facts, lease


def compute(
    preview: RunPreview,
    bundles: Sequence[Bundle],
    start_executor: Callable[[], Executor],
    *,
    folder: Path,
    on_progress: Callable[[RunProgress, Event | None], None],
    check: Callable[[], None] = lambda: None,
    say: Callable[[str], None],
) -> RunTally:
    """Compute what is missing until it is done or a signal asks to drain.

    The folder gets progress.json and failures.jsonl. The executor is started only if there are bundles. `check` is
    called now and then, and raises where the run must stop; `on_progress` after each event, and without one now and
    then.
    """
    log = WorkLog(preview.plan.config.results, "driver")
    tracker = Tracker(preview.plan, preview.missing, folder, preview.done, log)

    def observe(event: Event, tally: RunTally) -> None:
        tracker.count(event, tally)
        on_progress(tracker.progress, event)

    tally = RunTally()
    try:
        if bundles:
            execution = preview.plan.config.execution

            def tell_of_draining(line: str) -> None:
                tracker.note_draining()
                say(line)

            draining = draining_on_signals(tell_of_draining, execution.drain_seconds)
            with draining as request, closing(start_executor()) as executor:
                tracker.attach(metrics=executor.metrics, gpus_per_worker=executor.gpus_per_worker)
                tracker.write(state="running")  # the first event may be a quarter of an hour away
                if not executor.gpus_per_worker:
                    bundles = cut_for_cpus(preview.plan, bundles)
                log.write("run_started", f"{len(bundles)} bundles, {len(preview.missing)} parts")

                def should_drain() -> bool:
                    check()
                    tracker.flush()
                    on_progress(tracker.progress, None)
                    return request()

                def find_committed(parts: Sequence[Part]) -> Sequence[Receipt]:
                    return ShardStore.open(preview.plan.config.results).find_receipts(parts, preview.plan.measurements)

                scheduler = Scheduler(
                    executor,
                    max_attempts=execution.max_attempts,
                    should_drain=should_drain,
                    interruptible=request.interruptible,
                    on_event=observe,
                    find_committed=find_committed,
                )
                tally = scheduler.run(bundles)
                tally.time_limit = tally.drained and request.is_time_limit
            log.write("run_ended", "drained" if tally.drained else "finished", failures=len(tally.failures))
    except BaseException as error:
        tracker.stop()
        log.write("run_ended", f"stopped by {type(error).__name__}: {error}", level="error")
        raise
    tally.computed = tracker.progress.evaluations_of_this_run
    tracker.write(state="drained" if tally.drained else "finished")
    return tally
