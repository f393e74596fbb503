"""Status of a sweep. Complete results are counted in the shards, so the numbers are correct after any crash."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robust201.core.files import IrregularFileError, is_amount, read_file
from robust201.core.host import HostId
from robust201.monitoring.activity import estimate_rate, read_activity
from robust201.planning.plan import Plan
from robust201.planning.shares import share_folders
from robust201.runtime.heartbeat import read_server_or_local_time
from robust201.runtime.preview import count_coverage, count_done
from robust201.runtime.progress import FAILURES_FILE
from robust201.shards import Inventory

_TEXT_FIELDS = ("unit", "label", "kind", "message")
_MAX_FAILURES_BYTES = 1 << 30


def read_failures(folder: Path) -> list[dict[str, Any]]:
    """Read the failures that the last driver or job share recorded in a folder; damaged lines are ignored."""
    try:
        content = read_file(folder / FAILURES_FILE, _MAX_FAILURES_BYTES)
    except (FileNotFoundError, IsADirectoryError, IrregularFileError):
        return []
    failures = []
    for line in content.decode(errors="replace").splitlines():
        try:
            failure = json.loads(line)
        except (ValueError, RecursionError):
            continue  # the driver was killed while writing the line; the unit still counts as missing
        if _is_failure(failure):
            failures.append(failure)
    return failures


def _is_failure(payload: object) -> bool:
    return (
        isinstance(payload, dict)
        and all(isinstance(payload.get(name), str) for name in _TEXT_FIELDS)
        and isinstance(payload.get("strengths"), list)
        and all(map(is_amount, payload["strengths"]))
    )


@dataclass(frozen=True)
class KeyStatus:
    """Numbers of complete evaluations and of all evaluations of a dataset and key."""

    dataset: str
    key: str
    done: int
    total: int


@dataclass(frozen=True)
class Cost:
    """Cost of the results in a folder, without lost work: GPU-hours if workers use GPUs, otherwise worker-hours."""

    hours: float
    unit: str


@dataclass(frozen=True)
class SweepStatus:
    """Status of a sweep.

    Attributes:
        failures: parts that failed in the last driver's run or in a job share, and whose results are still missing.
        damaged: names of damaged shards.
        stale: number of evaluations in the folder that the plan does not use.
        driver: host, process and start time of the driver that renewed its lease within the last half minute; None if
            there is no such driver, or its process is known to have ended.
        shares: names of job shares with a heartbeat within the last half minute, such as ``3-of-64``.
        state: state of the last driver: ``running``, ``draining`` after a signal, or the way in which it ended;
            ``died`` if its process ended without releasing the lease; None before the first run.
        last_heartbeat: seconds since the last heartbeat of a driver, job share or worker; None if there was none.
        deaths: number of workers that died in the last driver's run and in the last run of every job share.
        preemptions: number of workers whose machine was preempted in these runs.
        evaluations_per_second: rate of the active runs, or of the last run if none is active; None if unknown. It falls
            while no part finishes.
        seconds_left: estimated time left (see `monitoring.activity.estimate_rate`); None if unknown.
        worker_seconds: worker time of all results in the folder.
        part_seconds: seconds since each current part began, in descending order.
        silent_seconds: seconds since the last heartbeat of each silent worker, in descending order, without workers
            whose part another worker has taken over.
    """

    name: str
    keys: tuple[KeyStatus, ...]
    failures: tuple[dict[str, Any], ...]
    damaged: tuple[str, ...]
    stale: int
    driver: str | None
    shares: tuple[str, ...]
    state: str | None
    last_heartbeat: float | None
    deaths: int
    preemptions: int
    evaluations_per_second: float | None
    seconds_left: float | None
    worker_seconds: float
    cost: Cost
    part_seconds: tuple[float, ...] = ()
    silent_seconds: tuple[float, ...] = ()

    @property
    def done(self) -> int:
        return sum(key.done for key in self.keys)

    @property
    def total(self) -> int:
        return sum(key.total for key in self.keys)

    @property
    def complete(self) -> bool:
        return self.done == self.total

    @property
    def running(self) -> bool:
        return self.driver is not None or bool(self.shares)

    @property
    def failures_by_kind(self) -> dict[str, int]:
        return dict(Counter(failure["kind"] for failure in self.failures).most_common())

    def to_payload(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "done": self.done,
            "total": self.total,
            "complete": self.complete,
            "running": self.running,
            "running_driver": self.driver,
            "running_shares": len(self.shares),
            "state_of_last_driver": self.state,
            "seconds_since_last_heartbeat": self.last_heartbeat,
            "evaluations_per_second": self.evaluations_per_second,
            "seconds_left": self.seconds_left,
            "parts_in_flight": len(self.part_seconds),
            "seconds_of_longest_part": max(self.part_seconds, default=None),
            "silent_workers": len(self.silent_seconds),
            "worker_seconds": self.worker_seconds,
            "cost": vars(self.cost),
            "stale_evaluations": self.stale,
            "damaged_shards": list(self.damaged),
            "failures_by_kind": self.failures_by_kind,
            "worker_deaths": self.deaths,
            "preemptions": self.preemptions,
            "failures": list(self.failures),
            "keys": [vars(key) for key in self.keys],
        }


class StatusReader:
    """Reads a sweep's status repeatedly; counts the results again only if shards have changed.

    By default, `clock` returns the file server's time.
    """

    def __init__(self, plan: Plan, *, clock: Callable[[], float] | None = None, host_id: HostId | None = None) -> None:
        self._plan = plan
        self._clock = clock or (lambda: read_server_or_local_time(plan.config.results))
        self._host_id = host_id or HostId.of_this_process()
        self._counted_shards: tuple[tuple[str, ...], tuple[str, ...]] | None = None  # valid shards and damaged ones
        self._done: Counter[tuple[str, str]] = Counter()
        self._n_stale = 0
        self._macs_left = 0.0

    def read(self, inventory: Inventory) -> SweepStatus:
        plan = self._plan
        if self._counted_shards != (inventory.shards, inventory.damaged):
            self._count(inventory)
            self._counted_shards = inventory.shards, inventory.damaged
        activity = read_activity(plan, inventory, self._host_id, self._clock())
        in_flight = [part for part in activity.parts if part.silent_seconds is None]
        silent_seconds = [part.silent_seconds for part in activity.parts if part.silent_seconds is not None]
        macs_in_flight = sum(plan.macs(missing) for part in in_flight for missing in part.missing)
        estimate = estimate_rate(activity.rates, work_left=self._macs_left, work_in_flight=macs_in_flight)
        last_rate = activity.runs[0].get("evaluations_per_second")
        return SweepStatus(
            name=plan.config.name,
            keys=tuple(
                KeyStatus(dataset, key, self._done[dataset, key], plan.evaluations_by_key[dataset, key])
                for dataset in plan.datasets
                for key in plan.keys(dataset)
            ),
            failures=_pending_failures(plan, inventory),
            damaged=tuple(inventory.damaged),
            stale=self._n_stale,
            driver=activity.driver,
            shares=activity.shares,
            state=activity.state,
            last_heartbeat=activity.last_heartbeat,
            deaths=sum(run.get("deaths", 0) for run in activity.runs),
            preemptions=sum(run.get("preemptions", 0) for run in activity.runs),
            evaluations_per_second=estimate.evaluations_per_second if activity.rates else last_rate,
            seconds_left=estimate.seconds_left,
            worker_seconds=inventory.seconds,
            cost=self._compute_cost(inventory.seconds, activity.runs),
            part_seconds=tuple(sorted((part.seconds for part in in_flight), reverse=True)),
            silent_seconds=tuple(sorted(silent_seconds, reverse=True)),
        )

    def _count(self, inventory: Inventory) -> None:
        """Count complete and stale evaluations, and estimate the multiply-accumulates of missing evaluations."""
        plan = self._plan
        self._done, self._macs_left = count_done(plan, inventory), 0.0
        self._n_stale = sum(inventory.count_foreign_evaluations(plan.unit_ids).values())
        for coverage in count_coverage(plan, inventory):
            planned_key, unfinished = coverage.planned_key, coverage.unfinished
            macs = plan.unit_macs(planned_key) if unfinished else []
            for position in unfinished:
                if coverage.has_rows[position]:
                    missing = inventory.find_missing_parts(planned_key.unit(position), plan.measurements)
                    self._macs_left += sum(map(plan.macs, missing))
                else:  # the usual case, which does not need a search in the inventory
                    self._macs_left += macs[position]

    def _compute_cost(self, worker_seconds: float, runs: Sequence[dict[str, Any]]) -> Cost:
        """Return the cost of worker time, using the largest number of GPUs per worker that the runs reported."""
        known_counts = [run["gpus_per_worker"] for run in runs if run.get("gpus_per_worker") is not None]
        execution = self._plan.config.execution
        assumed_count = execution.gpus_per_worker if execution.requires_gpu else 0.0
        gpus_per_worker = float(max(known_counts, default=assumed_count))
        hours = worker_seconds / 3600
        return Cost(hours * gpus_per_worker, "GPU-hours") if gpus_per_worker else Cost(hours, "worker-hours")


def _pending_failures(plan: Plan, inventory: Inventory) -> tuple[dict[str, Any], ...]:
    """Return the failures of the last run and of every job share, except those whose results exist by now."""
    results = plan.config.results
    failures = {
        (failure["label"], *failure["strengths"]): failure
        for folder in (results, *share_folders(results))
        for failure in read_failures(folder)
    }
    units = plan.find_units({failure["unit"] for failure in failures.values()})
    return tuple(
        failure
        for failure in failures.values()
        if (unit := units.get(failure["unit"])) is None
        or not all(inventory.is_complete(unit, strength, plan.measurements) for strength in failure["strengths"])
    )


def read_status(plan: Plan, inventory: Inventory) -> SweepStatus:
    """Read a sweep's status once (see `StatusReader`)."""
    return StatusReader(plan).read(inventory)
