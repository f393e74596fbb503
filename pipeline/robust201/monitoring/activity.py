"""Reads the active runs and workers of a sweep, and their rates, from the lease, heartbeats and progress files.

The lease names the driver of the last run. A heartbeat names the part that a worker computes: a range of images at some
strengths of a key.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from robust201.core.host import HostId
from robust201.core.records import Part
from robust201.planning.plan import Plan
from robust201.planning.shares import intersect, share_folders
from robust201.runtime.heartbeat import SILENT_SECONDS, LastBeat, read_heartbeats
from robust201.runtime.lease import LEASE_NAME, Holder
from robust201.runtime.progress import PROGRESS_FILE, WORKING_STATES, read_progress
from robust201.shards import Inventory


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """Rates of a run, measured up to its most recently finished part; a rate is None if it is not known yet.

    Attributes:
        span_seconds: period over which the rates were measured.
        age_seconds: time since the end of this period.
    """

    evaluations_per_second: float | None
    macs_per_second: float | None
    span_seconds: float
    age_seconds: float

    def compute_rate_fraction(self, productive_fraction: float = 0.0) -> float:
        """Return the average rate up to now, as a fraction of the measured rate.

        `productive_fraction` is the fraction of `age_seconds` in which work is assumed to have proceeded at this rate;
        in the rest, no work is assumed.
        """
        span, age = self.span_seconds, self.age_seconds
        return (span + productive_fraction * age) / (span + age) if age else 1.0


@dataclass(frozen=True, slots=True)
class RateEstimate:
    """Rate and remaining time of a sweep; None if unknown."""

    evaluations_per_second: float | None
    seconds_left: float | None


def estimate_rate(rates: Sequence[MeasuredRate], *, work_left: float, work_in_flight: float) -> RateEstimate:
    """Estimate the rate and the time left; `work_left` and `work_in_flight` are numbers of multiply-accumulates.

    Parts in flight are assumed to proceed at the measured rate. If they take longer, the rate falls and the time left
    grows.
    """
    known_rates = [(rate, rate.macs_per_second) for rate in rates if rate.macs_per_second is not None]
    expected_macs = sum(macs * rate.age_seconds for rate, macs in known_rates)
    credited_macs = min(expected_macs, work_in_flight, work_left)
    productive_fraction = credited_macs / expected_macs if expected_macs else 1.0
    evaluation_rates = [
        rate.evaluations_per_second * rate.compute_rate_fraction()
        for rate in rates
        if rate.evaluations_per_second is not None
    ]
    total_evaluation_rate = float(sum(evaluation_rates)) if evaluation_rates else None
    if not work_left:
        return RateEstimate(total_evaluation_rate, 0.0)
    macs_rate = sum(macs * rate.compute_rate_fraction(productive_fraction) for rate, macs in known_rates)
    return RateEstimate(total_evaluation_rate, (work_left - credited_macs) / macs_rate if macs_rate else None)


@dataclass(frozen=True, slots=True)
class PartInFlight:
    """A part that a worker is computing.

    Attributes:
        missing: the part, or the pieces of it whose results are missing.
        seconds: seconds since the worker began the part.
        silent_seconds: seconds since the worker's last heartbeat if the next one is overdue, otherwise None.
    """

    missing: tuple[Part, ...]
    seconds: float
    silent_seconds: float | None


@dataclass(frozen=True)
class Activity:
    """Processes that compute a sweep; `monitoring.status.SweepStatus` describes attributes that are not listed.

    Attributes:
        runs: the progress of the last run with a driver, then of the last run of each share (`run --share I/N`).
        rates: the rates of the active runs.
        parts: the parts in flight, including parts of silent workers that no other worker has taken over.
    """

    driver: str | None
    shares: tuple[str, ...]
    state: str | None
    last_heartbeat: float | None
    runs: tuple[dict[str, Any], ...]
    rates: tuple[MeasuredRate, ...]
    parts: tuple[PartInFlight, ...]


def read_activity(plan: Plan, inventory: Inventory, host_id: HostId, now: float) -> Activity:
    """Read the activity of all processes that compute in a results folder."""
    results = plan.config.results
    beats = read_heartbeats(results, now)
    runs = {folder: read_progress(folder) for folder in (results, *share_folders(results))}
    state = runs[results].get("state")
    driver, lease_age, has_died = find_driver(results, state, host_id, now)
    shares = tuple(dict.fromkeys(beat.share for beat in beats if beat.share and not beat.is_silent))
    active_folders = [results] if driver else []
    active_folders += [folder for folder in runs if folder != results and folder.name in shares]
    ages = [lease_age, *(_file_age(folder / PROGRESS_FILE, now) for folder in runs), *(beat.age for beat in beats)]
    return Activity(
        driver=driver,
        shares=tuple(folder.name for folder in runs if folder != results and folder.name in shares),
        state="died" if has_died else state,
        last_heartbeat=min((max(0.0, age) for age in ages if age is not None), default=None),
        runs=tuple(runs.values()),
        rates=tuple(_read_rate(runs[folder], _file_age(folder / PROGRESS_FILE, now)) for folder in active_folders),
        parts=_find_parts_in_flight(plan, inventory, beats),
    )


class DriverState(NamedTuple):
    """The driver of a run.

    Attributes:
        driver: host, process and start time of the driver; None if no driver is active.
        lease_age: seconds since the lease was last renewed; None if there is no lease.
        has_died: whether the process that holds the lease is known to have ended.
    """

    driver: str | None
    lease_age: float | None
    has_died: bool


def find_driver(results: Path, state: str | None, host_id: HostId, now: float) -> DriverState:
    """Find the driver of a results folder; `state` is the state of the last run."""
    holder = None
    with suppress(FileNotFoundError):
        holder = Holder.read(results / LEASE_NAME)
    description = "unknown" if holder is None else f"{holder.host_id.host}, process {holder.pid}, since {holder.since}"
    # The age of the lease, not of the progress file, shows whether the driver is alive: the progress file is written
    # only when a part ends, which can take a quarter of an hour.
    lease_age = _file_age(results / LEASE_NAME, now)
    has_died = holder is not None and holder.is_dead_for(host_id) is True
    is_driving = state in WORKING_STATES and lease_age is not None and abs(lease_age) < SILENT_SECONDS and not has_died
    return DriverState(description if is_driving else None, lease_age, has_died)


def _file_age(path: Path, now: float) -> float | None:
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return None


def _read_rate(progress: dict[str, Any], file_age: float | None) -> MeasuredRate:
    age_seconds = max(0.0, file_age or 0.0) + progress.get("quiet_seconds", 0.0)
    span = progress.get("measured_seconds", 0.0)
    return MeasuredRate(progress.get("evaluations_per_second"), progress.get("macs_per_second"), span, age_seconds)


def _find_parts_in_flight(plan: Plan, inventory: Inventory, beats: tuple[LastBeat, ...]) -> tuple[PartInFlight, ...]:
    """Return the parts that heartbeats name, except parts of other plans and parts whose results exist."""
    units = plan.find_units({beat.unit for beat in beats if beat.unit})
    parts_in_flight: dict[tuple[str, int], PartInFlight] = {}
    # The most recent heartbeat of a part replaces older heartbeats.
    for beat in sorted(beats, key=lambda beat: -beat.age):
        unit = units.get(beat.unit or "")
        if unit is None:
            continue
        part = Part(unit, beat.strengths, *beat.images)
        missing_parts = tuple(intersect(part, inventory.find_missing_parts(unit, plan.measurements)))
        if missing_parts:
            silent_seconds = beat.age if beat.is_silent else None
            parts_in_flight[unit.id, part.start] = PartInFlight(
                missing_parts, beat.seconds + max(0.0, beat.age), silent_seconds
            )
    return tuple(parts_in_flight.values())
