"""How far a sweep is: counted from the shards, so it is true after any crash and needs no Ray."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.lease import LEASE_NAME
from pipeline.plan import Plan
from pipeline.shards import Inventory
from pipeline.shares import is_at_work, share_folders
from pipeline.sweep import FAILURES_FILE, PROGRESS_FILE

_STALE_SECONDS = 30.0


@dataclass(frozen=True)
class KeyStatus:
    """One dataset and key: evaluations done of all."""

    dataset: str
    key: str
    done: int
    total: int


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is.

    Attributes:
        name: of the sweep.
        keys: done and total evaluations by dataset and key.
        failures: failed parts that are still missing, as the last run and the shares recorded them.
        damaged: shards that cannot be read.
        stale: evaluations in the folder that the plan does not use.
        running: whether a driver or a share gave a sign of life within the last half minute.
        shares: shares that did.
        units_per_second: rate of those, or of the last run, or None.
        seconds_left: estimate of the time left at the rate of those that run, or None.
        worker_seconds: time spent on the evaluations that are done.
    """

    name: str
    keys: tuple[KeyStatus, ...]
    failures: tuple[dict[str, Any], ...]
    damaged: tuple[str, ...]
    stale: int
    running: bool
    shares: int
    units_per_second: float | None
    seconds_left: float | None
    worker_seconds: float

    @property
    def done(self) -> int:
        """Evaluations done."""
        return sum(key.done for key in self.keys)

    @property
    def total(self) -> int:
        """Evaluations planned."""
        return sum(key.total for key in self.keys)

    def to_payload(self) -> dict[str, Any]:
        """JSON value for scripts."""
        return {
            "name": self.name,
            "done": self.done,
            "total": self.total,
            "complete": self.done == self.total,
            "running": self.running,
            "running_shares": self.shares,
            "units_per_second": self.units_per_second,
            "seconds_left": self.seconds_left,
            "worker_seconds": self.worker_seconds,
            "stale_evaluations": self.stale,
            "damaged_shards": list(self.damaged),
            "failures": list(self.failures),
            "keys": [
                {"dataset": key.dataset, "key": key.key, "done": key.done, "total": key.total} for key in self.keys
            ],
        }


def read_status(plan: Plan, inventory: Inventory) -> SweepStatus:
    """Count what is done of a plan.

    Args:
        plan: the sweep's plan (see `pipeline.sweep.load_plan`).
        inventory: what its results folder holds.
    """
    done: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for unit in plan.units:
        place = unit.dataset, unit.key
        total[place] += len(unit.strengths)
        done[place] += sum(inventory.is_complete(unit, strength, plan.measurements) for strength in unit.strengths)
    results = plan.config.results
    driver = _read_progress(results)
    # Progress is written when a part ends, which may be a quarter of an hour apart; the lease beats all the while.
    # A clock that was set back leaves times in the future, which are no sign of life either.
    age = min(abs(time.time() - moment) for moment in (driver.get("updated", 0.0), _last_beat(results)))
    driving = driver.get("state") == "running" and age < _STALE_SECONDS
    shares = [_read_progress(folder) for folder in share_folders(results) if is_at_work(folder)]
    working = [driver] * driving + shares
    return SweepStatus(
        name=plan.config.name,
        keys=tuple(
            KeyStatus(dataset, key, done[dataset, key], total[dataset, key])
            for dataset in plan.datasets
            for key in plan.keys(dataset)
        ),
        failures=tuple(_open_failures(plan, inventory)),
        damaged=tuple(inventory.damaged),
        stale=sum(inventory.foreign({unit.id for unit in plan.units}).values()),
        running=bool(working),
        shares=len(shares),
        units_per_second=sum(one.get("units_per_second", 0.0) for one in working)
        if working
        else driver.get("units_per_second"),
        seconds_left=_seconds_left(plan, inventory, working),
        worker_seconds=inventory.seconds,
    )


def _last_beat(results: Path) -> float:
    try:
        return (results / LEASE_NAME).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _seconds_left(plan: Plan, inventory: Inventory, working: list[dict[str, Any]]) -> float | None:
    """Estimate the time left if those that work now do all the rest together."""
    rate = float(sum(one.get("macs_per_second", 0.0) for one in working))
    if not rate:
        return None
    return sum(plan.macs(part) for unit in plan.units for part in inventory.missing(unit, plan.measurements)) / rate


def _read_progress(folder: Path) -> dict[str, Any]:
    try:
        payload: dict[str, Any] = json.loads((folder / PROGRESS_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return payload


def _open_failures(plan: Plan, inventory: Inventory) -> list[dict[str, Any]]:
    """Failures of the last run and of every share, without those that another run has made good, each once."""
    results = plan.config.results
    found = {
        (failure["label"], *failure["strengths"]): failure
        for folder in (results, *share_folders(results))
        for failure in _read_failures(folder)
    }
    units = {unit.id: unit for unit in plan.units} if found else {}
    return [
        failure
        for failure in found.values()
        if (unit := units.get(failure["unit"])) is None
        or not all(inventory.is_complete(unit, strength, plan.measurements) for strength in failure["strengths"])
    ]


def _read_failures(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / FAILURES_FILE).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    failures = []
    for line in lines:
        try:
            failures.append(json.loads(line))
        except ValueError:
            continue  # a driver killed in the middle of a line; its unit is still missing and is counted as such
    return failures
