"""An executor of simulated machines under a virtual clock: what `runtime.scheduler` drives in the simulation.

It behaves as the Ray executor does. A worker has a window of bundles; bundles for which no started worker has room wait
in common, of which a worker takes one of the network of its last bundle first; a worker keeps the network of its last
part; parts that ended before a machine went keep their receipts, the
part in progress is lost. Time passes from event to event, kept in a heap.
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
from robust201.runtime.executors.base import LOOKAHEAD, SHORT_SECONDS, BundleDone, BundleLost, Event, take_for
from robust201.runtime.metrics import Metrics

Activity = Literal["absent", "starting", "idle", "loading", "computing"]
Cause = Literal["absent", "starting", "idle", "loading", "computing", "lost"]
ACTIVITIES: tuple[Activity, ...] = ("absent", "starting", "idle", "loading", "computing")


@dataclass(frozen=True)
class Machines:
    """The simulated GPUs, all alike, one worker each.

    Attributes:
        n_gpus: how many.
        preemption_hours: mean time from a machine's arrival to its preemption (exponential); infinite for none.
        crash_hours: mean time from a worker's start to its death by itself (exponential); infinite for none.
        replacement_seconds: from a preemption to the next machine.
        start_seconds: from a machine to a worker that computes.
        load_seconds: weights and compilation, whenever the network changes.
        window: bundles that a worker is given at once.
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
    """One machine and its worker: what it does and since when.

    Attributes:
        life: number of its worker; events of an earlier one are void.
        position: part in progress of the bundle that stands first.
        network: what is loaded.
        offered: length of its queue under which it stands in the cluster's list of room.
    """

    number: int
    activity: Activity = "starting"
    since: float = 0.0
    life: int = 0
    queue: deque[Bundle] = field(default_factory=deque)
    position: int = 0
    network: tuple[str, ArchitectureId] | None = None
    offered: int | None = None


