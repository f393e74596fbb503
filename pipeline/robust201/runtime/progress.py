"""Progress of a run: derives its rate and time left from events, and writes progress files and logs.

Events concern parts; a worker computes one part at a time (see `runtime.executors.base`). The amount of work is
measured in multiply-accumulates of the networks.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from robust201.core.errors import StorageError
from robust201.core.files import MAX_STATE_BYTES, is_amount, load_json, open_file, write_text
from robust201.core.records import Part, Receipt, Unit, UnitFailure
from robust201.runtime.executors.base import BundleLost, Event, WorkerLost
from robust201.runtime.heartbeat import LastBeat
from robust201.runtime.scheduler import RunTally
from robust201.runtime.work_log import WorkLog

PROGRESS_FILE = "progress.json"
FAILURES_FILE = "failures.jsonl"
_MIN_WRITE_INTERVAL_SECONDS = 2.0

_NUMERIC_FIELDS = frozenset(
    {
        "quiet_seconds",
        "measured_seconds",
        "done_evaluations",
        "total_evaluations",
        "evaluations_per_second",
        "macs_per_second",
        "seconds_left",
        "gpus_per_worker",
        "deaths",
        "preemptions",
    }
)
"""Numeric fields of progress.json; a field is null if its value is unknown."""

WORKING_STATES = frozenset({"running", "draining"})
"""States of a run that has not ended."""

_MAX_STATE_LENGTH = 40
"""Maximum number of characters of a state's name."""

MIN_RATE_SECONDS = 15.0
"""Minimum time, from the start of the first part to the end of the last, for a meaningful estimate of the rate."""


@dataclass
class RunProgress:
    """Progress of a run in evaluations and work (multiply-accumulates), and its rate.

    Attributes:
        evaluations_before: evaluations that were complete before the run.
        remaining_macs: estimated work that is left.
        done_macs: estimated work done since the run began.
        evaluations_of_this_run: evaluations computed since the run began; a slice of the images, or an increment of a
            sample, counts as its fraction of the images that were missing before the run.
        start_time: monotonic time when the first part began; later periods in which workers were starting are added to
            it, so that they do not lower the rate.
        last_result_time: monotonic time when work was last finished or reported; rates are measured up to this
            time, or up to now while it is None.
        unsaved_macs: work done on training runs since their last snapshots, as reported by workers' heartbeats.
        training_heartbeats: heartbeats of the training runs in progress.
    """

    total_evaluations: int
    evaluations_before: int = 0
    remaining_macs: float = 0.0
    done_macs: float = 0.0
    evaluations_of_this_run: float = 0.0
    start_time: float = field(default_factory=time.monotonic)
    last_result_time: float | None = None
    unsaved_macs: float = 0.0
    training_heartbeats: tuple[LastBeat, ...] = ()

    @property
    def quiet_seconds(self) -> float:
        """Time since the last result, in seconds."""
        return 0.0 if self.last_result_time is None else max(0.0, time.monotonic() - self.last_result_time)

    @property
    def measured_seconds(self) -> float:
        """Period over which rates are measured, in seconds: from the start of the first part to the last result."""
        end_time = time.monotonic() if self.last_result_time is None else self.last_result_time
        return max(end_time - self.start_time, 1e-9)

    @property
    def is_rate_reliable(self) -> bool:
        """Whether rates cover a long enough period; early rates are biased, because short parts finish first."""
        return self._macs_of_this_run > 0 and self.measured_seconds >= MIN_RATE_SECONDS

    @property
    def _macs_of_this_run(self) -> float:
        return self.done_macs + self.unsaved_macs

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds to the end; None before anything is done, or once the estimated end has passed."""
        if not self.remaining_macs:
            return 0.0
        if not self._macs_of_this_run:
            return None
        seconds = (self.remaining_macs - self.unsaved_macs) / self.macs_per_second - self.quiet_seconds
        return seconds if seconds > 0 else None

    @property
    def done_evaluations(self) -> int:
        return self.evaluations_before + int(self.evaluations_of_this_run + 1e-6)

    @property
    def evaluations_per_second(self) -> float:
        """Evaluations computed per second, from the start of the first part to the last result."""
        return self.evaluations_of_this_run / self.measured_seconds

    @property
    def macs_per_second(self) -> float:
        """Multiply-accumulates per second, over the same time as `evaluations_per_second`."""
        return self._macs_of_this_run / self.measured_seconds


def read_progress(folder: Path) -> dict[str, Any]:
    """Read the valid fields of the progress.json that the last driver or job share wrote to a folder.

    The file is informative only; completed work is counted from the shards.
    """
    try:
        payload = load_json(folder / PROGRESS_FILE, MAX_STATE_BYTES)
    except (FileNotFoundError, ValueError):
        return {}
    fields = payload if isinstance(payload, dict) else {}
    return {
        name: value
        for name, value in fields.items()
        if (_is_state_name(value) if name == "state" else name in _NUMERIC_FIELDS and is_amount(value))
    }


def _is_state_name(value: object) -> bool:
    """Return whether a value is a valid state name, which `status` can print unchanged."""
    return isinstance(value, str) and value.isidentifier() and len(value) <= _MAX_STATE_LENGTH


def _network_and_key(unit: Unit) -> tuple[object, ...]:
    return unit.dataset, unit.key, unit.architecture, unit.weights, unit.checkpoint_sha256


def count_evaluations(parts: Collection[Part]) -> int:
    """Count the distinct evaluations of parts; all increments of a network's sample together are one evaluation."""
    return len({(*_network_and_key(part.unit), strength) for part in parts for strength in part.strengths})


