"""Executor on simulated machines with a virtual clock, for simulations with the scheduler of `runtime.scheduler`.

The executor behaves like the Ray executor. Each worker has its own queue of limited length. Bundles wait in a common
queue if no started worker has room. A worker prefers a waiting bundle for the network of its last bundle, and keeps the
network of its last part loaded. If a machine is lost, the part in progress is lost, but finished parts are not. The
clock advances from event to event.
"""

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from robust201.core.records import ArchitectureId, Bundle, Part, Receipt
from robust201.runtime.executors.base import (
    LOOKAHEAD_BUNDLES,
    SHORT_BUNDLE_SECONDS,
    BundleDone,
    BundleLost,
    Event,
    take_bundle_of_network,
)
from robust201.runtime.metrics import Metrics

Activity = Literal["absent", "starting", "idle", "loading", "computing"]
Cause = Literal["absent", "starting", "idle", "loading", "computing", "lost"]
ACTIVITIES: tuple[Activity, ...] = ("absent", "starting", "idle", "loading", "computing")


@dataclass(frozen=True)
class Machines:
    """Simulated GPUs, all equal, with one worker each.

    Attributes:
        n_gpus: number of GPUs.
        preemption_hours: mean time from a worker's start to its machine's preemption (exponential); infinite for none.
        crash_hours: mean time from a worker's start to its crash (exponential); infinite for none.
        replacement_seconds: time from a preemption to the arrival of the next machine.
        start_seconds: time from a machine's arrival to its worker's start.
        load_seconds: time to load and compile weights when the network changes.
        window: maximum number of bundles that are assigned to a worker.
    """

    n_gpus: int
    preemption_hours: float = math.inf
    crash_hours: float = math.inf
    replacement_seconds: float = 300.0
    start_seconds: float = 30.0
    load_seconds: float = 2.0
    window: int = 2


@dataclass
class _Gpu:
    """A machine and its worker.

    Attributes:
        number: index of the machine.
        activity: current activity of the worker.
        activity_start: virtual time at which the activity started.
        generation: number of workers that the machine has lost; events of earlier workers are ignored.
        queue: assigned bundles; the worker computes the first one.
        part_index: index of the part in progress within the first bundle.
        network: the loaded network.
        listed_length: queue length under which the cluster lists the worker as open; None if it accepts no bundle.
    """

    number: int
    activity: Activity = "starting"
    activity_start: float = 0.0
    generation: int = 0
    queue: deque[Bundle] = field(default_factory=deque)
    part_index: int = 0
    network: tuple[str, ArchitectureId] | None = None
    listed_length: int | None = None