class VirtualCluster:
    """Computes bundles on machines that come and go, in no time; an `Executor`.

    Args:
        machines: what is simulated.
        seconds_of: what a part costs.
        seed: of preemptions and crashes.

    Attributes:
        now: virtual seconds since the start.
        hours: GPU-hours by cause; `close` completes them.
        preemptions: machines that were taken away, whatever they were doing.
        crashes: workers that died by themselves.
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
        self._held: deque[Bundle] = deque()
        self._in_flight = 0
        self._draining = False
        # By length of the queue, started workers that have room; a dict is a set that keeps its order.
        self._room: list[dict[int, None]] = [{} for _ in range(machines.window)]
        self.now = 0.0
        self.hours: dict[Cause, float] = dict.fromkeys(get_args(Cause), 0.0)
        self.preemptions = self.crashes = 0
        for gpu in self._gpus:
            self._after(machines.start_seconds, gpu, self._start)

    def free_slots(self) -> int:
        """Places left in the windows, those of workers that are yet to start among them, and among those that wait."""
        return 0 if self._draining else self._machines.n_gpus * self._machines.window + LOOKAHEAD - self._in_flight

    def submit(self, bundle: Bundle) -> None:
        """Take a bundle; it waits in common where no started worker has room."""
        self._in_flight += 1
        self._held.append(bundle)
        self._hand_out()

    def poll(self, timeout: float) -> list[Event]:
        """Advance the clock to the next time at which something is to be told.

        Raises:
            RuntimeError: nothing will ever happen, since there are no machines, or the clock went backwards.
        """
        del timeout
        while self._heap:
            time, _, gpu, life, happen = heapq.heappop(self._heap)
            if life != gpu.life:
                continue
            if time < self.now:
                raise RuntimeError(f"the virtual clock went from {self.now} back to {time}")
            self.now = time
            if events := happen(gpu):
                return events
        raise RuntimeError(f"nothing will ever happen on {self._machines.n_gpus} machines")

    def drain(self) -> None:
        """Take nothing more; what was taken is computed to its end."""
        self._draining = True

    def close(self) -> None:
        """Complete the ledger: every worker's activity ends now; safe to call twice."""
        for gpu in self._gpus:
            self._turn(gpu, gpu.activity)

    def _after(self, seconds: float, gpu: _Gpu, happen: Callable[[_Gpu], list[Event]]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._order), gpu, gpu.life, happen))

    def _turn(self, gpu: _Gpu, activity: Activity, *, lost: bool = False) -> None:
        """Book the time of what a worker did until now, and let it do something else."""
        cause: Cause = "lost" if lost and gpu.activity == "computing" else gpu.activity
        self.hours[cause] += (self.now - gpu.since) / 3600
        gpu.activity, gpu.since = activity, self.now

    def _offer(self, gpu: _Gpu) -> None:
        """Note how many bundles a worker has room for, after anything that changed it."""
        if gpu.offered is not None:
            del self._room[gpu.offered][gpu.number]
        is_open = gpu.activity not in ("absent", "starting")
        is_short = not gpu.queue or gpu.queue[-1].seconds <= SHORT_SECONDS
        gpu.offered = len(gpu.queue) if is_open and is_short and len(gpu.queue) < len(self._room) else None
        if gpu.offered is not None:
            self._room[gpu.offered][gpu.number] = None

    def _hand_out(self) -> None:
        """Give bundles to the workers with the shortest queues, as long as there is room."""
        while self._held:
            room = next((room for room in self._room if room), None)
            if room is None:
                return
            gpu = self._gpus[next(iter(room))]
            gpu.queue.append(take_for(self._held, gpu.queue[-1].network if gpu.queue else gpu.network))
            self._offer(gpu)
            if len(gpu.queue) == 1:
                self._begin(gpu)

    def _arrive(self, gpu: _Gpu) -> list[Event]:
        self._turn(gpu, "starting")
        self._after(self._machines.start_seconds, gpu, self._start)
        return []

    def _start(self, gpu: _Gpu) -> list[Event]:
        self._turn(gpu, "idle")
        machines = self._machines
        preemption, crash = (self._random.exponential(size=2) * 3600).tolist()
        preemption, crash = preemption * machines.preemption_hours, crash * machines.crash_hours
        if crash < preemption:
            self._after(crash, gpu, self._crash)
        elif math.isfinite(preemption):
            self._after(preemption, gpu, self._preempt)
        self._offer(gpu)
        self._hand_out()
        return []

    def _begin(self, gpu: _Gpu) -> None:
        """Begin the next part of the bundle that stands first."""
        unit = gpu.queue[0].parts[gpu.position].unit
        if gpu.network == (unit.dataset, unit.architecture):
            self._compute(gpu)
            return
        self._turn(gpu, "loading")
        gpu.network = (unit.dataset, unit.architecture)
        self._after(self._machines.load_seconds, gpu, self._compute)

    def _compute(self, gpu: _Gpu) -> list[Event]:
        self._turn(gpu, "computing")
        self._after(self._seconds_of(gpu.queue[0].parts[gpu.position]), gpu, self._finish)
        return []

    def _finish(self, gpu: _Gpu) -> list[Event]:
        """End a part, and begin the next one."""
        bundle = gpu.queue[0]
        part = bundle.parts[gpu.position]
        events: list[Event] = [Receipt(part.unit.id, part.strengths, part.start, part.stop, "", self.now - gpu.since)]
        self._turn(gpu, "idle")
        gpu.position += 1
        if gpu.position == len(bundle.parts):
            gpu.position = 0
            gpu.queue.popleft()
            self._in_flight -= 1
            events.append(BundleDone(bundle))
        self._offer(gpu)
        if gpu.queue:
            self._begin(gpu)
        else:
            self._hand_out()
        return events

    def _crash(self, gpu: _Gpu) -> list[Event]:
        self.crashes += 1
        return self._lose(gpu, preempted=False)

    def _preempt(self, gpu: _Gpu) -> list[Event]:
        self.preemptions += 1
        return self._lose(gpu, preempted=True)

    def _lose(self, gpu: _Gpu, *, preempted: bool) -> list[Event]:
        """End a worker; the next one starts on the same machine, or on one that replaces it."""
        self._turn(gpu, "absent" if preempted else "starting", lost=True)
        gpu.life += 1
        events: list[Event] = [
            BundleLost(bundle, started=bundle is gpu.queue[0], preempted=preempted, reason="its machine was lost")
            for bundle in gpu.queue
        ]
        self._in_flight -= len(events)
        gpu.queue.clear()
        gpu.position, gpu.network = 0, None
        self._offer(gpu)
        if preempted:
            self._after(self._machines.replacement_seconds, gpu, self._arrive)
        else:
            self._after(self._machines.start_seconds, gpu, self._start)
        return events
