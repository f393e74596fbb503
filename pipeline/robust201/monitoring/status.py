"""How far a sweep is: counted from the shards, so it is true after any crash and needs no Ray."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from robust201.core.host import HostId
from robust201.core.records import Unit
from robust201.monitoring.underway import estimate_pace, find_underway
from robust201.planning.plan import Plan
from robust201.planning.shares import is_at_work, share_folders
from robust201.runtime.lease import LEASE_NAME, Holder
from robust201.runtime.progress import FAILURES_FILE, PROGRESS_FILE, WORKING_STATES, read_progress
from robust201.shards import Inventory, ShardStore

_STALE_SECONDS = 30.0
_FAILURE_FIELDS = {"unit", "label", "strengths", "kind", "message"}


@dataclass(frozen=True)
class KeyStatus:
    """One dataset and key: evaluations done of all."""

    dataset: str
    key: str
    done: int
    total: int


@dataclass(frozen=True)
class Cost:
    """What the evaluations in a folder took; work that was lost is not in it.

    Attributes:
        hours: worker time, times the GPUs that a worker occupies where there are any.
        unit: ``"GPU-hours"``, or ``"worker-hours"`` on CPUs.
    """

    hours: float
    unit: str


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is.

    Attributes:
        name: of the sweep.
        keys: done and total evaluations by dataset and key.
        failures: failed parts that are still missing, as the last run and the shares recorded them.
        damaged: shards that cannot be read.
        stale: evaluations in the folder that the plan does not use.
        driver: host, process and start of the driver that holds the lease and gave a sign of life within the last half
            minute, or None. One whose process has ended on this machine is none at once.
        shares: shares that gave one, such as ``3-of-64``.
        state: how the last driver ended, or ``running``, or ``draining`` after a signal; ``died`` where it left its
            lease and its process is gone; None before the first.
        last_sign_of_life: seconds since a driver or share gave the last one, or None.
        deaths: workers that died under a bundle, in the last run and the last of every share.
        preemptions: workers whose machine was taken away, likewise.
        evaluations_per_second: rate of those at work, or of the last run; None before it is known. It falls while
            nothing is finished.
        seconds_left: time left by estimated work (see `monitoring.underway.estimate_pace`), or None.
        worker_seconds: time spent on the evaluations that are there.
        cost: the same as people pay for it.
        parts_underway: for how many seconds each part in progress has been computed, the longest first, as logs say.
    """

    name: str
    keys: tuple[KeyStatus, ...]
    failures: tuple[dict[str, Any], ...]
    damaged: tuple[str, ...]
    stale: int
    driver: str | None
    shares: tuple[str, ...]
    state: str | None
    last_sign_of_life: float | None
    deaths: int
    preemptions: int
    evaluations_per_second: float | None
    seconds_left: float | None
    worker_seconds: float
    cost: Cost
    parts_underway: tuple[float, ...] = ()

    @property
    def done(self) -> int:
        """Evaluations done."""
        return sum(key.done for key in self.keys)

    @property
    def total(self) -> int:
        """Evaluations planned."""
        return sum(key.total for key in self.keys)

    @property
    def complete(self) -> bool:
        """Whether every evaluation is done."""
        return self.done == self.total

    @property
    def running(self) -> bool:
        """Whether a driver or a share gave a sign of life within the last half minute."""
        return self.driver is not None or bool(self.shares)

    @property
    def failures_by_kind(self) -> dict[str, int]:
        """Number of `failures` by `core.records.UnitFailure.kind`, the most frequent first."""
        return dict(Counter(failure["kind"] for failure in self.failures).most_common())

    def to_payload(self) -> dict[str, Any]:
        """JSON value for scripts."""
        return {
            "name": self.name,
            "done": self.done,
            "total": self.total,
            "complete": self.complete,
            "running": self.running,
            "running_driver": self.driver,
            "running_shares": len(self.shares),
            "state_of_last_driver": self.state,
            "seconds_since_last_sign_of_life": self.last_sign_of_life,
            "evaluations_per_second": self.evaluations_per_second,
            "seconds_left": self.seconds_left,
            "parts_in_progress": len(self.parts_underway),
            "seconds_of_longest_part": max(self.parts_underway, default=None),
            "worker_seconds": self.worker_seconds,
            "cost": {"hours": self.cost.hours, "unit": self.cost.unit},
            "stale_evaluations": self.stale,
            "damaged_shards": list(self.damaged),
            "failures_by_kind": self.failures_by_kind,
            "worker_deaths": self.deaths,
            "preemptions": self.preemptions,
            "failures": list(self.failures),
            "keys": [
                {"dataset": key.dataset, "key": key.key, "done": key.done, "total": key.total} for key in self.keys
            ],
        }