class PlannedWork(Protocol):
    """Interface of plans whose progress can be tracked."""

    @property
    def n_evaluations(self) -> int:
        """Number of evaluations of a sweep, or of snapshots of training runs."""

    def macs(self, part: Part) -> float:
        """Estimate a part's multiply-accumulates."""


class Tracker:
    """Derives progress from events and heartbeats, and writes progress.json and failures.jsonl to a folder.

    `missing` are the parts to compute, and `n_done` counts the evaluations that were complete before the run.
    """

    def __init__(self, plan: PlannedWork, missing: Collection[Part], folder: Path, n_done: int, log: WorkLog) -> None:
        self._plan = plan
        self._log = log
        self._gpus_per_worker = read_progress(folder).get("gpus_per_worker")  # last run's value, until `attach`
        self._tally = RunTally()
        # For training runs: the work since the last snapshot by unit id, the work before the resumption by unit id and
        # next snapshot, and the stored snapshots as pairs of unit id and step.
        self._unsaved_macs: dict[str, float] = {}
        self._resumed_macs: dict[tuple[str, float], float] = {}
        self._finished_strengths: set[tuple[str, float]] = set()
        self._is_starting = True
        self._units: dict[str, Unit] = {}
        # Numbers of images without a result, counted once per strength: the current numbers by unit id, and the numbers
        # before the run by evaluation.
        self._pending_images: Counter[str] = Counter()
        self._missing_images: Counter[tuple[object, ...]] = Counter()
        self._folder = folder
        self._last_write = 0.0
        self._is_outdated = False
        self._state = "running"
        self._write_lock = threading.RLock()
        self.progress = RunProgress(plan.n_evaluations)
        self.progress.evaluations_before = n_done
        self._expect(missing)
        (folder / FAILURES_FILE).unlink(missing_ok=True)

    def _expect(self, parts: Collection[Part], sign: int = 1) -> None:
        """Add parts to the expected work, or remove them if `sign` is -1."""
        self._count_missing_images(parts, sign)
        for part in parts:
            self._pending_images[part.unit.id] += sign * len(part.strengths) * (part.stop - part.start)
            self.progress.remaining_macs += sign * self._plan.macs(part)
            self._units[part.unit.id] = part.unit

    def _count_missing_images(self, parts: Collection[Part], sign: int) -> None:
        for part in parts:
            for strength in part.strengths:
                self._missing_images[*_network_and_key(part.unit), strength] += sign * (part.stop - part.start)

    def _count_evaluations(self, unit: Unit, strengths: Collection[float], n_images: int) -> float:
        """Count evaluations; a slice counts as its fraction of the images that were missing before this run."""
        missing_counts = (self._missing_images[*_network_and_key(unit), strength] for strength in strengths)
        return sum(n_images / n_missing for n_missing in missing_counts if n_missing)

    def replace(self, expected: Collection[Part], plan: PlannedWork, parts: Collection[Part]) -> None:
        """Replace expected parts, whose unit ids were provisional, by `parts`.

        Evaluations of expected parts that are not in `parts` count as done before the run.
        """
        self._expect(expected, -1)
        self._plan = plan
        self._expect(parts)
        self.progress.evaluations_before += count_evaluations(expected) - count_evaluations(parts)

    def attach(self, gpus_per_worker: float) -> None:
        """Record that an executor with this number of GPUs per worker has started."""
        self._gpus_per_worker = gpus_per_worker
        self._is_starting = True

    def record_event(self, event: Event, tally: RunTally) -> None:
        """Update the progress after an event, which `tally` already includes; files are updated within seconds."""
        self._tally = tally
        match event:
            case Receipt():
                self._count_receipt(event)
            case UnitFailure():
                self._record_failure(event)
            case BundleLost(was_started=True):
                parts = [part for part in event.bundle.parts if self._pending_images[part.unit.id] > 0]
                units = {part.unit.id: part.unit for part in parts}
                self._record_lost_worker(event.preempted, event.reason, list(units.values()))
            case WorkerLost():
                self._record_lost_worker(event.preempted, event.reason, [])
        self._is_outdated = True
        self.flush()

    def flush(self) -> None:
        """Write progress.json if it is out of date and was not written moments ago; must be called regularly."""
        if self._is_outdated and time.monotonic() - self._last_write >= _MIN_WRITE_INTERVAL_SECONDS:
            self.write()

    def note_draining(self) -> None:
        """Write the state "draining" to progress.json; may be called from another thread."""
        with self._write_lock:
            if self._state == "running":
                self.write(state="draining")

    def _count_receipt(self, receipt: Receipt) -> None:
        unit = self._units[receipt.unit_id]
        self._extend_rate_period(receipt.seconds)
        macs = self._plan.macs(Part(unit, receipt.strengths, receipt.start, receipt.stop))
        macs -= sum(self._resumed_macs.pop((unit.id, strength), 0.0) for strength in receipt.strengths)
        self._finished_strengths.update((unit.id, strength) for strength in receipt.strengths)
        self.progress.done_macs += macs
        self.progress.remaining_macs = max(0.0, self.progress.remaining_macs - macs)
        n_images = receipt.stop - receipt.start
        self.progress.evaluations_of_this_run += self._count_evaluations(unit, receipt.strengths, n_images)
        self._unsaved_macs.pop(unit.id, None)
        self.progress.unsaved_macs = sum(self._unsaved_macs.values())
        self._pending_images[unit.id] -= len(receipt.strengths) * n_images

    def _extend_rate_period(self, seconds: float) -> None:
        """Record that a worker has just finished `seconds` of work; rates exclude the time in which workers start."""
        progress, now = self.progress, time.monotonic()
        if progress.last_result_time is None:
            progress.start_time = now - seconds
        elif self._is_starting:
            progress.start_time += max(0.0, now - seconds - progress.last_result_time)
        progress.last_result_time, self._is_starting = now, False

    def note_steps(self, beats: Collection[LastBeat]) -> None:
        """Count the steps that the workers' heartbeats report for training runs since their last snapshots."""
        in_progress = [beat for beat in beats if beat.unit in self._units and beat.training and not beat.is_silent]
        self._unsaved_macs = {}
        for beat in in_progress:
            self._count_steps(self._units[str(beat.unit)], beat)
        self.progress.unsaved_macs = sum(self._unsaved_macs.values())
        self.progress.training_heartbeats = tuple(in_progress)
        if self._unsaved_macs:
            self._extend_rate_period(max(beat.training.seconds + beat.age for beat in in_progress if beat.training))
            self._is_outdated = True

    def _count_steps(self, unit: Unit, beat: LastBeat) -> None:
        """Count the steps of a training run since its last snapshot, except steps before it was resumed."""
        if beat.training is None:
            return
        step, first_step = beat.training.step, beat.training.first_step
        next_snapshot = min((strength for strength in beat.strengths if strength > step), default=None)
        # The heartbeat may be older than the snapshot's receipt, which has counted these steps.
        if next_snapshot is None or (unit.id, next_snapshot) in self._finished_strengths:
            return
        last_snapshot = max((strength for strength in unit.strengths if strength < next_snapshot), default=0.0)
        snapshot_macs = self._plan.macs(Part(unit, (next_snapshot,), 0, unit.n_images))
        macs_per_step = snapshot_macs / (next_snapshot - last_snapshot)
        # Steps before the training run was resumed are neither remaining work nor work of this worker.
        resumed_macs = max(0.0, first_step - last_snapshot) * macs_per_step
        macs_change = self._resumed_macs.get((unit.id, next_snapshot), 0.0) - resumed_macs
        self._resumed_macs[unit.id, next_snapshot] = resumed_macs
        self.progress.remaining_macs += macs_change
        self._unsaved_macs[unit.id] = max(0.0, step - max(last_snapshot, first_step)) * macs_per_step

    def _record_lost_worker(self, preempted: bool, reason: str, units: Collection[Unit]) -> None:
        affected_units: Collection[Unit | None] = units or [None]
        for unit in affected_units:
            self._log.write("worker_preempted" if preempted else "worker_died", reason, level="warning", unit=unit)

    def _record_failure(self, failure: UnitFailure) -> None:
        unit = failure.part.unit
        if failure.kind == "killed":  # workers log all other failures themselves
            strengths = list(failure.part.strengths)
            self._log.write("part_given_up", failure.message, level="error", unit=unit, strengths=strengths)
        line = {
            "unit": failure.part.unit.id,
            "label": failure.part.label,
            "strengths": failure.part.strengths,
            "kind": failure.kind,
            "attempt": failure.attempt,
            "message": failure.message,
            "traceback": failure.traceback,
        }
        with open_file(self._folder / FAILURES_FILE, None, "ab") as stream:
            stream.write(json.dumps(line).encode() + b"\n")

    def write(self, *, state: str | None = None) -> None:
        """Write progress.json with a state (running, draining, stopped, drained or finished); None keeps the state."""
        with self._write_lock:
            self._state = state or self._state
            self._last_write, self._is_outdated = time.monotonic(), False
            write_text(self._folder / PROGRESS_FILE, json.dumps(self._payload(self._state)))

    def stop(self) -> None:
        """Write the state "stopped" after an error; delete progress.json if it cannot be written."""
        try:
            self.write(state="stopped")
        except StorageError:  # may also be the error that ended the run
            with suppress(OSError):
                (self._folder / PROGRESS_FILE).unlink()

    def _payload(self, state: str) -> dict[str, Any]:
        progress = self.progress
        has_rate = progress.is_rate_reliable or state not in WORKING_STATES
        return {
            "state": state,
            "quiet_seconds": progress.quiet_seconds,
            "measured_seconds": progress.measured_seconds,
            "done_evaluations": progress.done_evaluations,
            "total_evaluations": progress.total_evaluations,
            "evaluations_per_second": progress.evaluations_per_second if has_rate else None,
            "macs_per_second": progress.macs_per_second if has_rate else None,
            "seconds_left": progress.seconds_left if has_rate else None,
            "gpus_per_worker": self._gpus_per_worker,
            "deaths": self._tally.deaths,
            "preemptions": self._tally.preemptions,
        }