class VirtualCluster:
    """An `Executor` whose machines and clock are simulated.

    Args:
        machines: simulated machines.
        seconds_of: function that returns the cost of a part.
        seed: seed of preemptions and crashes.

    Attributes:
        now: virtual seconds since the start.
        hours: GPU-hours by cause; complete after `close`.
        preemptions: number of preempted machines.
        crashes: number of crashed workers.
    """

    gpus_per_worker = 1.0

    def __init__(self, machines: Machines, seconds_of: Callable[[Part], float], seed: int) -> None:
        self.metrics = Metrics()
        self.n_workers = machines.n_gpus
        self._machines = machines
        self._seconds_of = seconds_of
        self._random = np.random.default_rng(seed)
        self._gpus = [_Gpu(number) for number in range(machines.n_gpus)]
        self._heap: list[tuple[float, int, _Gpu, int, Callable[[_Gpu], list[Event]]]] = []
        self._order = itertools.count()
        self._waiting: deque[Bundle] = deque()
        self._in_flight = 0
        self._is_draining = False
        # Numbers of the workers that accept bundles, by queue length. The dicts serve as ordered sets.
        self._open_by_length: list[dict[int, None]] = [{} for _ in range(machines.window)]
        self.now = 0.0
        self.hours: dict[Cause, float] = dict.fromkeys(get_args(Cause), 0.0)
        self.preemptions = self.crashes = 0
        for gpu in self._gpus:
            self._schedule(machines.start_seconds, gpu, self._start)

    def free_slots(self) -> int:
        """Return the free slots in the common queue and in all workers' queues, including workers that are starting."""
        return (
            0
            if self._is_draining
            else self._machines.n_gpus * self._machines.window + LOOKAHEAD_BUNDLES - self._in_flight
        )

    def submit(self, bundle: Bundle) -> None:
        """Accept a bundle; it waits in the common queue if no started worker has room."""
        self._in_flight += 1
        self._waiting.append(bundle)
        self._assign_bundles()

    def poll(self, timeout: float) -> list[Event]:
        """Advance the clock to the next events, and return them.

        Raises:
            RuntimeError: there are no more events, or the clock would go backwards.
        """
        del timeout
        while self._heap:
            time, _, gpu, generation, handle = heapq.heappop(self._heap)
            if generation != gpu.generation:
                continue
            if time < self.now:
                raise RuntimeError(f"The virtual clock would go back from {self.now} to {time}.")
            self.now = time
            if events := handle(gpu):
                return events
        raise RuntimeError(f"There are no more events on {self._machines.n_gpus} machines.")

    def drain(self) -> None:
        """Accept no more bundles; finish those that were accepted."""
        self._is_draining = True

    def close(self) -> None:
        """End every worker's activity, which completes `hours`; may be called twice."""
        for gpu in self._gpus:
            self._switch_activity(gpu, gpu.activity)

    def _schedule(self, seconds: float, gpu: _Gpu, handle: Callable[[_Gpu], list[Event]]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), gpu, gpu.generation, handle))

    def _switch_activity(self, gpu: _Gpu, activity: Activity, *, is_lost: bool = False) -> None:
        """Add the time of a worker's activity to `hours`, and start another activity.

        If `is_lost` is true, computing time is added to the hours of the cause ``lost``.
        """
        cause: Cause = "lost" if is_lost and gpu.activity == "computing" else gpu.activity
        self.hours[cause] += (self.now - gpu.activity_start) / 3600
        gpu.activity, gpu.activity_start = activity, self.now

    def _update_open(self, gpu: _Gpu) -> None:
        """Update `_open_by_length` after a change to a worker's queue or activity."""
        if gpu.listed_length is not None:
            del self._open_by_length[gpu.listed_length][gpu.number]
        has_started = gpu.activity not in ("absent", "starting")
        ends_soon = not gpu.queue or gpu.queue[-1].seconds <= SHORT_BUNDLE_SECONDS
        gpu.listed_length = (
            len(gpu.queue) if has_started and ends_soon and len(gpu.queue) < len(self._open_by_length) else None
        )
        if gpu.listed_length is not None:
            self._open_by_length[gpu.listed_length][gpu.number] = None

    def _assign_bundles(self) -> None:
        """Assign waiting bundles to the workers with the shortest queues, while there is room."""
        while self._waiting:
            open_workers = next((open_workers for open_workers in self._open_by_length if open_workers), None)
            if open_workers is None:
                return
            gpu = self._gpus[next(iter(open_workers))]
            gpu.queue.append(take_bundle_of_network(self._waiting, gpu.queue[-1].network if gpu.queue else gpu.network))
            self._update_open(gpu)
            if len(gpu.queue) == 1:
                self._begin_part(gpu)

    def _arrive(self, gpu: _Gpu) -> list[Event]:
        self._switch_activity(gpu, "starting")
        self._schedule(self._machines.start_seconds, gpu, self._start)
        return []

    def _start(self, gpu: _Gpu) -> list[Event]:
        self._switch_activity(gpu, "idle")
        machines = self._machines
        preemption, crash = (self._random.exponential(size=2) * 3600).tolist()
        preemption, crash = preemption * machines.preemption_hours, crash * machines.crash_hours
        if crash < preemption:
            self._schedule(crash, gpu, self._crash)
        elif math.isfinite(preemption):
            self._schedule(preemption, gpu, self._preempt)
        self._update_open(gpu)
        self._assign_bundles()
        return []

    def _begin_part(self, gpu: _Gpu) -> None:
        """Start the next part of the first bundle."""
        unit = gpu.queue[0].parts[gpu.part_index].unit
        if gpu.network == (unit.dataset, unit.architecture):
            self._compute(gpu)
            return
        self._switch_activity(gpu, "loading")
        gpu.network = (unit.dataset, unit.architecture)
        self._schedule(self._machines.load_seconds, gpu, self._compute)

    def _compute(self, gpu: _Gpu) -> list[Event]:
        self._switch_activity(gpu, "computing")
        self._schedule(self._seconds_of(gpu.queue[0].parts[gpu.part_index]), gpu, self._finish)
        return []

    def _finish(self, gpu: _Gpu) -> list[Event]:
        """Finish a part, and start the next one."""
        bundle = gpu.queue[0]
        part = bundle.parts[gpu.part_index]
        events: list[Event] = [
            Receipt(part.unit.id, part.strengths, part.start, part.stop, "", self.now - gpu.activity_start)
        ]
        self._switch_activity(gpu, "idle")
        gpu.part_index += 1
        if gpu.part_index == len(bundle.parts):
            gpu.part_index = 0
            gpu.queue.popleft()
            self._in_flight -= 1
            events.append(BundleDone(bundle))
        self._update_open(gpu)
        if gpu.queue:
            self._begin_part(gpu)
        else:
            self._assign_bundles()
        return events

    def _crash(self, gpu: _Gpu) -> list[Event]:
        self.crashes += 1
        return self._lose_worker(gpu, is_preempted=False)

    def _preempt(self, gpu: _Gpu) -> list[Event]:
        self.preemptions += 1
        return self._lose_worker(gpu, is_preempted=True)

    def _lose_worker(self, gpu: _Gpu, *, is_preempted: bool) -> list[Event]:
        """End a worker, and schedule the start of the next one on the same machine or on its replacement."""
        self._switch_activity(gpu, "absent" if is_preempted else "starting", is_lost=True)
        gpu.generation += 1
        events: list[Event] = [
            BundleLost(
                bundle,
                was_started=bundle is gpu.queue[0],
                preempted=is_preempted,
                reason="its machine was preempted" if is_preempted else "its worker crashed",
            )
            for bundle in gpu.queue
        ]
        self._in_flight -= len(events)
        gpu.queue.clear()
        gpu.part_index, gpu.network = 0, None
        self._update_open(gpu)
        if is_preempted:
            self._schedule(self._machines.replacement_seconds, gpu, self._arrive)
        else:
            self._schedule(self._machines.start_seconds, gpu, self._start)
        return events