@dataclass(frozen=True)
class _Count:
    """What is done of a plan, and what tells whether it must be counted again."""

    shards: tuple[str, ...]
    damaged: tuple[str, ...]
    n_rows: int
    closed: Mapping[tuple[str, str], int]
    open_units: tuple[Unit, ...]
    done: Mapping[tuple[str, str], int]
    macs_left: float
    stale: int


class StatusReader:
    """Reads a sweep's status again and again; what did not change is not counted again.

    Args:
        plan: the sweep's plan (see `planning.plan_file.load_plan`).
        clock: seconds since 1970, as the file server has them.
        host_id: where this process runs; found out where None.
    """

    def __init__(self, plan: Plan, *, clock: Callable[[], float] = time.time, host_id: HostId | None = None) -> None:
        self._plan = plan
        self._clock = clock
        self._host_id = host_id or HostId.of_this_process()
        self._units = {unit.id: unit for unit in plan.units}
        self._total: Counter[tuple[str, str]] = Counter()
        for unit in plan.units:
            self._total[unit.dataset, unit.key] += len(unit.strengths)
        self._count: _Count | None = None

    def read(self, inventory: Inventory) -> SweepStatus:
        """Count what is done, and see who is at work.

        Args:
            inventory: what the results folder holds now.
        """
        plan, results = self._plan, self._plan.config.results
        if self._count is None or (self._count.shards, self._count.damaged) != (inventory.shards, inventory.damaged):
            self._count = self._count_evaluations(inventory, self._count)
        count = self._count
        driver, folders = read_progress(results), share_folders(results)
        all_shares = {folder: read_progress(folder) for folder in folders}
        at_work = [folder for folder in folders if is_at_work(folder)]
        # Progress is written at the start and when a part ends, which may be a quarter of an hour apart; the lease
        # beats all the while.
        # A clock that was set back leaves times in the future, which are no sign of life either.
        now, signs = self._clock(), (driver.get("updated", 0.0), _modified(results / LEASE_NAME))
        holder = _read_holder(results)
        has_died = holder is not None and holder.is_dead_for(self._host_id) is True
        has_sign = min(abs(now - sign) for sign in signs) < _STALE_SECONDS
        is_driving = driver.get("state") in WORKING_STATES and has_sign and not has_died
        working = [driver] * is_driving + [all_shares[folder] for folder in at_work]
        latest = max([*signs, *(_last_sign(folder) for folder in folders)])
        runs = [driver, *all_shares.values()]
        began = min((run.get("began", now) for run in working), default=now)
        underway = find_underway(results, self._units, since=began) if working else ()
        work_underway = sum(plan.macs(one.part) for one in underway)
        pace = estimate_pace(working, now, work_left=count.macs_left, work_underway=work_underway)
        return SweepStatus(
            name=plan.config.name,
            keys=tuple(
                KeyStatus(dataset, key, count.done.get((dataset, key), 0), self._total[dataset, key])
                for dataset in plan.datasets
                for key in plan.keys(dataset)
            ),
            failures=tuple(self._open_failures(inventory)),
            damaged=tuple(inventory.damaged),
            stale=count.stale,
            driver=_describe_driver(holder) if is_driving else None,
            shares=tuple(folder.name for folder in at_work),
            state="died" if has_died else driver.get("state"),
            last_sign_of_life=max(0.0, now - latest) if latest else None,
            deaths=sum(run.get("deaths", 0) for run in runs),
            preemptions=sum(run.get("preemptions", 0) for run in runs),
            evaluations_per_second=pace.evaluations_per_second if working else driver.get("evaluations_per_second"),
            seconds_left=pace.seconds_left,
            worker_seconds=inventory.seconds,
            cost=self._cost(inventory.seconds, runs),
            parts_underway=tuple(sorted((max(0.0, now - one.since) for one in underway), reverse=True)),
        )

    def _count_evaluations(self, inventory: Inventory, before: _Count | None) -> _Count:
        """Count what is done; units that were complete stay so unless shards were damaged or taken away."""
        plan = self._plan
        fresh = before is None or before.damaged != inventory.damaged or len(inventory) < before.n_rows
        closed: Counter[tuple[str, str]] = Counter() if fresh or before is None else Counter(before.closed)
        candidates = plan.units if fresh or before is None else before.open_units
        done: Counter[tuple[str, str]] = Counter()
        still_open: list[Unit] = []
        macs_left = 0.0
        for unit in candidates:
            if inventory.count_complete(unit, plan.measurements) == len(unit.strengths):
                closed[unit.dataset, unit.key] += len(unit.strengths)
                continue
            missing = inventory.missing(unit, plan.measurements)
            still_open.append(unit)
            macs_left += sum(map(plan.macs, missing))
            lacking = {strength for part in missing for strength in part.strengths}
            done[unit.dataset, unit.key] += len(unit.strengths) - len(lacking)
        stale = sum(inventory.foreign(self._units.keys()).values())
        return _Count(
            inventory.shards,
            inventory.damaged,
            len(inventory),
            closed,
            tuple(still_open),
            done + closed,
            macs_left,
            stale,
        )

    def _open_failures(self, inventory: Inventory) -> list[dict[str, Any]]:
        """Failures of the last run and of every share, without those that another run has made good, each once."""
        results, measurements = self._plan.config.results, self._plan.measurements
        found = {
            (failure["label"], *failure["strengths"]): failure
            for folder in (results, *share_folders(results))
            for failure in _read_failures(folder)
        }
        return [
            failure
            for failure in found.values()
            if (unit := self._units.get(failure["unit"])) is None
            or not all(inventory.is_complete(unit, strength, measurements) for strength in failure["strengths"])
        ]

    def _cost(self, worker_seconds: float, runs: list[dict[str, Any]]) -> Cost:
        """Worker time as it is paid for, by what a worker occupied in the last run that knew."""
        known = [run["gpus_per_worker"] for run in runs if run.get("gpus_per_worker") is not None]
        execution = self._plan.config.execution
        assumed = execution.gpus_per_worker if execution.device == "cuda" else 0.0
        gpus = float(max(known, default=assumed))
        hours = worker_seconds / 3600
        return Cost(hours * gpus, "GPU-hours") if gpus else Cost(hours, "worker-hours")


def read_status(plan: Plan, inventory: Inventory) -> SweepStatus:
    """Count what is done of a plan, once (see `StatusReader`)."""
    return StatusReader(plan).read(inventory)


def watch_status(plan: Plan, store: ShardStore) -> Callable[[], SweepStatus]:
    """Make a function that reads the status anew at each call.

    Args:
        plan: the sweep's plan.
        store: its results.

    Returns:
        The function; it raises an `InputError` where the results folder is gone.
    """
    reader = StatusReader(plan)

    def read() -> SweepStatus:
        store.folder.check_format()  # a folder that was deleted looks like one in which nothing is done
        return reader.read(store.inventory(on_damage="report"))

    return read


def _read_holder(results: Path) -> Holder | None:
    try:
        return Holder.read(results / LEASE_NAME)
    except FileNotFoundError:
        return None


def _describe_driver(holder: Holder | None) -> str:
    return "unknown" if holder is None else f"{holder.host_id.host}, process {holder.pid}, since {holder.since}"


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _last_sign(share: Path) -> float:
    return max(_modified(share / "alive"), _modified(share / PROGRESS_FILE))


def show_time(seconds: float) -> str:
    """Render seconds since 1970 as ``2026-11-21T08:03:25Z``."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read_failures(folder: Path) -> list[dict[str, Any]]:
    path = folder / FAILURES_FILE
    failures = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            failure = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a driver killed in the middle of a line; its unit is still missing and is counted as such
        if isinstance(failure, dict) and failure.keys() >= _FAILURE_FIELDS:
            failures.append(failure)
    return failures
